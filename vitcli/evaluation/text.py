"""Results of `vit evaluate` and `vit compare` as text for a person."""

import shutil
from io import StringIO
from pathlib import PurePath
from textwrap import wrap
from typing import Any

from vitcli.output.text import pairs, plain, printed, size_text, skipped, speed

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
    table = _table("class", ">images", ">A", ">B", ">B - A")
    for one in per_class:
        change = f"{100 * one['difference']:+.2f}"
        table.add_row(
            plain(one["class"]), str(one["num_examples"]), _share(one["a"]), _share(one["b"]), change
        )
    return "\nlargest changes\n" + printed(table)


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("top-1", _with_interval(result, "top1")),
        ("top-5", _with_interval(result, "top5") if _is_telling(result) else _top5(result, result)),
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


def _is_telling(result: dict[str, Any]) -> bool:
    """Whether top-5 says anything: of five classes or fewer it is 1 by definition."""
    return result["num_classes"] > 5


def _top5(result: dict[str, Any], one: dict[str, Any]) -> str:
    return _share(one["top5"]) if _is_telling(result) else "-"


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
    table = _table(">pixels", ">top-1", ">top-5", ">loss", "")
    for one in curve:
        mark = "*" if one["resolution"] == result["resolution"] else ""
        shares = _share(one["top1"]), _top5(result, one)
        table.add_row(str(one["resolution"]), *shares, f"{one['loss']:.4f}", mark)
    return f"\n{printed(table)}* all else above is at this resolution, the nearest to the weights' own\n"


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
    if max(map(len, text.splitlines())) > shutil.get_terminal_size((200, 24)).columns:
        text = _numbered(evaluations, None) + "\n"
        text += "".join(f"{k:<2} {ckpt} on {data}\n" for k, (ckpt, data) in enumerate(names, start=1))
    for number, one in enumerate(evaluations, start=1):
        more = _resolutions(one) + _assertions(one)
        text += f"\n{number:<2} {plain(one['ckpt'])} on {plain(one['dataset'])}{more}" if more else ""
    numbers = f"1 to {len(evaluations)}, the numbers of the table"
    return text + (f"\nfiles       {plain(result['out'])}, folders {numbers}\n" if "out" in result else "")


def _numbered(evaluations: list[dict[str, Any]], names: list[tuple[str, str]] | None) -> str:
    """A line for each evaluation, as long as it is: nothing in it is folded or cut off."""
    has_real = any("real_top1" in one for one in evaluations)
    head = ["#", *(["ckpt", "dataset"] if names else []), ">pixels", ">images", ">top-1", ">95 %", ">top-5"]
    table = _table(*head, *([">ReaL"] if has_real else []), ">loss", ">ECE")
    for number, one in enumerate(evaluations, start=1):
        low, high = one["intervals"]["top1"]
        cells = [str(number), *(names[number - 1] if names else ())]
        cells += [size_text(one["resolution"]), str(one["num_eval_examples"]), _share(one["top1"])]
        cells += [f"{100 * low:.1f} to {100 * high:.1f}", _top5(one, one)]
        cells += [_share(one.get("real_top1"))] if has_real else []
        table.add_row(*cells, f"{one['loss']:.4f}", _share(one["ece"]))
    return _whole(table)


def _whole(table) -> str:
    from rich.console import Console

    progress = Console(file=StringIO(), width=100_000, markup=False, highlight=False, emoji=False)
    progress.print(table)
    return "".join(line.rstrip() + "\n" for line in progress.file.getvalue().splitlines())


def _told_apart(names: list[str]) -> dict[str, str]:
    """Each name without the folders that all have in common; the last part of one that is alone."""
    folders = [PurePath(name).parent.parts for name in names]
    least = min(map(len, folders))
    same = next((k for k in range(least) if len({parts[k] for parts in folders}) > 1), least)
    return {name: str(PurePath(*PurePath(name).parts[same:])) for name in names}


def _with_interval(result: dict[str, Any], key: str) -> str:
    interval = result["intervals"][key]
    between = f"  (95 %: {100 * interval[0]:.2f} to {100 * interval[1]:.2f})" if interval else ""
    return _share(result[key]) + between


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _table(*names: str):
    """A table of Rich's; a name that begins with > is of a column of numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        justify = "right" if name.startswith(">") else "left"
        table.add_column(name.lstrip(">"), justify=justify, overflow="fold")
    return table


def predictions_as_text(result: dict[str, Any]) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("picture", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right")
    for prediction in result["predictions"]:
        for place, guess in enumerate(prediction["top"]):
            file = prediction["file"] if place == 0 else ""
            table.add_row(plain(file), plain(guess["class"]), f"{guess['probability']:.2%}")
    text = printed(table)
    return text + "".join(f"left out: {place}\n" for place in result["skipped_images"])
