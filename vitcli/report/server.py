"""Serve one page on the local host, made again for every request."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vitcli.errors import MachineError, VitError
from vitcli.output.html import POLICY

HOST = "127.0.0.1"
HOST_NAMES = {HOST, "localhost"}
HEADERS = {
    "Content-Security-Policy": POLICY, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
}  # fmt: skip


def serve(make_page: Callable[[], str], *, port: int, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, which raises KeyboardInterrupt.

    Args:
        make_page: returns the page; called for one request at a time.
        port: 0 for any free one.
        ready: called with the address once the server answers.

    Raises:
        MachineError: the port is in use or not allowed.
    """
    try:
        server = ThreadingHTTPServer((HOST, port), _Handler)  # Ctrl-C does not wait for a page in the making
    except OSError as error:
        raise MachineError(
            f"port {port} cannot be used: {error.strerror or error}",
            where="--port",
            fix="name another one, or leave it out for any free one",
        ) from error
    server.make_page, server.page_lock = make_page, threading.Lock()
    with server:
        ready(f"http://{HOST}:{server.server_address[1]}/")
        server.serve_forever(poll_interval=0.2)


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        """Answer as GET does, without the page."""
        self.do_GET()

    def do_GET(self) -> None:
        # DNS rebinding: a web page whose host name points at this machine must not read ours.
        if self.headers.get("Host", "").partition(":")[0] not in HOST_NAMES:
            self._answer(403, "text/plain", "this page is for this machine only\n")
        elif self.path.partition("?")[0] != "/":
            self._answer(404, "text/plain", "the only page is /\n")
        else:
            try:
                with self.server.page_lock:
                    self._answer(200, "text/html", self.server.make_page())
            except VitError as error:  # such as a deleted folder: the next request may succeed
                self._answer(503, "text/plain", f"{error}\n")

    def log_message(self, *_) -> None:
        """Log nothing: standard error is for messages to the user."""

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content)), **HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
