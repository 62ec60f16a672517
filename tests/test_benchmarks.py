"""The scripts for machines that are not here: they run through without a GPU, and their tables are right."""

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.advice import commands, split_command
from tests.conftest import REPOSITORY, run

HOME = REPOSITORY / "benchmarks"
RECORDER = """#!{python} -IS
import sys, time
if "vitcli" in sys.argv:
    with open({lines!r}, "a") as file:
        print(*sys.argv[sys.argv.index("vitcli") + 1:], sep="\t", file=file)
"""


def script(name: str, *words: str, **env: str) -> subprocess.CompletedProcess:
    everything = {**os.environ, "PYTHON": sys.executable, **env}
    return subprocess.run([HOME / name, *words], capture_output=True, text=True, timeout=60, env=everything)


def loaded(name: str):
    spec = spec_from_file_location(name, HOME / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(HOME.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_bash_without_mistakes(path):
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""
    assert os.access(path, os.X_OK)


@pytest.fixture(scope="module")
def gpu_lines(tmp_path_factory):
    """The words of every command that the rows of a visit to a GPU type."""
    home = tmp_path_factory.mktemp("gpu")
    lines, recorder = home / "lines", home / "python"
    recorder.write_text(RECORDER.format(python=sys.executable, lines=str(lines)))
    recorder.chmod(0o755)
    rows = {}
    for stage in "abc":
        env = {"PYTHON": str(recorder), "OUT": str(home / stage), "STAGE_S": "9999"}
        listed = script("gpu_stages.sh", stage, "--dry-run", **env).stdout.splitlines()
        shown = script("gpu_stages.sh", stage, "--photos", "demo", **env)
        rows[stage] = [row.split("\t") for row in (home / stage / "rows.tsv").read_text().splitlines()]
        assert sorted(row[0] for row in rows[stage]) == sorted(line.partition(": ")[0] for line in listed)
        printed = [row.split("\t") for row in shown.stdout.splitlines()]
        assert sorted(printed) == sorted(rows[stage])  # those beside each other end in any order
    return rows, [line.split("\t") for line in dict.fromkeys(lines.read_text().splitlines())]


def test_every_command_line_of_a_visit_to_a_gpu_is_one_of_vit(gpu_lines):
    _, lines = gpu_lines
    assert {line[0] for line in lines} >= {"finetune", "pretrain", "evaluate", "bench", "doctor", "fewshot"}
    for words in lines:
        name, options = split_command(words)
        commands()[name].make_context(name, options)  # refuses what it does not know


@pytest.mark.slow
def test_every_run_of_a_visit_to_a_gpu_is_accepted_by_a_cpu(gpu_lines):
    for words in gpu_lines[1]:
        if words[0] in ("finetune", "pretrain") and "99" not in words and "--device" not in words:
            here = [*words, "--dry-run", "--device", "cpu", "--precision", "fp32"]
            here = [word for word in here if word not in ("--json", "--exact", "--profile", "--measure")]
            assert run(*here).code == 0, words


def test_a_row_that_fails_ends_nothing_and_is_named(gpu_lines, tmp_path):
    rows, _ = gpu_lines
    assert {row[1] for row in rows["b"]} == {"0"} and all(row[4] for row in rows["a"])

    env = {"PYTHON": "false", "OUT": str(tmp_path)}
    shown = script("gpu_stages.sh", "a", "--only", "^(versions|doctor$)", **env)
    assert shown.returncode == 1
    assert [line.split("\t")[:2] for line in shown.stdout.splitlines()] == [
        ["versions", "1"],
        ["doctor", "1"],
    ]
    late = script("gpu_stages.sh", "a", "--only", "versions", STAGE_S="5", **env)
    assert "left out: only" in late.stdout
    assert script("gpu_stages.sh", "d").returncode == script("gpu_stages.sh", "a", "--fast").returncode == 2


def test_the_table_of_whole_processes_is_of_pairs_in_turn():
    end_to_end = loaded("end_to_end")
    walls = {"vit": [10.0, 20.0, 10.0], "timm": [15.0, 40.0, 12.0]}
    records = [
        {"work": "typed", "steps": 63, "precision": "bf16", "side": side, "wall_s": wall, "cpu_s": 2 * wall,
         "peak_gib": 1.0, "top1": 0.82}
        for number in range(3) for side, wall in ((side, walls[side][number]) for side in walls)
    ]  # fmt: skip

    row = end_to_end.table(records).splitlines()[-1]
    assert row.startswith(
        "| `vit finetune`, 63 steps of 32, bf16 | 10.0 s | 15.0 s | 1.50 (1.20 to 2.00, 3 pairs)"
    )
    assert "| 20.0 / 30.0 |" in row
    assert end_to_end.accuracy_in('{"top1": 0.8175, "per_class": {"a": {"top1": 1.0}}}') == 0.8175
    assert end_to_end.accuracy_in('--result\n{"top1": 82.2, "top1_err": 17.8}') == pytest.approx(0.822)
    assert end_to_end.accuracy_in("Acc@1: 90.0\n*** Best metric: 95.88 (epoch 0)") == pytest.approx(0.9588)
    assert end_to_end.accuracy_in("nothing") is None


def test_runs_are_compared_step_by_step_and_summaries_to_the_last_digit(tmp_path):
    checks = loaded("gpu_checks")
    for name, losses in {"a": [2.0, 1.0], "b": [2.0, 1.015], "c": [2.0, 1.05]}.items():
        (tmp_path / name).mkdir()
        lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses)]
        (tmp_path / name / "metrics.jsonl").write_text("\n".join([*lines, json.dumps({"eval": {}})]))
    assert checks.losses(tmp_path / "a", tmp_path / "b", "0.02")
    assert not checks.losses(tmp_path / "a", tmp_path / "c", "0.02")

    (tmp_path / "run.json").write_text(json.dumps({"runs": [{"top1": 0.5, "loss": 1.25}]}))
    (tmp_path / "same.json").write_text(json.dumps({"top1": 0.5, "loss": 1.25}))
    (tmp_path / "other.json").write_text(json.dumps({"top1": 0.5, "loss": 1.2500001}))
    assert checks.same(tmp_path / "run.json", tmp_path / "same.json")
    assert not checks.same(tmp_path / "run.json", tmp_path / "other.json")
    (tmp_path / "profile.txt").write_text("GPU busy         92.1%\n")
    assert checks.busy(tmp_path / "profile.txt", "0.9") and not checks.busy(tmp_path / "profile.txt", "0.95")


