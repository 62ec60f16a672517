"""What was found in a data set, in the order of what it costs, and what ends with exit code 3.

spoils    a number on these data would be wrong, or a run stops: exit code 3
look      a person has to look: whether it costs anything depends on the images
know      nothing is wrong, but training could take it into account
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vitcli.data.checks.splits import LARGE_PIXELS, LONG_ASPECT, SMALL_SIDE
from vitcli.errors import DataError
from vitcli.output.text import count_of, first_few

Level = Literal["spoils", "look", "know"]
LEVELS: tuple[Level, ...] = ("spoils", "look", "know")
SHOWN = 3  # names in a finding; --json has all
FEW_IMAGES = 5  # of a class: fewer are too few to hold one out and learn from the others
KEEPS_COPIES = ("--set", "data.group_column=near_duplicates")
UNEQUAL = 10.0  # largest class by smallest: where weights for classes begin to matter


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        name: a word for scripts.
        text: a sentence with counts and the first names.
        fix: what to do, or an option that takes it into account; "" for nothing.
    """

    level: Level
    name: str
    text: str
    fix: str = ""


def find(result: dict[str, Any]) -> list[dict[str, str]]:
    """Return the findings of a checked data set as JSON, what spoils numbers first."""
    parts = (
        _unreadable(result),
        _copies(result),
        _classes(result),
        _sizes(result),
        _left_out(result),
        _labels(result),
    )
    findings = [finding for part in parts for finding in part]
    return [asdict(finding) for finding in sorted(findings, key=lambda each: LEVELS.index(each.level))]


def failure(result: dict[str, Any]) -> DataError | None:
    """Return the error that a command ends with, if anything found spoils a number."""
    spoiling = [finding for finding in result["findings"] if finding["level"] == "spoils"]
    if not spoiling:
        return None
    names = ", ".join(finding["name"].replace("_", " ") for finding in spoiling)
    number = count_of(len(spoiling), "finding")
    fixes = [f"{finding['name'].replace('_', ' ')}: {finding['fix']}" for finding in spoiling]
    return DataError(
        f"the check is complete; exit code 3, as {number} would distort the results: {names}",
        where=result["dataset"],
        fix="; ".join(fixes) if len(fixes) > 1 else spoiling[0]["fix"],
    )


def _unreadable(result: dict[str, Any]) -> Iterator[Finding]:
    if places := result["unreadable"]:
        first = _first([*map(_file_of, places)], len(places))
        text = f"{count_of(len(places), 'image')} cannot be read: {first}"
        yield Finding(
            "spoils",
            "unreadable_images",
            text,
            "repair or delete them; to train without them, vit finetune --skip-bad",
        )


def _copies(result: dict[str, Any]) -> Iterator[Finding]:
    trained = [part["split"] for part in result["splits"] if part["is_trained_on"]]
    for pair in result["comparisons"]:
        name, against = short_name(pair["split"]), short_name(pair["against"])
        yield from _contradictions(pair, f"within {name}" if pair["within"] else f"of {name} and {against}")
        yield from _within(pair, name, trained) if pair["within"] else _between(pair, name, against)


def _contradictions(pair: dict[str, Any], place: str) -> Iterator[Finding]:
    def first(pairs: list[dict[str, Any]]) -> str:
        one, other = _file_of(pairs[0]["place"]), _file_of(pairs[0]["against_place"])
        return f"{one} is {pairs[0]['label']}, {other} is {pairs[0]['against_label']}"

    if number := pair["num_contradictions"]:
        text = f"{count_of(number, 'pair')} of equal images {place} with different labels: "
        text += first(pair["contradictions"])
        yield Finding("spoils", "copies_with_other_labels", text, "delete the one with the wrong label")
    if number := pair["num_near_contradictions"]:
        has = "has" if number == 1 else "have"
        text = (
            f"{count_of(number, 'near pair')} {place} {has} two labels: {first(pair['near_contradictions'])}"
        )
        yield Finding("look", "near_copies_with_other_labels", text, "one may be wrong: look at both images")


def _between(pair: dict[str, Any], name: str, against: str) -> Iterator[Finding]:
    """Exact copies are leaks; near ones are guesses, and of drawings often wrong."""
    exact, near = pair["num_images_exact"], pair["num_images_near"]
    if exact:
        text = f"{exact:,} of {pair['num_images']:,} images of {name} have an exact copy in {against}"
        yield Finding("spoils", "leak", text, f"delete them from {name} or {against}")
    if near:
        more = " more" if exact else ""
        text = f"{near:,}{more} of {pair['num_images']:,} images of {name} have a near copy in {against}"
        yield Finding("look", "near_copies", text, "copies of a photograph leak as well: look at the pairs")


def _within(pair: dict[str, Any], name: str, trained: Sequence[str]) -> Iterator[Finding]:
    """Copies within the images to train on leak where a part of them is held out."""
    exact, near = pair["num_images_exact"], pair["num_images_near"]
    if not exact + near:
        return
    is_trained_on = pair["split"] in trained
    counts = f"{exact:,} have an exact copy and {near:,} more a near one"
    counts = counts if exact else f"{near:,} have a near copy"
    text = f"{counts} within the {pair['num_images']:,} images of {name}"
    fix = f"vit finetune {' '.join(KEEPS_COPIES)} keeps them on one side of a cut" if is_trained_on else ""
    yield Finding("look" if exact or is_trained_on else "know", "copies_within", text, fix)


