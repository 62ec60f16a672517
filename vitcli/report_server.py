"""A page on this machine's own address, made anew whenever it is asked for; nothing else is served."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vitcli.errors import MachineError

HOST = "127.0.0.1"  # nobody else's machine
KNOWN_AS = {HOST, "localhost"}


def serve(make_page: Callable[[], str], *, port: int, policy: str, ready: Callable[[str], None]) -> None:
    """Answer until Ctrl-C, which is a KeyboardInterrupt here.

    Args:
        make_page: the page of now; one at a time.
        port: 0 for any that is free.
        policy: the page's Content-Security-Policy, sent as a header too.
        ready: told the address once it answers.

    Raises:
        MachineError: the port is taken or not allowed.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self._is_asked_here():
                return self._answer(403, "text/plain", "this page is for this machine\n")
            if self.path.partition("?")[0] != "/":
                return self._answer(404, "text/plain", "there is only one page here: /\n")
            with lock:
                page = make_page()
            self._answer(200, "text/html", page)

        def _is_asked_here(self) -> bool:
            """Not by a page of the web whose name has been pointed at this machine."""
            return self.headers.get("Host", "").rpartition(":")[0] in KNOWN_AS

        def _answer(self, code: int, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_) -> None:  # standard error is for what a person must know
            pass

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise MachineError(
            f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}",
            where="--port",
            fix="name another one, or leave it out for any that is free",
        ) from error
    server.daemon_threads = True
    with server:
        ready(f"http://{HOST}:{server.server_address[1]}/")
        server.serve_forever(poll_interval=0.2)
