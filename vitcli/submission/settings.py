"""Where `--submit` sends a command line, and what each worker gets there: the keys of `--submit-set`."""

from collections.abc import Sequence
from typing import Any, Literal

from vitcli.errors import VitError, nearest

Place = Literal["print:sky", "print:k8s", "print:hf"]
SLURM, LOCAL, SKY, K8S, HF = "slurm", "local", "print:sky", "print:k8s", "print:hf"
PRINTED = (SKY, K8S, HF)  # their file is printed, for the place's own tool
ANYWHERE = (SLURM, LOCAL, *PRINTED)

# By key: the type of its value, and the places that know it. The names are those of submitit's parameters,
# whose slurm_ is left out, and those of SkyPilot and Hugging Face Jobs for their GPUs.
KEYS: dict[str, tuple[type, tuple[str, ...]]] = {
    "name": (str, ANYWHERE),
    "timeout_min": (int, (SLURM, LOCAL, HF)),
    "gpus_per_node": (int, (SLURM, LOCAL, K8S)),
    "cpus_per_task": (int, (SLURM, SKY, K8S)),
    "mem_gb": (int, (SLURM, SKY, K8S)),
    "accelerators": (str, (SKY,)),
    "flavor": (str, (HF,)),
    "image": (str, PRINTED),
    "volume": (str, PRINTED),
    "nodes": (int, (SLURM,)),
    "tasks_per_node": (int, (SLURM,)),
    "signal_delay_s": (int, (SLURM,)),
    "array_parallelism": (int, (SLURM,)),
    **{
        key: (str, (SLURM,))
        for key in ("partition", "account", "qos", "constraint", "gres", "nodelist", "exclude", "dependency",
                    "mail_user", "mail_type", "comment", "setup")
    },
}  # fmt: skip
REQUIRED = {SLURM: ("timeout_min",)} | dict.fromkeys(PRINTED, ("image", "volume"))
EXAMPLES = {
    "timeout_min": "720",
    "image": "IMAGE, in which vit is installed",
    "volume": "NAME, of storage that all workers mount",
}
# The words of sbatch, and what to type here.
ALSO_CALLED = {"time": "timeout_min", "mem": "mem_gb", "cpus": "cpus_per_task", "gpus": "gpus_per_node",
               "job_name": "name", "signal": "signal_delay_s"}  # fmt: skip


def parse(place: str, given: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--submit-set` by key.

    Raises:
        VitError: the first that is not a KEY=VALUE of this place, or a missing key that it needs.
    """
    values: dict[str, Any] = {}
    for word in given:
        key, value = _checked(word, place)
        if key in values:
            raise _mistake(f"{key} is given twice", word, "leave one of them out")
        values[key] = value
    for key in REQUIRED.get(place, ()):
        if key not in values:
            fix = f"add --submit-set {key}={EXAMPLES[key]}"
            raise VitError(f"{place} needs {key}", where=f"--submit {place}", fix=fix)
    return values


def _checked(word: str, place: str) -> tuple[str, Any]:
    """Return the key and the value of KEY=VALUE."""
    key, _, value = word.partition("=")
    known = [name for name, (_, places) in KEYS.items() if place in places]
    keys = f"one of {', '.join(known)}"
    if key not in KEYS:
        other = f", did you mean {ALSO_CALLED[key]!r}?" if key in ALSO_CALLED else nearest(key, known)
        raise _mistake(f"there is no key {key!r}{other}", word, keys)
    if key not in known:
        raise _mistake(f"{key} means nothing to {place}", word, keys)
    if not value:
        raise _mistake(f"{key} has no value", word, f"--submit-set {key}=VALUE")
    if KEYS[key][0] is str:
        return key, value
    if not value.isascii() or not value.isdecimal() or len(value) > 9 or not int(value):
        raise _mistake(f"{key} must be a whole number above 0", word, f"--submit-set {key}=8")
    return key, int(value)


def _mistake(message: str, word: str, fix: str) -> VitError:
    return VitError(message, where=f"--submit-set {word}", fix=fix)
