"""Images of a run recognised by content: what may be scored after its folder has changed."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_section
from vitcli.data import seen_images
from vitcli.data.dataset import open_eval, open_train_and_eval
from vitcli.data.image_files import as_split
from vitcli.data.parts.splitting import cut_dev
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split
from vitcli.errors import DataError


def image(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2), (number, number // 7, 0)).save(path)


def contents(split: Split) -> list[bytes]:
    return [split.read_row(row)[0] for row in range(len(split))]


@pytest.fixture
def folder(tmp_path) -> Path:
    """30 images of three classes, no two alike."""
    for number in range(30):
        image(tmp_path / "photos" / "abc"[number % 3] / f"{number:02}.png", number)
    return tmp_path / "photos"


def trained_on(folder: Path, *, by_class: bool = True) -> tuple[Split, SeenImages]:
    """The held-out part of a run on the folder, and what its weights keep."""
    section = data_section(folder, dev_fraction=0.2, dev_stratified=by_class)
    train, held_out = open_train_and_eval(section, seed=0)
    metadata = {"dev_cut": held_out.dev_cut, seen_images.KEY: seen_images.record(train, held_out)[0]}
    return held_out, SeenImages.of(metadata)


def add_an_image(folder: Path) -> None:
    image(folder / "a" / "00a.png", 101)


def rename_images(folder: Path) -> None:
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        file.rename(file.with_name(f"{(number * 7) % 30:02}-renamed.png"))


def swap_the_names_of_two(folder: Path) -> None:
    """Neither number, labels nor names change: only the content says what is where."""
    images = sorted((folder / "a").iterdir())
    for k in range(0, len(images) - 1, 2):
        images[k].rename(folder / "swap")
        images[k + 1].rename(images[k])
        (folder / "swap").rename(images[k + 1])


def move_all_to_another_class(folder: Path) -> None:
    for file in list((folder / "a").iterdir()):
        file.rename(folder / "b" / file.name)


def add_a_class(folder: Path) -> None:
    image(folder / "0 first" / "new.png", 102)


@pytest.mark.parametrize("by_class", [True, False])
@pytest.mark.parametrize(
    "change", [add_an_image, rename_images, swap_the_names_of_two, move_all_to_another_class, add_a_class]
)
def test_the_held_out_images_are_found_by_content(folder, change: Callable[[Path], None], by_class):
    held_out, seen = trained_on(folder, by_class=by_class)
    before, fingerprint = contents(held_out), held_out.fingerprint
    change(folder)

    again = open_eval(data_section(folder), "auto", seen=seen)

    assert contents(again) == before and again.name.endswith("dev part")
    if change not in (move_all_to_another_class, add_a_class):
        assert again.fingerprint == fingerprint


def test_new_images_are_not_scored_and_lost_ones_are_counted(folder):
    held_out, seen = trained_on(folder)
    add_an_image(folder)
    lost = Path(held_out.where_is(0).partition("file ")[2])
    lost.unlink()

    again = open_eval(data_section(folder), "auto", seen=seen)

    assert len(again) == 5
    assert "5 of the 6 held-out images found; 1 new image not scored" in again.notes[0]
    assert "--split train scores every image" in again.notes[0]


def test_the_part_that_a_run_chose_by_is_opened_by_its_name_beside_a_test_split(photos):
    section = data_section(photos, dev_fraction=0.25, dev_stratified=True, eval_split="dev_fraction")
    train, held_out = open_train_and_eval(section, seed=0)
    metadata = {"dev_cut": held_out.dev_cut, seen_images.KEY: seen_images.record(train, held_out)[0]}
    seen = SeenImages.of(metadata)

    assert contents(open_eval(section, "dev_fraction", seen=seen)) == contents(held_out)
    assert len(open_eval(section, "auto", seen=seen)) == 10  # the test split
    with pytest.raises(DataError, match="18 of the 24 images"):
        flat = data_section(photos / "train", dev_fraction=0.0)
        open_eval(flat, "auto", seen=replace(seen, cut=None, held_out=None))


def test_unchanged_data_are_scored_without_a_note(folder):
    held_out, seen = trained_on(folder)

    again = open_eval(data_section(folder), "auto", seen=seen)

    assert (contents(again), again.notes) == (contents(held_out), ())


def test_images_that_were_trained_on_are_only_scored_if_their_split_is_named(folder):
    held_out, seen = trained_on(folder)
    for row in range(len(held_out)):
        Path(held_out.where_is(row).partition("file ")[2]).unlink()

    with pytest.raises(DataError, match=r"24 of the 24 images .* none is a held-out image") as refusal:
        open_eval(data_section(folder), "auto", seen=seen)
    assert "--split train to score all 24" in refusal.value.fix
    assert open_eval(data_section(folder), "train", seen=seen).notes == (
        "24 of these 24 images were trained on",
    )


def test_other_images_are_all_scored(folder, tmp_path):
    _, seen = trained_on(folder)
    for number in range(5):
        image(tmp_path / "holiday" / "ab"[number % 2] / f"{number}.png", 200 + number)

    other = open_eval(data_section(tmp_path / "holiday"), "auto", seen=seen)

    assert (len(other), other.notes) == (5, ())


def test_a_test_split_with_copies_of_training_images_says_how_many(folder, tmp_path):
    _, seen = trained_on(folder)
    (tmp_path / "sorted").mkdir()
    folder.rename(tmp_path / "sorted" / "train")
    for name in "abc":
        image(tmp_path / "sorted" / "test" / name / "new.png", 200 + ord(name))
    trained = next(
        file for file in (tmp_path / "sorted" / "train" / "b").iterdir()
        if np.isin(seen_images.digests_of(as_split([str(file)])), seen.trained_on).all()
    )  # fmt: skip
    copy = tmp_path / "sorted" / "test" / "b" / "copy.png"
    copy.write_bytes(trained.read_bytes())

    test = open_eval(data_section(tmp_path / "sorted"), "test", seen=seen)
    assert (len(test), test.notes) == (4, ("1 of these 4 images was trained on",))


def test_a_test_split_that_was_all_trained_on_is_opened_where_nothing_is_scored(folder):
    held_out, seen = trained_on(folder)
    for row in range(len(held_out)):
        Path(held_out.where_is(row).partition("file ")[2]).unlink()
    (folder / "test").mkdir()
    for name in "abc":
        (folder / name).rename(folder / "test" / name)
    section = data_section(folder)

    with pytest.raises(DataError, match=r"all 24 images .* were trained on"):
        open_eval(section, "auto", seen=seen)
    split = open_eval(section, "auto", seen=seen, needs_labels=False)
    assert (len(split), split.notes) == (24, ("24 of these 24 images were trained on",))


@pytest.mark.parametrize("train_split", ["auto", None])
def test_weights_without_digests_keep_the_cut(folder, train_split):
    held_out, _ = trained_on(folder, by_class=False)
    seen = SeenImages.of({"dev_cut": held_out.dev_cut}, train_split=train_split)

    assert contents(open_eval(data_section(folder), "auto", seen=seen)) == contents(held_out)
    add_an_image(folder)
    if train_split:
        with pytest.raises(DataError, match="has changed since the run"):
            open_eval(data_section(folder), "auto", seen=seen)
        assert (
            "has images that were trained on, besides"
            in open_eval(data_section(folder), "train", seen=seen).notes[0]
        )
    else:
        other = open_eval(data_section(folder), "auto", seen=seen)
        assert (len(other), other.notes) == (31, ("whether images of these were trained on is not known",))


@pytest.mark.parametrize(
    "stored", [{"trained_on": "no base64"}, {"trained_on": 7}, "text", {"held_out": "AA=="}]
)
def test_damaged_digests_are_none(stored):
    cut = {"split": "train", "fraction": "all", "fingerprint": "", "num_rows": 7}
    assert SeenImages.of({seen_images.KEY: stored, "dev_cut": cut}) == SeenImages()
    assert SeenImages.of({"dev_cut": "train"}) == SeenImages()


def test_the_processes_of_a_run_read_a_part_each(folder):
    train, held_out = open_train_and_eval(data_section(folder, dev_fraction=0.2), seed=0)
    parts: dict[int, list[list]] = {}

    for rank in range(3):
        seen_images.record(
            train, held_out, rank=rank, world_size=3,
            concatenated=lambda items, rank=rank: parts.setdefault(rank, []).append(items) or items,
        )  # fmt: skip

    whole = seen_images.digests_of(train).tolist()
    assert [*parts[0][0], *parts[1][0], *parts[2][0]] == whole and len(set(whole)) == 24


def test_held_out_copies_of_training_images_are_counted(folder):
    for name in "abc":
        for file in list((folder / name).iterdir()):
            (folder / name / f"copy-{file.name}").write_bytes(file.read_bytes())
    train, held_out = open_train_and_eval(data_section(folder, dev_fraction=0.2), seed=0)
    training = contents(train)

    stored, numbers = seen_images.record(train, held_out)
    count = numbers["num_held_out_copies"]
    assert count == sum(content in training for content in contents(held_out)) > 0
    seen = SeenImages.of({"dev_cut": held_out.dev_cut, seen_images.KEY: stored})
    assert [f"{count} of these 12 held-out images are exact copies of training images"] == [
        *open_eval(data_section(folder), "auto", seen=seen).notes
    ]
    add_an_image(folder)
    assert f"{count} of these 12" in open_eval(data_section(folder), "auto", seen=seen).notes[0]


def test_of_several_networks_before_the_images_of_each_must_be_known(folder):
    train, held_out = open_train_and_eval(data_section(folder, dev_fraction=0.2), seed=0)
    digests_N = seen_images.digests_of(held_out)
    start, teacher = SeenImages(digests_N[:2]), SeenImages(digests_N[1:4])

    for before, count in (([start, teacher], 4), ([start, SeenImages()], None), ([], 0)):
        stored, numbers = seen_images.record(train, held_out, before=before)
        known = {*digests_N[: count or 2].tolist()} if before else set()
        ever = SeenImages.of({seen_images.KEY: stored}).ever_trained_on
        assert numbers["num_held_out_seen"] == count
        assert {*ever.tolist()} == {*seen_images.digests_of(train).tolist()} | known


def test_drawn_images_and_shards_are_not_read():
    train, test = open_train_and_eval(data_section("demo"), seed=0)

    assert seen_images.record(train, test)[0] is None


@pytest.mark.parametrize(
    ("trained", "scored", "is_noted"),
    [
        ("auto", "train", True),
        ("auto", "test", False),
        ("auto", "auto", False),
        ("train[:50%]", "train[50%:]", False),
        ("train[:51%]", "train[50%:]", True),
        ("train[:9999]", "train", True),
        ("test", "auto", True),
        (None, "train", False),  # other data
    ],
)
def test_images_that_cannot_be_recognised_are_noted_by_the_names_of_their_splits(trained, scored, is_noted):
    split = open_eval(data_section("demo"), scored, seen=SeenImages.of({}, train_split=trained))

    assert split.notes == ("this split has images that were trained on",) * is_noted


@pytest.mark.parametrize(
    ("train", "held_out", "common"),
    [("train", "train", 30), ("train[:60%]", "train[50%:]", 3), ("train[:50%]", "train[50%:]", 0)],
)
def test_slices_that_share_images_are_noted_before_and_counted_after_a_run(folder, train, held_out, common):
    section = data_section(folder, train_split=train, eval_split=held_out)
    splits = open_train_and_eval(section, seed=0)

    assert len([note for note in splits[1].notes if "are trained on and scored" in note]) == bool(common)
    assert seen_images.record(*splits)[1]["num_held_out_copies"] == common


def test_the_cut_of_a_slice_takes_nothing_from_other_images(folder, tmp_path):
    section = data_section(folder, train_split="train[:20]", dev_fraction=0.2)
    train, held_out = open_train_and_eval(section, seed=0)
    seen = SeenImages.of(
        {"dev_cut": held_out.dev_cut, seen_images.KEY: seen_images.record(train, held_out)[0]}
    )
    for number in range(5):
        image(tmp_path / "holiday" / "ab"[number % 2] / f"{number}.png", 200 + number)

    before = contents(held_out)
    assert contents(open_eval(section, "auto", seen=seen)) == before
    assert len(open_eval(data_section(tmp_path / "holiday"), "auto", seen=seen)) == 5
    rename_images(folder)  # so that some are in the other part of the split
    assert contents(open_eval(section, "auto", seen=seen)) == before


def test_images_too_many_to_be_read_are_scored_with_a_note(folder, monkeypatch):
    _, seen = trained_on(folder)
    monkeypatch.setattr(seen_images, "MOST_IMAGES", 10)

    split = open_eval(data_section(folder), "auto", seen=replace(seen, cut=None))
    assert split.notes == ("whether images of these were trained on is not known",)


def run_on(folder: Path, before: SeenImages | None = None, **keys) -> tuple[Split, Split, SeenImages, dict]:
    """The splits of a run that starts from the weights of another, what its own weights keep, its numbers."""
    section = data_section(folder, **{"dev_fraction": 0.2, "dev_stratified": True} | keys)
    known = before and before.ever_trained_on
    train, held_out = open_train_and_eval(section, seed=0, trained_before=lambda: known)
    stored, numbers = seen_images.record(train, held_out, before=[before] if before else [])
    seen = SeenImages.of({"dev_cut": held_out.dev_cut, seen_images.KEY: stored})
    return train, held_out, seen, numbers


def test_what_is_held_out_by_class_survives_added_and_renamed_files(folder):
    _, before, _, _ = run_on(folder)
    held_out, fingerprint = contents(before), before.fingerprint
    rename_images(folder)
    _, renamed, _, _ = run_on(folder)
    assert (contents(renamed), renamed.fingerprint) == (held_out, fingerprint)

    moved = []
    for number in range(100, 110):
        image(folder / "a" / f"0{number}.png", number)
        _, grown, _, _ = run_on(folder)
        moved.append(len({*held_out} - {*contents(grown)}))
        (folder / "a" / f"0{number}.png").unlink()
    assert max(moved) <= 1 and moved.count(0) >= 5


@pytest.mark.parametrize("add", [False, True])
def test_a_run_from_the_weights_of_another_holds_out_what_that_one_did_not_train_on(folder, add):
    _, _, first, numbers = run_on(folder)
    assert numbers == {"num_held_out_copies": 0, "num_held_out_seen": 0}
    if add:
        for number in range(4):
            image(folder / "abc"[number % 3] / f"0-{number}.png", 100 + number)

    train, held_out, second, numbers = run_on(folder, first)

    trained_first = {*map(int, first.trained_on)}
    assert not trained_first & {*map(int, seen_images.digests_of(held_out))}
    assert numbers == {"num_held_out_copies": 0, "num_held_out_seen": 0}
    # Whatever either run trained on counts.
    every = open_eval(data_section(folder), "train", seen=second)
    new = len(every) - len(trained_first | {*map(int, seen_images.digests_of(train))})
    assert every.notes == (f"{len(every) - new} of these {len(every)} images were trained on",)
    again = open_eval(data_section(folder), "auto", seen=second)
    assert sorted(contents(again)) == sorted(contents(held_out)) and again.notes == ()


def test_held_out_images_that_an_earlier_run_trained_on_are_counted_and_noted(folder):
    _, first_held, first, _ = run_on(folder)
    for row in range(len(first_held)):  # nothing is left that it has not trained on, but one new image
        Path(first_held.where_is(row).partition("file ")[2]).unlink()
    image(folder / "a" / "0.png", 100)

    _, held_out, second, numbers = run_on(folder, first)

    assert numbers == {"num_held_out_copies": 0, "num_held_out_seen": len(held_out) - 1}
    section = data_section(folder)
    expected = (
        f"{len(held_out) - 1} of these {len(held_out)} held-out images were trained on by an earlier run"
    )
    again = open_eval(section, "auto", seen=second)
    assert contents(again) == contents(held_out) and expected in again.notes[0] and len(again.notes) == 1
    assert open_eval(section, "train", seen=second).notes == ("24 of these 25 images were trained on",)
    # A third run knows what both have seen; the part to choose by comes from the rest, too.
    _, chosen_by, third, numbers = run_on(folder, second, eval_split="dev_fraction")
    assert numbers["num_held_out_seen"] == len(chosen_by) and len(third.ever_trained_on) == 24


def test_an_unreadable_image_is_held_out_last(folder, monkeypatch):
    digests = seen_images.digests_of
    monkeypatch.setattr(seen_images, "digests_of", lambda split: digests(split) * (np.arange(len(split)) > 5))
    split = open_train_and_eval(data_section(folder, dev_fraction=0.2), seed=0)[0]

    assert {*seen_images.held_out_order(split, lambda: None)[-6:].tolist()} == {*range(6)}


def test_a_part_that_does_not_go_by_content_is_found_without_a_note(folder):
    section = data_section(folder, dev_fraction=0.2, dev_stratified=True)
    whole = open_eval(section, "train")
    train, held_out = cut_dev(whole, dev_fraction=0.2, split="train", stratified=True)
    assert not held_out.dev_cut["by_content"]
    stored, _ = seen_images.record(train, held_out)

    again = open_eval(
        section, "auto", seen=SeenImages.of({"dev_cut": held_out.dev_cut, seen_images.KEY: stored})
    )

    assert (contents(again), again.notes) == (contents(held_out), ())


def test_the_digests_have_the_same_order_on_any_number_of_processes(folder):
    """Of images that were trained on and of those that a run chose by, read by each process in part."""
    train, chosen_by = open_train_and_eval(data_section(folder, dev_fraction=0.2), seed=0)
    held_out = train.rows(np.arange(3))
    alone, _ = seen_images.record(train, held_out, chosen_by=chosen_by)
    for world_size in (2, 3):
        parts: dict[int, list[list[int]]] = {rank: [] for rank in range(world_size)}
        for rank, of_rank in parts.items():

            def keep(part: list, of_rank=of_rank) -> list:
                of_rank.append(part)
                return part

            how = {"rank": rank, "world_size": world_size, "concatenated": keep}
            seen_images.record(train, held_out, chosen_by=chosen_by, **how)
        joined = iter([[*chain(*calls)] for calls in zip(*parts.values(), strict=True)])
        how = {"rank": 0, "world_size": world_size, "concatenated": lambda _, joined=joined: next(joined)}
        assert seen_images.record(train, held_out, chosen_by=chosen_by, **how)[0] == alone
