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

from tests.conftest import REPOSITORY

HOME = REPOSITORY / "benchmarks"
STUB = """
import json, sys
words = sys.argv[1:]
if "ViT-S/16" in words:
    sys.exit("error: out of luck")
per_s = 1000 if "synthetic" in str(words) or "--dataset" not in words else 900 if "--cached" in words else 600
about = {"device_name": "H200", "cpu_count": 16, "torch": "2.15"}
row = {"images_per_s": per_s, "images_per_s_range": [per_s - 10, per_s + 10], "fraction_of_limit": 0.5,
       "limit_flops_per_s": 7.9e14, "device_peak_memory_gib": 20.0, "host_peak_memory_gib": 2.0,
       "data_wait_fraction": 0.02, "out_of_memory": "384" in words}
print(json.dumps({"rows": [row], "machine": about} if "infer" in words else {**row, "machine": about}))
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


def test_the_gpu_script_prints_its_commands_where_there_is_no_gpu():
    shown = script("gpu.sh", "--dry-run", "--photos", "photos/")

    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "train-S16", "train-B16", "train-L16", "jpeg-cold", "jpeg-cached", "infer-L16-224", "infer-L16-384",
    ]  # fmt: skip
    assert "--dataset photos/ --cached" in lines[4]
    assert script("gpu.sh", "--fast").returncode == 2


def test_the_gpu_table_has_a_fraction_for_each_row_and_goes_on_after_a_failure(tmp_path):
    (tmp_path / "stub.py").write_text(STUB)
    env = {"VIT": f"{sys.executable} {tmp_path / 'stub.py'}", "DEVICE": "cpu"}
    shown = script("gpu.sh", "--photos", "photos/", **env)

    rows = dict(line.strip("| ").split(" | ", 1) for line in shown.stdout.splitlines() if line[:2] == "| ")
    assert "train-S16 failed: error: out of luck" in shown.stderr and rows["train-S16"].startswith("failed")
    assert "| 50.0% | 790 TFLOP/s measured | 20.0 | 2.0% | 50 %, 60 %" in rows["train-B16"]
    assert "600 (590 to 610) | 60.0% | the synthetic rate" in rows["jpeg-cold"]
    assert "| 90.0% |" in rows["jpeg-cached"] and rows["infer-L16-384"].startswith("out of memory")
    assert shown.stdout.endswith("H200, 16 cores, torch 2.15\n")


def test_the_smoke_script_lists_thirty_checks_and_skips_those_that_need_a_gpu():
    listed = script("gpu_smoke.sh", "--dry-run").stdout

    assert [line.split(" | ")[0] for line in listed.splitlines() if " | listed | " in line] == [
        f"| {number}" for number in range(1, 31)
    ]
    text = (HOME / "gpu_smoke.sh").read_text()
    assert all(f"\ncheck_{number}() {{" in text for number in range(1, 31))
    skipped = script("gpu_smoke.sh", ONLY="1 2 14", PYTHON="false")
    assert skipped.returncode == 0 and skipped.stdout.count("| skipped | 0 s | no GPU |") == 3


def test_a_failed_check_ends_nothing_and_is_named():
    shown = script("gpu_smoke.sh", ONLY="3 12", CUDA_VISIBLE_DEVICES="", PYTHON="false")

    assert shown.returncode == 1 and shown.stdout.count("| failed |") == 2 and "code 1" in shown.stdout


def test_the_table_of_whole_processes_is_of_pairs_in_turn():
    end_to_end = loaded("end_to_end")
    walls = {"vit": [10.0, 20.0, 10.0], "timm": [15.0, 40.0, 12.0]}
    records = [
        {"work": "evaluate", "precision": "bf16", "side": side, "wall_s": wall, "cpu_s": 2 * wall,
         "peak_gib": 1.0, "top1": 0.82}
        for number in range(3) for side, wall in ((side, walls[side][number]) for side in walls)
    ]  # fmt: skip

    row = end_to_end.table(records).splitlines()[-1]
    assert "| evaluate, bf16 | 10.0 s | 15.0 s | 1.50 (1.20 to 2.00, 3 pairs) | 20.0 / 30.0 |" in row
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
