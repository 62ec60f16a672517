"""Names to splits: slices, aliases, the dev cut, subsets, and the order of a checkpoint's classes."""

from dataclasses import replace

import datasets
import numpy as np
import pytest
from PIL import Image

from tests.conftest import data_section, run
from vitcli import recipe
from vitcli.data.classes import match_class_names, spelled_as
from vitcli.data.dataset import DataSet, open_eval, open_train_and_eval
from vitcli.data.parts.splitting import cut_dev, random_subset, stratified_counts
from vitcli.data.sources.tables import Choices
from vitcli.data.split import Split, classes_without
from vitcli.errors import DataError


def opened(dataset, *, seed: int = 0, **keys):
    return open_train_and_eval(data_section(dataset, **{"dev_fraction": 0.25} | keys), seed=seed)


def folder(root, **counts: int):
    """Class folders `split/class` with so many pictures each; two underscores stand for the slash."""
    for name, count in counts.items():
        place = root.joinpath(*name.split("__"))
        place.mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (2, 2), (number, 0, 0)).save(place / f"{number:03}.png")
    return root


def numbered(count: int, names: tuple[str, ...] | None = ("a", "b", "c"), num_classes: int = 3) -> Split:
    """A split held in memory; the picture of a row is its number, the label its number modulo the classes."""
    return Split(
        name="numbers",
        num_examples=count,
        class_names=names,
        num_classes=num_classes,
        read_row=lambda row: (row.to_bytes(4, "big"), row % num_classes),
        read_labels=lambda: np.arange(count) % num_classes,
        where_is=lambda row: f"row {row}",
    )


def numbers(split: Split) -> list[int]:
    return [int.from_bytes(split.read_row(row)[0], "big") for row in range(len(split))]


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        ("train", range(24)),
        ("train[:50%]", range(12)),
        ("train[50%:]", range(12, 24)),
        ("train[3:7]", range(3, 7)),
        ("train[-4:]", range(20, 24)),
        ("train[90%:]", range(22, 24)),
    ],
)
def test_slices_are_those_of_hugging_face(photos, spec, rows):
    data = DataSet(str(photos))
    whole, part = data.open("train"), data.open(spec)

    assert [part.read_row(row) for row in range(len(part))] == [whole.read_row(row) for row in rows]
    assert part.read_labels().tolist() == whole.read_labels()[list(rows)].tolist()


def test_several_splits_are_pooled_in_the_order_of_their_names(photos):
    data = DataSet(str(photos))
    train, test, both = (data.open(name) for name in ("train", "test", "train+test"))

    rows = [part.read_row(row) for part in (train, test) for row in range(len(part))]
    assert [both.read_row(row) for row in range(len(both))] == rows
    assert data.default_eval_split(besides="train+test") is None and data.have_common_rows(
        "train+test", "test"
    )


@pytest.mark.parametrize(
    "spec",
    ["trian", "trian[:5]", "train[", "train[::2]", "train[:120%]", "train+trial", "train[:5]+test", ""],
)
def test_a_split_that_does_not_exist_is_refused_with_those_that_do(photos, spec):
    with pytest.raises(DataError, match="has no split") as caught:
        DataSet(str(photos)).open(spec)

    assert "test, train" in caught.value.fix or "train, test" in caught.value.fix
    if spec.startswith("trian"):
        assert "did you mean 'train'" in caught.value.message


@pytest.mark.parametrize("spec", ["train[:0]", "train[24:]", "train[5:2]"])
def test_a_slice_without_rows_is_refused(photos, spec):
    with pytest.raises(DataError, match="has no rows"):
        DataSet(str(photos)).open(spec)


def test_a_split_whose_class_folders_are_all_empty_is_refused(tmp_path):
    data = DataSet(str(folder(tmp_path, train__a=1, train__b=1, test__a=0, test__b=0)))

    with pytest.raises(DataError, match="has no rows"):
        data.open("test")


