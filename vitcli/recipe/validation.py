"""Mistakes in TOML files: pydantic's refusals and contradictions between keys, in one report for people."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from vitcli.errors import VitError, nearest
from vitcli.recipe.group_rule import group_rule
from vitcli.recipe.schema import (
    KEYS,
    ONE_OF,
    OTHER,
    REFIT,
    SECTIONS,
    TRAINING_SECTIONS,
    Recipe,
    Section,
    table_in,
)
from vitcli.recipe.toml import nested, toml_value

SEE_SCHEMA = "vit recipes schema lists every key with its meaning"
MOST_MISTAKES = 20  # that are listed one by one
KINDS = dict(float="a number", int="a whole number", bool="true or false", string="a string", tuple="a list")
Checked = TypeVar("Checked", bound=Section)
Path = list[str | int]  # of a value in a file: keys, and positions in lists


@dataclass(frozen=True)
class Problem:
    """One mistake: what is wrong, the file or option it is in, and what to write instead."""

    what: str
    where: str
    fix: str


def validate(
    model: type[Checked],
    table: Mapping[str, Any],
    *,
    noun: str,
    see: str,
    file: str,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Checked | None, list[Problem]]:
    """Check a table against a closed schema.

    Args:
        noun: what the table is, with its article: "a study".
        see: where every key is explained; the fix of a missing one.
        file: where the table comes from.
        sources: options and files that set a "section.key" in its place.

    Returns:
        The model, None where there are problems; and every problem, unknown keys with the nearest known one.
        Those after the first `MOST_MISTAKES`, which `report` counts alone, are in pydantic's words.
    """
    try:
        return model.model_validate(table), []
    except ValidationError as refusal:
        errors = refusal.errors(include_url=False)
    # Pydantic calls a list with a wrong item too short as well.
    errors = [error for error in errors if error["type"] != "too_short" or not error["input"]]
    problems = [
        _translated(model, error, noun, see, sources.get(".".join(map(str, error["loc"][:2])), file))
        for error in errors[:MOST_MISTAKES]
    ]
    return None, problems + [Problem(error["msg"], file, see) for error in errors[MOST_MISTAKES:]]


def check(
    values: Mapping[str, Any], sources: Mapping[str, str], *, file: str, training: bool
) -> tuple[Recipe | None, list[Problem]]:
    """Build the recipe, if possible, and list everything that is wrong with it.

    Args:
        values: by dotted key.
        sources: the file or option of each value.
        file: named for what is missing.
        training: whether the sections of a training run are required.
    """
    tables = nested(values)
    training = training or bool(tables.keys() & set(TRAINING_SECTIONS))
    problems = [
        Problem(f"section [{name}] is missing", file, "extend or copy a shipped recipe: vit recipes list")
        for name in TRAINING_SECTIONS
        if training and name not in tables
    ]
    problems += [Problem(what, sources.get(key, file), fix) for key, what, fix in contradictions(values)]
    recipe, refusals = validate(Recipe, tables, noun="a recipe", see=SEE_SCHEMA, file=file, sources=sources)
    return recipe, refusals + problems


def report(problems: Sequence[Problem], file: str, *, see: str = SEE_SCHEMA) -> VitError:
    """Return one error for all problems, of which it names the first `MOST_MISTAKES`; one stays as it is.

    Args:
        file: what they are in: "recipe finetune/cifar10".
        see: where every key is explained.
    """
    if len(problems) == 1:
        return VitError(problems[0].what, where=problems[0].where, fix=problems[0].fix)
    named, rest = problems[:MOST_MISTAKES], len(problems[MOST_MISTAKES:])
    places = dict.fromkeys(problem.where for problem in named)
    where = "      where: {}\n" if len(places) > 1 else ""  # one place is named once, below
    lines = [f"    {p.what}\n{where.format(p.where)}      fix:   {p.fix}" for p in named]
    lines += [f"    and {rest:,} more"] * (rest > 0)
    return VitError(
        "\n".join([f"{len(problems):,} mistakes in {file}", *lines]),
        where=", ".join(places) if len(places) < 3 else f"{len(places)} files and options, named above",
        fix=see,
    )


# Names of other tools for keys, and words of theirs for values, each with what it is here.
ALSO_CALLED = {
    "wd": "optimizer.weight_decay", "opt": "optimizer.name", "optim": "optimizer.name",
    "optimizer": "optimizer.name", "sched": "schedule.decay", "scheduler": "schedule.decay",
    "lr_scheduler": "schedule.decay", "lr_scheduler_type": "schedule.decay",
    "warmup_epochs": "schedule.warmup", "warmup_steps": "schedule.warmup", "warmup_ratio": "schedule.warmup",
    "early_stopping": "train.patience", "early_stopping_patience": "train.patience",
    "lora": "model.lora_rank", "lora_r": "model.lora_rank", "smoothing": "objective.label_smoothing",
    "aa": "data.randaugment", "auto_augment": "data.trivialaugment", "reprob": "data.random_erasing",
    "clip_grad": "optimizer.clip", "max_grad_norm": "optimizer.clip", "model_ema": "optimizer.average",
    "ema": "optimizer.average", "drop": "model.dropout", "val_split": "data.dev_fraction",
    "model_ema_decay": "optimizer.average", "train_val_split": "data.dev_fraction", "task": "objective.loss",
    "crop_pct": "data.eval_crop_fraction", "gradient_checkpointing": "model.grad_checkpointing",
    "label_smoothing_factor": "objective.label_smoothing", "cls_pw": "objective.class_weights",
}  # fmt: skip
ALSO_WRITTEN = {("optimizer.name", "adamw"): "write adam, which is AdamW here: its weight decay is decoupled"}


def unknown(key: str, source: str) -> Problem:
    """Report a section or key that recipes lack, with the nearest name or the section that has the key."""
    section, dot, name = key.rpartition(".")
    elsewhere = [known for known in KEYS if known.endswith(f".{name}")]
    if name in ALSO_CALLED and section in ("", *SECTIONS) and key not in SECTIONS:
        return Problem(f"{key} is not a key of a recipe", source, f"{name} is written {ALSO_CALLED[name]}")
    if key in SECTIONS:
        what, fix = f"{key} is a section of a recipe, not a key", f"set {key}.KEY"
    elif section in SECTIONS:
        names = list(SECTIONS[section].model_fields)
        what = f"{key} is not a key of a recipe{nearest(name, names) or nearest(key, KEYS)}"
        fix = f"the keys of [{section}] are {', '.join(names)}"
    else:
        kind = "key" if dot else "section"
        what = f"{key} is not a {kind} of a recipe{nearest(section or name, SECTIONS)}"
        fix = f"the sections are {', '.join(SECTIONS)}"
    return Problem(what, source, f"{name} is written {' or '.join(elsewhere)}" if elsewhere else fix)


def _translated(model: type[Section], error: Mapping[str, Any], noun: str, see: str, where: str) -> Problem:
    """Return one refusal of pydantic as a problem of the file."""
    # Where it is: the path without the branches of unions, and the tables that it leads to.
    alternatives = [part.removeprefix(ONE_OF) for part in error["loc"] if str(part).startswith(ONE_OF)]
    path = [part for part in error["loc"] if part != OTHER and not str(part).startswith(ONE_OF)]
    if path[-1] == "[key]":  # a name in a table of recipe keys
        *path, name, _ = path
        return unknown(name, f"{where}, {_place(path)}")
    place, parent = _place(path), _table_at(model, path[:-1])
    holds_tables = _table_at(model, path) is not parent
    # What it is: a name, a missing value, a table or a value.
    match error["type"]:
        case "extra_forbidden" if model is Recipe:
            return unknown(place, where)
        case "extra_forbidden":
            names = list(parent.model_fields)
            what = f"{place} is not a key of {noun}{nearest(str(path[-1]), names)}"
            return Problem(what, where, f"the keys here are {', '.join(names)}")
        case "missing":
            is_section = holds_tables and len(path) == 1
            return Problem(
                f"section [{place}] is missing" if is_section else f"{place} is missing", where, see
            )
        case "tuple_type" if holds_tables:
            return Problem(f"{place} is a list of tables", where, f"write [[{place}]] above the keys of each")
        case "model_type" | "dict_type":
            fix = f"write {path[-1]}.KEY = VALUE, or [{place}] above them"
            return Problem(f"{place} is a table of keys", where, fix)
    problem = _bad_value(error, place, where)
    return replace(problem, fix=", or ".join([problem.fix, *alternatives]))


def _table_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """Return the schema of the innermost table on a path."""
    for part in path:
        if part in model.model_fields:
            model = table_in(model.model_fields[part].annotation) or model
    return model


def _place(path: Path) -> str:
    """Write a path for people: "variants, item 1: steps, item 2"."""
    text = ""
    for before, part in pairwise(["", *path]):
        if isinstance(part, int):
            text += f", item {part + 1}"
        else:
            text += (": " if isinstance(before, int) else "." if text else "") + part
    return text


def _bad_value(error: Mapping[str, Any], place: str, source: str) -> Problem:
    """Report a value that is not of its key's type or range."""
    given = error["input"]
    match error["type"]:
        case "literal_error":
            choices = error["ctx"]["expected"]
            meant = ALSO_WRITTEN.get((place, str(given).lower()))
            close = nearest(str(given), choices.replace("'", "").replace(" or ", ", ").split(", "))
            what = f"{place} is {toml_value(given)}{'' if meant else close}"
            return Problem(what, source, meant or f"it must be {choices}")
        case "string_pattern_mismatch":  # schedule.warmup is the only key with a pattern
            what = f"{place} is {toml_value(given)}, which is neither steps nor a fraction of the run"
            return Problem(what, source, 'write steps without quotes, or a fraction such as "10%"')
    kind, _, reason = error["type"].partition("_")
    if reason == "type" and kind in KINDS:
        what = f"{place} is {toml_value(given)}, which is not {KINDS[kind]}"
        return Problem(what, source, _as_kind(kind, given))
    words = re.sub(r"^\w+ should", "it must", error["msg"]).replace(" after validation", "")
    return Problem(f"{place} is {toml_value(given)}, out of its range", source, words)


