"""Upload of files to a Hugging Face model repository, in one commit whose hashes are verified afterwards.

The token is that of `hf auth login` or HF_TOKEN; it is sent to the Hub and nowhere else, and never printed.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import disable_progress_bars, get_token, logging, validate_repo_id

from vitcli.errors import CheckFailed, MachineError, VitError

OPTION = "--push-to-hub"
LOG_IN = "hf auth login, or HF_TOKEN=..., with a token that may write"


class Uploaded(NamedTuple):
    """Files on the Hub after an upload.

    Attributes:
        url: of the repository or branch, for a browser.
        commit: the new commit; the previous one if nothing has changed.
        files: name to size in bytes.
    """

    url: str
    commit: str
    files: dict[str, int]


def check(repository: str, branch: str | None, *, quiet: bool) -> None:
    """Refuse an impossible upload before any work, without a request to the Hub.

    Raises:
        VitError: not the name of a repository or branch.
        MachineError: offline, or no token.
    """
    if not _is_name(repository):
        fix = "OWNER/NAME of letters, digits, '-', '_' and '.', with you or your organisation as the owner"
        raise VitError(f"{repository!r} is not the name of a Hub repository", where=OPTION, fix=fix)
    if branch is not None and not branch.strip():
        raise VitError(
            "the branch has no name", where="--revision", fix="leave it out for the default branch"
        )
    if constants.HF_HUB_OFFLINE:
        fix = "unset HF_HUB_OFFLINE for this command"
        raise MachineError("uploading is impossible offline", where="HF_HUB_OFFLINE", fix=fix)
    with _as_vit_error(repository):
        if get_token() is None:
            raise LocalTokenNotFoundError
    if quiet:
        disable_progress_bars()
        logging.set_verbosity_error()


def _is_name(repository: str) -> bool:
    with suppress(HFValidationError):
        validate_repo_id(repository)
        return repository.count("/") == 1
    return False


def upload(
    repository: str, files: Mapping[str, Path | bytes], *, message: str, private: bool, branch: str | None
) -> Uploaded:
    """Create the repository and the branch if necessary, and upload the files in one commit.

    An interrupted upload makes no commit. Another call completes it, without sending any file twice.

    Args:
        files: by their names in the repository; a path to read, or the contents.
        private: of a new repository; an existing public one is refused.
        branch: None is the default branch.

    Raises:
        MachineError: no connection, no permission, or an error of the Hub.
        VitError: the Hub refuses the card, or the repository is public and `private` is set.
        CheckFailed: an uploaded file differs from the local one.
    """
    api = HfApi(token=True)  # raises without one, also where HF_HUB_DISABLE_IMPLICIT_TOKEN is set
    additions = [CommitOperationAdd(name, contents) for name, contents in files.items()]
    with _as_vit_error(repository):
        url = str(api.create_repo(repository, private=private or None, exist_ok=True))
        if private and not api.model_info(repository).private:
            fix = "leave --private out, make it private in its settings, or name another repository"
            raise VitError(f"{repository} already exists and is public", where="--private", fix=fix)
        if branch:
            api.create_branch(repository, branch=branch, exist_ok=True)
        commit = api.create_commit(repository, additions, commit_message=message, revision=branch)
        uploaded = api.get_paths_info(repository, list(files), revision=commit.oid)
    _check_arrived(repository, additions, [file for file in uploaded if isinstance(file, RepoFile)])
    sizes = {addition.path_in_repo: addition.upload_info.size for addition in additions}
    return Uploaded(f"{url}/tree/{branch}" if branch else url, commit.oid, sizes)


def _check_arrived(repository: str, additions: list[CommitOperationAdd], uploaded: list[RepoFile]) -> None:
    """Refuse missing or different files: a .gitignore of the repository makes the Hub silently skip files."""
    files = {file.path: file for file in uploaded}
    for addition in additions:
        file = files.get(addition.path_in_repo)
        if file is None or not _is_same(addition, file):
            raise CheckFailed(
                f"{addition.path_in_repo} on the Hub differs from the local file",
                where=repository,
                fix="look for a .gitignore in the repository that names it, and run the same command again",
            )


def _is_same(addition: CommitOperationAdd, file: RepoFile) -> bool:
    """Compare the contents with the Hub's hash: SHA-256 of a large file, git's blob hash of any other."""
    if file.lfs:
        return file.lfs.sha256 == addition.upload_info.sha256.hex()
    with addition.as_file() as opened:
        contents = opened.read()
    blob = sha1(b"blob %d\0" % len(contents) + contents, usedforsecurity=False)
    return file.blob_id == blob.hexdigest()


@contextmanager
def _as_vit_error(repository: str) -> Iterator[None]:
    """Turn any exception of the Hub's library into a VitError."""
    try:
        yield
    except VitError:
        raise
    except Exception as error:  # of the Hub, the connection or the storage: no common type
        raise _refusal(error, repository) from error


def _refusal(error: Exception, repository: str) -> VitError:
    http = next((e for e in (error, error.__cause__) if isinstance(e, HfHubHTTPError)), None)
    reason, where = _reason(http or error), f"{OPTION} {repository}"
    if isinstance(error, LocalTokenNotFoundError):
        return MachineError("there is no token for the Hub", where=where, fix=LOG_IN)
    if isinstance(error, ValueError) and "README.md" in str(error):  # raised before anything is sent
        message = f"the Hub refuses the card: {_reason(error)}"
        return VitError(message, where="README.md", fix="correct its YAML, the lines at the top")
    match http.response.status_code if http else None:
        case 401:
            return MachineError(f"the Hub does not accept the token: {reason}", where=where, fix=LOG_IN)
        case 403:
            owner = repository.partition("/")[0]
            fix = f"a token that may write to {owner}'s repositories, or another OWNER"
            return MachineError(f"the token may not write there: {reason}", where=where, fix=fix)
    fix = "check the network and the name, and run the same command again: no file is sent twice"
    return MachineError(f"the upload failed: {reason}", where=where, fix=fix)


def _reason(error: Exception) -> str:
    """Return the message on one line, without the signatures in the addresses of large files."""
    text = str(error)
    if isinstance(error, HfHubHTTPError):
        text = f"status {error.response.status_code} {error.server_message or ''}"
    return re.sub(r"(?<=://)([^\s?]+)\?\S+", r"\1", " ".join(text.split()))[:300] or type(error).__name__
