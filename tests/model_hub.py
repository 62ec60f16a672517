"""A stand-in for the Hugging Face Hub: the routes that putting a model there, and having it back, go through.

Large files go by Git LFS to another address with a signature in it; Xet is another protocol.
A route may fail on purpose.
"""

import base64
import hashlib
import json
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from tests.http_server import Answer, serving

TOKEN = "hf_OfAnnWhoMayWrite"
ROUTES = {
    "create": r"POST /api/repos/create",
    "validate": r"POST /api/validate-yaml",
    "branch": r"POST /api/models/(?P<name>[^/]+/[^/]+)/branch/(?P<at>[^/]+)",
    "preupload": r"POST /api/models/(?P<name>[^/]+/[^/]+)/preupload/(?P<at>[^/]+)",
    "commit": r"POST /api/models/(?P<name>[^/]+/[^/]+)/commit/(?P<at>[^/]+)",
    "paths": r"POST /api/models/(?P<name>[^/]+/[^/]+)/paths-info/(?P<at>[^/]+)",
    "info": r"GET /api/models/(?P<name>[^/]+/[^/]+)(/revision/(?P<at>[^/]+))?",
    "batch": r"POST /(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch",
    "verify": r"POST /verify",
    "put": r"PUT /storage/(?P<oid>[0-9a-f]{64})",
    "file": r"(GET|HEAD) /(?P<name>[^/]+/[^/]+)/resolve/(?P<at>[^/]+)/(?P<path>.+)",
}
LARGE = 1 << 14  # bytes; the real one has 10 MB and goes by the ending too


@dataclass
class Repository:
    private: bool = False
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    messages: list[str] = field(default_factory=list)

    def files(self, at: str = "main") -> dict[str, bytes] | None:
        return self.commits.get(self.branches.get(at, at))


