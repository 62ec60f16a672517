"""The page of `vit predict --out FILE.html`: small images with their predictions, the most doubtful first.

The doubt of an image is what its highest probability lacks to 1, of several labels how near a probability is
to the threshold of its class; numbers have none and come as they were given.
"""

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from vitcli.evaluation.calibration import selective
from vitcli.evaluation.calibration.prediction_sets import SHOWN
from vitcli.evaluation.sorting import UNSURE
from vitcli.output import html
from vitcli.output.atomic import write_text
from vitcli.output.document import Cell, Header, PageFigure, Row, Table
from vitcli.output.text import count_of, first_few, short_paths

MOST_IMAGES = 1_000  # on a page: about 10 MB
SIDE = 176  # pixels of an image
BARS, SET_CLASSES, COUNTED_CLASSES = 3, 5, 30  # classes named of an image, of its prediction set, and of all
NEAR = 0.1  # of its threshold a probability is doubtful
TEMPLATE = Path(__file__).with_name("contact_sheet.html.j2")


class ContactSheet:
    """The most doubtful images of a pass, small; the first of equally doubtful ones."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, str]] = []  # a heap by doubt and minus the row

    def add(self, row: int, prediction: Mapping[str, Any], image_CHW: np.ndarray) -> None:
        """Keep an image, as the network sees it, unless as many more doubtful ones are there."""
        key, is_full = (doubt(prediction), -row), len(self._kept) == MOST_IMAGES
        if is_full and key < self._kept[0][:2]:
            return
        heapq.heappush(self._kept, (*key, html.thumbnail(image_CHW.transpose(1, 2, 0), side=SIDE)))
        if is_full:
            heapq.heappop(self._kept)

    def images(self) -> list[tuple[int, str]]:
        """Return the row and the JPEG in base64 of each image that is kept, the most doubtful first."""
        return [(-minus_row, jpeg) for _, minus_row, jpeg in sorted(self._kept, reverse=True)]


def doubt(prediction: Mapping[str, Any]) -> float:
    """Return how doubtful a prediction is, a larger number for more doubt."""
    if "margin" in prediction:
        return -prediction["margin"]
    return 1 - prediction["top"][0]["probability"] if prediction["top"] else 0.0


def write(path: Path, result: Mapping[str, Any], rows: Sequence[int], sheet: ContactSheet) -> None:
    """Write the page."""
    predictions, num_unreadable = result["predictions"], len(result["unreadable"])
    knows_doubt = {UNSURE, "prediction_set", "margin"} & predictions[0].keys()
    num_doubtful, unchecked = sum(bool(_doubts(each)) for each in predictions), result.get("new_classes")
    # Without a threshold a few held-out images, all right, leave one class in every set: 0 would say nothing.
    is_count = knows_doubt and (num_doubtful or not unchecked or "threshold" in result)
    doubtful = [f"{num_doubtful:,} doubtful"] if is_count else []
    doubtful += [f"new classes {unchecked}"] if unchecked else []
    left_out = first_few(result["left_out_files"], total=result["num_left_out_files"])
    body = _body(result, rows, sheet)
    tables = [_thresholds(result["selective"])] if "selective" in result else []
    tables += [_not_predicted(result["unreadable"])] if num_unreadable else []
    page = html.page(
        tables,
        [PageFigure("Images", "Each image as the network sees it.", body, is_wide=True)],
        title="Predictions",
        summary=[
            count_of(len(predictions), "image"),
            *doubtful,
            *([f"{num_unreadable:,} not predicted"] if num_unreadable else []),
            f"{result['model']} ({result['ckpt']})",
        ],
        notes=[f"Files of other kinds, left out: {left_out}."] if left_out else [],
        command="vit predict --out",
    )
    write_text(path, page)


def _body(result: Mapping[str, Any], rows: Sequence[int], sheet: ContactSheet) -> str:
    """Return the counts of all images and the cards of those that are shown."""
    predictions, images = result["predictions"], sheet.images()
    index_of = {row: index for index, row in enumerate(rows)}
    names = short_paths([prediction["file"] for prediction in predictions])
    cards = [_card(jpeg, names[index_of[row]], predictions[index_of[row]]) for row, jpeg in images]
    caption = " ".join(_explanations(result, num_shown=len(images)))
    return html.macros(TEMPLATE).sheet(_counts(result), caption, cards)


def _card(jpeg: str, name: str, prediction: Mapping[str, Any]) -> dict[str, Any]:
    """Return an image with its classes or its number, what speaks against them, and its file."""
    top, answer = None, prediction.get("labels", [each["class"] for each in prediction["top"][:1]])
    if "value" in prediction:
        answer = [f"{prediction['value']:.6g}"]
    else:
        top = prediction["top"][: max(BARS, len(answer))]
    about = {"jpeg": jpeg, "name": name, "file": prediction["file"]}
    return about | {"answer": answer, "top": top, "doubts": _doubts(prediction)}


def _doubts(prediction: Mapping[str, Any]) -> list[str]:
    """Return what speaks against a prediction; nothing of one without doubt, or of which nothing is known."""
    doubts = ["below the threshold"] if prediction.get(UNSURE) else []
    if prediction.get("in_distribution") is False:
        doubts.append("unlike the training images")
    if len(names := prediction.get("prediction_set", ())) > 1:
        doubts.append(f"{SHOWN} % set: {first_few(names, SET_CLASSES)}")
    if prediction.get("margin", math.inf) < NEAR:
        doubts.append("near a threshold")
    return doubts


def _counts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how many images each class is predicted for, the most frequent first; of numbers their range."""
    predictions = result["predictions"]
    if "target" in result:
        values = sorted(prediction["value"] for prediction in predictions)
        of = {"lowest": values[0], "median": median(values), "highest": values[-1]}
        return [(f"{name} {result['target']['name']}", f"{value:.6g}") for name, value in of.items()]
    labels = (each.get("labels", [top["class"] for top in each["top"][:1]]) for each in predictions)
    counts = Counter(name for names in labels for name in names or ["no label"]).most_common()
    others = sum(count for _, count in counts[COUNTED_CLASSES:])
    more = [(f"{len(counts) - COUNTED_CLASSES:,} more classes", f"{others:,}")] if others else []
    return [(name, f"{count:,}") for name, count in counts[:COUNTED_CLASSES]] + more


