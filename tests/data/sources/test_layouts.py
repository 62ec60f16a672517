"""What lies in a folder: every layout of images, and what is refused."""

import json
import os
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from vitcli.data.columns import from_table
from vitcli.data.sources.folders import image_files
from vitcli.data.sources.layouts import open_local, state_of
from vitcli.data.split import Split
from vitcli.errors import DataError

NAMES = ["ant", "bee", "cat"]


def put(folder: Path, *names: str, colour: int = 0) -> None:
    """Pictures of one grey, as PNG whatever they are called."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 2), (colour,) * 3).save(folder / name, "PNG")


def table(tmp_path: Path, labels: list[int]) -> datasets.Dataset:
    """Pictures whose grey is ten times their label, as `datasets` keeps them."""
    rows = []
    for label in labels:
        put(tmp_path, "one.png", colour=10 * label)
        rows.append({"bytes": (tmp_path / "one.png").read_bytes(), "path": None})
    (tmp_path / "one.png").unlink(missing_ok=True)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    return datasets.Dataset.from_dict({"image": rows, "label": labels}, features=features)


def opened(path: Path) -> dict[str, Split]:
    tables = open_local(path)
    return {
        name: from_table(read(), name=name, root=tables.root, image_column=None, label_column=None)
        for name, read in tables.open.items()
    }


def labels_by_split(path: Path) -> dict[str, list[int]]:
    return {name: split.read_labels().tolist() for name, split in opened(path).items()}


def test_class_folders_without_splits_are_one_train_split_in_sorted_order(tmp_path):
    put(tmp_path, "cat/1.jpg", "ant/2.PNG", "ant/1.jpeg", "bee/x.webp")
    (split,) = opened(tmp_path).values()

    assert list(opened(tmp_path)) == ["train"]
    assert split.class_names == ("ant", "bee", "cat")
    assert split.read_labels().tolist() == [0, 0, 1, 2]
    assert [split.read_row(row)[1] for row in range(4)] == [0, 0, 1, 2]
    assert split.where_is(0) == f"train, row 0, file {tmp_path}/ant/1.jpeg"


def test_a_row_holds_the_bytes_of_its_file(tmp_path):
    put(tmp_path, "ant/a.png", colour=1)
    put(tmp_path, "bee/a.png", colour=2)
    split = opened(tmp_path)["train"]

    assert split.read_row(0) == ((tmp_path / "ant/a.png").read_bytes(), 0)
    assert split.read_row(1) == ((tmp_path / "bee/a.png").read_bytes(), 1)


@pytest.mark.parametrize("word", ["val", "valid", "validation", "dev", "Val"])
def test_split_folders_go_by_all_their_usual_names(tmp_path, word):
    put(tmp_path, "train/ant/1.png", "train/bee/1.png", f"{word}/bee/1.png", "test/ant/1.png")

    assert labels_by_split(tmp_path) == {"train": [0, 1], "validation": [1], "test": [0]}


def test_two_folders_for_one_split_are_refused_and_neither_is_dropped_in_silence(tmp_path):
    put(tmp_path, "train/ant/1.png", "val/ant/1.png", "validation/ant/1.png")

    with pytest.raises(DataError, match="are both the validation split"):
        open_local(tmp_path)


def test_a_class_that_is_called_train_is_a_class(tmp_path):
    put(tmp_path, "bus/1.png", "train/1.png")

    assert opened(tmp_path)["train"].class_names == ("bus", "train")


def test_a_class_that_validation_lacks_keeps_its_number(tmp_path):
    put(tmp_path, "train/ant/1.png", "train/bee/1.png", "train/cat/1.png", "val/ant/1.png", "val/cat/1.png")
    (tmp_path / "train" / "dog").mkdir()
    splits = opened(tmp_path)

    assert splits["validation"].read_labels().tolist() == [0, 2]
    assert splits["validation"].class_names == splits["train"].class_names == ("ant", "bee", "cat", "dog")


def test_a_class_that_only_validation_has_is_refused_by_name(tmp_path):
    put(tmp_path, "train/ant/1.png", "val/ant/1.png", "val/bee/1.png")

    with pytest.raises(DataError, match=r"val/ has classes that train/ does not have: bee"):
        open_local(tmp_path)


def test_images_in_folders_below_a_class_belong_to_it(tmp_path):
    put(tmp_path, "ant/1.png", "ant/red/big/2.png", "bee/1.png")

    assert labels_by_split(tmp_path) == {"train": [0, 0, 1]}


def test_hidden_files_and_folders_and_other_files_are_left_alone(tmp_path):
    put(tmp_path, "ant/1.png", "ant/._1.png", "ant/.cache/2.png", ".git/3.png", "bee/1.png")
    put(tmp_path, "ant/.cache/deep/2.png")
    (tmp_path / "ant" / "notes.txt").write_text("not a picture")

    assert labels_by_split(tmp_path) == {"train": [0, 1]}
    assert [Path(file).name for file in image_files(tmp_path)] == ["1.png", "1.png"]


def test_a_link_that_leads_out_of_the_folder_is_not_read(tmp_path):
    put(tmp_path, "elsewhere/secret.png", "photos/ant/1.png")
    os.symlink(tmp_path / "elsewhere" / "secret.png", tmp_path / "photos" / "ant" / "2.png")
    split = opened(tmp_path / "photos")["train"]

    assert split.read_row(0)
    with pytest.raises(DataError, match="is outside the data set"):
        split.read_row(1)


def test_a_link_to_the_data_set_s_folder_itself_is_fine(tmp_path):
    put(tmp_path, "disk/photos/ant/1.png")
    os.symlink(tmp_path / "disk" / "photos", tmp_path / "photos")

    assert opened(tmp_path / "photos")["train"].read_row(0)


@pytest.mark.parametrize(
    "file", ["train-00000-of-00001.parquet", "data/train.parquet", "train/0.parquet", "x.parquet"]
)
def test_parquet_goes_to_the_split_that_its_name_or_folder_says(tmp_path, file):
    (tmp_path / "set" / file).parent.mkdir(parents=True)
    table(tmp_path, [2, 0, 1]).to_parquet(tmp_path / "set" / file)
    table(tmp_path, [1]).to_parquet(tmp_path / "set" / "test_0.parquet")

    assert labels_by_split(tmp_path / "set") == {"train": [2, 0, 1], "test": [1]}
    assert opened(tmp_path / "set")["test"].class_names == tuple(NAMES)


def test_the_shards_of_a_split_are_read_in_the_order_of_their_names(tmp_path):
    for number, labels in enumerate(([0, 1], [2], [1, 1])):
        table(tmp_path, labels).to_parquet(tmp_path / f"train-{number:05}-of-00003.parquet")

    assert labels_by_split(tmp_path) == {"train": [0, 1, 2, 1, 1]}


def test_a_single_parquet_file_is_a_data_set(tmp_path):
    table(tmp_path, [2, 0]).to_parquet(tmp_path / "pets.parquet")

    assert labels_by_split(tmp_path / "pets.parquet") == {"train": [2, 0]}


def test_a_path_with_brackets_and_stars_is_a_path_and_no_pattern(tmp_path):
    folder = tmp_path / "pets [v1]*"
    folder.mkdir()
    table(tmp_path, [2, 0]).to_parquet(folder / "train [a].parquet")

    assert labels_by_split(folder) == {"train": [2, 0]}


def test_an_arrow_file_is_a_data_set(tmp_path):
    table(tmp_path, [2, 0, 0]).save_to_disk(tmp_path / "saved")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    (tmp_path / "set").mkdir()
    shutil.copy(arrow, tmp_path / "set" / "test.arrow")

    assert labels_by_split(tmp_path / "set") == {"test": [2, 0, 0]}


def test_a_table_saved_to_disk_is_a_train_split(tmp_path):
    table(tmp_path, [2, 0, 1, 1]).select([3, 0]).save_to_disk(tmp_path / "saved")

    assert labels_by_split(tmp_path / "saved") == {"train": [1, 2]}


def test_a_pipe_in_the_place_of_a_saved_table_is_not_waited_for(tmp_path):
    table(tmp_path, [2]).save_to_disk(tmp_path / "saved")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    arrow.unlink()
    os.mkfifo(arrow)

    with pytest.raises(DataError, match="a pipe or a device"):
        open_local(tmp_path / "saved")


def test_a_dictionary_of_tables_saved_to_disk_keeps_its_splits(tmp_path):
    splits = datasets.DatasetDict(train=table(tmp_path, [2, 0]), extra=table(tmp_path, [1]))
    splits.save_to_disk(tmp_path / "saved")

    assert labels_by_split(tmp_path / "saved") == {"train": [2, 0], "extra": [1]}


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_the_format_that_a_saved_table_remembers_plays_no_part(tmp_path, kind):
    saved = table(tmp_path, [2, 0]).add_column("size", [1, 2])
    saved.set_format(kind, columns=["size"])
    saved.save_to_disk(tmp_path / "saved")
    image, label = opened(tmp_path / "saved")["train"].read_row(0)

    assert isinstance(image, bytes) and type(label) is int


def test_a_saved_table_whose_state_points_elsewhere_is_refused(tmp_path):
    table(tmp_path, [2]).save_to_disk(tmp_path / "theirs")
    table(tmp_path, [0]).save_to_disk(tmp_path / "saved")
    state = json.loads((tmp_path / "saved" / "state.json").read_text())
    (stolen,) = (tmp_path / "theirs").glob("*.arrow")
    state["_data_files"] = [{"filename": f"../theirs/{stolen.name}"}]
    (tmp_path / "saved" / "state.json").write_text(json.dumps(state))

    with pytest.raises(DataError, match="outside the data set"):
        open_local(tmp_path / "saved")


@pytest.mark.parametrize("name", ["../theirs", "/etc"])
def test_a_dictionary_of_tables_with_a_split_outside_it_is_refused(tmp_path, name):
    table(tmp_path, [2]).save_to_disk(tmp_path / "theirs")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))

    with pytest.raises(DataError, match="outside the data set"):
        open_local(tmp_path / "saved")


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"_data_files": [3]}', '{"_data_files": null}'])
def test_a_saved_table_with_a_damaged_state_is_refused_in_words(tmp_path, text):
    table(tmp_path, [2]).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text(text)

    with pytest.raises(DataError, match="saved cannot be read"):
        open_local(tmp_path / "saved")


def test_a_saved_split_that_is_gone_is_refused_in_words(tmp_path):
    datasets.DatasetDict(train=table(tmp_path, [2]), test=table(tmp_path, [1])).save_to_disk(
        tmp_path / "saved"
    )
    shutil.rmtree(tmp_path / "saved" / "test")

    with pytest.raises(DataError, match="saved cannot be read"):
        open_local(tmp_path / "saved")


@pytest.mark.parametrize("name", ["train.parquet", "train.arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1 but no table", b"1234567890" * 50])
def test_a_damaged_table_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match="cannot be read") as caught:
        opened(tmp_path)
    assert str(tmp_path) in caught.value.where


@pytest.mark.parametrize("files", [[], ["readme.txt"], [".hidden/1.png"]])
def test_a_folder_without_a_known_layout_is_refused_with_the_layouts(tmp_path, files):
    put(tmp_path, *files)

    with pytest.raises(DataError, match="no images found in") as caught:
        open_local(tmp_path)
    assert "class folders" in caught.value.fix


def test_a_file_that_is_no_table_is_refused(tmp_path):
    put(tmp_path, "cat.jpg")

    with pytest.raises(DataError, match="is one image, and not a data set"):
        open_local(tmp_path / "cat.jpg")


def test_real_parquet_of_the_hub_s_layout_is_found(shared):
    splits = opened(shared / "data" / "flowers17")

    assert {name: len(split) for name, split in splits.items()} == {"train": 680, "test": 170}
    assert np.bincount(splits["train"].read_labels()).tolist() == [40] * 17
    assert np.bincount(splits["test"].read_labels()).tolist() == [10] * 17


def test_the_state_of_a_folder_is_that_of_its_copy_and_another_after_any_change_of_a_file(tmp_path):
    put(tmp_path, "here/ant/1.png", "here/bee/2.png")
    here, there = tmp_path / "here", tmp_path / "there"
    before = state_of(here)
    shutil.copytree(here, there, copy_function=shutil.copy2)  # with the times of the files
    assert state_of(there) == before

    file = here / "ant/1.png"
    times, content = (file.stat().st_atime_ns, file.stat().st_mtime_ns), file.read_bytes()
    os.utime(file, ns=(times[0], times[1] + 1))
    later = state_of(here)
    file.write_bytes(content + b" ")
    os.utime(file, ns=times)
    longer = state_of(here)
    file.rename(here / "ant/3.png")
    (here / "ant/3.png").write_bytes(content)
    os.utime(here / "ant/3.png", ns=times)
    assert len({before, later, longer, state_of(here)}) == 4


def test_a_class_with_one_folder_of_images_does_not_look_one_level_too_high(tmp_path):
    put(tmp_path, "ant/big/1.png", "ant/small/1.png", "bee/big/1.png")

    assert open_local(tmp_path).notes == ()
    put(tmp_path, "bee/small/1.png")
    assert len(open_local(tmp_path).notes) == 1


def test_one_class_of_folders_beside_flat_ones_is_noted_with_what_to_type(tmp_path):
    put(tmp_path, "of 2025/ant/1.png", "of 2025/bee/1.png", "new/1.png")

    (note,) = open_local(tmp_path).notes
    assert note.startswith("the class 'of 2025' holds folders of images (of 2025/ant/)")
    assert f"--dataset '{tmp_path}/of 2025' takes them as classes" in note
    put(tmp_path, "of 2025/cat.png")
    assert open_local(tmp_path).notes == ()