def _as_kind(kind: str, given: Any) -> str:
    """Return how to write a value of the right type, where the wrong one shows what was meant."""
    if isinstance(given, str):
        if kind == "bool" and given.lower() in ("true", "false"):
            return f"write {given.lower()}, without quotes"
        if kind == "float" and re.fullmatch(r"\d+,\d+", given):
            return f"write {given.replace(',', '.')}, with a point"
        try:
            number = int(given) if kind == "int" else float(given)
        except ValueError:
            return f"write {KINDS[kind]}"
        return f"write {toml_value(number)}, without quotes"
    if kind == "int" and isinstance(given, float) and given.is_integer():
        return f"write {int(given)}"
    if kind == "string" and not isinstance(given, list | dict):
        return f'write "{toml_value(given)}", with quotes'
    return f"write {KINDS[kind]}"


# Keys that mean something only with one value of another key, and are required with it.
BELONGS = {
    "data.crop_area": ("data.train_crop", "inception"),
    "data.crop_aspect": ("data.train_crop", "inception"),
    "data.resize": ("data.train_crop", "random"),
    "data.eval_crop_fraction": ("data.eval_resize", "short_side"),
    "objective.patch_target": ("objective.loss", "masked_patch"),
    "objective.corrupted": ("objective.loss", "masked_patch"),
    "objective.masked": ("objective.loss", "masked_patch"),
    "objective.replaced": ("objective.loss", "masked_patch"),
    "optimizer.momentum": ("optimizer.name", "sgd"),
    "optimizer.betas": ("optimizer.name", "adam"),
    "optimizer.eps": ("optimizer.name", "adam"),
}
# What such a key is where nothing says so: of the paper (sections 4.1, B.1.1) and the authors' code.
USUAL = {
    "data.crop_area": [0.05, 1.0],
    "data.crop_aspect": [0.75, 4 / 3],
    "optimizer.momentum": 0.9,
    "optimizer.betas": [0.9, 0.999],
    "optimizer.eps": 1e-8,
}
# Further values of that key with which the first is allowed, but not required.
ALSO_WITH = {"data.eval_crop_fraction": ["square", "weights"]}
HEAD_LAYERS, UNFAMILIAR_LR = "model.head_layers", "optimizer.unfamiliar_lr"
OF_REFIT = (HEAD_LAYERS, UNFAMILIAR_LR)
# Keys about classes, which an objective of numbers has none of, and the values that turn them off.
OF_CLASSES = {
    **dict.fromkeys(("objective.mixup", "objective.cutmix", "objective.label_smoothing"), (0,)),
    **{"objective.head_bias": (0,), "objective.class_weights": ("none",), "data.sampling": ("uniform",)},
    **{"data.num_classes": (None,), "model.head": ("zero", "keep"), "train.folds": (0,)},
    **{HEAD_LAYERS: (0,), UNFAMILIAR_LR: (None,)},
}
# Keys that cannot list values to choose from, and why.
FIXED_IN_A_CHOICE = {
    **dict.fromkeys(("data.dataset", "data.train_split", "data.num_examples"), "the training data"),
    **dict.fromkeys(
        ("data.eval_split", "data.dev_fraction", "data.hold_out_dev", "data.group_column"),
        "the dev split",
    ),
    **dict.fromkeys(("data.image_column", "data.label_column", "data.num_classes"), "the task"),
    **dict.fromkeys(("train.seed", "train.runs", "train.folds", "train.average_runs"), "a repetition"),
}
WEIGHTS, SAMPLING = "objective.class_weights", "data.sampling"
ALTERNATIVES = {"schedule.steps": "schedule.epochs", "schedule.epochs": "schedule.steps"}


