"""Downloads of weights: files of the Hub to its own cache, files at other addresses to ours.

Both caches are shared by all processes: a lock lets one download and the others wait. A download that stops
is resumed, and what arrives is compared with the size and the checksum that its server states.
"""

import base64
import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from vitcli import __version__
from vitcli.cache import user_cache
from vitcli.errors import MachineError, VitError, WeightsError, reason_of
from vitcli.io.files import lock_file
from vitcli.io.http import TRANSIENT, hub_outage, outage_of, watch_hub
from vitcli.output.atomic import digest_of_file, load_json, sync
from vitcli.output.progress import Progress
from vitcli.output.redaction import public_name
from vitcli.weights.names import FILE_NAMES, HUB_PREFIXES, INDEX, Reference, resolve

TIMEOUT_S = 10.0  # without any byte from the server
WAITS_S = (1.0, 4.0)  # before each further try of a download that has begun
CHUNK = 2**20
SHOWN_FROM = 2**20  # bytes of the smallest file with a progress bar
LARGEST_INDEX = 50 * 2**20  # bytes
CARD = "README.md"  # of a repository or folder; its first lines state the licence
NO_SUCH_PART = 416  # HTTP status
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO,
               errno.ESTALE)  # fmt: skip
OFFLINE_FIX = "unset HF_HUB_OFFLINE to download, or name a local file"
CACHE_FIX = "make room, or set XDG_CACHE_HOME to a folder that can be written"
NETWORK_FIX = "check the connection, or name a local file; what was downloaded before is found without one"


