"""A stand-in for the Hugging Face Hub: the routes that reading a data set where it lies goes through.

Listing gives two entries a page and files are handed out by another address, as the real one does. A data set
may be broken on purpose.
"""

import hashlib
import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from tests.http_server import Answer, serving

ENTRIES_A_PAGE = 2


@dataclass
class Hub:
    """What is on it, and what was asked of it.

    Attributes:
        files: by data set "owner/name@revision" and path.
        faults: by data set, the route ("info", "tree" or "file") that fails, and how: an HTTP status, or
            "cut" for an answer that ends in the middle, and of a file "whole" and "shifted" for other ranges
            than those that are asked for.
        spared: of a file, a range that begins here or later comes whole in spite of a fault.
        requests: route, data set, path, and the range that was asked for.
        seconds_a_request: how long each answer takes.
    """

    address: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    faults: dict[str, tuple[str, int | str]] = field(default_factory=dict)
    spared: int = 1 << 40
    requests: list[tuple[str, str, str, str | None]] = field(default_factory=list)
    seconds_a_request: float = 0.0

    def environment(self, home: object) -> dict[str, str]:
        """For a process that takes this for the Hub."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",  # whoever runs the tests may be logged in
            "NO_PROXY": "127.0.0.1",
            "HF_HOME": f"{home}/hf",
            "XDG_CACHE_HOME": f"{home}/cache",
        }


def stand_in() -> AbstractContextManager[Hub]:
    return serving(Hub(), _Answer)


class _Answer(Answer):
    def do_GET(self) -> None:
        address = urlsplit(self.path)
        match address.path.strip("/").split("/"):
            case ["api", "datasets", owner, name]:
                self._info(f"{owner}/{name}", "main")
            case ["api", "datasets", owner, name, "revision", revision]:
                self._info(f"{owner}/{name}", unquote(revision))
            case ["api", "datasets", owner, name, "tree", revision, *folder]:
                self._tree(
                    f"{owner}/{name}",
                    unquote(revision),
                    unquote("/".join(folder)),
                    {key: values[-1] for key, values in parse_qs(address.query).items()},
                )
            case ["datasets", owner, name, "resolve", revision, *path]:
                path = unquote("/".join(path))
                if self._files(f"{owner}/{name}", unquote(revision), route="resolve", path=path) is not None:
                    self._send(302, b"", Location=f"/cdn/{address.path.strip('/')}?Signature=hunter2")
            case ["cdn", "datasets", owner, name, "resolve", revision, *path]:
                self._file(f"{owner}/{name}", unquote(revision), unquote("/".join(path)))
            case _:
                self.stand_in.requests.append(("unknown", "", self.path, None))
                self._send(404, b"")

    def _info(self, name: str, revision: str) -> None:
        if self._files(name, revision, route="info", path="") is not None:
            self._send_json({"id": name, "sha": "0" * 40, "private": False, "tags": [], "siblings": []})

    def _tree(self, name: str, revision: str, folder: str, query: dict[str, str]) -> None:
        files = self._files(name, revision, route="tree", path=folder)
        if files is None:
            return
        entries: dict[str, dict] = {}
        for path, data in sorted(files.items()):
            parts = path.split("/")
            for depth in range(1, len(parts)):
                parent = "/".join(parts[:depth])
                entries[parent] = {
                    "type": "directory",
                    "path": parent,
                    "oid": _hash(parent.encode()),
                    "size": 0,
                }
            large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 131}
            entries[path] = {
                "type": "file",
                "path": path,
                "oid": _hash(data),
                "size": len(data),
                "lfs": large,
            }
        below = f"{folder}/" if folder else ""
        found = [
            entry
            for path, entry in entries.items()
            if path.startswith(below)
            and (query.get("recursive") == "true" or "/" not in path.removeprefix(below))
        ]
        if not found and folder:
            self._send(404, b"", **{"X-Error-Code": "EntryNotFound"})
            return
        first = int(query.get("cursor", 0))
        last = first + ENTRIES_A_PAGE
        recursive = query.get("recursive", "false")
        place = f"{self.stand_in.address}{urlsplit(self.path).path}?recursive={recursive}&cursor={last}"
        more = {"Link": f'<{place}>; rel="next"'} if last < len(found) else {}
        self._send_json(found[first:last], **more)

    def _file(self, name: str, revision: str, path: str) -> None:
        data = self.stand_in.files[f"{name}@{revision}"][path]
        asked = self.headers.get("Range")
        first, last = (asked or "bytes=0-").removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(data)) + 1, len(data))
        if self._files(name, revision, route="file", path=path, first=first) is None:
            return
        lie = self.stand_in.faults.get(name, (None, 0))[1] if first < self.stand_in.spared else None
        if lie == "whole":
            asked, first, last = None, 0, len(data)
        if lie == "shifted":
            first, last = first + 1, last + 1
        headers = {"ETag": f'"{_hash(data)}"', "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(data)}"
        self._send(206 if asked else 200, data[first:last], **headers)

    def _files(
        self, name: str, revision: str, *, route: str, path: str, first: int = 0
    ) -> dict[str, bytes] | None:
        """The files of a data set; None where the answer has been given, because there is something wrong."""
        self.stand_in.requests.append((route, name, path, self.headers.get("Range")))
        time.sleep(self.stand_in.seconds_a_request)
        broken, how = self.stand_in.faults.get(name, (None, 0))
        if broken == route and first < self.stand_in.spared and how not in ("whole", "shifted"):
            if how == "cut":
                self._send(206 if route == "file" else 200, b"half of it", promised=1_000)
            elif how in (401, 403):
                self._send(
                    how, b"", **{"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}
                )
            else:
                self._send(how, b"")
            self.close_connection = True
            return None
        if f"{name}@{revision}" not in self.stand_in.files:
            known = any(place.startswith(f"{name}@") for place in self.stand_in.files)
            # Without a token the real one says 401 of what is not there, so as not to say what is private.
            code = {"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"}
            self._send(404 if known else 401, b"", **code)
            return None
        return self.stand_in.files[f"{name}@{revision}"]

    def _send_json(self, told: object, **headers: str) -> None:
        self._send(200, json.dumps(told).encode(), **{"Content-Type": "application/json"} | headers)

    def _send(self, status: int, body: bytes, *, promised: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(promised or len(body)))
        self.end_headers()
        self.wfile.write(body)


def _hash(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
