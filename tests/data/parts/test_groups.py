"""Which images belong together, and that no cut of a data set separates them."""

import inspect
import io
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import data_section
from tests.data.parts.test_assignment import by_definition
from vitcli import recipe
from vitcli.cli.datasets import datasets_check
from vitcli.data import seen_images
from vitcli.data.columns import PATHS
from vitcli.data.dataset import open_eval, open_train_and_eval
from vitcli.data.parts import groups
from vitcli.data.parts.groups import _joined, group_names
from vitcli.data.parts.splitting import random_subset
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError
from vitcli.recipe.group_rule import NEAR_DISTANCE


def png(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2), grey).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """60 images of three classes and ten objects, six of each object, two of each class and object."""
    folder = tmp_path_factory.mktemp("table")
    columns = {
        "image": pa.array([png(row) for row in range(60)], pa.binary()),
        "label": [row % 3 for row in range(60)],
        "object": [f"object {row // 6}" for row in range(60)],
        "scene": [float(row // 6) if row else None for row in range(60)],
        "box": [[row] for row in range(60)],
        "same": ["all"] * 60,
    }
    pq.write_table(pa.table(columns), folder / "train.parquet")
    return folder


@pytest.fixture(scope="module")
def patients(tmp_path_factory) -> Path:
    """Class folders with a folder per patient, some with images of both classes."""
    root = tmp_path_factory.mktemp("patients")
    for number in range(36):
        name, patient = "ab"[number % 2], f"patient-{number % 9}"
        file = root / name / patient / f"scan{number // 12}_{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number))
    return root


def names(split: Split, column: str = "object") -> set[str]:
    return set(split.column(column))


def opened(folder: Path, **keys: object) -> tuple[Split, Split]:
    keys = {"label_column": "label", **keys} if "label_column" not in keys else keys
    return open_train_and_eval(data_section(folder, **keys), seed=0)


def test_a_dev_part_and_a_subset_have_whole_objects_only(table):
    train, held_out = opened(table, group_column="object", dev_fraction=0.2, dev_stratified=True)
    assert len(held_out) == 12 and len(train) == 48 and not names(train) & names(held_out)
    counts = "8 groups to train on and 2 groups held out"
    assert held_out.notes[-1] == f"by object: {counts}, none on both sides"

    train, held_out = opened(
        table, group_column="object", dev_fraction=0.2, dev_stratified=True, num_examples=33
    )
    assert len(train) == 30 and set(Counter(train.column("object")).values()) == {6}


def test_groups_that_just_fit_fill_a_subset(table):
    for count in (6, 12, 30, 60):
        assert len(opened(table, group_column="object", eval_split="train", num_examples=count)[0]) == count


def test_folds_hold_out_every_image_once_and_agree_with_the_definition(table):
    from fractions import Fraction

    each = [opened(table, group_column="object", eval_split=f"fold {k} of 4") for k in (1, 2, 3, 4)]
    whole = opened(table, eval_split="4 folds")[0]
    content = [whole.read_row(row)[0] for row in range(60)]
    order = seen_images.held_out_order(whole, lambda: None).tolist()
    groups = [row // 6 for row in range(60)]
    expected = by_definition(groups, [row % 3 for row in range(60)], [Fraction(1, 4)] * 4, order)

    for number, (train, held_out) in enumerate(each):
        held = [content.index(held_out.read_row(row)[0]) for row in range(len(held_out))]
        trained = [content.index(train.read_row(row)[0]) for row in range(len(train))]
        assert held == [row for row in range(60) if expected[row] == number]
        assert sorted(held + trained) == list(range(60)) and not names(train) & names(held_out)
        assert held_out.name.endswith(f"fold {number + 1} of 4")


def test_the_part_to_choose_by_is_cut_from_what_a_fold_leaves(table):
    keys = dict(group_column="object", dev_fraction=0.25, dev_stratified=True)
    _, held_out = opened(table, eval_split="fold 2 of 4", **keys)
    train, dev = opened(table, eval_split="dev_fraction of fold 2 of 4", **keys)

    assert not names(held_out) & (names(train) | names(dev)) and not names(train) & names(dev)
    assert len(train) + len(dev) + len(held_out) == 60


def test_folds_do_not_change_with_the_order_or_the_names_of_files(patients, tmp_path):
    copy = tmp_path / "copy"
    for number, file in enumerate(sorted(patients.rglob("*.png"), reverse=True)):
        target = copy / file.relative_to(patients).parent / f"x{number:02}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)

    def held(folder: Path) -> list[set[bytes]]:
        parts = [
            opened(folder, group_column="folder:1", eval_split=f"fold {k} of 3", label_column=None)[1]
            for k in (1, 2, 3)
        ]
        return [{part.read_row(row)[0] for row in range(len(part))} for part in parts]

    assert held(patients) == held(copy)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ("folder:1", lambda path: path.split("/")[-2]),
        (r"name:^(scan\d)_", lambda path: path.split("/")[-1][:5]),
    ],
)
def test_folders_and_parts_of_file_names_are_groups(patients, rule, key):
    keys = dict(group_column=rule, dev_fraction=0.3, dev_stratified=False, label_column=None)
    train, held_out = opened(patients, **keys)

    groups = [{key(path) for path in split.column(PATHS)} for split in (train, held_out)]
    assert groups[0] and groups[1] and not groups[0] & groups[1]


@pytest.mark.parametrize("is_stratified", [True, False])
def test_a_held_out_part_is_found_again_by_content(table, patients, is_stratified):
    for folder, keys in ((table, {"group_column": "object"}), (patients, {"group_column": "folder:1"})):
        keys |= {"dev_fraction": 0.3, "dev_stratified": is_stratified}
        keys |= {"label_column": "label" if folder == table else None}
        for eval_split in ("auto", "fold 2 of 3"):
            section = data_section(folder, **keys, eval_split=eval_split)
            train, held_out = open_train_and_eval(section, seed=0)
            metadata = {"dev_cut": held_out.dev_cut, seen_images.KEY: seen_images.record(train, held_out)[0]}
            again = open_eval(section, eval_split, seen=SeenImages.of(metadata, train_split="auto"))
            assert again.fingerprint == held_out.fingerprint


def test_groups_go_with_the_rows_of_every_part(table, patients):
    keys = dict(group_column="object", dev_fraction=0.2, dev_stratified=True, label_column="label")
    train, held_out = opened(table, train_split="train[6:]", **keys)
    for split in (
        train,
        held_out,
        train.rows(np.array([7, 3, 3, 20])),
        train.relabelled(np.arange(3), ("c", "a", "b")),
    ):
        numbers = [int(name.removeprefix("object ")) for name in split.column("object")]
        assert split.groups_N.tolist() == numbers  # of the whole: the same in each part
    assert opened(table, dev_fraction=0.2)[0].groups_N is None
    # A subset that nobody asked to keep groups draws rows; the recipe's draws groups, see above.
    few = random_subset(train, 9, seed=0)
    assert len(few) == 9 and few.groups_N.tolist() == [int(name[-1]) for name in few.column("object")]


def test_a_held_out_part_whose_groups_have_no_names_any_more_is_scored_with_a_note(patients, tmp_path):
    keys = dict(group_column=r"name:^(scan\d)_", dev_fraction=0.3, dev_stratified=False, label_column=None)
    train, held_out = opened(patients, **keys)
    metadata = {"dev_cut": held_out.dev_cut, seen_images.KEY: seen_images.record(train, held_out)[0]}
    for number, file in enumerate(sorted(patients.rglob("*.png"))):
        target = tmp_path / file.parent.parent.name / f"{number:02}.png"
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)

    again, moved = (
        open_eval(data_section(folder), "auto", seen=SeenImages.of(metadata))
        for folder in (patients, tmp_path)
    )
    assert len(again) == len(moved) == len(held_out)
    assert len({*again.groups_N}) == len({*held_out.groups_N}) == 1
    assert not any("group_column" in note for note in again.notes)
    assert moved.groups_N is None and "data.group_column) is not known: none of the" in moved.notes[-1]


