"""Results of `vit evaluate`, `vit compare` and `vit predict` as text for the terminal."""

import os
from pathlib import Path
from typing import Any

from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.parts import summary_rows
from vitcli.evaluation.sorting import is_only_unlike
from vitcli.output.document import Columns, Kind, simple_table
from vitcli.output.scores import ERRORS, SHOWN, first_score_rows, interval_shown, score_rows, shown
from vitcli.output.summaries import LEAST_CALIBRATED
from vitcli.output.text import (
    NO_LIMIT,
    Folded,
    Verbatim,
    brief,
    count_of,
    mistakes_text,
    model_text,
    pairs,
    percent,
    plain,
    short_names,
    short_paths,
    size_text,
    skipped,
    speed,
    terminal_width,
)

WEAKEST = 3  # classes named as the weakest
ENOUGH = 5  # images of a class below which its accuracy is reported as a count
FOLDERS = 6  # named with the number of copies in them
FEW = 4  # images whose predictions are listed with all their classes
MOST_UNSURE = 3  # classes of a prediction set that are all named
MISTAKES = 5  # most confident wrong predictions shown; --json and --out have more


def as_text(result: dict[str, Any], *, verbose: bool = False) -> str:
    """Render one evaluation in ten lines, or with all that is known; or a table of several."""
    if "evaluations" in result:
        if any("mae" in each for each in result["evaluations"]):  # other numbers than the table's columns
            each = "\n".join(as_text(each, verbose=verbose) for each in result["evaluations"])
            notes = pairs(("note", note) for note in result.get("notes", ()))
            return each + (f"\n{notes}" if notes else "")
        return _several(result)
    if not verbose:
        return brief(_brief_rows(result), ()) + _resolutions(result) + _assertions(result)
    return pairs(_rows(result)) + _mistakes(result) + _resolutions(result) + _assertions(result)