@pytest.mark.slow
def test_a_choice_is_measured_once_and_on_images_that_it_has_not_seen(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    choose = loaded("choose")
    monkeypatch.setattr(choose, "TASKS", {photos.name: ({}, (3,))})
    words = ["--data", str(photos.parent), "--ckpt", "demo", "--out", str(tmp_path / "out"), "--draws", "2"]

    def results(part: str) -> list[dict]:
        monkeypatch.setattr("sys.argv", ["choose.py", part, *words])
        choose.main()
        return [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]

    (of_layers,) = results("layers")
    assert (of_layers["images"], of_layers["tests"], of_layers["test"]) == (24, 10, 1.0)
    assert of_layers["most_test"] == max(test for _, test in of_layers["all"].values())
    lines = results("shots")
    assert [(line["images"], line["about"]["seed"]) for line in lines[1:]] == [(6, 0), (6, 1)]
    assert all(round(line["last_new"] * 28, 9).is_integer() for line in lines[1:])  # 24 - 6 and 10
    capsys.readouterr()
    assert results("shots") == lines
    table = capsys.readouterr().out
    assert f"| {photos.name} | 24 | {of_layers['chosen']} | 100.0% | 100.0% of 10 |" in table
    assert f"| {photos.name}, 3 | 2 |" in table


def test_half_the_blocks_are_drawn_anew_and_networks_are_ordered_by_their_left_out_accuracy():
    choose = loaded("choose")
    names = [f"blocks.{number}.mlp.fc1.{kind}" for number in range(4) for kind in ("weight", "bias")]
    state = {
        name: torch.randn(*((40, 30) if "weight" in name else (40,))) for name in [*names, "head.weight"]
    }

    damaged = choose.redrawn(state)
    changed = [name for name in state if not torch.equal(state[name], damaged[name])]
    assert changed == ["blocks.1.mlp.fc1.weight", "blocks.3.mlp.fc1.weight"]
    assert all(abs(damaged[name].std() / state[name].std() - 1) < 0.1 for name in changed)
    assert torch.equal(choose.redrawn(state)[changed[0]], damaged[changed[0]])

    about = {"part": "order", "res": 96, "shots": 10}
    lines = [{"about": about, "left_out": {"demo": 0.3, "whole": 0.9}}] + [
        {"about": about | {"network": name, "seed": seed}, "top1": top1 + seed / 100}
        for name, top1 in (("whole", 0.8), ("demo", 0.2)) for seed in range(3)
    ]  # fmt: skip
    assert choose.order_table(lines)[2:] == [
        "| whole | 90.0% | 81.0% (80.0, 81.0, 82.0) |", "| demo | 30.0% | 21.0% (20.0, 21.0, 22.0) |"
    ]  # fmt: skip


@pytest.mark.slow
def test_calibration_is_measured_on_images_that_were_not_fitted_to(tmp_path, capsys):
    calibration = loaded("calibration")
    assert calibration.auroc(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == 0.875  # a tie counts half
    rng = np.random.default_rng(0)
    for name, count in (("train", 200), ("test", 300)):
        labels_N = rng.integers(0, 4, count)
        features_ND = (2 * np.eye(6)[labels_N] + rng.normal(size=(count, 6))).astype(np.float32)
        save_file({"features": features_ND, "labels": labels_N}, tmp_path / f"cifar10-{name}.safetensors")
        far_ND = features_ND + 40 * np.eye(6, dtype=np.float32)[5]
        save_file({"features": far_ND, "labels": labels_N}, tmp_path / f"flowers17-{name}.safetensors")
    args = SimpleNamespace(features=tmp_path, draws=4, heads=["probe"])

    rows, num_tests = calibration.draws_of("cifar10", "probe", args)
    assert num_tests == 300
    for level in calibration.LEVELS:
        assert np.mean([row[f"threshold {level}"] for row in rows]) == pytest.approx(level / 100, abs=0.02)
    assert np.mean([row["right of others"] - row["right"] for row in rows]) == pytest.approx(0, abs=0.02)
    args.draws = 1
    assert calibration.draws_of("cifar10", "trained", args)[0] != rows[:1]
    calibration.print_thresholds(["cifar10"], args)
    assert capsys.readouterr().out.splitlines()[2].startswith("| cifar10 | probe | 300 | 0.")
    calibration.print_unknown(["cifar10", "flowers17"], args)
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    cells = {tuple(line[1:4]): line for line in lines if len(line) > 4}
    assert ("cifar10", "5", "flowers17") not in cells  # 20 images are too few for a threshold
    for shots in ("20", "all"):
        of_other = cells["cifar10", shots, "flowers17"]
        assert of_other[4] == "1.000" and of_other[10] == "100.0 %" and float(of_other[7]) < 1
        assert float(cells["cifar10", shots, "classes held out"][4]) < 0.95
    assert lines[-1] == ["below the highest probability (mean over draws): 0 of 8"]
