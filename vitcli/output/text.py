"""Text that commands print: results as lines of names and values, and the formats of numbers and names."""

import csv
import html
import io
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

NAME_WIDTH = 12  # columns of the names before the values of `pairs`
NOT_PLAIN = re.compile(r"[^\x00-\x7e]+")  # DEL, too, as json.dumps does
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?")
COMPUTED = re.compile(r"[=@\t\r]|[+-].")  # how cells begin that a spreadsheet takes for formulas
LEAST_EXAFLOPS = 1e-3  # below it compute is in GFLOPs
# The last row of a plan.
WHOLE_RECIPE = ("recipe", "all of it is in --dry-run --json; vit recipes show NAME explains each value")
MOST_LINES, LEAST_COMMANDS = 10, 2  # of a brief screen, and of these to type next
NO_LIMIT = 10_000  # columns of a pipe, which has no width: its lines are as long as they need to be
INTERPOLATED = "interpolated"  # as "delivered" of a summary: weights between probe and fine-tuned


def write(text: str) -> None:
    """Print the result of a command on standard output."""
    try:
        print(text.rstrip("\n"), flush=True)
    except BrokenPipeError:  # the reader is gone: keep Python from failing again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON for standard output: Löwenzahn as it is, where that can be printed, else escaped."""
    shown = json_of(value, indent=indent)
    try:
        shown.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return json.dumps(value, indent=indent)
    return shown


def json_of(value: Any, *, indent: int | None = None) -> str:
    """Return JSON with letters of every script as they are; the bytes of ASCII alone are `json.dumps`'s.

    Other characters are escaped: what a terminal would obey, and the surrogates of a file name that is not
    text, which UTF-8 cannot express.
    """

    def escaped(letters: re.Match) -> str:
        return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in letters[0])

    return NOT_PLAIN.sub(escaped, json.dumps(value, indent=indent, ensure_ascii=False))