def _brief_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows that a person looks for first: the scores, and the notes on what they are worth."""
    scored_on = ("scored on", f"{_images(result)}, {result['eval_split']}")
    worth = [*(("note", Folded(note)) for note in result.get("notes", ())), *skipped(result)]
    rows = [*first_score_rows(result), *worth]
    if "mae" in result:
        return [*rows, _mean_row(result), scored_on, *_files(result)]
    rows += [_calibration(result)] if result.get("mean_ap") is None else []
    rows += _prediction_sets(result)
    weakest = _weakest(result["per_class"] or {})
    rows += [scored_on] + ([("weakest", weakest)] if weakest else [])
    if result["mistakes"]:
        rows.append(("mistakes", mistakes_text(result["mistakes"], _num_wrong(result), result["dataset"])))
    return rows + _files(result)


def _num_wrong(result: dict[str, Any]) -> int:
    return round((1 - result["top1"]) * result["num_eval_examples"])


def _files(result: dict[str, Any]) -> list[tuple[str, str]]:
    files = {"files": "out", "predictions": "saved_predictions"}
    return [(name, Verbatim(result[key])) for name, key in files.items() if key in result]


def _mean_row(result: dict[str, Any]) -> tuple[str, str]:
    name, mae = result["target"]["name"], result["mae_of_mean"]
    return "predicts", f"{name}; always its mean gives MAE {mae:.4g}"


def comparison_as_text(result: dict[str, Any]) -> str:
    """Render the result of `vit compare`."""
    (low, high), counts = result["interval"], result["counts"]
    difference = f"{100 * result['difference']:+.2f} points, 95 % {100 * low:+.2f} to {100 * high:+.2f}"
    text = pairs(
        [
            ("A", Verbatim(_compared(result["a"]))),
            ("B", Verbatim(_compared(result["b"]))),
            ("B - A", difference),
            ("McNemar", f"p = {result['mcnemar_p']:.3g}, {_verdict(result)}"),
            ("both right", str(counts["both"])),
            ("only A", str(counts["only_a"])),
            ("only B", str(counts["only_b"])),
            ("neither", str(counts["neither"])),
            ("scored on", f"{count_of(result['num_examples'], 'image')}, {result['eval_split']}"),
        ]
    )
    return text + _changes(result["per_class"])


def _compared(file: dict[str, Any]) -> str:
    """Return the accuracy and the file of predictions; the checkpoint unless the file is in its folder."""
    is_inside = Path(file["ckpt"] or "") in Path(file["file"]).parents
    return f"{file['top1']:.2%}  {file['file']}" + ("" if is_inside else f": {file['ckpt']}")


def _verdict(result: dict[str, Any]) -> str:
    if not result["counts"]["only_a"] + result["counts"]["only_b"]:
        return "both are right on the same images"
    if result["mcnemar_p"] >= 0.05:
        return "no significant difference"
    return f"{'B' if result['difference'] > 0 else 'A'} is significantly better"


def _changes(per_class: list[dict[str, Any]]) -> str:
    if not per_class:
        return ""
    columns: Columns = {"class": "text", "images": "number", "A": "number", "B": "number", "B - A": "number"}
    rows = []
    for row in per_class:
        accuracies = percent(row["a"]), percent(row["b"]), f"{100 * row['difference']:+.2f}"
        rows.append((row["class"], str(row["num_examples"]), *accuracies))
    return "\nlargest changes\n" + simple_table(columns, rows).as_text()


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    # Scores, the quality of probabilities, and the images and classes that count.
    has_classes, rows = "mae" not in result, score_rows(result)
    if has_classes:
        rows += [("loss", f"{shown(result, 'loss')} nats (NLL)"), _calibration(result)]
        rows += _prediction_sets(result)
    else:
        rows.append(_mean_row(result))
    rows.append(("scored on", f"{_images(result)}, {result['eval_split']}"))
    rows += [("note", note) for note in result.get("notes", ())]
    if "class_map" in result:
        competing = (
            "all classes compete" if result["competing_classes"] == "all" else "only its classes compete"
        )
        outside = f"{count_of(result['num_outside_map'], 'image')} of other classes left out"
        rows.append(("class map", f"{result['class_map']}, {competing}, {outside}"))
    weakest = _weakest(result.get("per_class") or {})
    rows += [("weakest", weakest)] if weakest else []
    rows += skipped(result)
    # How they were computed, and the files written.
    mirrored = "; mean with the mirror image" if "tta" in result else ""
    pixels = f"{result['preprocessing']}, {result['preprocessing_from']}{mirrored}"
    rows += [("model", model_text(result)), ("pixels", pixels), ("speed", speed(result))]
    if has_classes and "out" in result and result["num_eval_examples"] < LEAST_CALIBRATED:
        few = f"its bins would be chance with fewer than {LEAST_CALIBRATED} images"
        rows.append(("left out", f"reliability.png: {few}"))
    return rows + _files(result)


def _calibration(result: dict[str, Any]) -> tuple[str, str]:
    """Return the row of what the probabilities are worth, also after calibration."""
    ece = f"ECE {shown(result, 'ece')}"
    if "ece_at_temperature" in result and (scaling := Scaling.of_json(result)) != Scaling():
        ece += f" ({result['ece_at_temperature']:.2%} at {scaling.text})"
    return "calibration", f"{ece}, Brier {shown(result, 'brier')}"


def _prediction_sets(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row on how often the sets of classes hold the label, and how large they are."""
    sets = [
        f"{level} % sets: all {result['num_classes']} classes"
        if row["mean_size"] == result["num_classes"]
        else f"{level} % sets: {row['coverage']:.2%} right, {row['mean_size']:.2f} classes"
        for level, row in result.get("prediction_sets", {}).items()
    ]
    return [("sets", "; ".join(sets))] if sets else []