def is_offline() -> bool:
    """Return whether the user forbids downloads: HF_HUB_OFFLINE, which the Hub's client reads once."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def cached_path(address: str) -> Path:
    """Return where the file of an address is, or will be, in our cache."""
    name = Path(unquote(urlsplit(address).path)).name
    return user_cache.cache_folder("weights") / hashlib.sha256(address.encode()).hexdigest()[:16] / name


def fetch_address(address: str, progress: Progress) -> Path:
    """Return the file of an https:// address, downloaded unless it is in our cache.

    Raises:
        WeightsError: the server does not have it, or what arrived is damaged.
        MachineError: no connection, a server that fails, or no room on the disk.
    """
    path = cached_path(address)
    if path.is_file():
        user_cache.hold(path.parent)
        return path
    if is_offline():
        message = f"{public_name(address)} is not in the cache, and HF_HUB_OFFLINE is set"
        raise WeightsError(message, where="", fix=OFFLINE_FIX)
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        user_cache.hold(path.parent)
        with lock_file(path.with_name(f"{path.name}.lock"), wait_s=float("inf")):
            if not path.is_file():  # another process may have downloaded it meanwhile
                _Download(address, path, progress).run()
    return path


class _Download:
    """One file on its way: FILE.partial holds what has arrived, FILE.partial.json which version of it."""

    def __init__(self, address: str, path: Path, progress: Progress):
        self.address, self.path, self.progress = address, path, progress
        self.partial = path.with_name(f"{path.name}.partial")
        self.about = path.with_name(f"{path.name}.partial.json")

    def run(self) -> None:
        for wait_s in (*WAITS_S, None):
            try:
                headers = self._receive()
                break
            except HTTPError as error:
                if error.code == NO_SUCH_PART:
                    self._discard()
                if wait_s is None or error.code not in (NO_SUCH_PART, *TRANSIENT):
                    raise _refused(self.address, error.code) from error
            # No connection, it ended in the middle, or headers that are none: a length or an address
            except (OSError, HTTPException, ValueError) as error:
                has_begun = self.partial.is_file() and self.partial.stat().st_size > 0
                if _is_of_disk(error):
                    raise
                if wait_s is None or not has_begun:
                    raise _unreachable(self.address, error) from error
            finally:
                self.progress.end()
            time.sleep(wait_s)
        self._check(headers)
        sync(self.partial)  # only its name is looked at from now on
        os.replace(self.partial, self.path)
        self.about.unlink(missing_ok=True)

    def _receive(self) -> dict[str, str]:
        """Receive what is missing; return the headers that state size and checksum of the whole file."""
        known, done = self._resumable()
        headers = {"User-Agent": f"vitcli/{__version__}", "Accept-Encoding": "identity"}
        if done:
            headers |= {"Range": f"bytes={done}-", "If-Range": known["etag"]}
        with urlopen(Request(_encoded(self.address), headers=headers), timeout=TIMEOUT_S) as answer:
            stated = {name.lower(): value for name, value in answer.headers.items()}
            self._check_answer(answer.url, stated)
            if answer.status != 206:  # the whole file
                self._discard()
                known, done = {"etag": stated.get("etag", ""), "headers": stated}, 0
                self.about.write_text(json.dumps({"address": public_name(self.address), **known}))
            elif not done or not _continues(stated, known["etag"], done):
                raise HTTPError(
                    self.address, NO_SUCH_PART, "not the part that is missing", answer.headers, None
                )
            length = stated.get("content-length")
            total = done + int(length) if length else None
            _check_room(self.path, (total or 0) - done)
            self._copy(answer, done, total)
        return known["headers"] | ({"content-length": str(total)} if total is not None else {})

    def _check_answer(self, url: str, stated: dict[str, str]) -> None:
        """Refuse an answer that lost its encryption on the way, or that is not a file."""
        where, host = public_name(self.address), urlsplit(self.address).hostname
        if self.address.startswith("https:") and not url.startswith("https:"):
            message = f"{host} redirects to an address without encryption"
            raise WeightsError(message, where=where, fix="name the address that it redirects to")
        if stated.get("content-type", "").startswith("text/html"):  # of a log-in, or around the file
            message = f"{host} answers with a web page, not with a file"
            raise WeightsError(message, where=where, fix="name the address of the page's download link")

    def _discard(self) -> None:
        self.partial.unlink(missing_ok=True)
        self.about.unlink(missing_ok=True)

    def _resumable(self) -> tuple[dict[str, Any], int]:
        """Return what is known of the part that is there, and its bytes; 0 where its version is not known."""
        with suppress(OSError, ValueError):
            known = load_json(self.about)
            # A weak entity tag does not promise the same bytes
            if known["etag"] and not known["etag"].startswith("W/"):
                return known, self.partial.stat().st_size
        return {}, 0

    def _copy(self, answer: Any, done: int, total: int | None) -> None:
        if total and total >= SHOWN_FROM:
            self.progress.begin(f"download {self.path.name}, MB", _megabytes(total), _megabytes(done))
        with self.partial.open("ab") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                if total and total >= SHOWN_FROM:
                    self.progress.update(_megabytes(done))
        if total is not None and done < total:
            raise OSError(f"the connection ended after {done:,} of {total:,} bytes")

    def _check(self, headers: dict[str, str]) -> None:
        """Compare size and checksum with what the server states; a damaged file is removed."""
        size, stated = self.partial.stat().st_size, _checksums(headers)
        is_whole = size == int(headers.get("content-length", size))
        if is_whole and all(digest_of_file(self.partial, kind) == value for kind, value in stated.items()):
            return
        self._discard()
        what = "checksum" if is_whole else "size"
        message = f"{self.path.name} arrived damaged: its {what} is not the one that the server states"
        raise WeightsError(message, where="", fix="start the same command again")


def _continues(stated: dict[str, str], etag: str, done: int) -> bool:
    """Return whether a part begins where the received one ends, and is of the same version."""
    return stated.get("content-range", "").startswith(f"bytes {done}-") and stated.get("etag", etag) == etag


def _encoded(address: str) -> str:
    """Return an address whose spaces and letters beyond ASCII are as servers take them."""
    parts, safe = urlsplit(address), "%/:=&?~+!$,;'@()*"
    return parts._replace(path=quote(parts.path, safe), query=quote(parts.query, safe), fragment="").geturl()


def _checksums(headers: dict[str, str]) -> dict[str, bytes]:
    """Return the checksums that a server states: MD5 of Google's buckets, or those of HTTP."""
    texts = {
        "md5": f"{headers.get('x-goog-hash', '')},md5={headers.get('content-md5', '')}",
        "sha-256": f"{headers.get('repr-digest', '')},{headers.get('digest', '')}",
    }
    checksums = {}
    for name, text in texts.items():
        kind, match = name.replace("-", ""), re.search(rf"{name}=:?([\w+/]+=*)", text, re.IGNORECASE)
        with suppress(ValueError):  # no base64
            checksum = base64.b64decode(match[1]) if match else b""
            if len(checksum) == hashlib.new(kind).digest_size:
                checksums[kind] = checksum
    return checksums


def is_here(reference: Reference) -> bool:
    """Return whether weights are on this machine, without asking any server."""
    from huggingface_hub import try_to_load_from_cache

    match reference.kind:
        case "address":
            return cached_path(reference.place).is_file()
        case "hub":
            names = [reference.file] if reference.file else FILE_NAMES
            revision = reference.revision or None
            cached = (try_to_load_from_cache(reference.place, name, revision=revision) for name in names)
            return any(isinstance(path, str) for path in cached)
    return True