def test_images_of_up_to_six_differing_bits_are_one_group(monkeypatch):
    """Of six rows in two splits, of which row 1 cannot be read; a chain joins the first and the last."""
    looks = np.array([0, 0b111111, 0b1111111 << 20, (1 << 40) - (1 << 34) + 0b111111], dtype=np.uint64)
    hashes = iter(
        [
            SimpleNamespace(rows_N=np.array([0, 2]), looks_N=looks[:2]),
            SimpleNamespace(rows_N=np.array([0, 1]), looks_N=looks[2:]),
        ]
    )
    monkeypatch.setattr(groups, "hash_images", lambda split, **_: next(hashes))

    first, second = groups._near_duplicates([range(3), range(2)])

    assert first[0] == first[2] == second[1] and len({*first.tolist(), *second.tolist()}) == 3
    option = inspect.signature(datasets_check).parameters["distance"]
    assert option.default == NEAR_DISTANCE == 6 and "(default: 6)" in str(
        option.annotation.__metadata__[0].help
    )


def test_near_duplicates_are_one_group_also_of_drawn_images(tmp_path):
    rng = np.random.default_rng(1)
    for number in range(12):
        small = Image.fromarray(rng.integers(30, 220, (14, 18, 3)).astype(np.uint8))
        scene = small.resize((96, 72), Image.Resampling.BICUBIC)
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        scene.save(folder / f"{number:02}.png")
        scene.resize((64, 48)).save(folder / f"{number:02}-small.jpg", quality=80)
    train, held_out = opened(
        tmp_path / "photos", group_column="near_duplicates", eval_split="fold 1 of 3", label_column=None
    )

    stems = [{Path(path).stem[:2] for path in split.column(PATHS)} for split in (train, held_out)]
    assert len(held_out) == 8 and len(stems[1]) == 4 and not stems[0] & stems[1]
    # The demo draws its images; its held-out part is found again without files.
    section = data_section("demo", eval_split="fold 1 of 3")
    held = open_train_and_eval(section, seed=0)[1]
    seen = SeenImages.of({"dev_cut": held.dev_cut}, train_split="auto")
    assert open_eval(section, "fold 1 of 3", seen=seen).fingerprint == held.fingerprint