def _images(result: dict[str, Any]) -> str:
    """Return the number of images, and of classes if some have none: their accuracy is not measured."""
    count, per_class = count_of(result["num_eval_examples"], "image"), result.get("per_class")
    if per_class is None or len(per_class) == result["num_classes"]:
        return count
    return f"{count} of {len(per_class)} of the {result['num_classes']} classes"


def _mistakes(result: dict[str, Any]) -> str:
    """Return the most confident wrong predictions as a table."""
    mistakes = result.get("mistakes", ())[:MISTAKES]
    if not mistakes:
        return ""
    short = short_paths([mistake["place"] for mistake in mistakes])
    rows = [
        (place, mistake["label"], mistake["predicted"], percent(mistake["probability"]))
        for place, mistake in zip(short, mistakes, strict=True)
    ]
    columns: Columns = {"image": "id", "class": "text", "predicted": "text", "probability": "number"}
    num_wrong = _num_wrong(result)
    more = f", {len(mistakes)} of {num_wrong:,}" if num_wrong > len(mistakes) else ""
    return f"\nmost confident mistakes{more}\n{simple_table(columns, rows).as_text()}"


def _weakest(per_class: dict[str, dict[str, float]]) -> str:
    """Return the classes of lowest accuracy: in percent, or as counts where most have few images."""
    classes = [(name, row) for name, row in per_class.items() if row["num_examples"] >= ENOUGH]
    if len(classes) > WEAKEST:
        imperfect = [(name, row) for name, row in classes if row["top1"] < 1]
        weakest = sorted(imperfect, key=lambda pair: pair[1]["top1"])[:WEAKEST]
        return ", ".join(f"{name} {row['top1']:.0%} of {row['num_examples']}" for name, row in weakest)
    # With few images, a class says something if it is worse than another and has more than one image.
    best = max((row["top1"] for row in per_class.values()), default=0)
    worse = [(name, row) for name, row in per_class.items() if row["top1"] < best and row["num_examples"] > 1]
    weakest = sorted(worse, key=lambda pair: (pair[1]["top1"], -pair[1]["num_examples"]))[:WEAKEST]
    counts = [(name, round(row["top1"] * row["num_examples"]), row["num_examples"]) for name, row in weakest]
    return ", ".join(f"{name} {num_right} of {count} right" for name, num_right, count in counts)


def _resolutions(result: dict[str, Any]) -> str:
    """Return the scores at each resolution as a table."""
    curve = result.get("resolutions")
    if not curve:
        return ""
    keys = [key for key in (*ERRORS, "top1", "top5", "loss") if key in curve[0]]
    rows = []
    for row in curve:
        mark = "*" if row["resolution"] == result["resolution"] else ""
        scores = (shown({**row, "num_classes": result["num_classes"]}, key) for key in keys)
        rows.append((size_text(row["resolution"]), *scores, mark))
    columns: Columns = {name: "number" for name in ("pixels", *(SHOWN[key].label for key in keys))}
    table = simple_table({**columns, "": "text"}, rows).as_text()
    return f"\n{table}* resolution of all numbers above, the nearest to the training resolution\n"


def _assertions(result: dict[str, Any]) -> str:
    asserted = result.get("assertions", ())
    lines = (f"{'holds' if row['holds'] else 'DOES NOT HOLD':<14} {row['assertion']}\n" for row in asserted)
    return "\n" + "".join(lines) if asserted else ""


