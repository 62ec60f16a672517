"""The page of `vit predict --out FILE.html`: which images it shows, in which order; no name breaks it."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.browser import Browser, find
from tests.conftest import run
from tests.pages import Page, assert_fetches_nothing
from vitcli.evaluation import contact_sheet
from vitcli.evaluation.contact_sheet import ContactSheet

STRANGE = "<img src=x onerror=alert(1)>\"'&"
LONG = "W" * 90 + "_of_one_word.jpeg"
POINTS = [
    {"threshold": 0.0, "answered": 200, "right": 180},
    {"threshold": 0.8, "answered": 150, "right": 149},
]
SHAPES = """JSON.stringify({
  width: innerWidth, reach: document.documentElement.scrollWidth,
  cards: [...document.querySelectorAll('.sheet > li')].map(one => {
    const box = one.getBoundingClientRect(); return [box.left, box.right, box.top, box.height]; }),
  inside: [...document.querySelectorAll('.sheet > li *:not(wbr)')].every(one => {
    const box = one.getBoundingClientRect(), card = one.closest('.sheet > li').getBoundingClientRect();
    return box.left >= card.left - 1 && box.right <= card.right + 1; }),
})"""


def pixels(number: int) -> np.ndarray:
    return np.full((3, 40, 60), 20 * number, dtype=np.uint8)


def one_class(file: str, probability: float, **more) -> dict:
    others = [("b", (1 - probability) * 0.6), (STRANGE, (1 - probability) * 0.4)]
    top = [("a" * 60, probability), *others]
    return {
        "file": file,
        "top": [{"class": name, "label": k, "probability": p} for k, (name, p) in enumerate(top)],
        **more,
    }


def page_of(path: Path, predictions: list[dict], rows: list[int] | None = None, **more) -> str:
    """The page of predictions of rows 0, 1, ..., with images that are darker the lower the row."""
    sheet, rows = ContactSheet(), rows or list(range(len(predictions)))
    for row, prediction in zip(rows, predictions, strict=True):
        sheet.add(row, prediction, pixels(row))
    result = {"predictions": predictions, "unreadable": [], "num_left_out_files": 0, "left_out_files": [],
              "model": "ViT-Ti/16", "ckpt": "runs/a", **more}  # fmt: skip
    contact_sheet.write(path, result, rows, sheet)
    return path.read_text(encoding="utf-8")


def shown(text: str) -> list[tuple[str, int]]:
    """The file of each card, from the text alternative of its image, and the row by its brightness."""
    cards = []
    for attributes in (one for tag, one in Page(text).elements if tag == "img"):
        data = base64.b64decode(attributes["src"].removeprefix("data:image/jpeg;base64,"))
        grey = np.asarray(Image.open(io.BytesIO(data))).mean()
        cards.append((attributes["alt"].partition(":")[0], round(grey / 20)))
    return cards


def test_the_most_doubtful_come_first_and_no_more_are_kept_than_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(contact_sheet, "MOST_IMAGES", 3)
    likely = {"a.jpg": 0.9, "b.jpg": 0.4, "c.jpg": 0.99, "d.jpg": 0.4, "e.jpg": 0.7}
    predictions = [one_class(file, probability) for file, probability in likely.items()]

    text = page_of(tmp_path / "page.html", predictions, [0, 1, 3, 4, 7])  # row 2, 5 and 6 could not be read

    assert shown(text) == [("b.jpg", 1), ("d.jpg", 4), ("e.jpg", 7)]
    assert "The most doubtful 3 of 5 images; --out FILE.csv has all." in text
    assert "doubtful</li>" not in text  # how many are, nothing says


def test_the_doubt_of_several_labels_is_the_nearest_threshold_and_numbers_come_as_given(
    tmp_path, monkeypatch
):
    margins = {"a.jpg": 0.3, "b.jpg": 0.04, "c.jpg": 0.2}
    several = [one_class(file, 0.9, margin=margin, labels=["b"]) for file, margin in margins.items()]
    text = page_of(tmp_path / "several.html", [*several, one_class("d.jpg", 0.1, margin=0.25, labels=[])])

    assert [file for file, _ in shown(text)] == ["b.jpg", "c.jpg", "d.jpg", "a.jpg"]
    assert text.count("near a threshold") == 1 and "<li>1 doubtful</li>" in text
    assert "<li>b <b>3</b></li><li>no label <b>1</b></li>" in text
    assert text.count('<b title="b">') == 3 and '<b title="aaaa' not in text

    labels = ["a" * 60, "b", STRANGE, "c", "d"]  # of which three are among the likeliest that are listed
    text = page_of(tmp_path / "many.html", [one_class("a.jpg", 0.9, margin=0.3, labels=labels)])
    assert text.count("<progress") == 3 and "</ol><b>c, d</b>" in text

    monkeypatch.setattr(contact_sheet, "MOST_IMAGES", 3)
    numbers = [{"file": f"{n}.jpg", "top": [], "value": value} for n, value in enumerate((7.0, 1.5, 2.5, 99))]
    text = page_of(tmp_path / "numbers.html", numbers, target={"name": "age"})
    assert [file for file, _ in shown(text)] == ["0.jpg", "1.jpg", "2.jpg"]
    assert "The first 3 of 4 images" in text and "<p><b>1.5</b></p>" in text
    assert (
        "lowest age <b>1.5</b>" in text and "median age <b>4.75</b>" in text and "highest age <b>99" in text
    )


def nasty(path: Path) -> str:
    files = [f"photos/{name}" for name in (STRANGE, LONG, "caf\udce9.jpg", "c.jpg", "d.jpg")]
    calibrated = {"prediction_set": [STRANGE, LONG, *"abcdefg"], "in_distribution": False, "unsure": True}
    sure = {"prediction_set": ["b"], "in_distribution": None, "unsure": False}
    predictions = [one_class(file, 0.3, **calibrated) for file in files] + [
        one_class("photos/e.jpg", 0.9, **sure)
    ]
    advice = "at --threshold 0.8: 75.0% answered"
    selective = {"advice": advice, "recommended": POINTS[1], "num_images": 200, "points": POINTS}
    unreadable = [{"file": f"{LONG}/{STRANGE}", "message": f"it is {STRANGE} {LONG}"}]
    left_out = {"num_left_out_files": 1, "left_out_files": [STRANGE]}
    return page_of(path, predictions, selective=selective, threshold=0.5, unreadable=unreadable, **left_out)


def test_names_are_text_and_what_is_known_is_said(tmp_path):
    text = nasty(tmp_path / "page.html")

    assert_fetches_nothing(text)
    page = Page(text)
    assert page.count("img") == 6 and not [one for _, one in page.elements if "onerror" in one]
    assert "<li>6 images</li><li>5 doubtful</li><li>1 not predicted</li>" in text
    assert text.count("unlike the training images") == text.count("below the threshold") == 5
    assert "b, c and 4 more</em>" in text and "The threshold is 0.5." in text
    assert "at --threshold 0.8: 75.0% answered" in text and "<b>99.3%</b>" in text
    assert "Files of other kinds, left out: &lt;img" in text and "it is &lt;img src=x" in text


def test_nothing_is_counted_where_nothing_could_be_doubtful(tmp_path):
    unsure = one_class("a.jpg", 0.53, prediction_set=["b"], in_distribution=None)
    several = one_class("b.jpg", 0.53, prediction_set=["b", "c"], in_distribution=None)
    reason = "not checked: that takes 49 held-out images, and the run has 20 (a run by folds holds out all)"

    text = page_of(tmp_path / "one.html", [unsure], new_classes=reason)
    assert "doubtful</li>" not in text and f"<li>new classes {reason}</li>" in text
    text = page_of(tmp_path / "set.html", [unsure, several], new_classes=reason)
    assert f"<li>1 doubtful</li><li>new classes {reason}</li>" in text
    below = page_of(tmp_path / "all.html", [{**unsure, "unsure": False}], new_classes=reason, threshold=0.5)
    assert "<li>0 doubtful</li>" in below
    assert "<li>0 doubtful</li>" in page_of(tmp_path / "known.html", [unsure])


@pytest.mark.slow
def test_no_name_is_wider_than_its_card_and_a_phone_shows_two_a_row(tmp_path):
    find()
    nasty(tmp_path / "page.html")
    with Browser(tmp_path / "profile") as browser:
        for width, least in ((1280, 5), (390, 2)):
            browser.open((tmp_path / "page.html").as_uri(), width=width)
            shapes = json.loads(browser.value(SHAPES))
            tops = [round(top) for _, _, top, _ in shapes["cards"]]
            assert tops.count(tops[0]) >= least and (width > 600 or tops.count(tops[0]) == 2)
            assert shapes["reach"] <= shapes["width"] and shapes["inside"]
            assert max(height for *_, height in shapes["cards"]) < 3 * (
                shapes["cards"][0][1] - shapes["cards"][0][0]
            )
        assert sum(not address.startswith("data:") for address in browser.requests()) == 1


def test_predict_writes_the_page_beside_its_answers(photos, tmp_path):
    bad, out = tmp_path / "bad.jpg", tmp_path / "new.html"
    bad.write_bytes(b"no image")
    words = ("predict", "--ckpt", "demo", photos / "test", bad, "-q", "--out", out)

    outcome = run(*words, "--json")

    assert outcome.code == 3 and outcome.json["out"] == str(out)
    text = out.read_text()
    expected = sorted(outcome.json["predictions"], key=lambda one: one["top"][0]["probability"])
    assert [Path(file).name for file, _ in shown(text)] == [Path(one["file"]).name for one in expected]
    sizes = re.findall(r"base64,([^\"]+)", text)
    assert len(sizes) == 10 and max(map(len, sizes)) < 14_000
    assert text.count('scope="row"') == 1 and "not a JPEG, PNG" in text
    assert run(*words).code == 2  # never replaced unasked
