"""docs/scripts-and-ci.md: its workflow is one that GitHub takes; its commands are run as they stand there."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from tests.conftest import REPOSITORY, run
from vitcli.cli import app

STEP_KEYS = {"name", "id", "if", "uses", "with", "run", "env", "shell", "working-directory"}
JOB_KEYS = {"runs-on", "steps", "env", "timeout-minutes", "needs", "if", "strategy", "permissions"}
COMMANDS = typer.main.get_command(app.app).commands


def workflow() -> dict:
    (text,) = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs/scripts-and-ci.md").read_text(), re.DOTALL)
    found = yaml.safe_load(text)
    return found | {"on": found.pop(True)}  # YAML 1.1 takes the bare word for a truth value, GitHub does not


def steps() -> list[dict]:
    (job,) = workflow()["jobs"].values()
    return job["steps"]


def vit_lines() -> list[list[str]]:
    """The words of each command of ours."""
    lines = [line for step in steps() for line in step.get("run", "").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[1:] for line in words if line[0] == "vit"]


def test_the_workflow_has_the_shape_that_github_takes():
    found = workflow()
    (job,) = found["jobs"].values()

    assert found.keys() <= {"name", "on", "permissions", "env", "jobs", "concurrency", "defaults"}
    assert found["on"].keys() <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    assert job.keys() <= JOB_KEYS and {"runs-on", "steps"} <= job.keys()
    for step in job["steps"]:
        assert step.keys() <= STEP_KEYS and ("run" in step) != ("uses" in step), step
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
        assert "with" not in step or "uses" in step


def test_every_command_and_option_in_it_exists():
    names = [line[0] for line in vit_lines()]
    assert names == ["finetune", "evaluate", "report"]
    for name, *words in vit_lines():
        if name == "report" and name not in COMMANDS:
            continue
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, name


def test_what_is_uploaded_is_what_the_commands_leave():
    (upload,) = [
        step["with"]["path"].split() for step in steps() if "upload-artifact" in step.get("uses", "")
    ]
    outs = {line[line.index("--out") + 1] for line in vit_lines()}

    assert all(any(path.startswith(out) for out in outs) for path in upload)
    assert {path.split("/")[0] for path in upload} == {out.split("/")[0] for out in outs}


@pytest.mark.slow
def test_the_commands_do_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    finetune, evaluate, report = vit_lines()

    for line in (finetune, evaluate, *([report] if "report" in COMMANDS else [])):
        outcome = run(*line)
        assert outcome.code == 0, outcome.err
    assert Path("evaluation/evaluation.json").is_file() and Path("runs/ci/README.md").is_file()
    assert "report" not in COMMANDS or Path("report.html").stat().st_size > 0

    failing = [word.replace("top1>=0.9", "top1>1") for word in evaluate]
    assert run(*failing).code == 8, "what is not reached fails the job"
    again = run(*finetune, "--json")
    assert again.code == 0 and again.json["top1"] >= 0.9, "a finished run prints its summary"