def test_auto_trains_on_train_and_reports_on_test_before_validation(tmp_path):
    folder(tmp_path, train__a=4, val__a=3, test__a=2)

    assert [len(split) for split in opened(tmp_path)] == [4, 2]
    assert [len(s) for s in opened(tmp_path, eval_split="validation")] == [
        4,
        3,
    ]
    assert len(open_eval(data_section(tmp_path), "auto")) == 2
    assert len(open_eval(data_section(tmp_path), "train")) == 4


def test_without_a_split_to_report_on_a_part_of_the_training_rows_is_held_out(tmp_path):
    train, held_out = opened(folder(tmp_path, a=6, b=6))

    files = [
        split.where_is(row).split("file ")[1] for split in (train, held_out) for row in range(len(split))
    ]
    assert (len(train), len(held_out)) == (9, 3)
    assert len(set(files)) == 12


def test_a_data_set_with_nothing_but_a_test_split_is_not_scored_on_the_rows_it_trains_on(tmp_path):
    train, held_out = opened(folder(tmp_path, test__a=6, test__b=6))

    assert (len(train), len(held_out)) == (9, 3)


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_split_and_nothing_held_out_is_refused_with_advice(tmp_path, split):
    root = folder(tmp_path, **{f"{split}__a": 2})

    with pytest.raises(
        DataError, match=f"has only the split {split}, and training needs a held-out"
    ) as caught:
        opened(root, dev_fraction=0.0)
    assert "data.dev_fraction=0.1" in caught.value.fix


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["vtab/dsprites_loc", "vtab/sun398"])
def test_what_is_no_task_of_vtab_is_refused_offline(monkeypatch, name, streaming):
    monkeypatch.setattr("vitcli.data.dataset.open_hub", None)
    monkeypatch.setattr("vitcli.data.dataset.find_shards", None)

    with pytest.raises(DataError, match=r"there is no data set .*, did you mean 'vtab/"):
        DataSet(name, Choices(streaming=streaming))


def test_a_run_on_a_slice_of_the_test_split_is_not_scored_on_all_of_it(tmp_path):
    folder(tmp_path, train__a=5, test__a=8, val__a=3)
    train, held_out = opened(tmp_path, train_split="test[:50%]")

    assert (len(train), len(held_out)) == (4, 3)


def test_several_splits_without_a_usual_name_must_be_chosen_from(tmp_path):
    import datasets

    table = datasets.Dataset.from_dict({"image": [b"x"], "label": [0]})
    datasets.DatasetDict(one=table, two=table).save_to_disk(tmp_path)
    with pytest.raises(DataError) as caught:
        DataSet(str(tmp_path), Choices(streaming=True))
    assert "leave data.streaming out" in caught.value.fix

    with pytest.raises(DataError, match="several splits and none is named") as caught:
        open_eval(data_section(tmp_path), "auto")
    assert "one, two" in caught.value.fix


def test_splits_with_different_classes_are_refused(tmp_path):
    import datasets

    for name, labels in (("train", ["a", "b", "c"]), ("test", ["a", "b"])):
        table = datasets.Dataset.from_dict({"image": [b"x"] * len(labels), "label": labels})
        table.to_parquet(tmp_path / f"{name}.parquet")

    with pytest.raises(
        DataError, match=r"train \(3 classes\) and .* test \(2\) do not have the same"
    ) as caught:
        opened(tmp_path)
    assert "only in the first: c" in caught.value.where


@pytest.mark.parametrize(("count", "fraction"), [(10, 0.1), (97, 0.25), (1_000, 0.02), (2, 0.5)])
def test_the_dev_part_and_the_rest_are_disjoint_and_together_everything(count, fraction):
    rest, dev = cut_dev(numbered(count), dev_fraction=fraction, split="train")

    assert len(dev) == round(count * fraction)
    assert sorted(numbers(rest) + numbers(dev)) == list(range(count))