def _several(result: dict[str, Any]) -> str:
    evaluations = result["evaluations"]
    ckpts = short_names(result["ckpt"] for result in evaluations)
    datasets = short_names(result["dataset"] for result in evaluations)
    names = [(plain(ckpts[result["ckpt"]]), plain(datasets[result["dataset"]])) for result in evaluations]
    text = _numbered(evaluations, names)
    if max(map(len, text.splitlines())) > terminal_width():
        text = _numbered(evaluations, None) + "\n"
        text += "".join(f"{k:<2} {ckpt} on {data}\n" for k, (ckpt, data) in enumerate(names, start=1))
    for number, each in enumerate(evaluations, start=1):
        more = _resolutions(each) + _assertions(each)
        text += f"\n{number:<2} {plain(each['ckpt'])} on {plain(each['dataset'])}{more}" if more else ""
    numbers = f"1 to {len(evaluations)}, the numbers of the table"
    noted: dict[str, list[str]] = {}
    for number, each in enumerate(evaluations, start=1):
        for note in each.get("notes", ()):
            noted.setdefault(note, []).append(str(number))
    lines = [f"row{'s' * (len(rows) > 1)} {', '.join(rows)}: {note}" for note, rows in noted.items()]
    notes = pairs(("note", line) for line in [*lines, *result.get("notes", ())])
    text += f"\n{notes}" if notes else ""
    return text + (f"\nfiles       {plain(result['out'])}, folders {numbers}\n" if "out" in result else "")


def _numbered(evaluations: list[dict[str, Any]], names: list[tuple[str, str]] | None) -> str:
    """Render a line per evaluation, neither folded nor cut off."""
    has_real = any("real_top1" in result for result in evaluations)
    columns: dict[str, Kind] = {"#": "text"}
    columns |= {"ckpt": "text", "dataset": "text"} if names else {}
    scores = ["top5", *(["real_top1"] if has_real else []), "loss", "ece"]
    numbers = ["pixels", "images", SHOWN["top1"].label, "95 %", *(SHOWN[key].label for key in scores)]
    rows = []
    for number, result in enumerate(evaluations, start=1):
        cells = [str(number), *(names[number - 1] if names else ())]
        cells += [size_text(result["resolution"]), str(result["num_eval_examples"])]
        cells += [shown(result, "top1"), interval_shown(result["intervals"], "top1")]
        rows.append((*cells, *(shown(result, key) for key in scores)))
    columns |= {name: "number" for name in numbers}
    return simple_table(columns, rows).as_text(width=NO_LIMIT)


def predictions_as_text(result: dict[str, Any], *, is_brief: bool | None = None) -> str:
    """Render the result of `vit predict`.

    Args:
        is_brief: a line per image, with its top class and the next; default: for more than four images.
    """
    if "num_parts" in result:
        left_out = skipped(result) if result["on_bad_image"] == "skip" else []
        model = [("model", result["model"]), ("pixels", result["preprocessing"])]
        return pairs([*summary_rows(result), *model, *left_out])
    predictions = result["predictions"]
    brief = len(predictions) > FEW if is_brief is None else is_brief
    if any("labels" in entry for entry in predictions):
        table = _predicted_labels(predictions)
    elif result.get("target"):
        columns: Columns = {"image": "text", result["target"]["name"]: "number"}
        rows = [(entry["file"], f"{entry['value']:.6g}") for entry in predictions]
        table = simple_table(columns, rows).as_text()
    else:
        table = _brief_predictions(predictions) if brief else _all_predictions(predictions)
    return table + _end_of_predictions(result)


def _predicted_labels(predictions: list[dict[str, Any]]) -> str:
    """Return a line per image: the classes that reach their thresholds; where none does, the top class.

    Thresholds differ between the classes, so that the top class need not be among them.
    """
    rows = []
    for entry in predictions:
        given = zip(entry["labels"], entry["label_probabilities"], strict=True)
        labels = [f"{name} {percent(probability)}" for name, probability in given]
        first = entry["top"][0]
        none = f"none; top class: {first['class']} {percent(first['probability'])}"
        rows.append((entry["file"], ", ".join(labels) or none))
    return simple_table({"image": "text", "labels": "text"}, rows).as_text()