def hub_id(ckpt: str) -> str | None:
    """Return OWNER/NAME of weights that were read from the Hub; None for any others.

    OWNER/NAME alone may also be a path that is gone: it is on the Hub only if it is in the Hub's cache.
    """
    try:
        reference = resolve(ckpt)
    except WeightsError:
        return None
    is_sure = ckpt.startswith((*HUB_PREFIXES, "timm/")) or "/" not in ckpt or "://" in ckpt
    return reference.place if reference.kind == "hub" and (is_sure or is_here(reference)) else None


def fetch_repository(repository: str, revision: str, file: str, progress: Progress) -> Path:
    """Return the weights file of a repository on the Hub, in the Hub's cache, with its configs beside it.

    Args:
        revision: "" for the main branch.
        file: path in the repository; "" for the usual names, safetensors first.

    Raises:
        WeightsError: no such repository or file, no access to it, or nothing cached and HF_HUB_OFFLINE set.
        MachineError: no connection, or no room on the disk.
    """
    with _hub_errors(repository):
        hub = _HubFiles(repository, revision or None, progress)
        folder = file.rpartition("/")[0]
        for config in ("config.json", "preprocessor_config.json"):
            hub.fetch(f"{folder}/{config}" if folder else config)
        names = [file] if file else FILE_NAMES
        path = next((path for name in names if (path := hub.fetch(name))), None)
        if path is None:
            raise hub.without(names)
        if path.name.endswith(INDEX):
            for shard in shard_names(path):
                if hub.fetch(f"{folder}/{shard}" if folder else shard) is None:
                    raise hub.without([shard])
        hub.fetch(CARD)
    if hub.outage:
        progress.note(f"{repository} is read from the Hub's cache: the Hub {hub.outage}")
    return path


