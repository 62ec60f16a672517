"""What a run says before its first step: five lines at most, what matters most first, the rest on demand."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vitcli import recipe as recipes
from vitcli.data.dataset import DataSet
from vitcli.data.sources.folders import UNREADABLE, LeftOut, left_out_of
from vitcli.data.split import Split
from vitcli.output.progress import wrapped_lines
from vitcli.output.text import NO_LIMIT
from vitcli.training import notes, text
from vitcli.training.notes import Opening, opening
from vitcli.training.splits import RunSplits, declared_splits


class Said:
    """Stands for a `Progress`, and keeps what it is to print."""

    def __init__(self, *, is_verbose: bool = False, width: int = NO_LIMIT):
        self.is_verbose, self.width, self.lines, self.details = is_verbose, width, [], []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def detail(self, line: str) -> None:
        self.details.append(line)


@pytest.mark.parametrize(("num_notes", "shown"), [(0, 0), (1, 1), (2, 2), (5, 2)])
def test_notes_are_shown_as_far_as_there_is_room_the_first_before_the_others(num_notes, shown):
    others = ("a detail", *(f"note: number {number}" for number in range(num_notes)))
    said = Said()
    Opening(("network", "data"), others).show(said, is_first=True)

    # With the line of the run folder, which comes later, five.
    assert len(said.lines) == 2 + shown <= notes.MOST_LINES - 1
    assert [line.startswith(f"note: number {n}") for n, line in enumerate(said.lines[2:])] == [True] * shown
    assert said.lines[-1].endswith("(3 more: -v)") is (num_notes == 5)
    assert said.details == []


@pytest.mark.parametrize("words", [3, 12, 40])
@pytest.mark.parametrize("num_notes", [1, 2, 5])
@pytest.mark.parametrize("num_lines", [2, 3])
def test_at_80_columns_it_is_five_lines_too_however_long_its_parts_are(words, num_notes, num_lines):
    lines = tuple(f"line {number}: {'words of it ' * words}end" for number in range(num_lines))
    notes_of_it = tuple(f"note: number {number} {'and more ' * words}end" for number in range(num_notes))
    said = Said(width=80)
    Opening(lines, notes_of_it).show(said, is_first=True)

    on_screen = wrapped_lines("\n".join(said.lines), 80).split("\n")
    assert len(on_screen) <= notes.MOST_LINES - 1 and max(map(len, on_screen)) <= 80
    shown = said.lines[num_lines:]
    assert shown[0].startswith("note: number 0 and more")
    hidden = num_notes - len(shown)
    assert said.lines[-1].endswith(f"({hidden} more: -v)") is (hidden > 0)
    assert words > 3 or shown[0].startswith(notes_of_it[0]), "a note that fits is whole"


def test_of_several_runs_the_first_alone_opens_and_verbose_shows_all():
    lines = Opening(("network",), ("note: one", "note: two", "a detail"))
    later, verbose = Said(), Said(is_verbose=True)
    lines.show(later, is_first=False)
    lines.show(verbose, is_first=True)

    everything = ["network", "note: one", "note: two", "a detail"]
    assert (later.lines, verbose.lines) == ([], [])
    assert later.details == verbose.details == everything
    assert lines.notes == ["one", "two"]


def opened(root: Path, *, scored_left_out: LeftOut | None = None, **changes) -> Opening:
    given = {"data.dataset": str(root), "model.ckpt": "demo"}
    recipe = recipes.load("modern/finetune-some", ("data.image_size=64",), given)
    whole = DataSet("demo").open("train")
    train, scored = (replace(whole.rows(np.arange(*rows)), **changes) for rows in ((0, 200), (200, 300)))
    scored = scored if scored_left_out is None else replace(scored, left_out=scored_left_out)
    seen = SimpleNamespace(num_trained_on=lambda split: 7)
    start = SimpleNamespace(
        arch=SimpleNamespace(name="ViT-demo/8"),
        origin="demo",
        loaded="fresh head",
        seen=seen,
        notes=["note: pixels"],
    )
    plan = SimpleNamespace(epochs=400.0, batch_size=32, num_examples=200)
    splits = RunSplits(train, scored, whole.rows(np.arange(300, 320)))
    unreadable = [f"demo, split train, row 3, file {root / 'cat/3.jpg'}"]
    return opening("finetune", recipe, start, plan, splits, unreadable, [], is_seen=True)


def test_the_lines_say_network_data_and_what_is_left_out_and_seen_images_come_before_other_notes(tmp_path):
    left_out = left_out_of(UNREADABLE, ["b.heic", "notes.txt"])
    lines = opened(tmp_path, left_out=left_out)

    assert lines.lines == (
        "ViT-demo/8 at 64 px from demo: fresh head",
        f"training on 200 images of 12 classes, 20 in the dev split, 100 to score: {tmp_path}",
        "left out: 1 of them unreadable, 2 files (HEIC: install pillow-heif, or convert)",
    )
    assert lines.notes[0].startswith("the checkpoint was trained on 7 of the 100 images to score on")
    assert lines.notes[-1] == "pixels" and any("seen 400 times" in note for note in lines.notes)
    assert opened(tmp_path).lines[-1] == "left out: 1 of them unreadable, first cat/3.jpg"


def test_files_are_left_out_of_the_images_to_train_on_and_of_those_to_score(tmp_path):
    left_out = left_out_of(UNREADABLE, ["a.heic", "b.heic"])
    lines = opened(tmp_path, left_out=left_out, scored_left_out=left_out_of(UNREADABLE, ["b.heic", "c.heic"]))

    assert lines.lines[-1].startswith("left out: 1 of them unreadable, 3 files (HEIC")


@pytest.mark.parametrize(
    ("names", "count", "is_noted"),
    [
        ([f"{age / 10:g}" for age in range(232)], 240, True),
        ([str(age) for age in range(18, 95)], 240, False),  # ages in years may well be classes
        ([f"{number}" for number in range(200)], 240, True),
        ([f"id-{number}" for number in range(200)], 240, False),
    ],
)
def test_numbers_that_are_taken_as_classes_are_noted(names, count, is_noted):
    labels = np.arange(count) % len(names)
    split = Split("ages", count, tuple(names), len(names), None, lambda: labels, str)

    told = [note for note in notes.unusual_labels(split) if "taken as classes" in note]

    assert bool(told) is is_noted
    assert not told or f"{len(names)} numbers are taken as classes, in {count} images" in told[0]
    assert not told or "--set objective.loss=regression predicts numbers" in told[0]


def test_classes_of_a_split_of_declared_size_are_no_numbers():
    train, _ = declared_splits("vtab/caltech101", num_examples=None) or pytest.fail("it is not declared")

    assert len(train) == 1_000 and notes.unusual_labels(train) == []


@pytest.mark.parametrize(
    ("num_images", "num_classes", "is_too_few"),
    [(1_999, 10, True), (2_000, 10, False), (9_999, 100, True), (10_000, 100, False), (199, 1, True)],
)
def test_fewer_than_200_images_a_class_and_10000_in_all_are_too_few_for_fresh_weights(
    num_images, num_classes, is_too_few
):
    split = DataSet("demo").open("train")
    split = replace(split.rows(np.zeros(num_images, int)), num_classes=num_classes)
    recipe = recipes.load("finetune/default", ["data.dataset=demo"])

    assert bool(notes.too_few("pretrain", recipe, split)) == is_too_few
    assert notes.too_few("finetune", recipe, split) == []


@pytest.mark.parametrize(("top1", "is_advised"), [(1.0, False), (0.99, True)])
def test_where_all_are_right_training_on_is_not_advised(top1, is_advised):
    summary = {"command": "finetune", "run_dir": "runs/photos", "dataset": "photos", "top1": top1}
    advised = [" ".join(words) for words in text._next_commands(summary)]
    assert any("--keep-head" in line for line in advised) == is_advised
