"""Scores of runs and evaluations: rows of a terminal, cells of a card, headers and cells of a report.

Label and format of each stand beside its key in `summaries.py`, and where it is shown.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vitcli.output.document import Cell, Header, fraction_cell, number_cell
from vitcli.output.summaries import PERCENT, ScoreFormat, Scores
from vitcli.output.text import count_of, interval_text, with_interval

Row = tuple[str, str]
SHOWN: dict[str, ScoreFormat] = {
    key: shown
    for key, field in Scores.model_fields.items()
    for shown in field.metadata
    if isinstance(shown, ScoreFormat)
}


def keys_of(of: str) -> tuple[str, ...]:
    """Return the keys of the scores of one kind, see `ScoreFormat.of`."""
    return tuple(key for key, shown in SHOWN.items() if shown.of == of)


ERRORS, OF_CLASSES, OF_MULTILABEL = map(keys_of, ("numbers", "classes", "multilabel"))
ROWS = tuple(key for key in dict.fromkeys((*OF_MULTILABEL, *SHOWN)) if SHOWN[key].rows)
IN_REPORT = tuple(key for key, shown in SHOWN.items() if shown.in_report)
CLASS_MEANS = ("precision_macro", "f1_macro", "auroc_macro", "aupr_macro")  # of the row of F1
MANY_CLASSES = 20  # of fewer, top-5 says little


def top5_is_informative(num_classes: int) -> bool:
    """Return whether to report top-5: of five classes or fewer it is 100 % by definition."""
    return num_classes > 5


def shown(scores: Mapping[str, Any], key: str) -> str:
    """Return a score as text; "-" where it is not known, or says nothing."""
    is_known = scores.get(key) is not None and (key != "top5" or _has_top5(scores))
    return SHOWN[key].form.format(scores[key]) if is_known else "-"


def _has_top5(scores: Mapping[str, Any]) -> bool:
    return top5_is_informative(scores.get("num_classes", MANY_CLASSES))


def interval_shown(intervals: Mapping[str, Any] | None, key: str) -> str:
    """Return the 95 % interval of a score of a result as text, "" where there is none.

    That of a fraction has no more digits than that of top-1, with which it is read.
    """
    if not (interval := (intervals or {}).get(key)):
        return ""
    if SHOWN[key].form == PERCENT:
        return interval_text(interval, intervals["top1"])
    return " to ".join(map(SHOWN[key].form.format, interval))


def score_rows(result: Mapping[str, Any], keys: Iterable[str] = ROWS) -> list[Row]:
    """Return name and value of those of the scores that a run or an evaluation has, for a terminal."""
    named = {"f1_macro": "classes"}
    return [
        (named.get(key, SHOWN[key].label), _value(result, key))
        for key in keys
        if result.get(key) is not None or (key == "r2" and "r2" in result)
    ]


def first_score_rows(result: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the scores by which results of this kind are compared."""
    left_out = {"top5"} if result.get("num_classes", 0) < MANY_CLASSES else set()
    if result.get("mean_ap") is not None:
        left_out = {"top1", "top5"}
    brief = (key for key in ROWS if SHOWN[key].rows == "brief")
    return score_rows(result, [key for key in brief if key not in left_out])


def _value(result: Mapping[str, Any], key: str) -> str:
    """Return a score with its interval and the number of images, or with what it is a mean of."""
    value, interval = shown(result, key), interval_shown(result.get("intervals"), key)
    match key:
        case "top5" if not _has_top5(result):
            return f"-  ({count_of(result['num_classes'], 'class', 'classes')})"
        case "top1" if result.get("top1_std") is not None:
            mean = f"{value} ± {result['top1_std']:.2%}, mean and std of {len(result['runs'])} runs"
            images = count_of(result["num_eval_examples"], "image")
            return f"{mean}  (95 % of one run: {interval}; {images})"
        case "real_top1":
            worth = with_interval(value, interval, result["num_real_examples"])
            return f"{worth} with ReaL labels, matched by {result['real_labels_by']}"
        case "mean_ap":
            return f"{value}  (mean of the classes that have images)"
        case "f1_at_thresholds":
            source = result.get("thresholds_chosen_on")
            how = f"chosen on {source}" if source else "0.5 for every class"
            return f"{value}  (mean of the classes; thresholds {how})"
        case "f1_macro":
            means = [f"{SHOWN[key].label} {shown(result, key)}" for key in CLASS_MEANS
                     if result.get(key) is not None]  # fmt: skip
            accuracy = f"balanced accuracy {shown(result, 'balanced_accuracy')}"
            return f"{', '.join([accuracy, *means])} (means over classes)"
        case "r2" if result[key] is None:
            return "none: all numbers are equal"
        case "patch_accuracy":
            majority = f"{SHOWN['most_frequent_color'].label}: {shown(result, 'most_frequent_color')}"
            return f"{value} of the colours correct ({majority})"
    return with_interval(value, interval, result["num_eval_examples"])


def header_of(key: str) -> Header:
    """Return the header of a score's column."""
    return Header(SHOWN[key].label, SHOWN[key].detail)


def cell_of(scores: Scores, key: str) -> Cell:
    """Return a score as a cell of a table; empty where it is not known, "-" where it says nothing."""
    if key == "top5" and not top5_is_informative(getattr(scores, "num_classes", MANY_CLASSES)):
        return Cell("-")
    value, form = getattr(scores, key), SHOWN[key].form
    return fraction_cell(value) if form == PERCENT else number_cell(value, form)
