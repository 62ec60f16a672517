"""Files to a model repository of the Hugging Face Hub: one commit, looked at again before it counts as done.

The token is that of `hf auth login` or HF_TOKEN; it goes to the Hub and nowhere else, and is never told.
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
    """What there is on the Hub afterwards.

    Attributes:
        url: for a browser.
        commit: that holds the files; the one before where nothing has changed.
        files: name to size in bytes.
    """

    url: str
    commit: str
    files: dict[str, int]


def check(repository: str, branch: str | None, *, quiet: bool) -> None:
    """Refuse what cannot be uploaded, before any work is done and without asking the Hub.

    Raises:
        VitError: no name of a repository, or of a branch.
        MachineError: offline, or no token.
    """
    if not _is_name(repository):
        fix = "OWNER/NAME of letters, digits, '-', '_' and '.', with you or your organisation as the owner"
        raise VitError(f"{repository!r} names no repository of the Hub", where=OPTION, fix=fix)
    if branch is not None and not branch.strip():
        raise VitError("the branch has no name", where="--revision", fix="leave it out for the main one")
    if constants.HF_HUB_OFFLINE:
        fix = "unset HF_HUB_OFFLINE for this command"
        raise MachineError("nothing can be uploaded offline", where="HF_HUB_OFFLINE", fix=fix)
    with _told(repository):
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
    repository: str,
    files: Mapping[str, Path | bytes],
    *,
    message: str,
    private: bool,
    branch: str | None,
) -> Uploaded:
    """Make the repository and the branch where there are none, and put the files there in one commit.

    What is broken off leaves a repository without the commit; to call again mends it, and sends no file twice
    that has arrived.

    Args:
        files: by their names there; a path is read as it is, bytes are the contents.
        private: of a new repository; one that is public already is refused.
        branch: None is the main one.

    Raises:
        MachineError: no connection, no permission, or the Hub does not do its part.
        VitError: the card is refused, or the repository is public and was not to be.
        CheckFailed: a file there is not the file here.
    """
    api = HfApi(token=True)  # an error where there is none, also where HF_HUB_DISABLE_IMPLICIT_TOKEN is set
    additions = [CommitOperationAdd(name, contents) for name, contents in files.items()]
    with _told(repository):
        url = str(api.create_repo(repository, private=private or None, exist_ok=True))
        if private and not api.model_info(repository).private:
            fix = "leave --private out, make it private in its settings, or name another repository"
            raise VitError(f"{repository} is there already, and public", where="--private", fix=fix)
        if branch:
            api.create_branch(repository, branch=branch, exist_ok=True)
        commit = api.create_commit(repository, additions, commit_message=message, revision=branch)
        found = api.get_paths_info(repository, list(files), revision=commit.oid)
    _check_arrived(repository, additions, [file for file in found if isinstance(file, RepoFile)])
    sizes = {addition.path_in_repo: addition.upload_info.size for addition in additions}
    return Uploaded(f"{url}/tree/{branch}" if branch else url, commit.oid, sizes)


def _check_arrived(repository: str, additions: list[CommitOperationAdd], found: list[RepoFile]) -> None:
    """A .gitignore of the repository makes the Hub leave files out without a word."""
    there = {file.path: file for file in found}
    for addition in additions:
        file = there.get(addition.path_in_repo)
        if file is None or not _is_same(addition, file):
            raise CheckFailed(
                f"{addition.path_in_repo} is not on the Hub as it is here",
                where=repository,
                fix="look for a .gitignore in the repository that names it, and give the same command again",
            )


def _is_same(addition: CommitOperationAdd, file: RepoFile) -> bool:
    """Whether the Hub's hash of the contents is ours: SHA-256 of a large file, else git's name of a blob."""
    if file.lfs:
        return file.lfs.sha256 == addition.upload_info.sha256.hex()
    with addition.as_file() as opened:
        contents = opened.read()
    blob = sha1(b"blob %d\0" % len(contents) + contents, usedforsecurity=False)
    return file.blob_id == blob.hexdigest()


@contextmanager
def _told(repository: str) -> Iterator[None]:
    """Whatever the Hub's library raises, in three lines."""
    try:
        yield
    except VitError:
        raise
    except Exception as error:  # the Hub's own, the connection's, the storage's: they share no kind
        raise _refusal(error, repository) from error


def _refusal(error: Exception, repository: str) -> VitError:
    answer = next((one for one in (error, error.__cause__) if isinstance(one, HfHubHTTPError)), None)
    reason, where = _reason(answer or error), f"{OPTION} {repository}"
    if isinstance(error, LocalTokenNotFoundError):
        return MachineError("no token for the Hub is found", where=where, fix=LOG_IN)
    if isinstance(error, ValueError) and "README.md" in str(error):  # found invalid before anything is sent
        told = _reason(error)
        return VitError(f"the Hub refuses the card: {told}", where="README.md", fix="mend its first lines")
    match answer.response.status_code if answer else None:
        case 401:
            return MachineError(f"the Hub does not accept the token: {reason}", where=where, fix=LOG_IN)
        case 403:
            owner = repository.partition("/")[0]
            fix = f"a token that may write to {owner}'s repositories, or another OWNER"
            return MachineError(f"the token may not write there: {reason}", where=where, fix=fix)
    fix = (
        "check the network and the name, and give the same command again: what has arrived is not sent twice"
    )
    return MachineError(f"the upload failed: {reason}", where=where, fix=fix)


def _reason(error: Exception) -> str:
    """On one line, without the signatures in the addresses that large files are sent to."""
    text = str(error)
    if isinstance(error, HfHubHTTPError):
        text = f"status {error.response.status_code} {error.server_message or ''}"
    return re.sub(r"(?<=://)([^\s?]+)\?\S+", r"\1", " ".join(text.split()))[:300] or type(error).__name__
