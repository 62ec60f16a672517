"""Files of `vit datasets check --labels --out`: the label of every image as CSV, and a page of images."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitcli import __version__
from vitcli.data import loader
from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.output import html
from vitcli.output.atomic import write_text
from vitcli.output.document import PageFigure
from vitcli.output.text import count_of, csv_text, short_paths

COLUMNS = (
    "named", "row", "place", "label", "probability", "other", "other_probability", "margin",
)  # fmt: skip
GENERATOR = '<meta name="generator" content="vit datasets check --labels">'


def write_csv(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write a line for each image, the most suspicious label first."""
    rows = [[int(value) if value is True or value is False else value for value in record.values()]
            for record in records]  # fmt: skip
    write_text(path, csv_text([COLUMNS, *rows]))


def write_page(path: Path, split: Split, suspects: Mapping[str, Any]) -> None:
    """Write the page: each image with its label, what the others say, and the most similar images."""
    listed, num_named = suspects["listed"], suspects["num_named"]
    places = [each["place"] for one in listed for each in (one, *one["neighbours"])]
    short = dict(zip(places, short_paths(places), strict=True))
    rows = [_row(split, one, short) for one in listed]
    parts = {
        "Suspicious labels": (
            rows[:num_named],
            f"Images whose label has a probability below {suspects['named_below']:.0%} according to all "
            "other images, the least probable first. Each is followed by the images most like it; a label "
            "that differs from that of the first image is in bold.",
        ),
        "The next ones": (
            rows[num_named:],
            "Not named as suspicious: the labels with the next smallest probabilities.",
        ),
    }
    figures = [
        PageFigure(section, caption, html.image_rows(some), is_wide=True)
        for section, (some, caption) in parts.items()
        if some
    ]
    facts = [
        f"{num_named:,} of {count_of(suspects['num_checked'], 'label')} suspicious",
        suspects["split"],
        f"features of {suspects['model']} ({suspects['ckpt']})",
        f"leave-one-out accuracy {suspects['top1']:.1%}",
    ]
    notes = [
        f"Probabilities by leave-one-out of regularised least squares, l2 {suspects['l2']:g}.",
        f"{num_named - len(listed):,} more are in the .csv file." if num_named > len(listed) else "",
        f"Made by vit {__version__} on {time.strftime('%Y-%m-%d %H:%M')}.",
    ]
    page = html.page(
        [],
        figures,
        title="Which labels are wrong?",
        summary=facts,
        notes=[note for note in notes if note],
        base=None,
        generator=GENERATOR,
    )
    write_text(path, page)


def _row(split: Split, one: Mapping[str, Any], short: Mapping[str, str]) -> html.ImageRow:
    """Return an image and the images most like it, with lines of text."""
    lines = (
        f"label: {one['label']} ({one['probability']:.1%})",
        f"others: {one['other']} ({one['other_probability']:.0%})",
        short[one["place"]],
    )
    first = html.CaptionedImage(_jpeg(split, one["row"]), f"labelled {one['label']}", lines)
    like = [
        html.CaptionedImage(
            _jpeg(split, each["row"]),
            f"similar image, labelled {each['label']}",
            (each["label"], short[each["place"]]),
            is_marked=each["label"] != one["label"],
        )
        for each in one["neighbours"]
    ]
    return html.ImageRow(first, tuple(like))


def _jpeg(split: Split, row: int) -> str:
    """Return a small JPEG of a whole image in base64; "" of one that can no longer be read."""
    try:
        return html.thumbnail(loader.read_example(split, row)[0])
    except DataError:
        return ""
