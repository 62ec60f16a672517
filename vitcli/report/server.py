"""A page on this machine's own address, made anew whenever it is asked for; nothing else is served."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vitcli.errors import MachineError, VitError

HOST = "127.0.0.1"  # nobody else's machine
KNOWN_AS = {HOST, "localhost"}


def serve(
    make_page: Callable[[], str], *, port: int, headers: dict[str, str], ready: Callable[[str], None]
) -> None:
    """Answer until Ctrl-C, which is a KeyboardInterrupt here.

    Args:
        make_page: the page of now; one is made at a time.
        port: 0 for any that is free.
        headers: sent with every answer.
        ready: told the address once it answers.

    Raises:
        MachineError: the port is taken or not allowed.
    """
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as error:
        raise MachineError(
            f"port {port} cannot be used: {error.strerror or error}",
            where="--port",
            fix="name another one, or leave it out for any that is free",
        ) from error
    server.make_page, server.headers = make_page, headers
    with server:
        ready(f"http://{HOST}:{server.server_address[1]}/")
        server.serve_forever(poll_interval=0.2)


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a page that is being made does not hold up the end

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.one_at_a_time = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        # A name of the web may have been pointed at this machine, and its page would read ours.
        if self.headers.get("Host", "").partition(":")[0] not in KNOWN_AS:
            self._answer(403, "text/plain", "this page is for this machine\n")
        elif self.path.partition("?")[0] != "/":
            self._answer(404, "text/plain", "there is only one page here: /\n")
        else:
            try:
                with self.server.one_at_a_time:
                    self._answer(200, "text/html", self.server.make_page())
            except VitError as error:  # such as a folder that was taken away: the next request may do
                self._answer(503, "text/plain", f"{error}\n")

    def log_message(self, *_) -> None:
        """Nothing: standard error is for what a person must know."""

    def _answer(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        told = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in {**told, **self.server.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
