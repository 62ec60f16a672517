"""`vit inspect CKPT --summary`: what a checkpoint is, whether it is usable, which commands take it."""

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from vitcli.data import seen_images
from vitcli.data.transforms import Preprocessing
from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.flops import forward_macs
from vitcli.models.variants import find_variant
from vitcli.output.progress import Progress
from vitcli.output.text import count_of, first_few, plain, size_text
from vitcli.weights.describe import STORED, WeightsInfo
from vitcli.weights.diagnose import Diagnosis, diagnose, find_non_finite, mismatches
from vitcli.weights.files import as_weights_error, stored_files
from vitcli.weights.imagenet import TITLES
from vitcli.weights.io import FEATURE_STATISTICS
from vitcli.weights.timm import num_prefix_tokens

CONFIG_KEYS = (  # of timm and Hugging Face; the other keys describe the network and its images
    "tag", "license", "description", "origin_url", "_name_or_path", "transformers_version",
)  # fmt: skip
RESOLUTION_INCREASE = 384 / 224  # from pre-training to fine-tuning (paper, section 4.1)
NAMES_OF = {"timm": "timm's", "official": "the authors'", "huggingface": "Hugging Face's"}
POSEMB_TEXTS = {"none": "none", "1d": "learned, one row for each token",
                "2d": "learned rows and columns", "relative": "relative",
                "sincos2d": "fixed sines and cosines of row and column"}  # fmt: skip
MISMATCHES = {"missing": "missing", "unexpected": "unexpected", "of_another_shape": "other shape",
              "not_floating_point": "no floats"}  # fmt: skip
WIDTH, INDENT = 80, 14  # columns of a line, and those before its text
# Untrusted text: truncate lists (entries), names and values (characters).
MAX_ENTRIES, MAX_NAME, MAX_TEXT = 8, 100, 800


def summarise(ckpt: str, *, model_name: str | None, quiet: bool = False) -> dict[str, Any]:
    """Return everything known about a checkpoint, also about one that no command takes.

    Unknown values are None; so are `missing`, `unexpected` and `of_another_shape` where no network is known
    to compare the tensors with. `missing` of a usable file is its head.

    Raises:
        WeightsError: no such file, or one that cannot be parsed.
    """
    diagnosis = diagnose(ckpt, model_name=model_name, progress=Progress(quiet=quiet))
    file, stored, info = diagnosis.source.file, diagnosis.stored, diagnosis.info
    dtypes = [t.dtype for t in stored.tensors.values()] + [a.dtype for a in stored.arrays.values()]
    # The running averages of a batch norm are not trained.
    averages = ("running_mean", "running_var")
    learned = [t for name, t in diagnosis.state.items() if not name.endswith(averages)]
    return {
        "command": "inspect",
        "ckpt": ckpt,
        "file": str(file),
        "file_bytes": sum(part.stat().st_size for part in stored_files(file)),
        "format": info.format if info else diagnosis.source.format,
        "spelling": stored.spelling,
        "recognised": diagnosis.is_recognised,
        **_network(diagnosis),
        **_stored_values(info),
        "num_tensors": len(dtypes),
        "num_params": sum(tensor.numel() for tensor in learned if tensor.is_floating_point()),
        "dtypes": dict(Counter(str(dtype).removeprefix("torch.") for dtype in dtypes)),
        **_mismatches(diagnosis),
        "non_finite": find_non_finite(diagnosis.state),
        "unused": list(diagnosis.unused),
        "problems": [f"{p.message} ({p.where})" if p.where else p.message for p in diagnosis.problems],
        "advice": list(dict.fromkeys(problem.fix for problem in diagnosis.problems)),
        "usable": not diagnosis.problems,
        "commands": [shlex.join(["vit", *words]) for words in _commands(ckpt, model_name, diagnosis)],
    }


def _network(diagnosis: Diagnosis) -> dict[str, Any]:
    """Describe the architecture; its geometry only if timm can build it."""
    expected, arch = diagnosis.expected, diagnosis.info.architecture if diagnosis.info else None
    built = arch if expected is not None else None
    grid = built.patch_grid if built else None
    posemb = num_prefix = tokens = macs = None
    if grid and built and expected and ("pos_embed" in expected or built.posemb != "1d"):
        posemb, num_prefix = built.posemb, num_prefix_tokens(expected)
        tokens = num_prefix + math.prod(grid)
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
        "tokens": tokens,
        "prefix_tokens": num_prefix,
        "head": arch and _head(arch),
        "classifier": built and built.classifier,
        "posemb": posemb,
        "num_classes": arch and arch.num_classes,
        "forward_gmacs": macs and round(macs / 1e9, 3),
    }


