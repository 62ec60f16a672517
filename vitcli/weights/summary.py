"""`vit inspect CKPT --summary`: what a checkpoint is, whether it is sound, which commands would take it."""

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from torch import Tensor

from vitcli.data.transforms import Preprocessing
from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.flops import forward_macs
from vitcli.models.variants import find_variant
from vitcli.output.text import plain
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.diagnose import Diagnosis, diagnose
from vitcli.weights.files import as_weights_error
from vitcli.weights.io import find_non_finite, mismatches

TOLD_OF_CONFIGS = (  # of timm and Hugging Face; the other keys are about the network and its pictures
    "tag", "license", "description", "origin_url", "_name_or_path", "transformers_version",
)  # fmt: skip
GROWTH = 384 / 224  # of the resolution, from pre-training to fine-tuning (paper, section 4.1)
SPELLINGS = {"timm": "timm's names", "official": "the authors' names", "huggingface": "Hugging Face's names"}
POSEMBS = {"none": "none", "1d": "a learned row for each token",
           "2d": "learned rows and columns", "relative": "relative",
           "sincos2d": "fixed sines and cosines of row and column"}  # fmt: skip
MISFITS = {"missing": "missing", "unexpected": "unexpected", "of_another_shape": "other shape"}
WIDTH, INDENT = 80, 14  # columns of a line, and those before its text
# A stranger wrote it: of a list so many, of a name and of a text so many characters are told.
MOST, LONGEST_NAME, LONGEST = 8, 100, 800


def summarise(ckpt: str, *, model_name: str | None) -> dict[str, Any]:
    """Everything that can be told of a checkpoint, also of one that no command would take.

    What is not known is None; so are `missing`, `unexpected` and `of_another_shape` where no network is known
    to compare the tensors with.

    Raises:
        WeightsError: no such file, or one that cannot be parsed.
    """
    found = diagnose(ckpt, model_name=model_name)
    file, tensors = found.place.file, found.stored.tensors
    dtypes = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values())
    return {
        "command": "inspect",
        "ckpt": ckpt,
        "file": str(file),
        "file_bytes": file.stat().st_size,
        "format": found.about.format if found.about else found.place.format,
        "spelling": found.stored.spelling,
        "recognised": found.is_recognised,
        **_network(found),
        **_words(found.about),
        "num_tensors": len(tensors),
        "num_params": _num_params(found.state),
        "dtypes": dict(dtypes),
        **_compared(found),
        "non_finite": find_non_finite(found.state),
        "unused": list(found.unused),
        "problems": [_sentence(refusal) for refusal in found.refusals],
        "advice": list(dict.fromkeys(refusal.fix for refusal in found.refusals)),
        "usable": not found.refusals,
        "commands": [shlex.join(["vit", *words]) for words in _commands(ckpt, model_name, found)],
    }


def _num_params(state: dict[str, Tensor]) -> int:
    """Numbers that training changes; the averages of a batch norm are none of them."""
    learned = {name: t for name, t in state.items() if not name.endswith(("running_mean", "running_var"))}
    return sum(tensor.numel() for tensor in learned.values() if tensor.is_floating_point())


def _network(found: Diagnosis) -> dict[str, Any]:
    """What the architecture says; its geometry only if timm can build it."""
    arch = found.about and found.about.architecture
    built = arch if found.expected is not None else None
    grid = built and built.patch_grid
    has_tokens = grid and ("pos_embed" in found.expected or arch.posemb != "1d")
    macs = None
    if built:
        with suppress(VitError), as_weights_error("the costs"):
            macs = forward_macs(built)
    return {
        "model": arch and arch.name,
        "timm_name": arch and arch.timm_name,
        "architecture": arch and arch.as_dict(),
        "resolution": arch and list(arch.image_size),
        "patch_size": built and built.patch_size,
        "patch_grid": list(grid) if grid else None,
        "tokens": found.num_prefix + math.prod(grid) if has_tokens else None,
        "prefix_tokens": found.num_prefix if has_tokens else None,
        "head": arch and _head(arch.num_classes, arch.pre_logits),
        "classifier": built and built.classifier,
        "posemb": arch.posemb if has_tokens else None,
        "num_classes": arch and arch.num_classes,
        "forward_gmacs": macs and round(macs / 1e9, 3),
    }


