"""`vit skill` and docs/reference: the whole command line, from its own help."""

import importlib.util
import json
import re
import shlex

import pytest
import typer

from tests.conftest import REPOSITORY, run
from vitcli.cli import app, skill
from vitcli.cli.help import option_names
from vitcli.errors import EXIT_CODES
from vitcli.recipe.schema import Recipe


def test_the_skill_names_every_command_option_and_exit_code():
    page = run("skill").out
    sections = dict(re.findall(r"^### (vit [a-z -]+)\n(.*?)(?=^##|\Z)", page, re.M | re.S))

    walked = {name: command for name, command, _ in skill._walk(typer.main.get_command(app.app))}
    assert len(walked) > 25 and sections.keys() >= walked.keys()
    everywhere = {name for each in skill.EVERYWHERE for name in each.split(", ")}
    for name, command in walked.items():
        for option in option_names(command):
            # Of a pair of flags the help has the one that changes something.
            pair = {option, f"--no-{option[2:]}", option.replace("--no-", "--")}
            shown = (re.search(rf"[`,] ?{each}\b", sections[name]) for each in pair)
            assert pair & everywhere or any(shown), (name, option)
    assert all(f"| {code} | " in page for code in (0, 130, 143, *EXIT_CODES.values()))


def test_the_reference_is_written_from_this_code():
    path = REPOSITORY / "docs" / "make_reference.py"
    if not path.exists():
        pytest.skip("the documents are not here")
    spec = importlib.util.spec_from_file_location("make_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    for name, page in module.pages().items():
        written = (module.FOLDER / name).read_text()
        assert written == module.NOTE + page.rstrip("\n") + "\n", f"run docs/make_reference.py: {name}"
    keys = (module.FOLDER / "recipe-keys.md").read_text()
    assert all(f"## {section}\n" in keys for section in Recipe.model_fields) and "None" not in keys
    assert "`optimizer.lr` (required)" in keys and "(default: `false`)" in keys and "Pydantic" not in keys


def test_the_versions_are_one_json_object():
    outcome = run("--version", "--json")

    assert outcome.json["vit"] and outcome.json["torch"] and run("--json").code == 2


TWELVE = """
    0 vit doctor --json
    0 vit datasets check {photos} --json
    0 vit finetune --ckpt demo --dataset {photos} --dry-run --json
    0 vit finetune --ckpt demo --dataset {photos} --steps 2 --batch-size 8 --out {out}/a --json -q
    0 vit finetune --ckpt demo --dataset {photos} --steps 2 --batch-size 8 --seed 1 --out {out}/b --json -q
    0 vit evaluate --ckpt {out}/a --dataset {photos} --out {out}/e --json -q
    8 vit evaluate --ckpt {out}/a --dataset {photos} --assert top1>=1.0 --assert loss<=0 --json -q
    0 vit predict --ckpt {out}/a {photos}/test --out {out}/p.csv --json -q
    3 vit predict --ckpt {out}/a {out}/e/evaluation.json --json -q
    0 vit compare {out}/a {out}/b --json
    0 vit embed --ckpt demo --dataset {photos} --out {out}/f.safetensors --json -q
    4 vit inspect {out}/p.csv --summary --json
"""


@pytest.mark.slow
def test_twelve_tasks_by_the_skill_alone_know_their_exit_codes(photos, tmp_path):
    page = skill.skill_file()
    for line in TWELVE.strip().splitlines():
        code, *words = shlex.split(line.format(photos=photos, out=tmp_path))
        assert all(f"`{word}" in page or f", {word}" in page for word in words if word.startswith("-"))
        outcome = run(*words[1:])
        assert outcome.code == int(code), (line, outcome.err)
        result = json.loads(outcome.out)
        assert ("error" in result) == (code != "0") and (code == "0" or result["error"]["code"] == int(code))