def _head(arch: Architecture) -> str:
    if not arch.num_classes:
        return "none"
    if arch.head_layers:
        blocks = count_of(arch.head_layers, "block")
        read = f"class token and patch mean of the last {blocks}"
        return f"one layer on {read}; timm has no place for this head"
    return "pre-logits and one layer" if arch.pre_logits else "one layer"


def _stored_values(info: WeightsInfo | None) -> dict[str, Any]:
    """Return what is stored beside the tensors."""
    if info is None:
        return dict.fromkeys(("numerics", "class_names", "imagenet", "preprocessing", "metadata"))
    names, pixels, metadata = info.class_names, info.preprocessing, info.metadata
    if seen_images.KEY in metadata:
        metadata = metadata | {seen_images.KEY: seen_images.counts(metadata[seen_images.KEY])}
    if isinstance(packed := metadata.get(FEATURE_STATISTICS), dict):  # its arrays are nothing to read
        metadata = metadata | {FEATURE_STATISTICS: {"num_features": packed.get("num_features")}}
    config = metadata.get("config")
    if isinstance(config, dict):
        inner = config.get("pretrained_cfg")
        merged = config | (inner if isinstance(inner, dict) else {})
        metadata = {key: merged[key] for key in CONFIG_KEYS if merged.get(key)}
    return {
        "numerics": info.numerics,
        "class_names": {"count": len(names), "first": list(names[:10])} if names else None,
        "imagenet": info.imagenet or None,
        "preprocessing": pixels
        and {"summary": _summary(pixels), "stored": pixels, "from": info.preprocessing_from},
        "metadata": metadata,
    }


def _summary(preprocessing: dict) -> str | None:
    """Summarise the preprocessing in one line; None if another version stored it."""
    with suppress(VitError), as_weights_error("the stored preprocessing"):
        return Preprocessing.from_dict(preprocessing).summary()
    return None


def _mismatches(diagnosis: Diagnosis) -> dict[str, list[str] | None]:
    if diagnosis.expected is None:
        return dict.fromkeys(MISMATCHES)
    by_kind = mismatches(diagnosis.state, diagnosis.expected)
    by_kind["missing"] += diagnosis.missing_head
    return {kind.replace(" ", "_"): names for kind, names in by_kind.items()}


def _commands(ckpt: str, model_name: str | None, diagnosis: Diagnosis) -> list[list[str]]:
    """Return the arguments of vit commands that take this file; words in capitals are for the user."""
    if diagnosis.problems:
        has_no_name = not diagnosis.is_recognised and model_name is None
        asks_for_it = has_no_name and "--model" in diagnosis.problems[0].fix
        return [["inspect", ckpt, "--summary", "--model", "NAME"]] if asks_for_it else []
    info = diagnosis.info
    assert info is not None, "its absence is a problem"
    arch, commands = info.architecture, []
    source = ["--ckpt", ckpt, *(["--model", model_name] if model_name else [])]
    dataset, labelled = "DATA", "DATA"
    if info.format == "demo":
        dataset, labelled = "demo", "demo:pretrain"
    elif arch.num_classes == 1000 and not info.class_names:
        labelled = "imagenet"
    has_pixels = not info.preprocessing or _summary(info.preprocessing)
    if arch.num_classes and not arch.pre_logits:
        recipe = [] if has_pixels else ["--recipe", "evaluate/default"]
        commands.append(["evaluate", *source, "--dataset", labelled, *recipe])
        commands += [["predict", *source, "IMAGES"]] if has_pixels else []
    elif not arch.num_classes and has_pixels:
        commands.append(["embed", *source, "--dataset", dataset, "--out", "FEATURES.safetensors"])
    commands += [["inspect", *source, "--images", "IMAGES"]] if has_pixels else []
    return [*commands, ["finetune", *source, "--dataset", dataset, *_larger(arch)]]


def _larger(arch: Architecture) -> list[str]:
    """Return the option for a higher resolution that the patches divide, up to the paper's 384."""
    height, width = arch.image_size
    step = arch.patch_size or 32
    side = round(height * RESOLUTION_INCREASE / step) * step
    return ["--res", str(side)] if arch.is_of_the_paper and height == width and side <= 384 else []


def as_text(result: dict[str, Any]) -> str:
    """Return the text for a terminal: contents, problems, then command lines, which are never wrapped."""
    count = len(result["problems"])
    verdict = "usable for features, its head is missing" if result["missing"] else "usable"
    if not result["usable"]:
        verdict = f"not usable: {count} problem{'s' * (count > 1)}, see below"
    lines = [f"{plain(result['ckpt'])}: {verdict}"]
    lines += _section("File", _file_rows(result))
    lines += _section("Network", _network_rows(result))
    lines += _section("Metadata", _metadata_rows(result["metadata"] or {}))
    lines += _section("Tensors", _tensor_rows(result))
    lines += _section("Problems", enumerate(result["problems"], start=1))
    lines += _section("How to fix", enumerate(result["advice"], start=1))
    if result["commands"]:
        lines += ["", "Commands that take it" if result["usable"] else "Next command"]
        lines += [f"  {plain(command)}" for command in result["commands"]]
    return "\n".join(lines) + "\n"