def _head(num_classes: int, pre_logits: bool) -> str:
    if not num_classes:
        return "none"
    return "pre-logits and one layer" if pre_logits else "one layer"


def _words(about: WeightsInfo | None) -> dict[str, Any]:
    """What stands beside the tensors."""
    if about is None:
        return dict.fromkeys(("numerics", "class_names", "preprocessing", "metadata"))
    names, pixels = about.class_names, about.preprocessing
    metadata, config = about.metadata, about.metadata.get("config")
    if isinstance(config, dict):
        inner = config.get("pretrained_cfg")
        everything = config | (inner if isinstance(inner, dict) else {})
        metadata = {key: everything[key] for key in TOLD_OF_CONFIGS if everything.get(key)}
    return {
        "numerics": about.numerics,
        "class_names": {"count": len(names), "first": list(names[:10])} if names else None,
        "preprocessing": {"summary": _summary(pixels), "stored": pixels} if pixels else None,
        "metadata": metadata,
    }


def _summary(preprocessing: dict) -> str | None:
    """None for one that is not of this version."""
    with suppress(VitError), as_weights_error("the stored preprocessing"):
        return Preprocessing.from_dict(preprocessing).summary()


def _compared(found: Diagnosis) -> dict[str, list[str] | None]:
    if found.expected is None:
        return dict.fromkeys(MISFITS)
    return {kind.replace(" ", "_"): names for kind, names in mismatches(found.state, found.expected).items()}


def _sentence(refusal: VitError) -> str:
    return f"{refusal.message} ({refusal.where})" if refusal.where else refusal.message


def _commands(ckpt: str, model_name: str | None, found: Diagnosis) -> list[list[str]]:
    """What follows `vit` on command lines that would take this file; capitals are for the user to fill in."""
    if found.refusals:
        needs_name = not found.is_recognised and model_name is None and "--model" in found.refusals[0].fix
        return [["inspect", ckpt, "--summary", "--model", "NAME"]] if needs_name else []
    about, arch, commands = found.about, found.about.architecture, []
    source = ["--ckpt", ckpt, *(["--model", model_name] if model_name else [])]
    data, labelled = "DATA", "DATA"
    if about.format == "demo":
        data, labelled = "demo", "demo:pretrain"
    elif arch.num_classes == 1000 and not about.class_names:
        labelled = "imagenet"
    is_clear = not about.preprocessing or _summary(about.preprocessing)
    if arch.num_classes and not arch.pre_logits:
        recipe = [] if is_clear else ["--recipe", "evaluate/default"]
        commands.append(["evaluate", *source, "--dataset", labelled, *recipe])
        commands += [["predict", *source, "PICTURES"]] if is_clear else []
    commands += [["inspect", *source, "--images", "PICTURES"]] if is_clear else []
    return [*commands, ["finetune", *source, "--dataset", data, *_larger(arch)]]


def _larger(arch: Architecture) -> list[str]:
    """The option for a higher resolution that the patches divide, up to the paper's 384."""
    height, width = arch.image_size
    step = arch.patch_size or 32
    side = round(height * GROWTH / step) * step
    return ["--res", str(side)] if arch.is_of_the_paper and height == width and side <= 384 else []


def as_text(result: dict[str, Any]) -> str:
    """For a terminal: what was found, then the verdict, then the command lines, which are never wrapped."""
    count = len(result["problems"])
    verdict = "sound" if result["usable"] else f"not usable: {count} problem{'s' * (count > 1)}, see below"
    lines = [f"{plain(result['ckpt'])}: {verdict}"]
    lines += _section("File", _file_rows(result))
    lines += _section("Network", _network_rows(result))
    lines += _section("Stored with it", _metadata_rows(result["metadata"] or {}))
    lines += _section("Tensors", _tensor_rows(result))
    lines += _section("Problems", enumerate(result["problems"], start=1))
    lines += _section("What to do", enumerate(result["advice"], start=1))
    if result["commands"]:
        lines += ["", "Commands that take it" if result["usable"] else "Then"]
        lines += [f"  {plain(command)}" for command in result["commands"]]
    return "\n".join(lines) + "\n"


