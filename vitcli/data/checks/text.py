"""The result of `vit datasets check` for a terminal: one page, what spoils numbers first."""

from collections.abc import Iterator
from typing import Any

from vitcli.data.checks.findings import KEEPS_COPIES, LEVELS, short_name
from vitcli.output import text as output_text
from vitcli.output.document import Columns, simple_table
from vitcli.output.text import count_of, within

HEADINGS = {"spoils": "SPOILS", "look": "look at", "know": "know"}
SHOWN_SUSPECTS = 10


def as_text(result: dict[str, Any]) -> str:
    """Return the result as text: findings by what they cost, then facts, then what to type next."""
    page = output_text.pairs([*_findings(result), *_facts(result)])
    tables = [_table_of_pairs(result) if result["pairs"] else "", _table_of_suspects(result)]
    return page + "".join(f"\n{table}" for table in tables if table) + "\n" + output_text.pairs(_next(result))


def _findings(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for level in LEVELS:
        name = HEADINGS[level]
        for finding in result["findings"]:
            if finding["level"] == level:
                yield name, finding["text"] + (f" ({finding['fix']})" if finding["fix"] else "")
                name = ""
    if not result["findings"]:
        yield "found", "nothing that would distort the results"


def _facts(result: dict[str, Any]) -> list[tuple[str, str]]:
    num = result["num_images"]
    exact, near = result["num_images_exact"], result["num_images_near"]
    is_within = result["split"] == result["against"]
    against = (
        "within itself, each pair once" if is_within else f"{result['num_against']:,} of {result['against']}"
    )
    files = f"{count_of(result['num_same_file'], 'pair')} of equal files"
    rows = [
        ("checked", f"{num:,} images of {result['split']}"),
        ("against", against),
        (
            "same",
            f"{exact:,} images ({exact / num:.2%}) have an exact copy: {files}, "
            f"{result['num_same_pixels']:,} of equal pixels",
        ),
        ("near", f"{near:,} more ({near / num:.2%}) have a near copy, in {result['num_near']:,} pairs"),
        ("unreadable", _unreadable(result["unreadable"], result["dataset"])),
    ]
    for name, texts in {"classes": _classes, "sizes": _sizes}.items():
        for part in sorted(result["splits"], key=lambda part: not part["is_trained_on"]):
            split = f"{short_name(part['split'])}: " if len(result["splits"]) > 1 else ""
            rows += [(name, f"{split}{text}") for text in texts(part)]
            name = name if not any(row[0] == name for row in rows) else ""
    if suspects := result.get("suspects"):
        rows += [("labels", _labels(suspects)), ("page", suspects["page"])]
    num_seen = sum(part["num_images"] for part in result["splits"])
    rows.append(("speed", f"{num_seen / result['elapsed_s']:.0f} images/s"))
    rows.append(("written to", result["pairs_file"] or (suspects["out"] if suspects else "")))
    return [(name, text) for name, text in rows if text]


def _unreadable(places: list[str], dataset: str | None) -> str | None:
    """Return the number of unreadable images and the first one, in a line of 80 columns."""
    if not places:
        return None
    text = f"{len(places):,} image{'s' * (len(places) > 1)}, left out: first "
    place = places[0].partition(": ")[0]
    file = within(place, dataset)
    file = place.rpartition(", ")[2].removeprefix("file ") if file == place else file
    room = 68 - len(text)
    return text + (file if len(file) <= room else f"…{file[1 - room :]}")  # its end is the name of the file


def _classes(part: dict[str, Any]) -> Iterator[str]:
    labels = part["labels"]
    match labels and labels["kind"]:
        case "number":
            numbers = ", ".join(f"{name} {labels[name]:g}" for name in ("min", "median", "max"))
            yield f"{labels['column']}, a number: {numbers}"
        case "class" | "several":
            counts, largest, smallest = labels["images_per_class"], labels["largest"], labels["smallest"]
            several = ", several per image" * (labels["kind"] == "several")
            if not largest:
                yield f"{labels['num_classes']}{several}"
            elif counts[largest] == counts[smallest]:
                yield f"{labels['num_classes']}{several} of {count_of(counts[largest], 'image')} each"
            else:
                extremes = f"{smallest} {counts[smallest]:,} to {largest} {counts[largest]:,} images"
                yield f"{labels['num_classes']}{several}: {extremes}"


def _sizes(part: dict[str, Any]) -> Iterator[str]:
    short, aspect = part["sizes"]["short_side"], part["sizes"]["aspect"]
    if not short:
        return
    if short["min"] == short["max"] and aspect["min"] == aspect["max"]:
        yield f"all short sides {short['min']} px, width / height {aspect['min']:.2f}"
    else:
        yield (
            f"short side {short['min']} to {short['max']} px, median {short['median']}; width / height "
            f"{aspect['min']:.2f} to {aspect['max']:.2f}, median {aspect['median']:.2f}"
        )


def _labels(suspects: dict[str, Any]) -> str:
    by = f"the features of {suspects['model']}, {suspects['top1']:.1%} right by leave-one-out"
    if not suspects["are_classes_known"]:
        return f"not judged by {by}"
    by += ", copies left out together" if suspects["leaves_copies_out"] else ""
    number = f"{suspects['num_named']:,} of {count_of(suspects['num_checked'], 'label')}"
    return f"{number} of {short_name(suspects['split'])} suspicious by {by}"


def _table_of_pairs(result: dict[str, Any]) -> str:
    columns: Columns = {"the closest": "text", "bits": "number", "image": "text", "is like": "text"}
    rows = [
        (
            pair["kind"],
            str(pair["distance"]),
            _place(pair["place"], result["split"], result["dataset"]),  # the splits are named above the table
            _place(pair["against_place"], result["against"], result["dataset"]),
        )
        for pair in result["pairs"]
    ]
    return simple_table(columns, rows).as_text()


def _table_of_suspects(result: dict[str, Any]) -> str:
    suspects = result.get("suspects")
    if not suspects or not suspects["num_named"]:
        return ""
    columns: Columns = {"suspicious": "text", "labelled": "text", "others say": "text", "of label": "number"}
    shown = suspects["listed"][: min(suspects["num_named"], SHOWN_SUSPECTS)]
    rows = [
        (_place(each["place"], suspects["split"], result["dataset"]), each["label"], each["other"],
         f"{each['probability']:.1%}")
        for each in shown
    ]  # fmt: skip
    return simple_table(columns, rows).as_text()


def _place(place: str, split: str, dataset: str) -> str:
    return within(place, dataset).removeprefix(f"{split}, ")


def _next(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what to type next: compare the labels, then train so that what was found does no harm."""
    data, reading = result["dataset"], result["reading"]
    kinds = {part["labels"] and part["labels"]["kind"] for part in result["splits"]}
    if kinds == {None}:
        embed = ("vit", "embed", "--ckpt", "demo", "--dataset", data, *reading)
        embed += ("--out", "features.safetensors")
        return output_text.commands(embed)
    names = {finding["name"] for finding in result["findings"]}
    suspects = result.get("suspects") or {"ckpt": "WEIGHTS"}
    words = ["vit", "finetune", "--ckpt", suspects["ckpt"], "--dataset", data, *reading]
    words += ["--skip-bad"] if "unreadable_images" in names else []
    if not any("data.group_column" in word for word in reading):
        pooled = _pooled(result)
        words += [*pooled, *KEEPS_COPIES] if pooled or "copies_within" in names else []
    losses = {"several": "sigmoid", "number": "regression"}
    words += next((["--set", f"objective.loss={losses[kind]}"] for kind in kinds if kind in losses), [])
    check = ["vit", "datasets", "check", data, *reading, "--labels", "--ckpt", "WEIGHTS"]
    check += ["--out", "suspects.csv"]
    has_classes = "class" in kinds and "num_checked" not in suspects
    return output_text.commands(*([check] if has_classes else []), words)


def _pooled(result: dict[str, Any]) -> list[str]:
    """Return the words that pool the split to train on with those that have near copies of its images.

    Groups alone keep copies on one side of a cut, and not of two splits.
    """
    (train,) = (part["split"] for part in result["splits"] if part["is_trained_on"])
    data = train.rpartition(", split ")[0]
    near = [{pair["split"], pair["against"]} for pair in result["comparisons"] if pair["num_images_near"]]
    others = [name for pair in near if train in pair for name in pair - {train}]
    names = [short_name(name) for name in (train, *others) if name.rpartition(", split ")[0] == data]
    return ["--set", f"data.train_split={'+'.join(names)}"] if len(names) > 1 else []