def test_the_dev_part_is_random_rows_and_the_same_ones_every_time():
    (rest, dev), (_, again) = (cut_dev(numbered(1_000), dev_fraction=0.1, split="train") for _ in range(2))

    assert numbers(dev) == numbers(again)
    assert np.mean(numbers(dev)) == pytest.approx(500, abs=100)  # not the last ones
    assert dev.read_labels().tolist() == [number % 3 for number in numbers(dev)]
    assert set(np.bincount(rest.read_labels())) <= set(range(270, 330))


@pytest.mark.parametrize(
    ("counts", "fraction", "expected"),
    [
        ([10, 10, 10, 10, 12], 0.1, [1, 1, 1, 1, 1]),
        ([14, 13, 10, 14, 1], 0.1, [2, 1, 1, 1, 0]),  # by hand: 1.4, 1.3, 1.0, 1.4 and, of one image, none
        ([80] * 17, 0.2, [16] * 17),
        ([100, 2, 2], 0.1, [8, 1, 1]),  # 10 in total, and one of each
        ([3] * 17, 0.1, [1] * 17),  # of each class one, though that is more than a tenth
        ([2, 2], 0.1, [1, 1]),
        ([1, 1, 8], 0.9, [0, 0, 7]),
    ],
)
def test_a_stratified_part_holds_each_class(counts, fraction, expected):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    whole = replace(
        numbered(len(labels), names=None, num_classes=len(counts)),
        read_row=lambda row: (row.to_bytes(4, "big"), int(labels[row])),
        read_labels=lambda: labels,
    )

    rest, dev = cut_dev(whole, dev_fraction=fraction, split="train", stratified=True)

    assert np.bincount(dev.read_labels(), minlength=len(counts)).tolist() == expected
    assert sorted(numbers(rest) + numbers(dev)) == list(range(len(labels)))
    assert dev.read_labels().tolist() == [labels[number] for number in numbers(dev)]
    again = cut_dev(whole, dev_fraction=fraction, split="train", stratified=True)[1]
    assert numbers(again) == numbers(dev) and dev.dev_cut["stratified"]
    missing = [f"class {k}" for k, count in enumerate(expected) if not count]
    assert classes_without(dev, rest) == missing


def test_a_class_gives_random_rows_to_a_stratified_part():
    dev = cut_dev(numbered(3_000), dev_fraction=0.1, split="train", stratified=True)[1]

    for label in range(3):
        places = np.array(numbers(dev))[dev.read_labels() == label] / 3_000
        assert len(places) == 100 and abs(places.mean() - 0.5) < 0.1 and np.diff(places).std() > 0.003


def test_the_rows_of_a_stratified_part_are_pinned_so_that_a_run_resumes_under_the_next_release():
    dev = cut_dev(numbered(30), dev_fraction=0.2, split="train", stratified=True)[1]

    assert numbers(dev) == [5, 8, 12, 13, 18, 22]


def test_images_of_several_labels_and_classes_of_one_image_are_cut_otherwise():
    several = replace(numbered(100), is_multilabel=True)
    dev = cut_dev(several, dev_fraction=0.1, split="train", stratified=True)[1]
    random = cut_dev(numbered(100), dev_fraction=0.1, split="train")[1]

    assert numbers(dev) == numbers(random) and not dev.dev_cut["stratified"]
    with pytest.raises(DataError, match="no class of numbers has two images"):
        cut_dev(numbered(3), dev_fraction=0.5, split="train", stratified=True)


def test_every_command_holds_out_the_same_images_of_a_folder(tmp_path):
    folder(tmp_path / "photos", a=14, b=9, c=2)
    held_out = set()
    for name in ("finetune/default", "pretrain/default", "fewshot/default", "modern/cifar10-laptop"):
        section = recipe.load(name, (), {"data.dataset": str(tmp_path / "photos")}, training=False).data
        split = open_train_and_eval(section, seed=7)[1]
        held_out.add(tuple(split.where_is(row) for row in range(len(split))))

    assert len(held_out) == 1 and len(held_out.pop()) == 3


