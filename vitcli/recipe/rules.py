"""What must hold between the keys of a recipe, whatever each of them is by itself."""

from typing import Any

# keys that have a meaning only with one choice of another key, and are needed with it
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
# a second choice with which a key may be given, and is not needed
ALSO_WITH = {"data.eval_crop_fraction": ["square"]}
# keys of which no run can choose a value, and why
FIXED_IN_A_CHOICE = {
    **dict.fromkeys(("data.dataset", "data.train_split", "data.num_examples"), "what is learnt from"),
    **dict.fromkeys(("data.eval_split", "data.dev_fraction"), "what is chosen by"),
    **dict.fromkeys(("data.image_column", "data.label_column", "data.num_classes"), "what is learnt"),
    **dict.fromkeys(("train.seed", "train.runs"), "a repetition and no choice"),
}
ALTERNATIVES = {"schedule.steps": "schedule.epochs", "schedule.epochs": "schedule.steps"}


def is_superseded(key: str, layer: dict[str, Any]) -> bool:
    """Whether an inherited key loses its meaning through a choice that `layer` makes."""
    choice, needed = BELONGS.get(key, (None, None))
    return ALTERNATIVES.get(key) in layer or (choice in layer and layer[choice] != needed)


def contradictions(values: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What does not hold between keys, whatever else is wrong: key, what is wrong, what works.

    Values may still be of any type: those that are not what they should be are reported elsewhere.
    """
    found = []
    for name, (choice, needed) in BELONGS.items():
        is_given, chosen = values.get(name) is not None, values.get(choice)
        if is_given and choice in values and chosen != needed and chosen not in ALSO_WITH.get(name, []):
            what = f"{name} is for {choice} = {needed!r}, which is {values[choice]!r} here"
            found.append((name, what, f"leave it out, or set {choice} to {needed!r}"))
        elif not is_given and chosen == needed:
            found.append((choice, f"{name} is missing", f"{choice} = {needed!r} needs it"))
    given = [name for name in ALTERNATIVES if values.get(name) is not None]
    if len(given) != 1 and any(name.startswith("schedule.") for name in values):
        what = "schedule.steps and schedule.epochs are both given" if given else "the duration is missing"
        found.append(("schedule.steps", what, "give exactly one of schedule.steps and schedule.epochs"))
    return found + _contradictory_numbers(values)


def _contradictory_numbers(values: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = []
    for name in ("data.crop_area", "data.crop_aspect"):
        match values.get(name):
            case [int() | float() as low, int() | float() as high] if low > high:
                found.append((name, f"{name} is [{low}, {high}]", "write [least, largest]"))
    match values.get("data.std"):
        case list() as stds if any(isinstance(std, int | float) and std <= 0 for std in stds):
            found.append(("data.std", f"data.std is {stds}", "pixels are divided by it: above 0"))
    size, resize = values.get("data.image_size"), values.get("data.resize")
    side = max(size, default=0) if isinstance(size, list) and _all_int(size) else size
    if isinstance(side, int) and isinstance(resize, int) and resize < side:
        what = f"data.resize is {resize}, smaller than data.image_size, {size}"
        found.append(("data.resize", what, f"set data.resize to {side} or more"))
    return found


def _all_int(values: list[Any]) -> bool:
    return all(isinstance(value, int) for value in values)