def _explanations(result: Mapping[str, Any], *, num_shown: int) -> list[str]:
    """Return the sentences about what is shown, and in which order."""
    predictions, first = result["predictions"], result["predictions"][0]
    is_part = num_shown < len(predictions)
    of_all = f"{num_shown:,} of {len(predictions):,} images; --out FILE.csv has all."
    if "value" in first:
        return [f"The first {of_all}" if is_part else "In the order given."]
    by = "highest probability"
    if "margin" in first:
        by = "distance of a probability to the threshold of its class"
    sentences = [f"The most doubtful {of_all if is_part else 'come first.'}"]
    sentences.append(f"An image is the more doubtful the smaller the {by}.")
    if "margin" in first:
        sentences.append("The labels that an image is given are bold.")
    if "threshold" in result:
        sentences.append(f"The threshold is {result['threshold']:g}.")
    if "prediction_set" in first:
        sentences.append(
            f"The classes of which one is right in {SHOWN} % of images are named where they are several."
        )
    return sentences


def _thresholds(about: Mapping[str, Any]) -> Table:
    best = about["recommended"] and f"{about['recommended']['threshold']:g}"
    rows = [
        Row(
            Header(threshold),
            (
                Cell(answered, is_best=threshold == best),
                Cell(right, is_best=threshold == best, note=interval),
            ),
        )
        for threshold, answered, right, interval in selective.table_rows(about)
    ]
    return Table(
        key="thresholds",
        title="Thresholds",
        caption=f"An image below a threshold is left to a person; {about['advice']}.",
        corner=Header("threshold"),
        columns=(Header("answered"), Header("right", "95 % interval")),
        rows=tuple(rows),
        is_at_end=True,
    )


def _not_predicted(unreadable: Sequence[Mapping[str, str]]) -> Table:
    more = (
        f" {len(unreadable) - MOST_IMAGES:,} more are in --out FILE.csv."
        if len(unreadable) > MOST_IMAGES
        else ""
    )
    rows = (Row(Header(each["file"]), (Cell(each["message"]),)) for each in unreadable[:MOST_IMAGES])
    return Table(
        key="left_out",
        title="Not predicted",
        caption=f"Files that could not be read.{more}",
        corner=Header("file"),
        columns=(Header("reason", kind="text"),),
        rows=tuple(rows),
        is_at_end=True,
    )
