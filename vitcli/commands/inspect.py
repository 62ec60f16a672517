"""`vit inspect CKPT --summary`: what a checkpoint is, whether it is sound, and which commands would take it.

The steps of `weights.read_weights`, one by one: where one refuses the file its reason is put down and the next
goes on, so that a sick file is told about too. A file that cannot be parsed at all is an error.
"""

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitcli.costs import forward_macs
from vitcli.errors import VitError
from vitcli.model import expected_tensors, known_name
from vitcli.tables import plain
from vitcli.transforms import Preprocessing
from vitcli.variants import find_variant
from vitcli.weights import About, check_finite, check_fits, describe, misfits, non_finite
from vitcli.weights_files import Content, Stored, blaming, in_timms_naming, parsing, read_stored
from vitcli.weights_places import Place, locate

PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")  # tensors with a row for each such token
TOLD_OF_CONFIGS = (  # of timm and Hugging Face; the other keys are about the network and its pictures
    "tag", "license", "description", "origin_url", "_name_or_path", "transformers_version",
)  # fmt: skip
GROWTH = 384 / 224  # of the resolution, from pre-training to fine-tuning (paper, section 4.1)
SPELLINGS = {"timm": "timm's names", "official": "the authors' names", "huggingface": "Hugging Face's names"}
WIDTH, INDENT = 80, 14  # columns of a line, and those before its text
MOST, LONGEST = 8, 800  # names told of a list, characters told of a text: a stranger wrote them


@dataclass
class Findings:
    """What the steps of reading have come to.

    Attributes:
        state: in timm's naming; under the file's own names where they say no network.
        unused: names of tensors that no classifier uses.
        about: what the tensors are, or look like where `is_recognised` is false.
        expected: names and shapes of the network's tensors.
        refusals: of each step that failed.
    """

    state: dict[str, Tensor]
    unused: tuple[str, ...] = ()
    about: About | None = None
    is_recognised: bool = False
    expected: dict[str, torch.Size] | None = None
    refusals: list[VitError] = field(default_factory=list)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """What fails in here is put down."""
        try:
            with parsing(what):
                yield
        except VitError as refusal:
            self.refusals.append(refusal)


def summarise(ckpt: str, *, model_name: str | None) -> dict[str, Any]:
    """Everything that can be told of a checkpoint, also of one that no command would take.

    What is not known is None; so are `missing`, `unexpected` and `of_another_shape` where no network is known
    to compare the tensors with.

    Raises:
        WeightsError: no such file, or one that cannot be parsed.
    """
    if model_name is not None:
        known_name(model_name)
    with blaming(ckpt):
        place = locate(ckpt)
        stored = read_stored(place.file)
    found = _examined(place, stored, model_name)
    dtypes = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in stored.tensors.values())
    return {
        "command": "inspect",
        "ckpt": ckpt,
        "file": str(place.file),
        "file_bytes": place.file.stat().st_size,
        "format": found.about.format if found.about else place.format,
        "spelling": stored.spelling,
        **_network(found),
        **_words(found.about),
        "num_tensors": len(stored.tensors),
        "num_params": _num_params(found.state),
        "dtypes": dict(dtypes),
        **_compared(found),
        "non_finite": non_finite(found.state),
        "unused": list(found.unused),
        "problems": [_sentence(refusal) for refusal in found.refusals],
        "advice": list(dict.fromkeys(refusal.fix for refusal in found.refusals)),
        "usable": not found.refusals,
        "commands": [shlex.join(["vit", *words]) for words in _commands(ckpt, model_name, found)],
    }


def _examined(place: Place, stored: Stored, model_name: str | None) -> Findings:
    """The steps of reading, none of which needs the one before to have succeeded."""
    found, content = Findings(state=_floats(stored)), None
    with found.step("the tensors"):
        content = in_timms_naming(stored)
        found.state, found.unused = content.state, content.unused
    if content is not None:
        _recognise(found, place, content, model_name)
    if found.about is not None:
        with found.step("the architecture"):
            found.expected = expected_tensors(found.about.architecture)
            check_fits(found.state, found.expected, found.about.architecture)
    with found.step("the tensors"):
        check_finite(found.state)
    return found


def _recognise(found: Findings, place: Place, content: Content, model_name: str | None) -> None:
    """Find what the tensors are; if that is refused, what they look like without what it is refused for."""
    with found.step("the stored metadata"):
        found.about, found.is_recognised = describe(place, content, model_name), True
    vit = content.vit or place.config.get("vit")
    bare, unlabelled = place._replace(config={}, preprocessor={}), content._replace(vit={})
    guesses = [(place, content, None), (bare, unlabelled, None)]
    if isinstance(vit, dict) and "architecture" in vit:
        guesses.insert(1, (bare, content._replace(vit={"architecture": vit["architecture"]}), None))
    guesses.append((bare, unlabelled._replace(state=_with_square_grid(content.state)), None))
    variant = find_variant(model_name or "")
    if variant and variant.is_timms:
        guesses.append((bare, unlabelled, variant.timm_name))
    for guess in guesses:
        if found.about is None:
            with suppress(VitError), parsing("the tensors"):
                found.about = describe(*guess)._replace(format=place.format)


