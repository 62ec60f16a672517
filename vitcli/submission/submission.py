"""`--submit`: a command of many runs as n equal workers, which divide the runs among themselves.

Each worker types the same command line without --submit: what is done and what is left is in the folder that
they share, so none of them needs a part of its own.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.errors import VitError
from vitcli.io.credentials import without_credentials
from vitcli.output import text
from vitcli.submission import settings

OPTIONS = ("--submit", "--submit-workers", "--submit-set")  # each has a value
# Options that are not for several workers, and what to do instead.
NOT_FOR_WORKERS = {
    "--overwrite": "leave it out and choose a new folder: each worker would delete what the others wrote",
    "--dry-run": "leave --submit out: a plan needs no worker",
    "--measure": "leave --submit out: a plan needs no worker",
    "--arms-parallel": "leave it out: the workers run side by side, each on its own devices",
}


@dataclass(frozen=True)
class Submission:
    """A checked command line with the place that is to run it.

    Attributes:
        place: one of `settings.Place`.
        num_workers: how many start the same command line.
        values: of --submit-set, by key.
        out: the folder that the workers share.
        arguments: the words after `vit`, without --submit; addresses have no passwords.
    """

    place: str
    num_workers: int
    values: dict[str, Any]
    out: Path
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return what the place calls it: a name that is one of DNS, as Kubernetes asks for."""
        name = self.values.get("name") or f"vit-{self.out.name}"
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].rstrip("-") or "vit"


def prepare(
    place: str, num_workers: int, given: Sequence[str], out: Path | None, arguments: Sequence[str]
) -> Submission:
    """Check what is submitted.

    Args:
        given: KEY=VALUE of each --submit-set.
        out: the folder of the command; None where --out was not given.
        arguments: the whole command line.

    Raises:
        VitError: an option contradicts --submit, a key of --submit-set, or the folder cannot be shared.
    """
    where = f"--submit {place}"
    values = settings.parse(place, given)
    for option, fix in NOT_FOR_WORKERS.items():
        if option in arguments:
            raise VitError(f"{option} cannot be submitted", where=where, fix=fix)
    if "RANK" in os.environ:
        fix = "call vit without torchrun, accelerate launch and srun"
        raise VitError("each process of the launcher would submit the command", where=where, fix=fix)
    if out is None:
        fix = "name it with --out, on a file system that all of them see"
        raise VitError("the workers need one folder", where=where, fix=fix)
    if place in settings.PRINTED and (not out.is_absolute() or len(out.parts) < 3):
        fix = "an absolute path below the volume, such as --out /runs/photos"
        raise VitError("the folder must lie on the volume of the workers", where=f"--out {out}", fix=fix)
    if place == settings.HF and num_workers > 1:
        fix = "leave --submit-workers out, or submit to a cluster whose workers share a file system"
        what = "volumes of Hugging Face Jobs have no rename by which several workers could claim runs"
        raise VitError(what, where=f"--submit-workers {num_workers}", fix=fix)
    words = [re.sub(r"\w+://\S+", lambda url: without_credentials(url[0]), word) for word in arguments]
    if place in settings.PRINTED and words != list(arguments):
        fix = "put the data on the volume, or name a bucket that the workers can read"
        raise VitError("the printed file would hold the password of an address", where=where, fix=fix)
    return Submission(place, num_workers, values, out, tuple(_without_options(words)))


def run(submission: Submission) -> dict[str, Any]:
    """Submit, or make the file for the place's own tool; return the object of --json."""
    if submission.place in settings.PRINTED:
        from vitcli.submission.printed import file_text

        return {"command": "submit", "place": submission.place, "file": file_text(submission)}
    from vitcli.submission.cluster import submit

    return submit(submission)


def as_text(result: dict[str, Any]) -> str:
    """Render the result of --submit: the file itself, or what was started."""
    if "file" in result:
        return result["file"]
    jobs, folder = result["job_ids"], result["run_dir"]
    rows = [("submitted", f"{text.count_of(len(jobs), 'worker')} to {result['place']}: {' '.join(jobs)}"),
            ("logs", text.Verbatim(result["logs"]))]  # fmt: skip
    return text.pairs(rows + text.commands(["vit", "submit", "status", folder]))


def _without_options(words: Sequence[str]) -> list[str]:
    """Return the words without those of OPTIONS, written `--name VALUE` or `--name=VALUE`."""
    kept, is_value = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if not is_value and name not in OPTIONS:
            kept.append(word)
        is_value = not is_value and name in OPTIONS and not equals
    return kept