def shard_names(index: Path) -> list[str]:
    """Return the files that a list of shards names, each beside it.

    Raises:
        WeightsError: no such list, or one that names files elsewhere.
    """
    try:
        if index.stat().st_size > LARGEST_INDEX:
            raise ValueError("it is too large")
        weight_map = load_json(index)["weight_map"]
        names = sorted(set(weight_map.values()))
        if not names or not all(
            Path(name).name == name and name.endswith((".safetensors", ".bin")) for name in names
        ):
            raise ValueError("it names files that are not beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{index.name} is not a list of shards: {reason_of(error)}"
        raise WeightsError(message, where="", fix="fetch or write the file again") from error
    return names


class _HubFiles:
    """Files of one repository at one commit.

    Attributes:
        outage: in words, why the Hub cannot be asked; else "".
        is_local: only the cache is read, because the user wants that or because of an outage.
    """

    def __init__(self, repository: str, revision: str | None, progress: Progress):
        self.repository, self.revision, self.progress = repository, revision, progress
        self.endpoint = os.environ.get("HF_ENDPOINT") or None
        self.outage = ""
        if not is_offline():
            self.outage = hub_outage(repository, "config.json", revision=revision, endpoint=self.endpoint)
        self.is_local = is_offline() or bool(self.outage)

    def _cached(self, name: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repository, name, revision=self.revision)
        return Path(path) if isinstance(path, str) else None

    def fetch(self, name: str) -> Path | None:
        """Return the file in the cache, downloaded if need be; None if the repository lacks it."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        before = self._cached(name)
        if self.is_local:
            return before
        watch_hub()
        try:
            path = Path(
                hf_hub_download(
                    self.repository,
                    name,
                    revision=self.revision,
                    endpoint=self.endpoint,
                    tqdm_class=_bar_of(self.progress, Path(name).name),
                )
            )
        except LocalEntryNotFoundError:  # the Hub did not say whether it has the file
            raise
        except EntryNotFoundError:
            return None
        finally:
            self.progress.end()
        blob = path.resolve()
        # The client compares sizes; large files are called by their SHA-256
        is_new = before is None or before.resolve() != blob
        if is_new and re.fullmatch(r"[0-9a-f]{64}", blob.name) and digest_of_file(blob).hex() != blob.name:
            path.unlink()
            blob.unlink(missing_ok=True)
            message = f"{name} arrived damaged: its checksum is not the one that the Hub states"
            raise WeightsError(message, where="", fix="start the same command again")
        # All files come from the commit of the first: snapshots/COMMIT/NAME
        self.revision = path.parents[name.count("/")].name
        return path

    def without(self, names: Sequence[str]) -> VitError:
        """Return the error of a repository that has none of these files."""
        if self.outage:
            message = f"{self.repository} is not whole in the Hub's cache, and the Hub {self.outage}"
            return MachineError(message, where="", fix=NETWORK_FIX)
        if self.is_local:
            message = f"{self.repository} is not whole in the Hub's cache, and HF_HUB_OFFLINE is set"
            return WeightsError(message, where="", fix=OFFLINE_FIX)
        shown = " and no ".join(name for name in names if not name.endswith(INDEX))
        fix = f"name its file: hf://{self.repository}/FILE.safetensors"
        return WeightsError(f"{self.repository} has no {shown or names[0]}", where="", fix=fix)


def _bar_of(progress: Progress, name: str) -> type:
    """Return a class that the Hub's client takes for tqdm and that advances our bar."""
    from huggingface_hub.utils import tqdm

    class HubBar(tqdm):
        """Bar of one file; of the two that the client may make, the first is shown."""

        def __init__(self, *args, **options):
            self.total_bytes, self.num_bytes = options.get("total") or 0, options.get("initial") or 0
            self.is_shown = self.total_bytes >= SHOWN_FROM and not progress.is_busy
            super().__init__(*args, **options | {"disable": True})
            if self.is_shown:
                total, done = _megabytes(self.total_bytes), _megabytes(self.num_bytes)
                progress.begin(f"download {name}, MB", total, done)

        def update(self, n: float | None = 1) -> None:
            self.num_bytes += n or 0
            if self.is_shown:
                progress.update(_megabytes(self.num_bytes))

        def close(self) -> None:
            if self.is_shown:
                self.is_shown = False
                progress.end()
            super().close()

    return HubBar


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    """Turn what the Hub's client raises into errors of ours."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    log_in = "log in with access to it: hf auth login"
    try:
        yield
    except VitError:
        raise
    except GatedRepoError as error:
        message = f"access to {repository} on the Hub is restricted"
        raise WeightsError(
            message, where="", fix=f"accept its conditions on the Hub, and {log_in}"
        ) from error
    except RevisionNotFoundError as error:
        message = f"{repository} has no such branch, tag or commit on the Hub"
        raise WeightsError(message, where="", fix="leave @REVISION out for the main branch") from error
    except RepositoryNotFoundError as error:
        message = f"there is no {repository} on the Hub, or it is private"
        raise WeightsError(message, where="", fix=f"check the name; of a private one {log_in}") from error
    except Exception as error:  # of the client, its HTTP library, or for an invalid name: no common type
        if _is_of_disk(error):
            raise MachineError(
                f"{repository} cannot be saved: {reason_of(error)}", where="", fix="make room, or set HF_HOME"
            ) from error
        message = f"could not download {repository} from the Hub: {reason_of(error.__cause__ or error)}"
        if outage_of(error):
            raise MachineError(message, where="", fix=NETWORK_FIX) from error
        raise WeightsError(message, where="", fix="check the name and the connection") from error


def _refused(address: str, status: int) -> VitError:
    shown, host = public_name(address), urlsplit(address).hostname
    if status in TRANSIENT:
        return MachineError(f"{host} answers with status {status}", where=shown, fix="try again later")
    if status in (401, 403):
        return WeightsError(
            f"{host} refuses access to it", where=shown, fix="check the address, or ask its owner"
        )
    what = "has no such file" if status in (404, 410) else "does not send it"
    return WeightsError(f"{host} {what} (status {status})", where=shown, fix="check the address")


def _unreachable(address: str, error: BaseException) -> MachineError:
    reason = error.reason if isinstance(error, URLError) else error
    host = urlsplit(address).hostname
    message = f"{host} cannot be reached: {reason_of(reason) if isinstance(reason, Exception) else reason}"
    return MachineError(message, where=public_name(address), fix=NETWORK_FIX)


def _check_room(path: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if num_bytes > free:
        message = f"{path.name} needs {_megabytes(num_bytes):,} MB, the disk has {_megabytes(free):,} MB left"
        raise MachineError(message, where=str(path.parent), fix=CACHE_FIX)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, NotImplementedError) as error:  # the second, of a file system without locks
        message = f"{path.name} cannot be saved: {reason_of(error)}"
        raise MachineError(message, where=str(path.parent), fix=CACHE_FIX) from error


def _is_of_disk(error: BaseException) -> bool:
    """Return whether the disk failed and not the network."""
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def _megabytes(num_bytes: float) -> int:
    return -(-int(num_bytes) // 1_000_000)
