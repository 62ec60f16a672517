"""labels.csv: what `vit finetune` reads of it, what a kill leaves, and files of the user's."""

import os

import pytest

from tests.conftest import data_section
from vitcli.data import dataset
from vitcli.data.columns import PATHS
from vitcli.errors import DataError, MachineError, VitError
from vitcli.output import atomic
from vitcli.teaching.label import LABELS
from vitcli.teaching.labels_file import LabelsFile, class_named

HOSTILE = ("a, b.png", 'say "cheese".png', "two\nlines.png", "=1+1.png", "<script>alert(1)</script>.png",
           "sub folder/Löwe 🦁.png", "-rf.png", "%2e%2e.png")  # fmt: skip
CLASSES = ("cat", "dög", "<b>x</b>", "a, b", '5" nail', "=2+3", "O'Neill")


@pytest.fixture
def file(tmp_path):
    return LabelsFile(tmp_path / "labels.csv")


def reread(file: LabelsFile) -> dict[str, str]:
    return LabelsFile(file.path).labels


def test_finetune_reads_hostile_names_of_files_and_classes_as_they_are(file, photos):
    pixels = (photos / "test/red/00.png").read_bytes()
    labels = {name: CLASSES[number % len(CLASSES)] for number, name in enumerate(HOSTILE)}
    for name, label in labels.items():
        path = file.path.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pixels)
        file.set({name: label})

    split = dataset.open_eval(data_section(file.path.parent), "train")
    read = {
        os.path.relpath(path, file.path.parent): split.class_names[label]
        for path, label in zip(split.column(PATHS), split.read_labels(), strict=True)
    }
    assert read == labels == reread(file)


@pytest.mark.parametrize("content", ["", "\n", "  \n\n"])
def test_an_empty_file_gets_its_header_with_the_first_label(tmp_path, content):
    path = tmp_path / "labels.csv"
    path.write_text(content)
    LabelsFile(path).set({"a.jpg": "cat"})

    assert path.read_text().splitlines()[0] == '"file","label"'
    assert LabelsFile(path).labels == {"a.jpg": "cat"}


def test_a_new_label_is_appended_and_on_disk_before_it_counts(file, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    monkeypatch.setattr(atomic, "sync", lambda path: synced.append(os.path.basename(path)))
    file.set({"a.png": "cat"})
    assert file.path.parent.name in synced  # the name of a new file, too
    before, synced[:] = file.path.read_bytes(), []

    file.set({"b.png": "cat", "c.png": "cat"})

    after = file.path.read_bytes()
    assert after.startswith(before) and synced == [len(after)]


def test_a_change_leaves_every_other_row_and_takes_no_label_away_on_the_way(file, monkeypatch):
    file.set({"a.png": "cat", "b.png": "dog", "c.png": "cat"})
    whole = file.path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(MachineError, match="No space left"):
        file.set({"b.png": "cat"})
    assert file.path.read_bytes() == whole and file.labels["b.png"] == "dog"
    monkeypatch.undo()

    file.set({"b.png": "cat", "a.png": None, "d.png": "dog"})

    assert list(reread(file).items()) == [("b.png", "cat"), ("c.png", "cat"), ("d.png", "dog")]


def test_wherever_an_appended_line_is_cut_off_the_others_stay_and_it_is_whole_or_gone(file):
    file.set({"a.png": "cat"})
    kept = len(file.path.read_bytes())
    file.set({"sub/b, c.png": "a dog"})
    whole = file.path.read_bytes()

    for end in range(kept, len(whole) + 1):
        file.path.write_bytes(whole[:end])
        again = LabelsFile(file.path)
        assert again.labels in ({"a.png": "cat"}, {"a.png": "cat", "sub/b, c.png": "a dog"}), whole[:end]
        again.set({"z.png": "cat"})
        assert reread(again) == again.labels and list(again.labels)[-1] == "z.png"


def test_a_failing_disk_leaves_no_half_of_a_line(file, monkeypatch):
    file.set({"a.png": "cat"})
    before = file.path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(5, "Input/output error")))

    with pytest.raises(MachineError, match="Input/output error"):
        file.set({"b.png": "dog"})

    assert file.path.read_bytes() == before and file.labels == {"a.png": "cat"}
    monkeypatch.undo()
    file.set({"b.png": "dog"})  # when there is room again
    assert reread(file) == {"a.png": "cat", "b.png": "dog"}


