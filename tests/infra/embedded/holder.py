"""A process that uses an embedded server until its standard input ends or Ctrl-C: `holder SERVICE DATA_DIR [options]`.

Prints the URL when it has the server, and `after interrupt: <state>` when Ctrl-C came while it had it.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from sqlalchemy import URL

from backend.infra.embedded import EmbeddedServiceError, embedded_postgres, embedded_valkey
from tests.infra.embedded.support import answers


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
    parser = argparse.ArgumentParser()
    parser.add_argument("service", choices=["postgres", "valkey"])
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--uid", type=int)
    options = parser.parse_args()
    if options.uid is not None:  # after the imports: the interpreter itself may lie in a closed directory
        os.setgroups([])
        os.setgid(options.uid)
        os.setuid(options.uid)
    server = embedded_postgres if options.service == "postgres" else embedded_valkey
    try:
        with server(options.data_dir) as url:
            _hold(url)
    except EmbeddedServiceError as error:
        print(f"EmbeddedServiceError: {error}", flush=True)
        return 3
    return 0


def _hold(url: URL | str) -> None:
    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    try:
        print(text, flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        print(f"after interrupt: {'alive' if answers(text) else 'dead'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
