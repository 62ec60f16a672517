"""Serve one page on the local host, made again for every request."""

import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vitcli.errors import MachineError, VitError
from vitcli.output.html import POLICY

HOST = "127.0.0.1"
HOST_NAMES = {HOST, "localhost"}
MOST_CLIENTS, PATIENCE_S = 16, 10  # at a time; for a client that sends or reads nothing
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
        server = _Server((HOST, port), _Handler)  # Ctrl-C does not wait for a page in the making
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


class _Server(ThreadingHTTPServer):
    """A few clients at a time, none of which can keep the others waiting."""

    def __init__(self, *args):
        super().__init__(*args)
        self._free = threading.Semaphore(MOST_CLIENTS)

    def process_request(self, request, client_address) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request, client_address) -> None:
        """Say nothing of clients that are gone or silent; any other error is a bug, and is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE_S

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
                    page = self.server.make_page()
            except VitError as error:  # such as a deleted folder: the next request may succeed
                self._answer(503, "text/plain", f"{error}\n")
            else:
                self._answer(200, "text/html", page)

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