def _file_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    num_bytes = result["file_bytes"]
    return [
        ("file", result["file"]),
        ("size", f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e5 else f"{num_bytes:,} bytes"),
        ("format", f"{result['format']}, with {NAMES_OF[result['spelling']]} tensor names"),
        ("tensors", ", ".join(f"{count} {dtype}" for dtype, count in result["dtypes"].items()) or "none"),
    ]


def _network_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    if result["model"] is None:
        return [("model", "not recognised"), ("parameters", f"{result['num_params']:,}")]
    # The texts that depend on more than one value
    variant = find_variant(result["model"])
    in_timm = f", {variant.timm_name} in timm" if variant and variant.is_timms else ""
    compute, tokens, prefix = (result[key] for key in ("forward_gmacs", "tokens", "prefix_tokens"))
    size, patch_size = size_text(result["resolution"]), result["patch_size"]
    inputs = {"token": ", reads the class token", "gap": ", reads the mean of the tokens"}
    head = result["head"] + inputs.get(result["classifier"], "")
    is_head_missing = result["usable"] and result["missing"]
    names, pixels = result["class_names"], result["preprocessing"]
    unnamed = f"none stored; {TITLES[result['imagenet']]}'s" if result["imagenet"] else "none stored"
    transform = "none stored; default: recipe evaluate/default"
    if pixels:
        origin = "" if pixels["from"] == STORED else f", {pixels['from']}"
        transform = pixels["summary"] and pixels["summary"] + origin
        transform = transform or "stored by another version; evaluate takes --recipe evaluate/default"
    # The rows, without those that do not apply
    rows = [
        ("model", ("" if result["recognised"] else "looks like ") + result["model"] + in_timm),
        ("parameters", f"{result['num_params']:,}"),
        ("compute", compute and f"{compute:.3f} GMACs per image, without the head"),
        ("image size", f"{size} pixels" + (f", patches of {patch_size}" if patch_size else "")),
        ("tokens", tokens and f"{tokens}: {tokens - prefix} patches and {prefix} prefix"),
        ("positions", result["posemb"] and POSEMB_TEXTS[result["posemb"]]),
        ("head", "missing from the file" if is_head_missing else head),
        ("classes", f"{result['num_classes']:,}"),
        ("class names", _some(names["first"], names["count"]) if names else unnamed),
        ("transform", transform),
        ("numerics", result["numerics"]),
    ]
    return [(name, text) for name, text in rows if text]


def _tensor_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    labels = MISMATCHES | {"non_finite": "not finite"}
    rows = [(label, f"{len(result[k])}: {_some(result[k])}") for k, label in labels.items() if result[k]]
    if result["missing"] is None:
        rows.append(("fit", "unknown: no network to compare them with"))
    rows = rows or [("fit", "all present, none unexpected, all shapes right, all numbers finite")]
    unused = result["unused"]
    return rows + ([("unused", f"{len(unused)}, by any classifier: {_some(unused)}")] if unused else [])


def _metadata_rows(metadata: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and values, accuracies in percent, as many as fit."""
    values = {name: value for name, value in metadata.items() if value not in (None, False, "")}
    rows = [
        (name, f"{value:.2%}" if name.startswith("top") and isinstance(value, float) else str(value))
        for name, value in values.items()
    ]
    more = [("", f"and {len(rows) - 2 * MAX_ENTRIES:,} more")] if len(rows) > 2 * MAX_ENTRIES else []
    return rows[: 2 * MAX_ENTRIES] + more


def _some(names: list[str], count: int | None = None) -> str:
    return first_few([_truncated(name, MAX_NAME) for name in names], MAX_ENTRIES, total=count)


_wrap = partial(textwrap.wrap, width=WIDTH, break_long_words=False, break_on_hyphens=False)


def _section(title: str, rows: Iterable[tuple[str | int, str]]) -> list[str]:
    """Return a title and its lines, control characters removed; nothing without rows."""
    lines = []
    for name, text in rows:
        start = f"  {name}. " if isinstance(name, int) else f"  {plain(_truncated(name, MAX_NAME)):<11} "
        text, indent = plain(_truncated(text, MAX_TEXT)), " " * min(len(start), INDENT)
        lines += _wrap(text, initial_indent=start, subsequent_indent=indent)
    return ["", title, *lines] if lines else []


def _truncated(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}..."
