"""A server of this machine in a thread of the test, for the stand-ins of the Hub and of other addresses.

It may fail on purpose: `Trouble` says how, from which request on, and how often.
"""

import base64
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

PAGE = b"<!doctype html><html><body>Please log in.</body></html>"
RESET = struct.pack("ii", 1, 0)  # close without a goodbye


@dataclass
class Trouble:
    """How a server fails.

    Attributes:
        kind: an HTTP status, or one of
            "drop": half of the body, then a reset of the connection;
            "short": half of the body that it has announced;
            "longer": more than was asked for, and announced so;
            "stall": half of the body, then silence;
            "silent": no answer at all;
            "whole": all of the file, for any range;
            "shifted": the range before the one that was asked for, and announced so;
            "circle": a redirect to the same address;
            "gzip": bytes that are announced as compressed, and are not;
            "page": a web page with the status of success;
            "other": another file of the same size, with another entity tag.
        after: right answers before it.
        times: wrong answers, then all is well.
        on_head: whether a HEAD is answered so, too.
    """

    kind: int | str
    after: int = 0
    times: int = 1 << 30
    on_head: bool = False
    num_answers: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_kind(self, method: str) -> int | str | None:
        """Count an answer; return how it fails, or None."""
        if method == "HEAD" and not self.on_head:
            return None
        with self.lock:
            self.num_answers += 1
            return self.kind if self.after < self.num_answers <= self.after + self.times else None


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

    def send_file(self, data: bytes, **headers: str) -> None:
        """Answer with a file, or the part of it that was asked for; or as the stand-in's trouble says."""
        trouble = getattr(self.stand_in, "trouble", None)
        kind = trouble.next_kind(self.command) if trouble else None
        asked = self.headers.get("Range")
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        first, last = int(first), min(int(last or len(data)) + 1, len(data))
        if kind == "whole":
            asked, first, last = None, 0, len(data)
        if kind == "shifted":
            first, last = max(0, 2 * first - last), first or last // 2
        if kind == "longer":
            last = len(data) if last < len(data) else last
            first = max(0, first - 5) if last == len(data) else first
        if kind == "other":
            data, headers["ETag"] = data[::-1], '"other"'
        status, body = (206 if asked else 200), data[first:last]
        if asked:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(data)}"
        match kind:
            case int():
                self.send_whole(kind, b"")
            case "circle":
                self.send_whole(302, b"", Location=self.path)
            case "page":
                self.send_whole(200, PAGE, **{"Content-Type": "text/html; charset=utf-8"})
            case "gzip":
                self.send_whole(status, body, **headers, **{"Content-Encoding": "gzip"})
            case "silent":
                trouble.is_over.wait(60)
                self.close_connection = True
            case "drop" | "short" | "stall":
                self.send_whole(status, body[: len(body) // 2], promised=len(body), **headers)
                self._end_early(kind, trouble)
            case _:
                self.send_whole(status, body, **headers)

    def _end_early(self, kind: str, trouble: Trouble) -> None:
        self.close_connection = True
        self.wfile.flush()
        if kind == "stall":
            trouble.is_over.wait(60)
        if kind == "drop":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.connection.close()

    def send_whole(self, status: int, body: bytes, *, promised: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body) if promised is None else promised))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):  # who asked may have gone
                self.wfile.write(body)

    def handle(self) -> None:
        with suppress(OSError, ValueError):  # a connection that was reset, here or there
            super().handle()

    def finish(self) -> None:
        with suppress(OSError, ValueError):
            super().finish()


@dataclass
class Files:
    """A plain web server: files by path, each with an entity tag, whole or in ranges.

    Attributes:
        requests: method, path and range.
        key: what a request must have in its query, or as its password; any if empty.
    """

    address: str = ""
    key: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    trouble: Trouble | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


class _File(Answer):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.stand_in.requests.append((self.command, path, self.headers.get("Range")))
        data = self.stand_in.files.get(path)
        if not self._has_key(self.stand_in.key):
            self.send_whole(403, b"")
        elif data is None:
            self.send_whole(404, b"")
        else:
            self.send_file(data, ETag=f'"{hashlib.md5(data).hexdigest()}"', **{"Accept-Ranges": "bytes"})

    def _has_key(self, key: str) -> bool:
        login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        return key in (unquote(urlsplit(self.path).query), login) if key else True


@contextmanager
def serving(stand_in: Any, answer: type[Answer] = _File) -> Iterator[Any]:
    """Serve a stand-in until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *asked: answer(stand_in, *asked))
    server.daemon_threads = True
    stand_in.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield stand_in
    finally:
        if trouble := getattr(stand_in, "trouble", None):
            trouble.is_over.set()
        server.shutdown()
        server.server_close()