def _file_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    dtypes = ", ".join(f"{count} of {dtype}" for dtype, count in result["dtypes"].items())
    num_bytes = result["file_bytes"]
    return [
        ("file", result["file"]),
        ("size", f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes:,} bytes"),
        ("format", f"{result['format']}, with {SPELLINGS[result['spelling']]}"),
        ("tensors", dtypes or "none"),
    ]


def _network_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    if result["model"] is None:
        return [("model", "not recognised"), ("parameters", f"{result['num_params']:,}")]
    variant = find_variant(result["model"])
    in_timm = f", {variant.timm_name} in timm" if variant and variant.is_timms else ""
    compute, tokens, prefix = (result[key] for key in ("forward_gmacs", "tokens", "prefix_tokens"))
    size, patch_size = "x".join(map(str, result["resolution"])), result["patch_size"]
    reads = {"token": ", reads the class token", "gap": ", reads the mean of the tokens"}
    names, pixels = result["class_names"], result["preprocessing"]
    unread = "stored in words of another version; evaluate takes --recipe evaluate/default"
    rows = [
        ("model", ("" if result["recognised"] else "looks like ") + result["model"] + in_timm),
        ("parameters", f"{result['num_params']:,}"),
        ("compute", compute and f"{compute:.3f} GMACs an image, without the head"),
        ("pictures", f"{size} pixels" + (f", patches of {patch_size}" if patch_size else "")),
        ("tokens", tokens and f"{tokens}: {tokens - prefix} patches and {prefix} more"),
        ("positions", result["posemb"] and POSEMBS[result["posemb"]]),
        ("head", result["head"] + reads.get(result["classifier"], "")),
        ("classes", f"{result['num_classes']:,}"),
        ("their names", _some(names["first"], names["count"]) if names else "none stored"),
        ("pixels", pixels["summary"] or unread if pixels else "none stored; recipe evaluate/default is used"),
        ("arithmetic", result["numerics"]),
    ]
    return [(name, text) for name, text in rows if text]


def _tensor_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    kinds = {kind: told for kind, told in (MISFITS | {"non_finite": "not finite"}).items() if result[kind]}
    rows = [(told, f"{len(result[kind])}: {_some(result[kind])}") for kind, told in kinds.items()]
    if result["missing"] is None:
        rows.append(("fit", "unknown: there is no network to compare them with"))
    rows = rows or [("fit", "all are there and fit, none is left over, every number is finite")]
    unused = result["unused"]
    return rows + ([("unused", f"{len(unused)}, by any classifier: {_some(unused)}")] if unused else [])


def _metadata_rows(metadata: dict[str, Any]) -> list[tuple[str, str]]:
    told = {name: value for name, value in metadata.items() if value not in (None, False, "")}
    shares = {name for name, value in told.items() if name.startswith("top") and isinstance(value, float)}
    rows = [(name, f"{value:.2%}" if name in shares else str(value)) for name, value in told.items()]
    more = [("", f"and {len(rows) - 2 * MOST:,} more")] if len(rows) > 2 * MOST else []
    return rows[: 2 * MOST] + more


def _some(names: list[str], count: int | None = None) -> str:
    told = [_short(name, LONGEST_NAME) for name in names[:MOST]]
    more = (count or len(names)) - len(told)
    return ", ".join(told) + (f" and {more:,} more" if more else "")


def _section(title: str, rows: Iterable[tuple[str | int, str]]) -> list[str]:
    """Lines of the terminal, in which nothing of a stranger's steers it; none at all without rows."""
    lines = []
    for name, text in rows:
        start = f"  {name}. " if isinstance(name, int) else f"  {plain(_short(name, LONGEST_NAME)):<11} "
        indents = {"initial_indent": start, "subsequent_indent": " " * min(len(start), INDENT)}
        text = plain(_short(text, LONGEST))
        lines += textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False, **indents)
    return ["", title, *lines] if lines else []


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