def _classes(result: dict[str, Any]) -> Iterator[Finding]:
    for names in result["alike_classes"]:
        text = f"{' and '.join(map(repr, names))} are two classes, equal but for case, blanks or accents"
        yield Finding("spoils", "alike_classes", text, "give them one name")
    for part in result["splits"]:
        name, classes = short_name(part["split"]), part["labels"]
        if classes is None:
            if part["no_labels"]:
                level: Level = "spoils" if part["labels_stop"] else "look"
                advice = "give each class one name in all splits, and images in train"
                fix = advice if level == "spoils" else ""
                yield Finding(level, "labels_not_read", f"labels of {name}: {part['no_labels']}", fix)
            continue
        if classes["kind"] == "number":
            continue
        empty, counts = classes["empty"], classes["images_per_class"]
        if empty:
            is_scored = part["is_trained_on"] and any(_has_images(result, label) for label in empty)
            text = f"{_classes_have(len(empty))} no image in {name}: {_first(empty, len(empty))}"
            fix = f"add images of them to {name}, or delete them from the other splits" if is_scored else ""
            yield Finding("spoils" if is_scored else "look", "empty_classes", text, fix)
        if classes["num_unlabelled"]:
            number = classes["num_unlabelled"]
            text = f"{count_of(number, 'image')} of {name} {'has' if number == 1 else 'have'} no class"
            yield Finding("know", "images_of_no_class", text)
        if not part["is_trained_on"]:
            continue
        few = {label: count for label, count in counts.items() if 0 < count < FEW_IMAGES}
        if few:
            shown = _first([f"{label} {count}" for label, count in few.items()], len(few))
            text = f"{_classes_have(len(few))} fewer than {FEW_IMAGES} images in {name}: {shown}"
            yield Finding("look", "small_classes", text, "add images, or join classes")
        if classes["ratio"] and classes["ratio"] >= UNEQUAL:
            text = (
                f"{classes['largest']} has {counts[classes['largest']]:,} images in {name}, "
                f"{classes['smallest']} {counts[classes['smallest']]:,}"
            )
            yield Finding(
                "know",
                "unequal_classes",
                text,
                "vit finetune --set data.sampling=sqrt draws small ones more",
            )


def _labels(result: dict[str, Any]) -> Iterator[Finding]:
    suspects = result.get("suspects")
    if suspects and not suspects["are_classes_known"]:
        text = (
            f"labels of {short_name(suspects['split'])} not judged: the features of {suspects['model']} know "
            f"these classes badly, {suspects['top1']:.1%} by leave-one-out"
        )
        yield Finding("look", "unknown_classes", text, "--ckpt names other weights")
    if suspects and suspects["num_trained_on"]:
        text = (
            f"{suspects['ckpt']} was trained on {suspects['num_trained_on']:,} of these images, and may have "
            "learned wrong labels"
        )
        yield Finding("look", "trained_on_labels", text, "the weights that it started from find more")
    if suspects and suspects["num_named"]:
        number, name = suspects["num_named"], short_name(suspects["split"])
        text = (
            f"{count_of(number, 'label')} of {suspects['num_checked']:,} of {name} contradicted by the others"
        )
        fix = "" if suspects["page"] else "--out suspects.csv writes them, and a page of the images"
        yield Finding("look", "suspicious_labels", text, fix or f"open {suspects['page']}")


def _sizes(result: dict[str, Any]) -> Iterator[Finding]:
    rows = {
        "large": (
            f"more than {LARGE_PIXELS // 10**6} megapixels, which take long to decode",
            "store them smaller",
        ),
        "small": (f"a side below {SMALL_SIDE} pixels", ""),
        "long": (
            f"one side more than {LONG_ASPECT:g} times the other: a centre crop shows the middle alone",
            "",
        ),
    }
    for name, (what, fix) in rows.items():
        places = [place for part in result["splits"] for place in part["sizes"][name]]
        if places:
            has = "has" if len(places) == 1 else "have"
            first = _first([*map(_file_of, places)], len(places))
            text = f"{count_of(len(places), 'image')} {has} {what}: {first}"
            yield Finding("look" if name == "large" else "know", f"{name}_images", text, fix)


def _left_out(result: dict[str, Any]) -> Iterator[Finding]:
    if number := result["num_left_out_files"]:
        yield Finding("look", "files_left_out", f"{count_of(number, 'file')} of the folder not read")


def _has_images(result: dict[str, Any], label: str) -> bool:
    """Return whether any split has an image of a class."""
    classes = (part["labels"] for part in result["splits"])
    return any((each or {}).get("images_per_class", {}).get(label) for each in classes)


def _classes_have(count: int) -> str:
    return "1 class has" if count == 1 else f"{count:,} classes have"


def _first(names: Sequence[str], total: int) -> str:
    return first_few([*names][:SHOWN], SHOWN, total=total)


def short_name(split: str) -> str:
    """Return the name of a split without its data set: "train" of "photos/, split train"."""
    return split.rpartition(", split ")[2] or split


def _file_of(place: str) -> str:
    """Return the folder and the name of the file of an image, or its split and row."""
    file = place.rpartition(", file ")[2].partition(": ")[0]
    return str(Path(*Path(file).parts[-2:])) if ", file " in place else file.rpartition(", split ")[2]