def test_the_parts_of_a_part_are_named_once():
    rest, _ = cut_dev(numbered(100), dev_fraction=0.1, split="train")
    rest, dev = cut_dev(rest, dev_fraction=0.1, split="train")

    assert (rest.name, dev.name) == ("numbers (81 of 100 images)", "numbers, second dev part")


def test_the_seed_of_a_run_does_not_move_the_dev_part(tmp_path):
    folder(tmp_path, a=8, b=8)
    held_out = [opened(tmp_path, seed=seed)[1] for seed in (0, 1, 2)]

    assert len({tuple(split.where_is(row) for row in range(4)) for split in held_out}) == 1


@pytest.mark.parametrize(
    ("fraction", "percent"), [(0.0, "0%"), (0.0002, "0.02%"), (0.01, "1%"), (0.99, "99%"), (1.0, "100%")]
)
def test_a_dev_part_that_leaves_nothing_on_one_side_is_refused(fraction, percent):
    with pytest.raises(DataError, match=f"a dev part of {percent} of .* leaves one side empty"):
        cut_dev(numbered(10), dev_fraction=fraction, split="train")


def test_a_subset_is_drawn_by_the_seed_without_repetition():
    chosen = {seed: numbers(random_subset(numbered(100), 30, seed=seed)) for seed in (0, 1)}

    assert len(set(chosen[0])) == len(chosen[0]) == 30
    assert chosen[0] == numbers(random_subset(numbered(100), 30, seed=0))
    assert set(chosen[0]) != set(chosen[1])
    assert sorted(numbers(random_subset(numbered(100), 100, seed=0))) == list(range(100))


def test_more_examples_than_there_are_is_refused():
    with pytest.raises(DataError, match="is 101, and numbers has 100"):
        random_subset(numbered(100), 101, seed=0)


def test_a_subset_is_taken_of_the_training_rows_only(photos):
    train, held_out = opened(photos, num_examples=6)

    assert (len(train), len(held_out)) == (6, 10)


def test_the_same_classes_in_the_same_order_change_nothing():
    split = numbered(9)

    assert match_class_names(split, ("a", "b", "c"), num_classes=3, ckpt="w") == (split, False)


def test_classes_in_another_order_are_matched_by_name():
    split, changed = match_class_names(numbered(9), ("c", "a", "b"), num_classes=3, ckpt="w")

    assert changed and split.class_names == ("c", "a", "b")
    assert split.read_labels().tolist() == [1, 2, 0] * 3 == [split.read_row(row)[1] for row in range(9)]
    assert numbers(split) == list(range(9))


@pytest.mark.parametrize(
    ("theirs", "only_data", "only_ckpt"),
    [(("a", "b"), "c", "none"), (("a", "b", "x"), "c", "x")],
)
def test_other_classes_are_refused_with_both_lists(theirs, only_data, only_ckpt):
    with pytest.raises(DataError, match="have different classes") as caught:
        match_class_names(numbered(9), theirs, num_classes=len(theirs), ckpt="w")

    assert caught.value.where == f"only in the data: {only_data}; only in the checkpoint: {only_ckpt}"


@pytest.mark.parametrize(
    ("train_split", "eval_split", "counts"),
    [("training", "val", (4, 2)), ("val", "auto", (2, 1)), ("Dev[:50%]", "testing", (1, 1))],
)
def test_recipes_take_the_names_of_the_folders_for_splits(tmp_path, train_split, eval_split, counts):
    folder(tmp_path, Training__a=2, Training__b=2, valid__a=1, valid__b=1, test__a=1)
    data = data_section(tmp_path, train_split=train_split, eval_split=eval_split)

    assert tuple(map(len, open_train_and_eval(data, seed=0))) == counts


def test_a_split_is_never_trained_on_by_one_name_and_scored_by_another(tmp_path):
    folder(tmp_path, train__a=2, valid__a=2)

    with pytest.raises(DataError, match="training needs a held-out split"):
        open_train_and_eval(data_section(tmp_path, train_split="val"), seed=0)