def test_a_test_split_with_images_of_trained_groups_says_so(tmp_path, table):
    shutil.copyfile(table / "train.parquet", tmp_path / "train.parquet")
    pq.write_table(pq.read_table(table / "train.parquet")[:9], tmp_path / "test.parquet")

    _, held_out = opened(tmp_path, group_column="object")
    assert held_out.notes == ("9 of the 9 images to score are of groups (object) that are trained on",)
    assert len(opened(tmp_path, train_split="train+test", eval_split="3 folds")[0]) == 69
    with pytest.raises(DataError, match="training needs a held-out split too"):
        opened(tmp_path, train_split="train+test")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"group_column": "patient"}, "has no column 'patient'"),
        ({"group_column": "scene"}, "1 of the 60 images .* has no value of 'scene'"),
        ({"group_column": "box"}, "holds lists"),
        ({"group_column": "image"}, "holds bytes|has no column|no value of"),
        ({"group_column": "same"}, "are one group"),
        ({"group_column": "label"}, "are its classes"),
        ({"group_column": "folder:1"}, "have no file names"),
        ({"group_column": "name:^(.)"}, "have no file names"),
        ({"group_column": "object", "eval_split": "fold 1 of 11"}, "has 10 groups .* too few for 11 folds"),
        ({"eval_split": "fold 1 of 61"}, "has 60 images, too few for 61 folds"),
        ({"group_column": "object", "num_examples": 5}, "the smallest group .* has 6 images"),
        ({"train_split": "train+missing"}, "no split 'train\\+missing'"),
        ({"train_split": "train+train"}, "no split"),
    ],
)
def test_what_cannot_be_grouped_is_refused(table, keys, message):
    with pytest.raises(DataError, match=message):
        opened(table, **{"dev_fraction": 0.2, "dev_stratified": True, **keys})


