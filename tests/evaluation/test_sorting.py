"""`vit predict --sort-into`: copies in class folders."""

import os
import time
from pathlib import Path

import pytest

from vitcli.errors import MachineError, VitError
from vitcli.evaluation.sorting import UNSURE, check_target, copy_into, folder_names
from vitcli.evaluation.text import predictions_as_text
from vitcli.output.atomic import DEBRIS_AGE_S


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


def test_what_is_unlike_the_training_images_is_no_example_of_a_class(tmp_path):
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for file in files:
        file.write_bytes(b"image")
    known = [{"in_distribution": False, "unsure": False}, {"in_distribution": False},
             {"in_distribution": True, "unsure": False}, {"in_distribution": None}]  # fmt: skip
    predictions = [predicted(file, "cat", **more) for file, more in zip(files, known, strict=True)]

    counts = copy_into(tmp_path / "sorted", predictions, ["cat", "dog"])

    assert counts == {"cat": 2, UNSURE: 2}
    assert set(tree(tmp_path / "sorted")) == {"unsure/0.png", "unsure/1.png", "cat/2.png", "cat/3.png"}
    shown = predictions_as_text({"predictions": predictions[:1], "threshold": 0.5, "sorted_into": "sorted",
                                 "sorted_counts": counts})  # fmt: skip
    assert "to unsure   1 image unlike the training images, too\n" in shown
    shown = predictions_as_text({"predictions": predictions[2:], "sorted_into": "x", "sorted_counts": counts})
    assert "to unsure" not in shown


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


@pytest.mark.parametrize("name", ["dog", UNSURE])
@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_nothing_is_copied_where_a_link_or_a_file_has_the_name_of_a_class(tmp_path, kind, name):
    image, target, outside = tmp_path / "in/1.png", tmp_path / "sorted", tmp_path / "outside"
    for folder in (image.parent, target, outside):
        folder.mkdir()
    image.touch()
    if kind == "file":
        (target / name).touch()
    else:
        (target / name).symlink_to(outside if kind == "link" else tmp_path / "nothing")
    with pytest.raises(MachineError, match=f"{name} is {'not a folder' if kind == 'file' else 'a link'}"):
        copy_into(target, [predicted(image, "cat")], ["cat", "dog"])
    assert [path.name for path in target.iterdir()] == [name]
    assert not list(outside.iterdir())


def test_a_link_with_the_name_of_an_image_stays_and_is_not_taken_for_its_copy(tmp_path):
    image, target = tmp_path / "in/1.png", tmp_path / "sorted"
    for folder in (image.parent, target / "cat"):
        folder.mkdir(parents=True)
    image.write_bytes(b"image")
    (target / "cat/1.png").symlink_to(image)
    for _ in range(2):
        copy_into(target, [predicted(image, "cat")], ["cat"])
    assert (target / "cat/1.png").is_symlink()
    assert sorted(path.name for path in (target / "cat").iterdir()) == ["1-2.png", "1.png"]


@pytest.mark.parametrize(
    ("mode", "umask", "expected"), [(0o600, 0o022, 0o600), (0o644, 0o077, 0o600), (0o664, 0o022, 0o644)]
)
def test_a_copy_is_no_more_open_than_its_source_or_the_umask(tmp_path, mode, umask, expected):
    image = tmp_path / "in/1.png"
    image.parent.mkdir()
    image.touch()
    image.chmod(mode)
    before = os.umask(umask)
    try:
        copy_into(tmp_path / "sorted", [predicted(image, "cat")], ["cat"])
    finally:
        os.umask(before)
    assert (tmp_path / "sorted/cat/1.png").stat().st_mode & 0o777 == expected


def test_what_a_killed_call_has_left_is_deleted_by_a_later_one(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    images = [tmp_path / "in" / name for name in ("1.png", "2.png")]
    images[0].parent.mkdir()
    for image in images:
        image.write_bytes(b"image")
    target = tmp_path / "sorted"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "link", killed)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        copy_into(target, [predicted(images[0], "cat")], ["cat"])
    (leftover,) = (target / "cat").iterdir()

    copy_into(target, [predicted(images[1], "cat")], ["cat"])
    assert leftover.exists(), "it may be of a command that still runs"
    long_ago = time.time() - 2 * DEBRIS_AGE_S
    os.utime(leftover, (long_ago, long_ago))
    copy_into(target, [predicted(images[1], "cat")], ["cat"])
    assert [path.name for path in (target / "cat").iterdir()] == ["2.png"]


@pytest.mark.parametrize("names", [("cat", "Cat"), ("Cat", "cat"), ("Unsure", "unsure")])
def test_folders_of_names_that_differ_in_case_are_two_in_either_order(names):
    folders = folder_names(names).values()

    assert len({folder.casefold() for folder in folders} | {UNSURE}) == 3
