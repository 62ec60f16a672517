"""`vit predict --sort-into`: copies in class folders."""

import os
from pathlib import Path

import pytest

from vitcli.errors import VitError
from vitcli.evaluation.sorting import UNSURE, check_target, copy_into, folder_names


def predicted(file: Path, name: str, **more: object) -> dict:
    return {"file": str(file), "top": [{"class": name, "label": 0, "probability": 0.9}], **more}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_each_image_is_copied_into_the_folder_of_its_class_and_nothing_is_overwritten(tmp_path):
    files = [tmp_path / "in" / name for name in ("a/1.png", "b/1.png", "b/2.png", "c/1.png")]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"image %d" % number)
    target = tmp_path / "sorted"
    (target / "cat").mkdir(parents=True)
    (target / "cat/2.png").write_bytes(b"mine")
    predictions = [predicted(file, "cat") for file in files[:3]] + [predicted(files[3], "dog", unsure=True)]

    assert copy_into(target, predictions, ["cat", "dog"]) == {"cat": 3, UNSURE: 1}
    expected = {
        "cat/1.png": b"image 0", "cat/1-2.png": b"image 1", "cat/2.png": b"mine", "cat/2-2.png": b"image 2",
        "unsure/1.png": b"image 3",
    }  # fmt: skip
    assert tree(target) == expected

    # The same command again copies nothing twice; the images are where they were.
    copy_into(target, predictions, ["cat", "dog"])
    assert tree(target) == expected
    assert all(file.exists() for file in files)


def test_without_hard_links_nothing_is_overwritten_either(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    test_each_image_is_copied_into_the_folder_of_its_class_and_nothing_is_overwritten(tmp_path)


NAMES = ("../../etc", "a/b", "a\\b", "", "..", ".hidden", "CON", "nul.txt", "a" * 300, "unsure", "Cat", "cat",
         "x\ny", "tab\t", "🌻" * 100, "trailing. ", "lost+found", "cat-2")  # fmt: skip


def test_folders_of_classes_are_plain_names_and_different_on_any_file_system(tmp_path):
    names = folder_names(NAMES)
    assert len({name.casefold() for name in names.values()} | {UNSURE}) == len(NAMES) + 1
    for name in names.values():
        (tmp_path / name).mkdir()
        assert (tmp_path / name).parent == tmp_path
        assert not name.startswith(".")
        assert name.isprintable()
        assert len(name.encode()) <= 130
    assert names["Cat"] == "Cat" and names["cat"] == "cat-2"


@pytest.mark.parametrize("target", ["in", "in/a", "in/a/b/new", ".", "in/a/../a", "file", "link"])
def test_a_folder_of_the_images_themselves_is_refused(tmp_path, target):
    (tmp_path / "in/a/b").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "in/a")
    images = [str(tmp_path / "in/a/b/1.png")]
    with pytest.raises(VitError) as refused:
        check_target(tmp_path / target, [str(tmp_path / "in/a")], images)
    assert "--sort-into" in str(refused.value)
    check_target(tmp_path / "out", [str(tmp_path / "in")], images)