def _end_of_predictions(result: dict[str, Any]) -> str:
    """Return what is left out, what --threshold and --sort-into have done or which threshold to take."""
    # Images that cannot be read are part of the result where they are skipped; else the error names them.
    unreadable = result.get("unreadable", ()) if result.get("on_bad_image") == "skip" else ()
    lines = (f"left out: {plain(entry['file'])} ({plain(entry['message'])})\n" for entry in unreadable)
    rows = []
    if "threshold" in result:
        count = sum(prediction["unsure"] for prediction in result["predictions"])
        rows.append(("unsure", f"{count} of {len(result['predictions'])}, below {result['threshold']:g}"))
    elif "selective" in result:
        rows.append(("threshold", result["selective"]["advice"]))
    rows += [("new classes", result["new_classes"])] if "new_classes" in result else []
    if "sorted_into" in result:
        counts = result["sorted_counts"]
        largest = sorted(counts.items(), key=lambda named: -named[1])[:FOLDERS]
        most = ", ".join(f"{name} {count}" for name, count in largest)
        left = len(counts) - FOLDERS
        more = f" and {count_of(left, 'more folder')}" if left > 0 else ""
        if unlike := sum(map(is_only_unlike, result["predictions"])):
            rows.append(("to unsure", f"{count_of(unlike, 'image')} unlike the training images, too"))
        rows += [("copied", f"{most}{more}"), ("into", Verbatim(result["sorted_into"]))]
    rows += [("written", Verbatim(result["out"]))] if "out" in result else []
    return "".join(lines) + pairs(rows)


def _brief_predictions(predictions: list[dict[str, Any]]) -> str:
    """Return a line per image, however narrow the terminal, below the name of its folder as in a listing."""
    columns: dict[str, Kind] = {
        "image": "file", "class": "clipped", "probability": "number", "runner-up": "clipped", "": "number"
    }  # fmt: skip
    has_remarks = any(map(_short_remark, predictions))
    if has_remarks:
        columns[" "] = "id"
    tables = []
    by_folder: dict[str, list[dict[str, Any]]] = {}
    for prediction in predictions:
        by_folder.setdefault(os.path.dirname(prediction["file"]), []).append(prediction)
    for folder, group in by_folder.items():
        rows = []
        for prediction in group:
            first, *others = prediction["top"]
            second = (others[0]["class"], percent(others[0]["probability"])) if others else ("", "")
            name = os.path.basename(prediction["file"])
            cells = (name, first["class"], percent(first["probability"]), *second)
            rows.append((*cells, _short_remark(prediction)) if has_remarks else cells)
        table = simple_table(columns, rows).as_text()
        tables.append((f"{plain(folder)}/\n" if folder else "") + table)
    return "\n".join(tables)


def _remark(prediction: dict[str, Any]) -> str:
    """Return what speaks against a prediction; "" if nothing does, or nothing is known."""
    names = prediction.get("prediction_set", ())
    if prediction.get("in_distribution") is False:
        return "unlike the training images"
    if len(names) < 2:
        return ""
    if len(names) <= MOST_UNSURE:
        return f"unsure between {', '.join(names[:-1])} and {names[-1]}"
    return f"unsure between {', '.join(names[:2])} and {len(names) - 2} more"


def _short_remark(prediction: dict[str, Any]) -> str:
    """Return a remark that leaves room for the other columns; "" if a prediction needs none."""
    names = prediction.get("prediction_set", ())
    remark = f"one of {len(names)} classes" if len(names) > 1 else ""
    remark = "unlike training" if prediction.get("in_distribution") is False else remark
    return ", ".join(filter(None, ("unsure" if prediction.get("unsure") else "", remark)))


def _all_predictions(predictions: list[dict[str, Any]]) -> str:
    columns: dict[str, Kind] = {"image": "text", "class": "text", "probability": "number"}
    if has_remarks := any(map(_remark, predictions)):
        columns[""] = "text"
    rows = [
        (
            "" if rank else prediction["file"],
            f"unsure: {entry['class']}" if prediction.get("unsure") and not rank else entry["class"],
            percent(entry["probability"]),
            *(("" if rank else _remark(prediction),) if has_remarks else ()),
        )
        for prediction in predictions
        for rank, entry in enumerate(prediction["top"])
    ]
    return simple_table(columns, rows).as_text()