def test_an_image_with_fewer_folders_above_it_is_refused(patients):
    """Of paths that do not depend on where temporary files are."""
    train, _ = opened(patients, group_column="folder:1", eval_split="fold 1 of 3", label_column=None)
    split = replace(train, read_column=lambda _: ["a/patient-1/scan.png"] * len(train))
    assert set(group_names(split, "folder:2")) == {"a"}
    with pytest.raises(DataError, match=r"fewer folders above it than that[^?]*folder:1 to folder:2 here"):
        group_names(split, "folder:3")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (r"name:(\d+)zzz", "none of the 36 file names"),
        (r"name:scan([01])", "24 of the 36"),
    ],
)
def test_paths_that_have_no_group_are_refused(patients, rule, message):
    with pytest.raises(DataError, match=message):
        opened(patients, group_column=rule, eval_split="fold 1 of 3", label_column=None)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("folder:0", "counts folders"),
        ("folder:x", "counts folders"),
        ("name:(", "is none"),
        ("name:abc", "has 0 groups"),
        ("name:(a)(b)", "has 2 groups"),
        (" ", "write a column"),
    ],
)
def test_a_recipe_with_another_syntax_is_refused(rule, message):
    with pytest.raises(VitError, match="names no groups") as refused:
        recipe.load("evaluate/default", (), {"data.group_column": rule}, training=False)
    assert message in refused.value.fix


@pytest.mark.parametrize("seed", range(5))
def test_chains_of_pairs_are_joined_as_by_hand(seed):
    """Against joining the sets of the two rows of each pair, one pair after the other, in two blocks."""
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, 60, (2, 40))
    sets = [{row} for row in range(60)]
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        joined = sets[a] | sets[b]
        for row in joined:
            sets[row] = joined

    roots = _joined(_joined(np.arange(60), i[:15], j[:15]), i[15:], j[15:])

    assert roots.tolist() == [min(of_row) for of_row in sets]


@pytest.mark.slow
def test_the_leaked_test_images_of_flowers17_stay_on_one_side(shared):
    """Eight test images have near duplicates in train: pooled, no fold or dev part separates the pairs."""
    from vitcli.data.checks import check
    from vitcli.data.checks.near_duplicates import SplitName

    folder = shared / "data/flowers17"
    options = check.CheckOptions(distance=6, num_threads=1, quiet=True)
    found, _ = check.check(
        SplitName(str(folder), "test"), SplitName(None, "train"), data_section(folder), options
    )
    pairs = [
        (pair["place"].rpartition("file ")[2], pair["against_place"].rpartition("file ")[2])
        for pair in found["pairs"]
    ]
    leaked = {test for test, _ in pairs}
    assert len(leaked) == found["num_images_exact"] + found["num_images_near"] > 0

    def sides(**keys: object) -> dict[str, str]:
        section = data_section(folder, train_split="train+test", **keys)
        train, held_out = open_train_and_eval(section, seed=0)
        return {
            path: side for side, part in (("train", train), ("held", held_out)) for path in part.column(PATHS)
        }

    cuts = [{"eval_split": f"fold {k} of 5"} for k in (1, 3)]
    cuts.append({"dev_fraction": 0.1, "dev_stratified": True})
    separated = dict.fromkeys(("near_duplicates", None), 0)
    for cut in cuts:
        for rule in separated:
            side = sides(group_column=rule, **cut)
            separated[rule] += sum(side[a] != side[b] for a, b in pairs)
    assert separated["near_duplicates"] == 0 < separated[None]
