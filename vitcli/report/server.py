"""Serve pages on the local host: one that is made again for every request, or what a function replies."""

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vitcli.errors import MachineError, VitError
from vitcli.output.html import POLICY

HOST = "127.0.0.1"
HOST_NAMES = {HOST, "localhost"}
MOST_CLIENTS, PATIENCE_S = 16, 10  # at a time; for a client that sends or reads nothing
HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
}  # fmt: skip
TEXT, HTML = "text/plain; charset=utf-8", "text/html; charset=utf-8"


@dataclass(frozen=True)
class PageRequest:
    """What a client asks for.

    Attributes:
        path: without what follows a question mark.
        body: of a POST.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True)
class Reply:
    """An answer to a client; `policy` says what its page may load and run."""

    content: bytes
    kind: str = TEXT
    code: int = 200
    policy: str = POLICY


def serve(make_page: Callable[[], str], *, port: int, ready: Callable[[str], None]) -> None:
    """Serve one page until Ctrl-C, see `serve_replies`.

    Args:
        make_page: returns the page; called for one request at a time.
    """
    page_lock = threading.Lock()

    def reply(request: PageRequest) -> Reply:
        if request.path != "/":
            return Reply(b"the only page is /\n", code=404)
        try:
            with page_lock:
                return Reply(make_page().encode(), HTML)
        except VitError as error:  # such as a deleted folder: the next request may succeed
            return Reply(f"{error}\n".encode(), code=503)

    serve_replies(reply, port=port, ready=ready)


def serve_replies(
    reply: Callable[[PageRequest], Reply],
    *,
    port: int,
    ready: Callable[[str], None],
    most_body_bytes: int = 0,
) -> None:
    """Serve until Ctrl-C, which raises KeyboardInterrupt.

    Args:
        reply: may be called by several threads at once.
        port: 0 for any free one.
        ready: called with the address once the server answers.
        most_body_bytes: of a POST; 0 refuses all of them.

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
    server.reply, server.most_body_bytes = reply, most_body_bytes
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
        self._answer(b"")

    def do_POST(self) -> None:
        length, most = self.headers.get("Content-Length", ""), self.server.most_body_bytes
        if not most:
            self.send_error(501)
        elif not (length.isdecimal() and len(length) < 10 and int(length) <= most):
            self._send(Reply(f"a body of up to {most} bytes, please\n".encode(), code=413))
        else:
            self._answer(self.rfile.read(int(length)))

    def log_message(self, *_) -> None:
        """Log nothing: standard error is for messages to the user."""

    def _answer(self, body: bytes) -> None:
        # DNS rebinding: a web page whose host name points at this machine must not read ours.
        if self.headers.get("Host", "").partition(":")[0] not in HOST_NAMES:
            self._send(Reply(b"this page is for this machine only\n", code=403))
            return
        path = self.path.partition("?")[0]
        self._send(self.server.reply(PageRequest(self.command, path, self.headers, body)))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.code)
        about = {"Content-Type": reply.kind, "Content-Length": str(len(reply.content))}
        for name, value in (about | HEADERS | {"Content-Security-Policy": reply.policy}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.content)
