"""`--submit`: a command of many runs as n equal workers, which divide the runs among themselves.

Each worker types the same command line without --submit: the state of the work is in the folder that
they share, so none of them needs a part of its own.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vitcli.errors import VitError, nearest
from vitcli.io.credentials import without_credentials

Place = Literal["slurm", "local", "print:sky", "print:k8s", "print:hf"]
SLURM, LOCAL, SKY, K8S, HF = get_args(Place)
PRINTED = (SKY, K8S, HF)  # their file is printed, for the place's own tool
REQUIRED = {SLURM: ("timeout_min",), LOCAL: ()} | dict.fromkeys(PRINTED, ("image", "volume"))
OPTIONS = ("--submit", "--submit-workers", "--submit-set")  # each has a value
NOT_FOR_WORKERS = {  # and what to do instead
    "--overwrite": "leave it out and choose a new folder: each worker would delete what the others wrote",
    "--dry-run": "leave --submit out: a plan needs no worker",
    "--arms-parallel": "leave it out: the workers run side by side, each on its own devices",
}


@dataclass(frozen=True)
class Submission:
    """A checked command line with the place that is to run it."""

    place: str
    num_workers: int
    values: dict[str, Any]  # of --submit-set, by key
    out: Path  # the folder that the workers share
    arguments: tuple[str, ...]  # after `vit`, without --submit; addresses have no passwords

    @property
    def name(self) -> str:
        """Return a name of DNS, as Kubernetes asks for."""
        name = self.values.get("name") or f"vit-{self.out.name}"
        return re.sub(r"[^a-z0-9]+", "-", name.lower())[:50].strip("-") or "vit"


def keys_of(place: str) -> dict[str, Any]:
    """Return the keys of --submit-set that a place knows, each with an example of its value."""
    return tomllib.loads(Path(__file__).with_name("places.toml").read_text())[place]


def prepare(
    place: str, num_workers: int, given: Sequence[str], out: Path | None, arguments: Sequence[str]
) -> Submission:
    """Check a command line whose workers are to share the folder `out`; VitError for a conflict."""
    values, examples, is_printed = _parsed(place, given), keys_of(place), place in PRINTED
    words = [re.sub(r"\w+://\S+", lambda url: without_credentials(url[0]), word) for word in arguments]
    checks = [
        *((key not in values, f"{place} needs {key}", f"add --submit-set {key}={examples[key]}")
          for key in REQUIRED[place]),
        *((option in arguments, f"{option} cannot be submitted", fix)
          for option, fix in NOT_FOR_WORKERS.items()),
        ("RANK" in os.environ, "each process of the launcher would submit the command",
         "call vit without torchrun, accelerate launch and srun"),
        (out is None, "the workers need one folder", "name it with --out, where all of them see it"),
        (is_printed and out and not (out.is_absolute() and len(out.parts) > 2),
         f"--out {out} is not on the volume of the workers", "a path below it, such as --out /runs/photos"),
        (values.get("signal_delay_s", 0) >= 60 * values.get("timeout_min", 0) > 0,
         "the signal to save would come before the start", "lower signal_delay_s, or raise timeout_min"),
        (place == HF and num_workers > 1, "its workers share no file system that renames folders",
         "leave --submit-workers out"),
        (is_printed and words != list(arguments), "the printed file would hold the password of an address",
         "put the data on the volume, or name a bucket that the workers can read"),
    ]  # fmt: skip
    for is_wrong, what, fix in checks:
        if is_wrong:
            raise VitError(what, where=f"--submit {place}", fix=fix)
    return Submission(place, num_workers, values, out, tuple(_without_options(words)))


def _parsed(place: str, given: Sequence[str]) -> dict[str, Any]:
    """Return the values of --submit-set by key."""
    values, examples = {}, keys_of(place)
    for word in given:
        key, _, value = word.partition("=")
        where = f"--submit-set {word}"
        if key not in examples:
            what, fix = f"{place} has no key {key!r}{nearest(key, examples)}", f"one of {', '.join(examples)}"
            raise VitError(what, where=where, fix=fix)
        is_number = isinstance(examples[key], int)
        if key in values or not re.fullmatch(r"[1-9][0-9]{0,8}" if is_number else ".+", value):
            what = f"{key} is given twice" if key in values else f"{key} cannot be {value!r}"
            raise VitError(what, where=where, fix=f"one --submit-set {key}={examples[key]}")
        values[key] = int(value) if is_number else value
    return values


def _without_options(words: Sequence[str]) -> list[str]:
    """Return the words without those of OPTIONS, written `--name VALUE` or `--name=VALUE`."""
    kept, left = [], iter(words)
    for word in left:
        name, equals, _ = word.partition("=")
        if name not in OPTIONS:
            kept.append(word)
        elif not equals:
            next(left)
    return kept
