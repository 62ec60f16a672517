"""How far a run is, in words, and how deep a run folder may lie."""

import pytest

from tests import report_runs as made
from vitcli.errors import VitError
from vitcli.report import scan
from vitcli.report.runs import RunProgress


def test_a_run_that_never_took_a_step_says_so():
    assert RunProgress(0, None).text == "not started"
    assert RunProgress(0, 1500).text == "no step of 1,500 yet"
    assert RunProgress(1, 1500).text == "step 1 of 1,500"


def test_runs_are_searched_for_five_folders_deep_as_the_error_says(tmp_path):
    five = made.finetuned(tmp_path / "five/1/2/3/4/5")
    made.finetuned(tmp_path / "six/1/2/3/4/5/6")

    assert [location.path for location in scan.find([str(tmp_path / "five")])] == [five]
    with pytest.raises(VitError, match="or up to 5 folders below"):
        scan.find([str(tmp_path / "six")])


def test_a_link_back_up_is_no_further_folder(tmp_path, monkeypatch):
    made.finetuned(tmp_path / "runs/a", 0.9)
    made.finetuned(tmp_path / "runs/b", 0.9)
    for name in "ab":
        (tmp_path / "runs" / name / "back").symlink_to(tmp_path / "runs")
    looked_at, kind_of = [], scan.kind_of
    monkeypatch.setattr(scan, "kind_of", lambda folder: looked_at.append(folder.name) or kind_of(folder))

    assert [location.path.name for location in scan.find([str(tmp_path / "runs")])] == ["a", "b"]
    assert looked_at == ["runs", "a", "b"]
    monkeypatch.setattr(scan, "MAX_FOLDERS", 2)
    with pytest.raises(VitError, match="more than 2 folders below it"):
        scan.find([str(tmp_path / "runs")])


def test_a_recipe_alone_is_no_run_that_has_begun(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    assert scan.kind_of(tmp_path) is None

    for name in ("summary.json", "metrics.jsonl", "plan.json"):
        (tmp_path / name).write_text("{}")
        assert scan.kind_of(tmp_path) == "training"
        (tmp_path / name).unlink()
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "environment.json").write_text('{"command_line": ["vit", "fewshot"]}')
    assert scan.kind_of(tmp_path) == "fewshot"
    (tmp_path / "recipe.toml").unlink()
    assert scan.kind_of(tmp_path) is None


def test_folders_of_a_run_are_inside_of_runs_alone_and_hidden_ones_nowhere(tmp_path):
    for name in ("figures/a", "arms/b", ".hidden/c", "d/.tmp-1", "e"):
        made.finetuned(tmp_path / name, 0.9)
    made.finetuned(tmp_path / "e/arms/f", 0.8)
    made.finetuned(tmp_path / "e/more", 0.8)

    found = [str(place.path.relative_to(tmp_path)) for place in scan.find([str(tmp_path)])]
    assert found == ["arms/b", "e", "e/more", "figures/a"]