def test_data_with_some_of_the_classes_are_matched_by_name_and_the_absent_ones_are_named():
    split, changed = match_class_names(numbered(9), ("d", "c", "a", "e", "b"), num_classes=5, ckpt="w")

    assert changed and (split.class_names, split.num_classes) == (("d", "c", "a", "e", "b"), 5)
    assert split.read_labels().tolist() == [2, 4, 1] * 3 == [split.read_row(row)[1] for row in range(9)]
    assert split.lines == [
        "note: 2 of w's 5 classes are absent from the data, and may still be predicted: d, e"
    ]
    assert not match_class_names(numbered(9), ("c", "a", "b"), num_classes=3, ckpt="w")[0].lines


def test_accents_may_be_encoded_otherwise_than_in_the_checkpoint():
    composed, decomposed = ("caf\u00e9", "b", "c"), ("cafe\u0301", "b", "c")

    assert spelled_as(numbered(9, decomposed), composed).class_names == composed
    assert spelled_as(numbered(9, composed), decomposed).class_names == decomposed
    assert spelled_as(numbered(9, composed[:2] + decomposed[:1]), composed).class_names[2] == decomposed[0]
    assert spelled_as(numbered(9), None).class_names == ("a", "b", "c")


def test_a_class_without_images_may_be_unknown_to_the_checkpoint():
    without_c = replace(
        numbered(9), read_labels=lambda: np.arange(9) % 2, read_row=lambda row: (b"", row % 2)
    )
    split, _ = match_class_names(without_c, ("b", "a"), num_classes=2, ckpt="w")

    assert split.read_labels().tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(("ours", "theirs"), [(None, ("x", "y", "z")), (("a", "b", "c"), None), (None, None)])
def test_without_names_on_both_sides_classes_are_matched_by_number(ours, theirs):
    split = numbered(9, ours)
    assert match_class_names(split, theirs, num_classes=3, ckpt="w") == (split, False)

    with pytest.raises(DataError, match="numbers has 3 classes, w predicts 5"):
        match_class_names(split, theirs and tuple("vwxyz"), num_classes=5, ckpt="w")


def test_an_alias_is_first_looked_for_among_the_local_copies(tmp_path, monkeypatch):
    folder(tmp_path / "oxford_pets", train__pug=3, train__husky=2, test__pug=1)
    monkeypatch.setenv("VIT_DATA", str(tmp_path))
    data = DataSet("oxford_pets")

    assert data.open("train").class_names == ("husky", "pug")
    assert len(data.open(data.default_eval_split())) == 1


def test_a_local_copy_of_an_alias_may_have_other_column_names(tmp_path, monkeypatch):
    import datasets

    (tmp_path / "cifar10").mkdir()
    table = datasets.Dataset.from_dict({"picture": [b"x"], "what": [0]})
    table.to_parquet(tmp_path / "cifar10" / "train.parquet")
    monkeypatch.setenv("VIT_DATA", str(tmp_path))

    assert recipe.dataset_aliases()["cifar10"]["image_column"] == "img"
    assert DataSet("cifar10").open("train").read_row(0) == (b"x", 0)


@pytest.mark.parametrize("shelf", [None, "/nonexistent"])
def test_an_alias_that_is_on_no_hub_says_where_its_copy_belongs(monkeypatch, shelf):
    monkeypatch.delenv("VIT_DATA", raising=False)
    if shelf:
        monkeypatch.setenv("VIT_DATA", shelf)
    alias = next(name for name, entry in recipe.dataset_aliases().items() if "hub" not in entry)

    with pytest.raises(DataError, match="is not on the Hub") as caught:
        DataSet(alias)
    assert f"$VIT_DATA/{alias}" in caught.value.where
    assert ("VIT_DATA is not set" in caught.value.where) == (shelf is None)