def _with_square_grid(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With a position embedding of the nearest number of rows that can be."""
    posemb = state.get("pos_embed")
    if posemb is None or posemb.ndim != 3:
        return state
    num_prefix = _num_prefix({name: tensor.shape for name, tensor in state.items()})
    side = max(1, round(math.sqrt(max(0, posemb.shape[1] - num_prefix))))
    shape = (1, num_prefix + side * side, posemb.shape[2])
    return state | {"pos_embed": torch.empty(shape, device="meta")}


def _num_prefix(shapes: dict[str, torch.Size]) -> int:
    """Tokens that stand for no patch."""
    of_tokens = (shapes[name] for name in PREFIX_TOKENS if name in shapes)
    return sum(shape[1] for shape in of_tokens if len(shape) == 3)


def _floats(stored: Stored) -> dict[str, Tensor]:
    """The tensors under the file's own names, those of numbers with a point."""
    if stored.spelling == "official":
        arrays = {name: array for name, array in stored.tensors.items() if array.dtype.kind == "f"}
        return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in arrays.items()}
    return {name: t.float() for name, t in stored.tensors.items() if t.is_floating_point()}


def _num_params(state: dict[str, Tensor]) -> int:
    """Numbers that training changes; the averages of a batch norm are none of them."""
    learned = {name: t for name, t in state.items() if not name.endswith(("running_mean", "running_var"))}
    return sum(tensor.numel() for tensor in learned.values() if tensor.is_floating_point())


def _network(found: Findings) -> dict[str, Any]:
    """What the architecture says; its geometry only if timm can build it."""
    arch = found.about and found.about.architecture
    built = arch if found.expected is not None else None
    with_grid = (
        built is not None and built.patch_grid and ("pos_embed" in found.expected or arch.posemb != "1d")
    )
    num_prefix = _num_prefix(found.expected) if with_grid else None
    macs = None
    if built:
        with suppress(VitError), parsing("the costs"):
            macs = forward_macs(built)
    return {
        "model": arch and arch.name,
        "timm_name": arch and arch.timm_name,
        "architecture": arch and arch.as_dict(),
        "resolution": arch and list(arch.image_size),
        "patch_size": built and built.patch_size,
        "patch_grid": list(built.patch_grid) if built and built.patch_grid else None,
        "tokens": num_prefix + math.prod(built.patch_grid) if with_grid else None,
        "prefix_tokens": num_prefix,
        "head": arch and _head(arch.num_classes, arch.pre_logits),
        "classifier": built and built.classifier,
        "posemb": arch.posemb if with_grid else None,
        "num_classes": arch and arch.num_classes,
        "forward_gmacs": macs and round(macs / 1e9, 3),
    }


def _head(num_classes: int, pre_logits: bool) -> str:
    if not num_classes:
        return "none"
    return "pre-logits and one layer" if pre_logits else "one layer"


def _words(about: About | None) -> dict[str, Any]:
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
    with suppress(VitError), parsing("the stored preprocessing"):
        return Preprocessing.from_dict(preprocessing).summary()


def _compared(found: Findings) -> dict[str, list[str] | None]:
    if found.expected is None:
        return dict.fromkeys(("missing", "unexpected", "of_another_shape"))
    return {kind.replace(" ", "_"): names for kind, names in misfits(found.state, found.expected).items()}


def _sentence(refusal: VitError) -> str:
    return f"{refusal.message} ({refusal.where})" if refusal.where else refusal.message


def _commands(ckpt: str, model_name: str | None, found: Findings) -> list[list[str]]:
    """Command lines, after `vit`, that would take this file; words in capitals are for the user to fill in."""
    if found.refusals:
        needs_name = not found.is_recognised and model_name is None and "--model" in found.refusals[0].fix
        return [["inspect", ckpt, "--summary", "--model", "NAME"]] if needs_name else []
    about, arch = found.about, found.about.architecture
    source = ["--ckpt", ckpt, *(["--model", model_name] if model_name else [])]
    commands, is_demo = [], about.format == "demo"
    if arch.num_classes and not arch.pre_logits:
        is_imagenet = arch.num_classes == 1000 and not about.class_names
        dataset = "demo:pretrain" if is_demo else "imagenet" if is_imagenet else "DATA"
        is_known = not about.preprocessing or _summary(about.preprocessing)
        recipe = [] if is_known else ["--recipe", "evaluate/default"]
        commands.append(["evaluate", *source, "--dataset", dataset, *recipe])
        commands += [["predict", *source, "PICTURES"]] if is_known else []
    side = round(max(arch.image_size) * GROWTH / (arch.patch_size or 32)) * (arch.patch_size or 32)
    larger = (
        ["--res", str(side)]
        if arch.is_of_the_paper and len(set(arch.image_size)) == 1 and side <= 384
        else []
    )
    return [*commands, ["finetune", *source, "--dataset", "demo" if is_demo else "DATA", *larger]]