def is_text(*texts: str) -> bool:
    """Return whether UTF-8 can express texts: half of a surrogate pair, which JSON may name, it cannot."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def terminal_width() -> int:
    return shutil.get_terminal_size((NO_LIMIT, 24)).columns


class Verbatim(str):
    """A value that people copy, such as a command or a path: it stays on one line, however long."""


def pairs(rows: Iterable[tuple[str, str]], *, width: int | None = None) -> str:
    """Return the lines of names and values; what does not fit continues below, broken at spaces.

    Args:
        width: columns of a line; default: the terminal's, no limit in a pipe.
    """
    room = (width or terminal_width()) - NAME_WIDTH
    lines = (
        (name if number == 0 else "", line)
        for name, value in rows
        for number, line in enumerate(_lines_of(value, max(room, NAME_WIDTH)))
    )
    return "".join(f"{name:<{NAME_WIDTH - 1}} {line}\n" for name, line in lines)


def _lines_of(value: str, width: int) -> list[str]:
    text = plain(value)
    if len(text) <= width or isinstance(value, Verbatim):
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


class Folded(str):
    """A value of a brief screen that is shown whole or not at all, on as many lines as it takes: a note."""


def brief(
    rows: Iterable[tuple[str, str]], next_commands: Sequence[Sequence[object]], *, width: int | None = None
) -> str:
    """Return a result in at most MOST_LINES lines: rows, and commands to type next as far as there is room.

    A row is one line, or two where it is too long and LEAST_COMMANDS leave room for it; what is longer ends
    in "…". The first row, `Folded` values, paths and commands are not cut off. The last rows, then the last
    `Folded` ones, make room for the others and for one command, and a line says how many they are. Neither
    the first row nor the first `Folded` one does, so that a narrow terminal may take more lines.

    Args:
        rows: the most important first.
        next_commands: the words of each, the most useful first.
        width: columns of a line; default: the terminal's, no limit in a pipe.
    """
    room = max((width or terminal_width()) - NAME_WIDTH, NAME_WIDTH)
    rows = [(name, value if at else Folded(value)) for at, (name, value) in enumerate(rows)]
    shown = [_lines_of(value, room) if isinstance(value, Folded) else [plain(value)] for _, value in rows]
    # The last rows make room.
    most, num_left_out = MOST_LINES - bool(next_commands), 0
    notes = [at for at, (_, value) in enumerate(rows) if isinstance(value, Folded)][1:]  # after the first row
    others = [at for at, (_, value) in enumerate(rows) if not isinstance(value, Folded | Verbatim)]
    for at in [*reversed(others), *reversed(notes[1:])]:
        if sum(map(len, shown)) + bool(num_left_out) > most:
            shown[at], num_left_out = [], num_left_out + 1
    if num_left_out:
        rows.append(("", f"({num_left_out} more: -v)"))
        shown.append([rows[-1][1]])
    # A second line where there is room for it.
    spare = MOST_LINES - min(len(next_commands), LEAST_COMMANDS) - sum(map(len, shown))
    for at, (_, value) in enumerate(rows):
        first, *more = _lines_of(value, room)
        if more and len(shown[at]) == 1 and spare > 0:
            shown[at], spare = [first, " ".join(more)], spare - 1
    lines = [
        (name if number == 0 else "", line if isinstance(value, Folded | Verbatim) else cut(line, room))
        for (name, value), each in zip(rows, shown, strict=True)
        for number, line in enumerate(each)
    ]
    ending = commands(*next_commands)[: max(MOST_LINES - len(lines), 1)]
    return "".join(f"{name:<{NAME_WIDTH - 1}} {line}\n" for name, line in [*lines, *ending])


def cut(line: str, width: int) -> str:
    """Return a line of at most `width` columns, and of a longer one its beginning."""
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


def commands(*lines: Sequence[object]) -> list[tuple[str, str]]:
    """Return the rows of `pairs` about what to type next: a command a line, quoted for the shell."""
    quoted = (Verbatim(shlex.join(map(str, words))) for words in lines)
    return [("" if number else "next", command) for number, command in enumerate(quoted)]


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 process", "2 processes"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def accuracy_text(accuracy: float, interval: Sequence[float], count: int) -> str:
    """Return an accuracy with its 95 % interval and the number of images: how much it is worth."""
    return with_interval(percent(accuracy), interval_text(interval), count)


def with_interval(value: str, interval: str, count: int) -> str:
    """Return a score as text with its 95 % interval, if it has one, and the number of images."""
    return f"{value}  (95 %: {interval}; {count_of(count, 'image')})" if interval else value


def interval_text(interval: Sequence[float], beside: Sequence[float] | None = None) -> str:
    """Return an interval of fractions in percent, with no more digits than its width is worth.

    Args:
        beside: an interval with which it is read, such as that of top-1 above that of top-5: it has no more
            digits than that one.
    """
    width = max(100 * high - 100 * low for low, high in (interval, beside or interval))
    digits = 0 if width >= 10 else 1 if width >= 1 else 2
    return " to ".join(f"{100 * bound:.{digits}f}" for bound in interval)


def lines_of(names: Iterable[str]) -> str:
    """Return a text with a name on each line, whatever the names hold."""
    return "".join(f"{plain(name)}\n" for name in names)


def skipped(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the row about undecodable images, if there were any."""
    count = result["num_skipped_images"]
    places = [within(place, result.get("dataset")) for place in result["skipped_images"]]
    names = first_few(places, 1, total=count)
    return [("left out", f"{count_of(count, 'image')} that cannot be read: {names}")] if count else []


def model_text(result: dict[str, Any]) -> str:
    """Return the network of a result, with the activation that its weights get and why."""
    return f"{result['model']}; activation: {result['numerics']}"


def mistakes_text(mistakes: Sequence[Mapping[str, Any]], num_mistakes: int, dataset: str | None) -> str:
    """Return the number of mistakes and the most confident one, in a line.

    Args:
        mistakes: the most confident first, each with place, label, predicted class and probability.
    """
    first = mistakes[0]
    place, label = within(first["place"], dataset), first["label"]
    shown = f"{place}: {first['predicted']} {first['probability']:.1%}"
    shown += "" if place.startswith(f"{label}{os.sep}") else f", labelled {label}"
    return shown if num_mistakes == 1 else f"{num_mistakes:,}, first {shown}"