@dataclass
class ModelHub:
    """What is on it, and what was asked of it.

    Attributes:
        stored: large files by SHA-256.
        faults: by route, the HTTP status it answers with.
        ignored: names that a .gitignore in the repository leaves out.
        altered: names whose contents are others once they are there.
        requests: routes in their order.
        tokens: by route, the tokens that came with it.
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    altered: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    tokens: dict[str, set[str | None]] = field(default_factory=dict)

    def environment(self, home: object) -> dict[str, str]:
        """For a process that takes this for the Hub."""
        return {
            "HF_ENDPOINT": self.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN,
            "NO_PROXY": "127.0.0.1", "HF_HOME": f"{home}/hf", "XDG_CACHE_HOME": f"{home}/cache",
        }  # fmt: skip


def stand_in() -> AbstractContextManager[ModelHub]:
    return serving(ModelHub(), _Answer)


class _Answer(Answer):
    wbufsize = -1  # an answer in one packet

    def _handle(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        for route, pattern in ROUTES.items():  # noqa: B007, the one that is found counts
            if found := re.fullmatch(pattern, f"{self.command} {url.path}"):
                break
        else:  # the library asks for more than it needs
            return self._send(404, {"error": f"no route for {self.command} {url.path}"})
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.stand_in.requests.append(route)
        self.stand_in.tokens.setdefault(route, set()).add(token)
        if route in self.stand_in.faults:
            return self._send(self.stand_in.faults[route], {"error": f"{route} fails on purpose"})
        if route not in ("put", "verify") and token != TOKEN:
            return self._send(401, {"error": "Invalid username or password."})
        words = {key: unquote(value) for key, value in found.groupdict().items() if value is not None}
        return getattr(self, f"_{route}")(**words)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if name.startswith("others/"):
            return self._send(403, {"error": "You don't have the rights to create a model under others"})
        status = 409 if name in self.stand_in.repositories else 200
        self.stand_in.repositories.setdefault(name, Repository(private=asked.get("visibility") == "private"))
        return self._send(status, {"url": f"{self.stand_in.address}/{name}"})

    def _validate(self) -> None:
        _, *front_matter = json.loads(self.body)["content"].split("---\n")
        try:
            yaml.safe_load(front_matter[0] if front_matter else "")
        except yaml.YAMLError as error:
            return self._send(400, {"errors": [{"message": str(error)}], "warnings": []})
        return self._send(200, {"errors": [], "warnings": []})

    def _info(self, name: str, at: str = "main") -> None:
        there = self.stand_in.repositories.get(name)
        if there is None or there.files(at) is None:
            return self._send(404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})
        return self._send(200, {"id": name, "private": there.private, "sha": there.branches.get(at, at)})

    def _branch(self, name: str, at: str) -> None:
        branches = self.stand_in.repositories[name].branches
        if at in branches:
            return self._send(409, {"error": "Reference already exists"})
        branches[at] = branches["main"]
        return self._send(200, {})

    def _preupload(self, name: str, at: str) -> None:
        files = self.stand_in.repositories[name].files(at)
        if files is None:
            return self._send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        told = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                "shouldIgnore": file["path"] in self.stand_in.ignored,
                "oid": _oid(files[file["path"]])[0] if file["path"] in files else None,
            }
            for file in json.loads(self.body)["files"]
        ]
        return self._send(200, {"files": told})

    def _batch(self, name: str) -> None:
        def told(oid: str, size: int) -> dict:
            put = {"href": f"{self.stand_in.address}/storage/{oid}?signature=hunter2"}
            actions = {"upload": put, "verify": {"href": f"{self.stand_in.address}/verify"}}
            return {"oid": oid, "size": size} | ({} if oid in self.stand_in.stored else {"actions": actions})

        objects = [told(**asked) for asked in json.loads(self.body)["objects"]]
        return self._send(200, {"transfer": "basic", "objects": objects})

    def _put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self._send(400, {"error": "these are other bytes"})
        self.stand_in.stored[oid] = self.body
        return self._send(200, {})

    def _verify(self) -> None:
        asked = json.loads(self.body)
        is_there = len(self.stand_in.stored.get(asked["oid"], b"")) == asked["size"]
        return self._send(200 if is_there else 404, {})

    def _commit(self, name: str, at: str) -> None:
        there = self.stand_in.repositories[name]
        head, *items = (json.loads(line) for line in self.body.splitlines())
        files = dict(there.files(at))
        for item in items:
            value = item["value"]
            if item["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            else:
                files[value["path"]] = self.stand_in.stored[value["oid"]]
        files |= {name: files[name] + b"." for name in self.stand_in.altered}
        oid = f"{len(there.commits):040x}"
        there.commits[oid], there.branches[at] = files, oid
        there.messages.append(head["value"]["summary"])
        url = f"{self.stand_in.address}/{name}/commit/{oid}"
        return self._send(200, {"success": True, "commitOid": oid, "commitUrl": url})

    def _paths(self, name: str, at: str) -> None:
        files, asked = self.stand_in.repositories[name].files(at), parse_qs(self.body.decode())["paths"]
        told = []
        for path in (path for path in asked if path in files):
            sha256, blob = hashlib.sha256(files[path]).hexdigest(), _oid(files[path])[1]
            size = len(files[path])
            lfs = {"lfs": {"oid": sha256, "size": size, "pointerSize": 130}} if size >= LARGE else {}
            told.append({"type": "file", "path": path, "size": size, "oid": blob} | lfs)
        return self._send(200, told)

    def _file(self, name: str, at: str, path: str) -> None:
        there = self.stand_in.repositories[name]
        contents = (there.files(at) or {}).get(path)
        if contents is None:
            return self._send(404, {"error": "no such file"}, {"X-Error-Code": "EntryNotFound"})
        commit = there.branches.get(at, at)
        return self._send(200, contents, {"X-Repo-Commit": commit, "ETag": f'"{_oid(contents)[0]}"'})

    def _send(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in (
            {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {})
        ).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _oid(contents: bytes) -> tuple[str, str]:
    """The name of a file's contents as preupload tells it, and git's."""
    blob = hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()
    return (hashlib.sha256(contents).hexdigest() if len(contents) >= LARGE else blob), blob