def is_overridden(key: str, layer: Mapping[str, Any]) -> bool:
    """Return whether an inherited key loses its meaning through a choice that `layer` makes."""
    choice, needed = BELONGS.get(key, ("", None))
    loss = layer.get("objective.loss", "softmax")
    if (key in OF_CLASSES and loss == "regression") or (key == WEIGHTS and loss != "softmax"):
        return True
    if key in OF_REFIT and layer.get("model.head", REFIT) != REFIT:
        return True
    if key == UNFAMILIAR_LR and "optimizer.lr" in layer:  # which is asked for, whatever the images
        return True
    if key == "data.trivialaugment" and layer.get("data.randaugment", "none") != "none":
        return True
    other = {WEIGHTS: SAMPLING, SAMPLING: WEIGHTS}.get(key, "")
    if layer.get(other) == "balanced":  # with both, classes would count twice
        return True
    return ALTERNATIVES.get(key) in layer or (choice in layer and layer[choice] != needed)


def contradictions(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what does not hold between keys, as (key, what is wrong, fix).

    Values may still be of any type: wrong types are reported by the schema.
    """
    # Keys that belong to another one.
    for key, (choice, needed) in BELONGS.items():
        is_given, chosen = values.get(key) is not None, values.get(choice)
        if is_given and choice in values and chosen != needed and chosen not in ALSO_WITH.get(key, []):
            what = f"{key} is for {choice} = {needed!r}, which is {values[choice]!r} here"
            yield key, what, f"leave it out, or set {choice} to {needed!r}"
        elif not is_given and chosen == needed:
            yield choice, f"{key} is missing", f"{choice} = {needed!r} needs it"
    yield from _imbalance(values)
    if values.get("data.trivialaugment") is True and values.get("data.randaugment") is not None:
        what = "data.trivialaugment and data.randaugment are both given"
        yield "data.trivialaugment", what, "use one of the two; the other is set to false or none"
    yield from _contradictions_of_the_model(values)
    if values.get("train.patience") and not values.get("eval.every"):
        what = "train.patience counts evaluations during training, and eval.every is 0"
        yield "train.patience", what, "set eval.every to a number of steps, or leave it out"
    # The duration.
    given = [key for key in ALTERNATIVES if values.get(key) is not None]
    if len(given) != 1 and any(key.startswith("schedule.") for key in values):
        what = "schedule.steps and schedule.epochs are both given" if given else "the duration is missing"
        yield "schedule.steps", what, "give exactly one of schedule.steps and schedule.epochs"
    # Folds.
    if isinstance(folds := values.get("train.folds"), int) and folds:
        yield from _contradictions_of_folds(folds, values)
    # Groups.
    if isinstance(rule := values.get("data.group_column"), str):
        try:
            group_rule(rule)
        except ValueError as error:
            fix = f"{error}"
            yield "data.group_column", f"data.group_column is {toml_value(rule)}, which names no groups", fix
    # What mixes or smooths classes has no meaning for numbers.
    if values.get("objective.loss") == "regression":
        for key, off in OF_CLASSES.items():
            if values.get(key, off[0]) not in off:
                yield key, f"{key} is for classes, and objective.loss is 'regression'", "leave it out"
    yield from _contradictions_of_averages(values)
    yield from _contradictions_of_a_teacher(values)
    # Numbers.
    for key in ("data.crop_area", "data.crop_aspect"):
        match values.get(key):
            case [int() | float() as low, int() | float() as high] if low > high:
                yield key, f"{key} is [{low}, {high}]", "write [least, largest]"
    match values.get("data.std"):
        case list() | tuple() as stds if any(isinstance(std, int | float) and std <= 0 for std in stds):
            yield "data.std", f"data.std is {stds}", "pixels are divided by it: above 0"
    size, resize = values.get("data.image_size"), values.get("data.resize")
    sides = size if isinstance(size, list | tuple) else [size]
    side = max(sides, default=0) if all(isinstance(side, int) for side in sides) else None
    if isinstance(side, int) and isinstance(resize, int) and resize < side:
        what = f"data.resize is {resize}, smaller than data.image_size, {size}"
        yield "data.resize", what, f"set data.resize to {side} or more"


def _imbalance(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what does not hold of class weights and sampling by class."""
    weights, sampling = values.get("objective.class_weights", "none"), values.get("data.sampling", "uniform")
    loss = values.get("objective.loss", "softmax")
    if weights != "none" and loss != "softmax":
        what = f"objective.class_weights is for objective.loss = 'softmax', which is {loss!r} here"
        reason = "an image of several labels has no class" if loss == "sigmoid" else "it has no classes"
        yield "objective.class_weights", what, f"set it to none ({reason})"
    if sampling != "uniform" and loss in ("masked_patch", "regression"):
        what = f"data.sampling is {sampling!r}, but objective.loss = {loss!r} has no classes"
        yield "data.sampling", what, "set it to uniform"
    if sampling != "uniform" and values.get("data.streaming") is True:
        what = f"data.sampling is {sampling!r}, but streamed shards are read in their own order"
        yield "data.sampling", what, "set it to uniform, or data.streaming to false"
    if weights != "none" and sampling != "uniform" and "balanced" in (weights, sampling):
        what = f"objective.class_weights = {weights!r} and data.sampling = {sampling!r} count twice"
        yield "data.sampling", what, "use one of the two, or sqrt for both"


def _contradictions_of_the_model(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what does not hold between keys of the network, as `contradictions` does."""
    if values.get("model.lora_alpha") is not None and not values.get("model.lora_rank"):
        what = "model.lora_alpha is for model.lora_rank, which is 0 here"
        yield "model.lora_alpha", what, "leave it out, or set model.lora_rank, such as to 16"
    head = values.get("model.head", "zero")
    for key in OF_REFIT if head != REFIT else ():
        if values.get(key):
            what = f"{key} is for model.head = {REFIT!r}, which is {head!r} here"
            yield key, what, f"leave it out, or set model.head to {REFIT!r}"
    if values.get("model.patch_dropout") and values.get("objective.loss") == "masked_patch":
        what = "model.patch_dropout would leave out patches that objective.loss = 'masked_patch' predicts"
        yield "model.patch_dropout", what, "leave it out"


def _contradictions_of_averages(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what does not go together with averages of runs, as `contradictions` does."""
    key, loss = "train.average_runs", values.get("objective.loss", "softmax")
    is_averaged = values.get(key, "none") != "none"
    if is_averaged and not values.get("data.dev_fraction"):
        what = f"{key} needs images that are held out, to compare an average with its runs"
        yield key, what, f"set data.dev_fraction above 0, or {key} to none"
    if is_averaged and loss not in ("softmax", "sigmoid"):
        yield key, f"{key} compares accuracies, and objective.loss is {loss!r}", "leave it out"
    if is_averaged and values.get("data.num_examples") and values.get(HEAD_LAYERS):
        what = f"with data.num_examples each run draws other images, and may get a head {key} cannot average"
        yield HEAD_LAYERS, what, f"set {HEAD_LAYERS} to 0: all runs get an ordinary head"
    if values.get("data.hold_out_dev") is True and not values.get("data.dev_fraction"):
        yield "data.hold_out_dev", "data.hold_out_dev holds nothing out", "set data.dev_fraction above 0"


def _contradictions_of_a_teacher(values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what does not go together with distillation, as `contradictions` does."""
    key, loss = "distill.teacher", values.get("objective.loss", "softmax")
    if not values.get(key):
        return
    if loss != "softmax":
        what = f"a teacher's probabilities are those of one class per image, and objective.loss is {loss!r}"
        yield key, what, "set objective.loss to softmax, or leave the teacher out"
    of_rows = {
        "data.streaming": (None, False),
        "data.group_column": (None,),
        "data.sampling": (None, "uniform"),
    }
    for other, off in of_rows.items():
        if values.get("distill.images") and values.get(other) not in off:
            what = f"{other} is for images with labels, and distill.images have none"
            yield "distill.images", what, f"leave {other} out, or the images"
    if values.get("distill.compare", True) is not True:
        return
    if values.get("train.average_runs", "none") != "none":
        yield "distill.compare", "distill.compare delivers one of two runs, not an average", "set it to false"
    repeats = [name for name in ("train.runs", "train.folds") if values.get(name, 0) not in (0, 1)]
    if repeats:
        what = f"distill.compare makes two runs, and {repeats[0]} is {values[repeats[0]]}"
        yield repeats[0], what, f"set distill.compare to false, or leave {repeats[0]} out"
    if not values.get("data.dev_fraction"):
        what = "distill.compare needs a dev split, and data.dev_fraction is 0"
        yield "distill.compare", what, "set data.dev_fraction above 0, or distill.compare to false"


def _contradictions_of_folds(folds: int, values: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what does not go together with folds, as `contradictions` does."""
    key = "train.folds"
    if folds == 1:
        yield key, "one fold would hold out every image", "take 2 folds or more, or 0 for none"
    if isinstance(runs := values.get("train.runs"), int) and runs > 1:
        fix = "set train.runs to 1: folds have a mean and std of their own; or leave the folds out"
        yield key, f"train.runs is {runs}, and train.folds {folds}", fix
    if values.get("data.eval_split", "auto") != "auto":
        what = f"folds are scored on training images, and data.eval_split is {values['data.eval_split']!r}"
        yield (
            key,
            what,
            "set data.eval_split to auto; vit evaluate --ckpt RUN --split SPLIT scores another afterwards",
        )
    if values.get("objective.loss") == "masked_patch":  # regression: see OF_CLASSES
        yield key, "folds are scored by classes, and masked patches have none", "leave the folds out"
    if values.get("data.streaming") is True:
        yield key, "folds are divided row by row, and streamed shards are not", "leave one of the two out"