def held_out(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about what a held-out part cannot say, if a summary has any."""
    classes, copies = result.get("classes_not_held_out"), result.get("num_held_out_copies")
    rows = [("note", note) for note in seen_notes(result)]
    if copies:
        each = "image is an exact copy" if copies == 1 else "images are exact copies"
        rows.append(("note", f"{copies} held-out {each} of training images"))
    return rows + ([("note", f"no held-out image of: {first_few(classes)}")] if classes else [])


def average_lines(average: dict[str, Any]) -> list[str]:
    """Return what was made of several runs, and what their dev part and their test images say of it."""
    runs, delivered = average["runs"], average["delivered"]
    members = [run for run in runs if run["weight"]]
    made = {
        "uniform": f"the mean of {len(runs)} runs",
        "greedy": f"greedy soup, the mean of {len(members)} of {len(runs)} runs",
        "run": f"no average, but the best of {len(runs)} runs, seed {members[0]['seed']}",
    }
    lines = [f"{made[delivered]}: {average['top1']:.2%}, its runs {average['mean_top1']:.2%} in the mean"]
    if average["accepted"] is None:
        return [*lines, "not validated: the runs held out no dev split"]
    tried = next(entry for entry in average["candidates"] if entry["method"] == average["tried"])
    best, each = max(run["dev_top1"] for run in runs), [run["dev_top1"] for run in runs]
    scores = f"{tried['dev_top1']:.2%}, best run {best:.2%}, mean of runs {sum(each) / len(each):.2%}"
    verdict = "accepted" if average["accepted"] else f"{average['tried']} average not accepted"
    images = count_of(average["num_dev_examples"], "image")
    lines.append(f"{verdict} on {images} of the dev split: {scores} (McNemar p = {tried['mcnemar_p']:.2g})")
    return lines


def students_text(record: dict[str, Any]) -> str:
    """Return which of distilled student and baseline is delivered, and by which scores."""
    distilled, baseline = record["distilled"], record["baseline"]
    images = count_of(record["num_dev_examples"], "dev image")
    count = record["num_dev_seen"]
    seen = f", {count} of them seen by its start or its teacher" if count else ""
    scores = (
        f"{percent(distilled['dev_top1'])} distilled, {percent(baseline['dev_top1'])} baseline on {images}"
    )
    losses = " and ".join(f"{each['dev_loss']:.3g}" for each in (distilled, baseline))
    judged = f"McNemar p = {record['mcnemar_p']:.2g}, loss {losses}"
    line = f"{record['delivered']} delivered: {scores}{seen} ({judged})"
    if (teacher := record["teacher_top1"]) is None:
        return line
    test = " and ".join(percent(each["top1"]) for each in (distilled, baseline))
    return f"{line}; {test} of the test images, teacher {percent(teacher)}"


def probe_head_text(facts: dict[str, Any], *, head_layers: int = 0) -> str:
    """Return how the head of a run started as a closed form.

    Args:
        head_layers: of the recipe, which the facts name where the network has a place for such a head.
    """
    fitted, available = facts["num_examples"], facts["num_train_examples"]
    images = count_of(fitted, "image") + ("" if fitted == available else f" drawn from {available:,}")
    accuracy = facts["left_out_top1"]
    of_groups = facts["num_groups"] is not None
    left_out = f"no class has two{' groups' if of_groups else ''}"
    if accuracy is not None:
        left_out = f"{accuracy:.2%} leaving {'a group' if of_groups else 'one'} out"
    text = f"probe head: closed form on {images}, {left_out} (l2 {facts['l2']:g})"
    if not head_layers:
        return text
    if "head_layers" not in facts:
        return f"{text}; the head reads one layer: no ViT of {head_layers} blocks, sharded, or too large"
    return f"{text}; {layers_text(facts)}"


def layers_text(facts: dict[str, Any]) -> str:
    """Return how many layers a delivered head reads, and the left-out accuracies that chose them."""
    layers, scores = facts["head_layers"], (facts["one_layer_top1"], facts["layered_top1"])
    read = f"the head reads class token and patch mean of {layers} layers" if layers else "the head reads one"
    if scores[0] is None:
        return f"{read}: nothing could be left out"
    return f"{read}: frozen features of one layer {scores[0]:.1%}, of several {scores[1]:.1%} (left out)"


def delivery_text(summary: dict[str, Any]) -> str:
    """Return which weights a run with a probe head delivers, and by how much they are better than others."""
    scores, alpha = summary["interpolation"], summary["delivered_alpha"]
    best, count = scores[f"{alpha:g}"], count_of(summary["num_choice_examples"], "image")
    names = {"probe": "the probe head", "finetuned": "the fine-tuned network"}
    others = {name: summary[f"{kind}_top1"] for kind, name in names.items() if kind != summary["delivered"]}
    if summary["delivered"] == INTERPOLATED:
        text = f"{alpha:.0%} of the way from the probe head to the fine-tuned network"
    else:
        text = names[summary["delivered"]]
    compared = ", ".join(_compared(name, best, score) for name, score in others.items())
    accuracy = "not finite" if best is None else f"{best:.2%}"
    fitted = summary["probe_head"].get("num_delivered_examples") if alpha < 1 else None
    refitted = f"; delivered with the closed form on all {count_of(fitted, 'image')}" if fitted else ""
    return f"{text}, {accuracy} on {count} of the dev split: {compared}{refitted}"


def brief_delivery(summary: dict[str, Any]) -> str:
    """Return the same in one line, with the accuracies on the dev split."""
    alpha, kind = summary["delivered_alpha"], summary["delivered"]
    names = {"probe": "probe head", "finetuned": "fine-tuned network"}
    text = names.get(kind, f"{1 - alpha:.0%} probe head, {alpha:.0%} fine-tuned")
    shown = {short: summary[f"{other}_top1"] for other, short in (("probe", "probe"), ("finetuned", "tuned"))
             if other != kind}  # fmt: skip
    others = ", ".join(
        f"{name} {'diverged' if score is None else f'{100 * score:.1f}'}" for name, score in shown.items()
    )
    best = summary["interpolation"][f"{alpha:g}"]
    accuracy = "not finite" if best is None else f"{best:.1%}"
    return f"{text}: {accuracy} of {count_of(summary['num_choice_examples'], 'dev image')} ({others})"


def _compared(name: str, best: float | None, score: float | None) -> str:
    if best is None or score is None:
        return f"{name} diverged"
    points = 100 * (best - score)
    return f"{points:.1f} points above {name}" if points else f"equal to {name}"


def seen_notes(result: dict[str, Any]) -> list[str]:
    """Return the sentences about images that a checkpoint was trained on and a run chose or reports by."""
    notes, count = [], result.get("num_eval_examples")
    if seen := result.get("num_held_out_seen"):
        of = f"{seen:,} of {count_of(count, 'held-out image')} had been" if count else f"{seen:,} had been"
        by = "weights that the run started or learned from"
        notes.append(f"{of} trained on by {by}: its accuracy is too high")
    if seen := result.get("num_choice_seen"):
        verb = "is" if seen == 1 else "are"
        notes.append(f"{count_of(seen, 'dev image')} {verb} in the checkpoint's training set")
    return notes


def fold_notes(result: dict[str, Any]) -> list[str]:
    """Return the sentences about folds: what they are of, and how optimistic a random split would be."""
    folds = result.get("folds")
    if not folds or not folds.get("num_groups"):
        return []
    rule = folds["group_column"]
    notes = [f"{folds['num_groups']:,} groups of {rule}, none of them on both sides of a fold"]
    if frozen := folds.get("frozen"):
        by_groups, at_random = frozen["by_groups"], frozen["at_random"]
        notes.append(
            f"random against group split, frozen features in closed form: {at_random:.2%} on random folds, "
            f"{by_groups:.2%} on these ({100 * (at_random - by_groups):+.1f} points by a random split)"
        )
    return notes


def speed(result: dict[str, Any]) -> str:
    """Return throughput, time, precision and processes of a run."""
    rate = result["images_per_s"]
    per_s = f"{rate:.1f} images/s, " if rate else ""
    processes = count_of(result["num_processes"], "process", "processes")
    return f"{per_s}{duration(result['elapsed_s'])}, {result['precision']}, {processes}"


def rate_text(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration for a person: 4.2 s, 42 s, 12 min, 3 h 20 min."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60:,} h {minutes % 60:02} min"


def bytes_text(number: int) -> str:
    """Return a size in KiB, MiB or GiB."""
    if number >= 2**30:
        return f"{number / 2**30:,.1f} GiB"
    return f"{number / 2**20:,.1f} MiB" if number >= 2**20 else f"{number / 2**10:,.1f} KiB"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:.2%}"


def exaflops(count: float | None) -> str:
    """Return a compute count with three digits, or all digits before the point from 100 on."""
    return "-" if count is None else f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def compute_unit(largest: float) -> tuple[str, float]:
    """Return the unit for compute counts up to `largest` exaFLOPs, and how many of it make an exaFLOP."""
    return ("GFLOPs", 1e9) if 0 < largest < LEAST_EXAFLOPS else ("exaFLOPs", 1.0)


def compute_text(count: float | None) -> str:
    """Return a compute count in exaFLOPs in the unit that its size asks for: a laptop's are GFLOPs."""
    if count is None:
        return "not counted"
    unit, scale = compute_unit(count)
    return f"{round(scale * count):,} {unit}" if scale > 1 else f"{exaflops(count)} {unit}"


def first_few(names: Sequence[str], most: int = 5, *, total: int | None = None) -> str:
    """Return the first names, "a, b and 7 more", of a list that may be the start of one of `total`."""
    shown = names[:most]
    more = (total or len(names)) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def value_text(value: Any) -> str:
    """Return a value of a recipe as a person writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def size_text(resolution: int | Sequence[int]) -> str:
    """Return an image size in pixels: one side of a square, else height x width."""
    sides = [resolution] if isinstance(resolution, int) else dict.fromkeys(resolution)
    return "x".join(map(str, sides))


def plain(text: object) -> str:
    """Replace control characters: names come from files and the network."""
    return "".join(c if c.isprintable() else "�" for c in str(text))


def escape_markdown(text: str) -> str:
    """Escape whatever Markdown or HTML would read as markup; underscores inside words are none."""
    text = re.sub(r"([\\`*\[\]|#])", r"\\\1", html.escape(plain(text), quote=False))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Shorten each path or Hub id to its last part, with as many before it as make it unique.

    A bare number and "evaluation", the folder that commands propose, keep the part before it, and a task of
    VTAB its prefix: its data are not those of the data set of the same name.
    """
    parts_of = {name: PurePath(name).parts or (name,) for name in names}
    short = {}
    for name, parts in parts_of.items():
        others = [other for other_name, other in parts_of.items() if other_name != name]
        unique_from = (k for k in range(1, len(parts)) if all(parts[-k:] != other[-k:] for other in others))
        least = next(unique_from, len(parts))
        while least < len(parts) and (parts[-least].isdecimal() or parts[-least] == "evaluation"):
            least += 1
        is_vtab_task = len(parts) == 2 and parts[0] == "vtab"
        short[name] = name if is_vtab_task else str(PurePath(*parts[-least:]))
    return short


def short_paths(paths: Sequence[str]) -> list[str]:
    """Shorten paths by the folder that all of them are in, but for its name where it holds the files.

    Files of different classes may have the same name. Names that are not paths stay as they are.
    """
    folders = {os.path.dirname(path) for path in paths}
    if "" in folders or len({os.path.isabs(folder) for folder in folders}) != 1:
        return list(paths)
    shared = os.path.commonpath(folders)
    shared = os.path.dirname(shared) if shared in folders else shared
    return [os.path.relpath(path, shared) if shared else path for path in paths]


def within(place: str, dataset: str | None) -> str:
    """Return the place of an image as a path relative to its data set; what is not below that stays as it is.

    Args:
        place: a path, or the words of an error about a row that end with one.
        dataset: the name of the data set, such as its folder or its file of labels.
    """
    path = place.rpartition(", file ")[2]
    if not dataset or not os.path.isabs(path) or not os.path.exists(dataset):
        return place
    folder = os.path.abspath(dataset if os.path.isdir(dataset) else os.path.dirname(dataset))
    is_below = os.path.commonpath([folder, path]) == folder
    return os.path.relpath(path, folder) if is_below else path


def natural(text: str, *, ignore_case: bool = False) -> list[tuple[int, int, str]]:
    """Return a sort key in which L/9 comes before L/16."""
    pieces = re.split(r"(\d+)", text.casefold() if ignore_case else text)
    return [(1, int(piece), "") if piece.isdecimal() else (0, 0, piece) for piece in pieces]


def csv_text(rows: Iterable[Sequence[Any]]) -> str:
    """Write rows, the header among them, as CSV with Unix line ends.

    A text that a spreadsheet would compute, such as a class named `=1+cmd()`, begins with an apostrophe.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_harmless(cell) for cell in row] for row in rows)
    return text.getvalue()


def _harmless(cell: Any) -> Any:
    is_computed = isinstance(cell, str) and COMPUTED.match(cell) and not NUMBER.fullmatch(cell)
    return f"'{cell}" if is_computed else cell
