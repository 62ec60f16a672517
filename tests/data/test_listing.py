"""`vit datasets list` and `show`: what has a short name."""

import subprocess
import sys

from tests.conftest import run
from vitcli import recipe


def test_the_list_has_every_alias_and_says_which_lie_here(tmp_path, monkeypatch):
    (tmp_path / "vtab/dtd").mkdir(parents=True)
    monkeypatch.setenv("VIT_DATA", str(tmp_path))

    found = {entry["name"]: entry for entry in run("datasets", "list", "--json").json["datasets"]}
    table = run("datasets", "list").out

    assert set(found) == set(recipe.dataset_aliases())
    assert [name for name, entry in found.items() if entry["found"]] == ["vtab/dtd"]
    assert found["cifar100"]["hub"] == "uoft-cs/cifar100" and found["cifar100"]["classes"] == 100
    rows = {line.split()[0]: line for line in table.splitlines()[1:]}
    assert " yes " in rows["vtab/dtd"] and " no " in rows["cifar10"]


def test_the_list_keeps_every_name_whole_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    lines = run("datasets", "list").out.splitlines()

    assert [line.split()[0] for line in lines[1:]] == list(recipe.dataset_aliases())
    assert lines[0].split() == ["name", "classes", "here", "from"] and max(map(len, lines)) <= 80
    monkeypatch.setenv("COLUMNS", "160")
    assert " train800val200 " in run("datasets", "list").out


def test_vtab_is_shown_as_its_tasks():
    tasks = run("datasets", "show", "vtab", "--json").json["tasks"]

    assert [len(names) for names in tasks.values()] == [7, 4, 8]
    text = run("datasets", "show", "vtab").out
    assert "the 19 tasks of VTAB-1k" in text and "specialized" in text and "vtab/eurosat" in text


def test_one_alias_is_shown_with_its_recipe_and_rules(monkeypatch):
    monkeypatch.delenv("VIT_DATA", raising=False)

    found = run("datasets", "show", "vtab/smallnorb_azimuth", "--json").json
    text = run("datasets", "show", "vtab/smallnorb_azimuth").out

    assert (found["recipe"], found["found"]) == ("finetune/vtab-no-flip", None)
    assert found["raw_splits"]["validation"] == "test[:50%]"
    assert "none in $VIT_DATA/vtab/smallnorb_azimuth, not set" in text
    assert "drawn" in run("datasets", "show", "demo").out


def test_list_and_show_load_neither_torch_nor_datasets():
    code = (
        "import sys; from vitcli.data import listing; listing.list_datasets(); "
        "listing.show('vtab/dtd'); "
        "sys.exit(bool({'torch', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
