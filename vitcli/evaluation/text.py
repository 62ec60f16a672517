"""Results of `vit evaluate` and `vit compare` as text for a person."""

from pathlib import PurePath
from textwrap import wrap
from typing import Any

from vitcli.output.document import simple_table
from vitcli.output.text import (
    NO_LIMIT,
    pairs,
    percent,
    plain,
    size_text,
    skipped,
    speed,
    terminal_width,
    top5_is_informative,
)

WEAKEST = 3  # classes that are named
ENOUGH = 5  # pictures of a class, to name it so
WIDTH = 68  # letters of a line beside its name: 80 in all


def as_text(result: dict[str, Any]) -> str:
    """The table of one evaluation, or one table of several."""
    if "evaluations" in result:
        return _several(result)
    return pairs(_rows(result)) + _resolutions(result) + _assertions(result)


def comparison_as_text(result: dict[str, Any]) -> str:
    """The table of `vit compare`."""
    a, b, low, high = result["a"], result["b"], *result["interval"]
    counts = result["counts"]
    text = pairs(
        [
            ("A", f"{a['top1']:.2%}  {a['file']}: {a['ckpt']}"),
            ("B", f"{b['top1']:.2%}  {b['file']}: {b['ckpt']}"),
            (
                "B - A",
                f"{100 * result['difference']:+.2f} points, 95 % {100 * low:+.2f} to {100 * high:+.2f}",
            ),
            ("McNemar", f"p = {result['mcnemar_p']:.3g}, {_verdict(result)}"),
            ("both right", str(counts["both"])),
            ("only A", str(counts["only_a"])),
            ("only B", str(counts["only_b"])),
            ("neither", str(counts["neither"])),
            ("scored on", f"{result['num_examples']} images, {result['eval_split']}"),
        ]
    )
    return text + _changes(result["per_class"])


def _verdict(result: dict[str, Any]) -> str:
    if result["mcnemar_p"] >= 0.05:
        return "so these pictures do not tell the two apart"
    return f"so {'B' if result['difference'] > 0 else 'A'} is better, by more than chance"


def _changes(per_class: list[dict[str, Any]]) -> str:
    if not per_class:
        return ""
    columns = {"class": "text", "images": "number", "A": "number", "B": "number", "B - A": "number"}
    rows = (
        (
            row["class"],
            str(row["num_examples"]),
            percent(row["a"]),
            percent(row["b"]),
            f"{100 * row['difference']:+.2f}",
        )
        for row in per_class
    )
    return "\nlargest changes\n" + simple_table(columns, rows).as_text()


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("top-1", _with_interval(result, "top1")),
        ("top-5", _with_interval(result, "top5") if top5_is_informative(result["num_classes"]) else "-"),
    ]
    if "real_top1" in result:
        counted = f"of {result['num_real_examples']} pictures with ReaL labels, by {result['real_labels_by']}"
        rows += _lines("ReaL", f"{_with_interval(result, 'real_top1')}, {counted}")
    rows += [
        ("loss", f"{result['loss']:.4f} nats (NLL)"),
        ("calibration", f"ECE {result['ece']:.2%}, Brier {result['brier']:.4f}"),
        ("scored on", f"{result['num_eval_examples']} images, {result['eval_split']}"),
    ]
    if "class_map" in result:
        rows += _lines("class map", _class_map(result))
    weakest = _weakest(result["per_class"] or {})
    return [
        *rows,
        *([("weakest", weakest)] if weakest else []),
        *skipped(result),
        ("model", f"{result['model']}, {result['numerics']}"),
        *_lines("pixels", f"{result['preprocessing']}, {result['preprocessing_from']}"),
        ("speed", speed(result)),
        *([("files", result["out"])] if "out" in result else []),
        *([("predictions", result["saved_predictions"])] if "saved_predictions" in result else []),
    ]


def _lines(name: str, text: str) -> list[tuple[str, str]]:
    """Rows of one value, which may be too long for a line."""
    return [("" if number else name, line) for number, line in enumerate(wrap(text, WIDTH))]


def _top5(result: dict[str, Any], row: dict[str, Any]) -> str:
    return percent(row["top5"]) if top5_is_informative(result["num_classes"]) else "-"


def _class_map(result: dict[str, Any]) -> str:
    competing = "all classes compete" if result["competing_classes"] == "all" else "only its classes compete"
    outside = f"{result['num_outside_map']} pictures of other classes left out"
    return f"{result['class_map']}, {competing}, {outside}"


