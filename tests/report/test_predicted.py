"""Confusion, accuracy by class and mistakes of a run in its own report, from what the run has kept."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from tests import report_runs as made
from tests.conftest import run
from tests.pages import Page, assert_fetches_nothing
from vitcli.report.predicted import Predicted, mistakes_caption

NAMES = ("tulip", "rose", "<img src=x onerror=alert(1)>")
# Two of three tulips, no rose of two, the only image of the third.
ROWS = [(0, 0, 0.9), (0, 0, 0.8), (0, 1, 0.7), (1, 0, 0.6), (1, 2, 0.95), (2, 2, 0.5)]


@pytest.fixture
def kept(tmp_path):
    return made.predicted(made.finetuned(tmp_path / "runs" / "a"), ROWS, NAMES)


def classes(*words: object) -> list[tuple[str, ...]]:
    (table,) = [one for one in run("report", *words, "--json").json["tables"] if one["table"] == "classes"]
    return [
        (row["name"], *(cell["text"], cell["note"])) for row in table["rows"] for cell in row["cells"] if cell
    ]


def test_classes_come_with_their_accuracies_the_weakest_first(kept):
    assert classes(kept) == [
        ("rose", "0.00", "of 2 images"),
        ("tulip", "66.67", "of 3 images"),
        (NAMES[2], "100.00", "of 1 image"),
    ]
    assert "Accuracy by class" in run("report", kept).out


def test_the_page_has_confusion_and_images_of_mistakes_the_most_confident_first(kept, tmp_path):
    out = tmp_path / "report.html"
    assert run("report", kept, "--out", out).code == 0

    text = out.read_text()
    page = Page(text)
    images = [one for tag, one in page.elements if tag == "img"]
    assert [one["alt"] for one in images] == [
        f"rose, predicted {NAMES[2]}", "tulip, predicted rose", "rose, predicted tulip",
    ]  # fmt: skip
    assert all(one["src"] == "data:image/jpeg;base64,/9j/4AAQSkZJRg==" for one in images)
    assert not any("onerror" in one for _, one in page.elements)
    assert "label: tulip" in text and "tulip/2.jpg" in text and "photos/" not in text.split("<style>")[1]
    assert (
        "Confusion matrix of ViT-B/16, a, on oxford_pets" in text
        and "Weakest: rose 0% of 2, tulip 67% of 3" in text
    )
    assert_fetches_nothing(text)


@pytest.mark.slow
def test_of_many_results_there_is_no_table_but_the_figures_name_the_weakest(kept, tmp_path):
    for count, name in enumerate("bcde", start=1):  # equal matrices would be drawn once
        shutil.copytree(kept, kept.parent / name)
        made.predicted(kept.parent / name, ROWS + [(2, 2, 0.5)] * count, NAMES)
    out = tmp_path / "report.html"

    assert run("report", kept.parent, "--out", out).code == 0
    assert "Accuracy by class" not in out.read_text() and out.read_text().count("Weakest: rose") == 2 * 5


def rewritten(folder, name, change):
    value = json.loads((folder / name).read_text())
    change(value["mistakes"][0])
    (folder / name).write_text(json.dumps(value))


DAMAGE = {
    "no Parquet": lambda folder: (folder / "predictions.parquet").write_text("x"),
    "another table": lambda folder: pq.write_table(
        pq.read_table(folder / "predictions.parquet").select(["row"]), folder / "predictions.parquet"
    ),
    "a class without a name": lambda folder: (
        made.predicted(folder, [(0, 0, 0.5), (1, 1, 0.5)], NAMES) and _cut_names(folder)
    ),
    "no prediction of an image": lambda folder: pq.write_table(
        _with_column(pq.read_table(folder / "predictions.parquet"), "top_classes", [[]] * len(ROWS)),
        folder / "predictions.parquet",
    ),
    "no label of an image": lambda folder: pq.write_table(
        _with_column(pq.read_table(folder / "predictions.parquet"), "label", [0] * 5 + [None]),
        folder / "predictions.parquet",
    ),
    "mistakes cut off": lambda folder: (folder / "mistakes.json").write_text('{"mistakes": ['),
    "mistakes are a list": lambda folder: (folder / "mistakes.json").write_text("[]"),
    "a script for an image": lambda folder: rewritten(
        folder, "mistakes.json", lambda one: one.update(thumbnail='/9j/"><script>')
    ),
    "a huge image": lambda folder: rewritten(
        folder, "mistakes.json", lambda one: one.update(thumbnail="/9j/" + "A" * 200_000)
    ),
    "a probability above 1": lambda folder: rewritten(
        folder, "mistakes.json", lambda one: one.update(probability=95.0)
    ),
}


def _with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, [values])


def _cut_names(folder):
    table = pq.read_table(folder / "predictions.parquet")
    about = {"vit": json.dumps({"class_names": ["tulip"]})}
    pq.write_table(table.replace_schema_metadata(about), folder / "predictions.parquet")


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_predictions_are_left_out_with_a_note_and_the_run_is_shown(kept, damage):
    damage(kept)

    result = run("report", kept, "--json").json

    assert result["runs"] == [str(kept)] and [one["run_dir"] for one in result["left_out"]] == [str(kept)]
    assert {one["table"] for one in result["tables"]} == {"runs", "costs"}


def test_images_with_several_labels_have_mistakes_and_no_confusion(kept, tmp_path):
    table = pq.read_table(kept / "predictions.parquet")
    labels = [[label] for label in table["label"].to_pylist()]
    pq.write_table(_with_column(table, "label", labels), kept / "predictions.parquet")
    out = tmp_path / "report.html"

    assert run("report", kept, "--out", out).code == 0
    assert "Confusion" not in out.read_text() and out.read_text().count("<img") == 3


def test_what_a_run_and_its_evaluation_share_is_drawn_once(tmp_path):
    evaluation, mistake = made.evaluation(), [(0, 1, 0.9)]
    for name in ("a", "b"):
        made.evaluated(made.write_json(tmp_path / name / "x.json", {}).parent, evaluation)
        made.predicted(tmp_path / name, mistake, ("breed 0", "breed 1"))

    out = tmp_path / "report.html"
    assert run("report", tmp_path, "--out", out).code == 0

    page = out.read_text()
    assert "that of ViT-B/16, b, on oxford_pets is the same" in page
    assert "Confusion matrix of ViT-B/16, a," in page and "Confusion matrix of ViT-B/16, b," not in page
    assert page.count("<img") == 1 and page.count("b, on oxford_pets is the same") == 3  # and a label


def test_the_caption_of_mistakes_counts_them():
    def caption(wrong: int, shown: int) -> str:
        pairs = (("tulip", "rose", wrong),) if wrong else ()  # no confusion of several labels
        result = Predicted(None, "a", ("tulip", "rose"), pairs, ())
        return mistakes_caption(result, shown, ()).partition(":")[0]

    assert [caption(*counts) for counts in ((1, 1), (3, 3), (57, 10), (0, 1))] == [
        "The most confident mistake of a",
        "The 3 most confident mistakes of a",
        "The 10 most confident of 57 mistakes of a",
        "The most confident mistake of a",
    ]


def test_classes_of_one_image_or_without_a_mistake_are_not_among_the_three_weakest():
    right_of = {"one": (0, 1), "all": (5, 5), "half": (1, 2), "none": (0, 2), "most": (3, 4), "much": (9, 10)}
    pairs = [(name, name, right) for name, (right, _) in right_of.items()]
    pairs += [(name, "other", count - right) for name, (right, count) in right_of.items()]
    predicted = Predicted(None, "a", (*right_of, "other"), tuple(pairs), ())

    assert predicted.weakest == "none 0% of 2, half 50% of 2, most 75% of 4"
