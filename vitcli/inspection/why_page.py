"""The page of `vit predict --why`: each image, the patches that carry its answer, and three training images.

I x J patches.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitcli.data.split import Split
from vitcli.evaluation.mistakes import thumbnail_of
from vitcli.evaluation.text import predictions_as_text
from vitcli.inspection.analysis import attention_overlay
from vitcli.output import html
from vitcli.output.atomic import write_text
from vitcli.output.document import PageFigure
from vitcli.output.text import Verbatim, count_of, pairs, percent, short_names

FULL_AT = 0.95  # quantile of the patches from which on the image keeps its brightness
DARKEST = 0.15  # of the brightness, where a patch does not count
CAPTION = (
    "Left: the image as the network sees it, with its answer and the runner-up class. Then the patches "
    "that carry the answer; dark ones do not. Then the training images with the largest influence on the "
    "lead of the answer over the next class: what that lead loses without the image, in scores of the "
    "closed form. A label other than the answer is in bold."
)


def write(path: Path, result: Mapping[str, Any], split: Split, images: Sequence[np.ndarray]) -> None:
    """Write the page.

    Args:
        result: of `why.predict_why`.
        split: of the training images.
        images: as the network sees them, one for each prediction.
    """
    explained, about = result["predictions"], result["why"]
    places = [reason["place"] for one in explained for reason in one["why"]["reasons"]]
    short = short_names([*places, *(one["file"] for one in explained)])
    rows = [_row(split, one, image_HWC, short) for one, image_HWC in zip(explained, images, strict=True)]
    page = html.page(
        [],
        [PageFigure("Answers and their reasons", CAPTION, html.image_rows(rows), is_wide=True)],
        title="Why these answers?",
        summary=[
            count_of(len(explained), "image"),
            f"{result['model']} ({result['ckpt']})",
            f"{count_of(about['num_training_images'], 'training image')}: {about['what']}",
        ],
        notes=[
            "Influences are exact for the closed form on the features, "
            f"l2 {about['l2']:g}: the difference of two fits, with the standardisation of all images.",
        ],
        command="vit predict --why",
    )
    write_text(path, page)


def _row(
    split: Split, prediction: Mapping[str, Any], image_HWC: np.ndarray, short: Mapping[str, str]
) -> html.ImageRow:
    """Return an image, its patches and its reasons."""
    why, first = prediction["why"], prediction["top"][0]
    second = [one for one in prediction["top"] if one["class"] == why["runner_up"]]
    likely = f" ({percent(second[0]['probability'])})" if second else ""
    lines = [
        f"{first['class']} ({percent(first['probability'])})",
        f"next: {why['runner_up']}{likely}",
        short[prediction["file"]],
    ]
    if why["closed_form"]["class"] != first["class"]:
        lines.append(f"the closed form says {why['closed_form']['class']}")
    others = []
    if why["patches"]:
        shown = html.thumbnail(overlay(image_HWC, why["patches"]))
        others.append(html.CaptionedImage(shown, "patches that carry the answer", ("patches",)))
    others += [
        html.CaptionedImage(
            thumbnail_of(split, reason["row"]),
            f"training image, labelled {reason['label']}",
            (reason["label"], f"adds {reason['influence']:+.3f}{_of_group(reason)}", short[reason["place"]]),
            is_marked=reason["label"] != first["class"],
        )
        for reason in why["reasons"]
    ]
    shown = html.CaptionedImage(
        html.thumbnail(image_HWC), f"answer: {first['class']}", tuple(lines), is_marked=True
    )
    return html.ImageRow(shown, tuple(others))


def _of_group(reason: Mapping[str, Any]) -> str:
    others = reason["num_images"] - 1
    return f" (with {count_of(others, 'other image')} of its group)" if others else ""


def as_text(result: Mapping[str, Any], *, is_brief: bool | None = None) -> str:
    """Return the predictions as `vit predict` shows them, then the reasons of each, for a terminal."""
    places = [reason["place"] for each in result["predictions"] for reason in each["why"]["reasons"]]
    short = short_names(places)
    rows = []
    for prediction in result["predictions"]:
        why = prediction["why"]
        rows.append(("image", prediction["file"]))
        rows.append(("runner-up", why["runner_up"]))
        if why["closed_form"]["class"] != why["class"]:
            rows.append(("closed form", f"{why['closed_form']['class']}, not {why['class']}"))
        lead = why["closed_form"]["lead"]
        rows += [
            (
                "reason",
                f"{one['influence']:+.3f} of a lead of {lead:.3f}: {one['label']}, {short[one['place']]}"
                f"{_of_group(one)}",
            )
            for one in why["reasons"]
        ]
    rows.append(("page", Verbatim(result["why"]["page"])))
    return predictions_as_text(dict(result), is_brief=is_brief) + "\n" + pairs(rows)


def overlay(image_HWC: np.ndarray, patches: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the image (H, W, 3), uint8, darkened where a patch does not carry the answer."""
    relevance_1IJ = torch.tensor([patches], dtype=torch.float64)
    image_1HWC = torch.from_numpy(image_HWC)[None]
    return attention_overlay(image_1HWC, relevance_1IJ, full_at=FULL_AT, darkest=DARKEST)[0].numpy()
