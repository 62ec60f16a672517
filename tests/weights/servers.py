"""A model, and stand-ins in one server: the Hub's routes for reading it, and a bucket of files.

Ranges are answered, answers may be cut or delayed, and what was asked is on record.
"""

import base64
import hashlib
import io
import json
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import numpy as np
import torch
from safetensors.torch import save

from tests.http_server import Answer, serving
from vitcli.models.architecture import Architecture
from vitcli.models.build import build
from vitcli.models.variants import vit_args
from vitcli.weights.authors_npz import to_official

COMMIT = "5" * 40
SIZE = vit_args(layers=1, hidden=48, mlp=96, heads=3, patch_size=16)


@dataclass
class Server:
    """What is on it, and what was asked of it.

    Attributes:
        repositories: files of each repository "owner/name".
        bucket: files by path, such as "vit_models/imagenet21k/ViT-B_16.npz".
        cut: the number of bytes after which the next answers end, one each.
        status: answered to everything instead; 0 for what is right.
        statuses: the same for the next answers, one each.
        shift: parts begin this many bytes before the asked one.
        page: files are sent as web pages.
        damaged: files arrive with another byte at the end.
        tag: the entity tag of all files of the Hub; "" for what is right.
        requests: method, path and range, without the Hub's redirects.
    """

    address: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    bucket: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    status: int = 0
    statuses: list[int] = field(default_factory=list)
    shift: int = 0
    page: bool = False
    damaged: bool = False
    tag: str = ""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def gets(self, name: str) -> list[str | None]:
        """The ranges that were asked of a file."""
        return [asked for method, path, asked in self.requests if method == "GET" and path.endswith(name)]


def serve() -> AbstractContextManager[Server]:
    return serving(Server(), _Answer)


class _Answer(Answer):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.stand_in.requests.append((self.command, path, self.headers.get("Range")))
        status = self.stand_in.statuses.pop(0) if self.stand_in.statuses else self.stand_in.status
        match path.split("/"):
            case _ if status:
                self._send(status, b"")
            case [owner, name, "resolve", revision, *file]:
                self._hub_file(f"{owner}/{name}", revision, "/".join(file))
            case _ if path in self.stand_in.bucket:
                data = self.stand_in.bucket[path]
                md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
                self._file(data, ETag=f'"{hashlib.md5(data).hexdigest()}"', **{"x-goog-hash": f"md5={md5}"})
            case _:
                self._send(404, b"")

    def _hub_file(self, repository: str, revision: str, file: str) -> None:
        files = self.stand_in.repositories.get(repository)
        if files is None:
            self._send(404, b"", **{"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self._send(404, b"", **{"X-Error-Code": "RevisionNotFound"})
        elif file not in files:
            self._send(404, b"", **{"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            etag = f'"{self.stand_in.tag or hashlib.sha256(files[file]).hexdigest()}"'
            self._file(files[file], ETag=etag, **{"X-Repo-Commit": COMMIT, "X-Linked-Etag": etag})

    def _file(self, data: bytes, **headers: str) -> None:
        asked, first = self.headers.get("Range"), 0
        if self.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            asked = None
        if asked:
            first = int(asked.removeprefix("bytes=").partition("-")[0]) - self.stand_in.shift
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if self.stand_in.page:
            headers["Content-Type"] = "text/html; charset=utf-8"
        if self.stand_in.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if asked and first >= len(data):
            self._send(416, b"")
        else:
            self._send(206 if asked else 200, data[first:], **headers)

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if status < 300 and self.stand_in.cut:
            body = body[: self.stand_in.cut.pop(0)]
            self.close_connection = True
        self.wfile.write(body)


def network(*, num_classes: int = 3, seed: int = 0) -> tuple[Architecture, dict[str, torch.Tensor]]:
    torch.manual_seed(seed)
    arch = Architecture("small", "vit_tiny_patch16_224", (32, 32), num_classes, "tanh", False, SIZE)
    return arch, {name: torch.randn(t.shape) for name, t in build(arch, dropout=0.0).state_dict().items()}


def timm_files(state: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """A repository as timm pushes it."""
    cfg = {"input_size": [3, 32, 32], "num_classes": 3}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 3, "pretrained_cfg": cfg}
    config["model_args"] = {**SIZE, "img_size": 32}
    return {"config.json": json.dumps(config).encode(), "model.safetensors": save(state)}


def npz_of(state: dict[str, torch.Tensor]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **to_official(state, heads=3, spelling="published"))
    return file.getvalue()
