"""Calibration images of int8 quantization."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitcli.conversion import images
from vitcli.conversion.images import evenly
from vitcli.data.dataset import DataSet
from vitcli.data.seen_images import digests_of
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.output.progress import Progress


@pytest.mark.parametrize("most", [1, 7, 24, 100])
def test_they_are_spread_over_a_split_that_is_sorted_by_class(photos, most):
    split = DataSet(str(photos)).open("train")  # twelve green, then twelve red
    chosen = evenly(split, most)

    assert len(chosen) == min(most, 24)
    counts = np.bincount(chosen.read_labels(), minlength=2)
    assert abs(counts[0] - counts[1]) <= 1
    places = [split.where_is(row) for row in range(24)]
    rows = [places.index(chosen.where_is(row)) for row in range(len(chosen))]
    assert rows == sorted({*rows}) and rows[0] == 0 and rows[-1] == (23 if most > 1 else 0)


def test_networks_are_compared_on_images_from_the_whole_of_a_split(monkeypatch):
    split, quiet = DataSet("demo").open("test"), Progress(quiet=True)
    place_of = {split.where_is(row): row for row in range(600)}

    def rows(gate: Split | None, precision: str) -> list[int]:
        chosen = images.open_images(None, gate, quiet, precision=precision).split
        return [place_of[chosen.where_is(row)] for row in range(len(chosen))]

    gated = rows(split, "fp32")
    assert len(gated) == 256 and gated[0] < 3 and gated[-1] >= 597 and np.diff(gated).max() <= 3
    monkeypatch.setattr(images, "_open_held_out", lambda weights: split)
    assert len(rows(None, "fp32")) == 32 and rows(None, "int8") == gated  # what rounds takes more to compare


@pytest.mark.parametrize("name", ["train[:50]", "auto"])
def test_the_scales_of_int8_are_measured_on_training_images(monkeypatch, name):
    recipe = SimpleNamespace(data=SimpleNamespace(dataset="demo", train_split=name, eval_split="test"))
    monkeypatch.setattr(images.run_folder, "folder_of", lambda source: "run")
    monkeypatch.setattr(images.run_folder, "recipe_of", lambda folder: (recipe, True))
    monkeypatch.setattr(images.dataset, "from_section", lambda section: DataSet(section.dataset))

    assert "split train" in images.open_for_scales(SimpleNamespace(source="run"), (), None).name


def test_images_that_a_run_held_out_of_its_training_split_give_no_scales(photos, monkeypatch):
    """A gate on them would be one on images of the calibration; those that are named are taken as given."""
    recipe = SimpleNamespace(data=SimpleNamespace(dataset=str(photos), train_split="auto"))
    monkeypatch.setattr(images.run_folder, "folder_of", lambda source: "run")
    monkeypatch.setattr(images.run_folder, "recipe_of", lambda folder: (recipe, True))
    monkeypatch.setattr(images.dataset, "from_section", lambda section: DataSet(section.dataset))
    train = DataSet(str(photos)).open("train")
    held_out = train.rows(np.arange(0, 24, 3))
    weights = SimpleNamespace(source="run")

    scales = images.open_for_scales(weights, (), held_out)
    assert len(scales) == 16 and not np.isin(digests_of(scales), digests_of(held_out)).any()
    assert len(images.open_for_scales(weights, [str(photos / "train")], held_out)) == 24
    with pytest.raises(VitError, match="are among those that the verdict is based on"):
        images.open_for_scales(weights, (), train)


def test_they_are_given_as_the_file_takes_them_and_bad_ones_are_left_out():
    pixels_NHWC = np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3), dtype=np.uint8)

    def read_row(row: int) -> tuple[np.ndarray, int]:
        if row in bad:
            raise DataError("damaged", where="", fix="")
        return pixels_NHWC[row], 0

    def given(kind: str) -> list[torch.Tensor]:
        form = SimpleNamespace(input=kind, preprocessing=lambda image_HWC: image_HWC[1:5, 2:6])
        return list(images.images_for_scales(split, form))

    bad = {2}
    split = Split("pets", 4, None, 1, read_row, lambda: np.zeros(4, int), "row {}".format)
    for kind, expected in (("images", pixels_NHWC), ("pixels", pixels_NHWC[:, 1:5, 2:6])):
        found = given(kind)
        assert [each.shape for each in found] == [(1, *expected.shape[1:])] * 3
        assert torch.equal(torch.cat(found), torch.from_numpy(expected[[0, 1, 3]].copy()))
    bad |= {0, 1, 3}
    with pytest.raises(DataError, match="4 images to calibrate int8 by, and none can be decoded"):
        given("images")


def test_of_many_images_that_are_named_128_from_all_of_them_give_the_scales_and_the_first_256_are_compared(
    monkeypatch,
):
    many, lines = DataSet("demo").open("test[:400]"), []
    place_of = {many.where_is(row): row for row in range(400)}
    monkeypatch.setattr(images, "find_images", lambda given, *, where: many)

    def rows(split: Split) -> list[int]:
        return [place_of[split.where_is(row)] for row in range(len(split))]

    scales = rows(images.open_for_scales(None, ["photos"], None))
    assert len(scales) == 128 and (scales[0], scales[-1]) == (0, 399)
    progress = SimpleNamespace(note=lines.append)
    assert rows(images.open_named(["photos"], progress).split) == list(range(256))
    assert "comparing on the first 256 of 400 images" in lines


def test_images_that_a_run_held_out_are_not_published():
    own = DataSet("demo:pretrain").open("test[:9]")

    assert images.Images(own).to_publish is own
    assert images.Images(own, are_held_out=True).to_publish.name == "demo, split test[:32]"