@pytest.mark.parametrize(
    "name", ["./gone", "/nonexistent/photos", "~/nonexistent", "gone/", "a/b/c", "oxfordpets"]
)
def test_a_name_that_is_nothing_is_refused(name):
    with pytest.raises(DataError, match="there is no data set") as caught:
        DataSet(name)

    assert ("did you mean 'oxford_pets'" in caught.value.message) == (name == "oxfordpets")


@pytest.mark.parametrize("name", ["nobody/nothing", "nobody/nothing:config@main", "cifar10"])
def test_without_a_network_a_hub_id_ends_in_a_data_error(name, monkeypatch):
    monkeypatch.delenv("VIT_DATA", raising=False)

    with pytest.raises(DataError, match="could not download data set"):
        DataSet(name)


def test_a_hub_that_cannot_be_reached_is_asked_once_and_the_cache_is_read(monkeypatch, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "Types").mkdir()
    monkeypatch.chdir(tmp_path)
    asked = []

    def unreachable(url, **_):
        asked.append(url)
        raise OSError("no route to it")

    def split_names(*_, **__):
        asked.append("offline" if datasets.config.HF_HUB_OFFLINE else "online")
        raise FileNotFoundError("not cached")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", unreachable)
    monkeypatch.setattr(datasets, "get_dataset_split_names", split_names)
    with pytest.raises(
        DataError, match=r"could not download data set photos/Typo .*: no route to it"
    ) as caught:
        DataSet("photos/Typo")

    assert len(asked) == 2 and "/photos/Typo/" in asked[0] and asked[1] == "offline"
    assert "did you mean 'photos/Types'" in caught.value.where and not datasets.config.HF_HUB_OFFLINE


@pytest.mark.slow
def test_without_a_network_the_command_exits_with_code_3_and_no_traceback(tmp_path):
    named = ("--dataset", "nobody/nothing", "--ckpt", "random", "--model", "Ti/16", "--out", tmp_path / "run")
    result = run("finetune", *named)

    assert result.code == 3
    assert "could not download data set" in result.err and "Traceback" not in result.err


def test_the_demo_needs_no_file_and_takes_slices():
    data = DataSet("demo")
    whole, part = data.open("train"), data.open("train[100:112]")

    assert data.split_names == ("train", "test")
    assert sorted(part.read_labels()) == list(range(12))
    image, label = part.read_row(5)
    assert np.array_equal(image, whole.read_row(105)[0]) and label == whole.read_labels()[105]


def test_the_hub_is_not_asked_where_the_user_has_forbidden_it(monkeypatch):
    asked = []

    def split_names(*_, **__):
        asked.append(datasets.config.HF_HUB_OFFLINE)
        raise FileNotFoundError("not cached")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: asked.append("the Hub"))
    monkeypatch.setattr(datasets, "get_dataset_split_names", split_names)

    with pytest.raises(DataError, match="could not download data set owner/photos"):
        DataSet("owner/photos")
    assert asked == [True]


def test_held_out_rows_are_as_near_to_the_fraction_of_each_class_as_whole_rows_allow():
    """No row of one class in place of that of another would bring the squares of the deviations down."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        counts, fraction = rng.integers(0, 12, rng.integers(2, 6)), float(rng.uniform(0.05, 0.6))
        held = stratified_counts(counts, fraction)
        least, most = counts >= 2, np.maximum(counts - 1, 0)

        assert (held >= least).all() and (held <= most).all()
        assert held.sum() == np.clip(round(fraction * counts.sum()), least.sum(), most.sum())
        gain_of_more = (held - fraction * counts + 1) ** 2 - (held - fraction * counts) ** 2
        gain_of_less = (held - fraction * counts - 1) ** 2 - (held - fraction * counts) ** 2
        for one in np.flatnonzero(held < most):
            for other in np.flatnonzero(held > least):
                assert one == other or gain_of_more[one] + gain_of_less[other] > -1e-9
    assert stratified_counts(np.array([10, 10, 8]), 0.2).tolist() == [2, 2, 2]  # 5.6 in all
