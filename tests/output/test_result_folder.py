"""The folder of a result: other results and other files in it are left alone."""

import json
from contextlib import ExitStack

import pytest

from vitcli.errors import MachineError, VitError
from vitcli.output import run_folder
from vitcli.output.result_folder import ResultFolder, differences

FOLDER = ResultFolder(noun="drawing", result="drawing.json", names=("drawing.json", "a.png"))
ASKED = {"what": "a cat"}


def filled(out, *, num_results: int = 1):
    """A folder with a result, or with several in numbered folders."""
    folders = FOLDER.folders(out, num_results)
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "a.png").write_text("a")
    each = [{"asked": ASKED} for _ in folders]
    result = each[0] if num_results == 1 else {"drawings": each}
    (out / "drawing.json").write_text(json.dumps(result))
    return out


def claim(out, *, num_results: int = 1, overwrite: bool = False) -> None:
    with ExitStack() as held:
        FOLDER.claim(held, out, [ASKED] * num_results, overwrite=overwrite)


@pytest.mark.parametrize("num_results", [1, 3])
def test_an_earlier_result_is_deleted_and_nothing_else(tmp_path, num_results):
    out = filled(tmp_path / "out", num_results=num_results)
    (out / "notes.txt").write_text("mine")
    filled(out / "4")

    FOLDER.clear(out)

    assert sorted(path.name for path in out.iterdir()) == ["4", "notes.txt"]
    assert sorted(path.name for path in (out / "4").iterdir()) == ["a.png", "drawing.json"]


def test_a_separate_result_in_a_numbered_folder_is_not_deleted(tmp_path):
    out = filled(tmp_path / "out")
    filled(out / "1")

    FOLDER.clear(out)

    assert sorted(path.name for path in (out / "1").iterdir()) == ["a.png", "drawing.json"]


@pytest.mark.parametrize("name", ["1", "2/a.png"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_result_of_several_is_not_written_through_a_link(tmp_path, name, overwrite):
    (tmp_path / "out" / "2").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(MachineError, match="is a link, which drawings do not write to"):
        claim(tmp_path / "out", num_results=2, overwrite=overwrite)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("overwrite", [False, True])
def test_several_results_are_not_written_over_a_separate_one(tmp_path, overwrite):
    filled(tmp_path / "out" / "2")

    with pytest.raises(VitError, match="2 holds drawing results of its own"):
        claim(tmp_path / "out", num_results=2, overwrite=overwrite)


def test_the_folder_of_a_run_is_refused_also_as_a_numbered_folder(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / run_folder.RECIPE).write_text("")
    (tmp_path / "1" / "checkpoints").mkdir()

    FOLDER.check_names(tmp_path, 1)
    with pytest.raises(VitError, match="that of a run"):
        FOLDER.check_names(tmp_path, 2)


def test_the_same_request_may_be_repeated_and_another_is_refused(tmp_path):
    out = filled(tmp_path / "out")

    claim(out)
    with pytest.raises(VitError, match="another drawing: what a cat there, a dog here"), ExitStack() as held:
        FOLDER.claim(held, out, [{"what": "a dog"}], overwrite=False)
    with pytest.raises(VitError, match="1 drawing there, 2 here"):
        claim(out, num_results=2)
    claim(out, num_results=2, overwrite=True)


def test_a_folder_is_locked_while_a_result_is_written(tmp_path):
    with ExitStack() as held:
        FOLDER.claim(held, tmp_path, [ASKED], overwrite=False)
        with pytest.raises(MachineError, match="another drawing is writing this folder: pid"):
            claim(tmp_path)
    claim(tmp_path)

    assert not list(tmp_path.iterdir())


def test_a_damaged_result_is_not_replaced_without_overwrite(tmp_path):
    (tmp_path / "drawing.json").write_text("{")

    with pytest.raises(VitError, match=r"drawing.json does not say what was asked"):
        claim(tmp_path)
    FOLDER.clear(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_value_that_is_no_longer_given_is_a_difference():
    before, asked = [{"what": "a cat", "size": 3}], [{"what": "a cat", "colour": "red"}]

    assert differences(before, asked, noun="drawing") == [
        "colour not given there, red here",
        "size 3 there, not given here",
    ]