def _weakest(per_class: dict[str, dict[str, float]]) -> str:
    """The classes with the lowest share, where there are enough of them and of their pictures to say."""
    known = [(name, one) for name, one in per_class.items() if one["num_examples"] >= ENOUGH]
    if len(known) <= WEAKEST:
        return ""
    known = sorted((pair for pair in known if pair[1]["top1"] < 1), key=lambda pair: pair[1]["top1"])
    return ", ".join(f"{name} {one['top1']:.0%} of {one['num_examples']}" for name, one in known[:WEAKEST])


def _resolutions(result: dict[str, Any]) -> str:
    curve = result.get("resolutions")
    if not curve:
        return ""
    columns = {**dict.fromkeys(("pixels", "top-1", "top-5", "loss"), "number"), "": "text"}
    rows = []
    for row in curve:
        mark = "*" if row["resolution"] == result["resolution"] else ""
        accuracies = percent(row["top1"]), _top5(result, row)
        rows.append((str(row["resolution"]), *accuracies, f"{row['loss']:.4f}", mark))
    table = simple_table(columns, rows).as_text()
    return f"\n{table}* all else above is at this resolution, the nearest to the weights' own\n"


def _assertions(result: dict[str, Any]) -> str:
    asserted = result.get("assertions", ())
    lines = (f"{'holds' if one['holds'] else 'DOES NOT HOLD':<14} {one['assertion']}\n" for one in asserted)
    return "\n" + "".join(lines) if asserted else ""


def _several(result: dict[str, Any]) -> str:
    evaluations = result["evaluations"]
    ckpts = _told_apart([one["ckpt"] for one in evaluations])
    datasets = _told_apart([one["dataset"] for one in evaluations])
    names = [(plain(ckpts[one["ckpt"]]), plain(datasets[one["dataset"]])) for one in evaluations]
    text = _numbered(evaluations, names)
    if max(map(len, text.splitlines())) > terminal_width():
        text = _numbered(evaluations, None) + "\n"
        text += "".join(f"{k:<2} {ckpt} on {data}\n" for k, (ckpt, data) in enumerate(names, start=1))
    for number, one in enumerate(evaluations, start=1):
        more = _resolutions(one) + _assertions(one)
        text += f"\n{number:<2} {plain(one['ckpt'])} on {plain(one['dataset'])}{more}" if more else ""
    numbers = f"1 to {len(evaluations)}, the numbers of the table"
    return text + (f"\nfiles       {plain(result['out'])}, folders {numbers}\n" if "out" in result else "")


def _numbered(evaluations: list[dict[str, Any]], names: list[tuple[str, str]] | None) -> str:
    """A line for each evaluation, as long as it is: nothing in it is folded or cut off."""
    has_real = any("real_top1" in result for result in evaluations)
    columns = {"#": "text", **(dict.fromkeys(("ckpt", "dataset"), "text") if names else {})}
    numbers = ["pixels", "images", "top-1", "95 %", "top-5", *(["ReaL"] if has_real else []), "loss", "ECE"]
    rows = []
    for number, result in enumerate(evaluations, start=1):
        low, high = result["intervals"]["top1"]
        cells = [str(number), *(names[number - 1] if names else ())]
        cells += [size_text(result["resolution"]), str(result["num_eval_examples"]), percent(result["top1"])]
        cells += [f"{100 * low:.1f} to {100 * high:.1f}", _top5(result, result)]
        cells += [percent(result.get("real_top1"))] if has_real else []
        rows.append((*cells, f"{result['loss']:.4f}", percent(result["ece"])))
    return simple_table({**columns, **dict.fromkeys(numbers, "number")}, rows).as_text(width=NO_LIMIT)


def _told_apart(names: list[str]) -> dict[str, str]:
    """Each name without the folders that all have in common; the last part of one that is alone."""
    folders = [PurePath(name).parent.parts for name in names]
    least = min(map(len, folders))
    same = next((k for k in range(least) if len({parts[k] for parts in folders}) > 1), least)
    return {name: str(PurePath(*PurePath(name).parts[same:])) for name in names}


def _with_interval(result: dict[str, Any], key: str) -> str:
    interval = result["intervals"][key]
    between = f"  (95 %: {100 * interval[0]:.2f} to {100 * interval[1]:.2f})" if interval else ""
    return percent(result[key]) + between


def predictions_as_text(result: dict[str, Any]) -> str:
    columns = {"image": "text", "class": "text", "probability": "number"}
    rows = [
        (prediction["file"] if place == 0 else "", guess["class"], percent(guess["probability"]))
        for prediction in result["predictions"]
        for place, guess in enumerate(prediction["top"])
    ]
    skipped = "".join(f"skipped: {place}\n" for place in result["skipped_images"])
    return simple_table(columns, rows).as_text() + skipped
