"""A server of this machine in a thread of the test, for the stand-ins of the Hub and of other addresses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Answer(BaseHTTPRequestHandler):
    """One answer of a stand-in: a subclass has its routes.

    Args:
        stand_in: what is on it and what was asked of it; gets the address of the server.
    """

    protocol_version = "HTTP/1.1"

    def __init__(self, stand_in: Any, *asked):
        self.stand_in = stand_in
        super().__init__(*asked)

    def log_message(self, *words) -> None:
        pass


@contextmanager
def serving(stand_in: Any, answer: type[Answer]) -> Iterator[Any]:
    """Serve a stand-in until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *asked: answer(stand_in, *asked))
    server.daemon_threads = True
    stand_in.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