def as_text(result: dict[str, Any]) -> str:
    """For a terminal: what was found, then the verdict, then the command lines, which are never wrapped."""
    count = len(result["problems"])
    verdict = "sound" if result["usable"] else f"not usable: {count} problem{'s' * (count > 1)}, see below"
    sections = {
        "File": _file_rows(result),
        "Network": _network_rows(result) if result["model"] else [("model", "not recognised")],
        "Stored with it": [(name, _value(name, value)) for name, value in (result["metadata"] or {}).items()],
        "Tensors": _tensor_rows(result),
        "Problems": [(str(number), text) for number, text in enumerate(result["problems"], start=1)],
        "What to do": [("", text) for text in result["advice"]],
    }
    lines = [f"{plain(result['ckpt'])}: {verdict}"]
    for title, rows in sections.items():
        lines += ["", title, *(line for row in rows for line in _wrapped(*row))] if rows else []
    if result["commands"]:
        lines += ["", "Commands that take it" if result["usable"] else "Then"]
        lines += [f"  {plain(command)}" for command in result["commands"]]
    return "\n".join(lines) + "\n"


def _file_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    dtypes = ", ".join(f"{count} of {dtype}" for dtype, count in result["dtypes"].items())
    return [
        ("file", result["file"]),
        ("size", f"{result['file_bytes'] / 1e6:,.1f} MB"),
        ("format", f"{result['format']}, with {SPELLINGS[result['spelling']]}"),
        ("tensors", dtypes),
    ]


def _network_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    height, width = result["resolution"]
    patches, names, pixels = result["patch_grid"], result["class_names"], result["preprocessing"]
    in_patches = f" in {patches[0]}x{patches[1]} patches of {result['patch_size']}" if patches else ""
    rows = [("model", f"{result['model']} ({result['timm_name']} in timm)")]
    rows.append(("parameters", f"{result['num_params']:,}"))
    if result["forward_gmacs"] is not None:
        rows.append(("compute", f"{result['forward_gmacs']:.3f} GMACs an image, without the head"))
    rows.append(("pictures", f"{height}x{width} pixels{in_patches}"))
    if result["tokens"]:
        posemb, prefix = result["posemb"], result["prefix_tokens"]
        rows.append(
            ("tokens", f"{result['tokens']}, of which {prefix} for no patch; position embedding {posemb}")
        )
    reads = {"token": ", reads the class token", "gap": ", reads the mean of all tokens"}
    rows.append(("head", result["head"] + reads.get(result["classifier"], "")))
    rows.append(
        (
            "classes",
            f"{result['num_classes']}"
            + (f": {_some(names['first'], names['count'])}" if names else ", no names stored"),
        )
    )
    unread = "stored, but not in a way this version can follow; say it with --recipe"
    told = (pixels["summary"] or unread) if pixels else "none stored: recipe evaluate/default would be used"
    return [*rows, ("pixels", told), ("numerics", result["numerics"])]


def _tensor_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    kinds = {"missing": "missing", "unexpected": "unexpected", "of_another_shape": "other shape",
             "non_finite": "not finite", "unused": "unused"}  # fmt: skip
    rows = [
        (told, f"{len(result[kind])}: {_some(result[kind])}") for kind, told in kinds.items() if result[kind]
    ]
    if result["missing"] is None:
        return [("compared", "with no network"), *rows]
    return rows or [("compared", "all are there and fit, none is left over, every number is finite")]


def _some(names: list[str], count: int | None = None) -> str:
    more = (count or len(names)) - len(names[:MOST])
    return ", ".join(name[: LONGEST // MOST] for name in names[:MOST]) + (
        f" and {more:,} more" if more else ""
    )


def _value(name: str, value: Any) -> str:
    return f"{value:.2%}" if name.startswith("top") and isinstance(value, float) else str(value)


def _wrapped(name: str, text: str) -> list[str]:
    start, text = f"  {plain(name[: INDENT - 3]):<{INDENT - 3}} ", plain(text[:LONGEST])
    indents = dict(initial_indent=start, subsequent_indent=" " * INDENT)
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False, **indents)
