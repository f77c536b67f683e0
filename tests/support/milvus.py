"""A Milvus server in this process: milvus-lite, which speaks the protocol of the real one over a socket."""

import contextlib
from collections.abc import Iterator

from milvus_lite.adapter.grpc.server import start_server_in_thread


@contextlib.contextmanager
def milvus_lite(directory: str) -> Iterator[str]:
    """The address of a server with its data in ``directory``."""
    server, database, port = start_server_in_thread(directory)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait()
        database.close()