def test_an_absolute_path_is_the_same_image(tmp_path):
    (tmp_path / LABELS).write_text(f"file,label\n{tmp_path}/sub/a.png,cat\n")
    file = LabelsFile(tmp_path / LABELS)
    file.set({"sub/a.png": "dog"})

    assert file.labels == {"sub/a.png": "dog"} == reread(file)


def test_other_columns_their_order_and_a_last_line_without_an_end_are_kept(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("\ufeffnote,Label,file_name\n blurred ,cat,a.png\n,dog,./sub/b.png")

    file = LabelsFile(path)
    file.set({"c.png": "cat"})
    file.set({"a.png": "dog"})

    assert file.labels == {"a.png": "dog", "sub/b.png": "dog", "c.png": "cat"} == reread(file)
    lines = path.read_text().splitlines()
    assert lines[0] == '"note","Label","file_name"' and lines[1] == '" blurred ","dog","a.png"'
    assert lines[2:] == ['"","dog","./sub/b.png"', '"","cat","c.png"']


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ("file,label\na.png,caf\xe9\n".encode("latin-1"), DataError, "save it again as CSV in UTF-8"),
        (b"file;label\na.png;cat\n", DataError, "columns file,label"),
        (b"file,label,split\na.png,cat,test\n", DataError, "one split"),
        (b"file,label,fold\na.png,cat,test\n", DataError, "one split"),
        (b"file,label\na.png,cat\n./a.png,dog\n", DataError, "twice"),
        (b"file,label\na.png\n", DataError, "has 1 values, not 2"),
        (b'file,label\n"a.png,cat\nb.png,dog\n', DataError, "cannot be read"),
        (b'file,label\n"a.png,cat\nb.png,dog', DataError, "cannot be read"),  # no torn line of ours
        (b"a.png,cat\n", DataError, "columns file,label"),
    ],
)  # fmt: skip
def test_a_file_that_is_read_otherwise_is_refused_and_stays(tmp_path, content, error, words):
    path = tmp_path / "labels.csv"
    path.write_bytes(content)

    with pytest.raises(error) as caught:
        LabelsFile(path)

    assert words in str(caught.value) and path.read_bytes() == content


def test_a_link_and_a_folder_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere.csv")

    for name in ("folder", "link"):
        with pytest.raises(MachineError, match="labels are not written"):
            LabelsFile(tmp_path / name)


def test_what_another_program_has_written_meanwhile_is_not_written_over(file):
    file.set({"a.png": "cat"})
    file.path.write_text("file,label\na.png,tiger\n")

    with pytest.raises(MachineError, match="another program has changed"):
        file.set({"a.png": "dog"})
    assert "tiger" in file.path.read_text()


def test_a_class_is_known_in_spite_of_case_blanks_and_accents():
    known = ["Grey wolf", "Löwe"]

    assert class_named("  grey   WOLF ", known) == "Grey wolf"
    assert class_named("Lo\u0308we", known) == "Löwe"
    assert class_named("tiger\n cub", known) == "tiger cub"
    assert class_named("👩\u200d🔬", known) == "👩\u200d🔬"


@pytest.mark.parametrize(
    "typed", ["", " \n", "x" * 10_000, "a\0b", "cat|dog", "cat;dog", '["cat"]', "\ud800"]
)
def test_a_name_that_would_be_read_as_something_else_is_refused(typed):
    with pytest.raises(VitError, match="no class can be called that"):
        class_named(typed, ["cat"])
