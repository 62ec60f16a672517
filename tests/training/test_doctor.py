"""`vit doctor`: what is here, and a proof of exact resume that can fail."""

import pytest

from tests.conftest import run
from tests.fake_device import report_gpus
from vitcli.training import doctor


def test_the_environment_of_runs_is_reported():
    told = run("doctor", "--json").json
    text = run("doctor").out

    assert told["torch"] in text and told["precision"] in ("fp32", "bf16")
    assert told["cpu_count"] >= 1 and "none, runs use the CPU" in text
    assert (told["gpus"], told["gpu_memory_gib"], told["cuda_problem"], told["device"]) == (
        [],
        [],
        None,
        "cpu",
    )
    assert (
        f"auto        device cpu, precision {told['precision']}" in text
        and 0 < told["free_memory_gib"] < told["memory_gib"]
    )


def test_what_slows_a_machine_down_is_said(monkeypatch, tmp_path):
    fast = {"cpu_count": 16, "gpus": [], "torch_threads": 16, "precision": "bf16", "simplejpeg": "1.9"}
    monkeypatch.setattr(doctor, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    assert doctor._slow(fast) == []

    def only(**machine: object) -> str:
        (line,) = doctor._slow(fast | machine)
        return line

    assert only(cpu_count=2, torch_threads=2).startswith("2 cores and no GPU: take small models")
    assert only(torch_threads=1) == "torch computes on 1 of 16 cores: OMP_NUM_THREADS=16"
    assert only(precision="fp32").startswith("the device has no bf16")
    assert only(simplejpeg="not installed").startswith("simplejpeg is not installed")
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert only() == "this container has 2.5 of 16 cores: OMP_NUM_THREADS=2 --workers 2"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert only() == "there is no C++ compiler, which --compile needs"

    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/c++")
    monkeypatch.setattr(doctor, "_can_pin", lambda: True)
    assert only(gpus=["a", "b", "c"]) == "16 cores for 3 GPUs: vit bench data measures them"
    monkeypatch.setattr(doctor, "_can_pin", lambda: False)
    assert only(gpus=["a"]).startswith("memory cannot be pinned")


def test_gpus_are_reported_with_their_memory_and_libraries():
    with report_gpus("NVIDIA H200", "NVIDIA H200"):
        told, text = run("doctor", "--json").json, run("doctor").out

    assert told["gpus"] == ["NVIDIA H200", "NVIDIA H200"] and told["gpu_memory_gib"] == [141, 141]
    assert (told["device"], told["precision"]) == ("cuda:0", "bf16")
    assert f"NVIDIA H200 (141 GiB), NVIDIA H200 (141 GiB), CUDA {told['cuda']}, cuDNN" in text
    assert "auto        device cuda:0, precision bf16" in text


SMALL = (
    "doctor",
    "resume",
    "--ckpt",
    "random",
    "--model",
    "ViT-demo/8",
    "--res",
    "16",
    "--steps",
    "12",
    "--lr",
    "0.01",
)


@pytest.mark.slow
def test_a_killed_run_is_proven_to_end_with_the_bits_of_an_uninterrupted_one(photos):
    proved = run(*SMALL, "--dataset", photos, "--batch-size", 8, "--kills", 2, "--json", "--quiet").json

    assert proved["same_bits"] and len(proved["killed_at"]) == 2
    assert set(proved["sha256"]) == {"model.safetensors", "metrics.jsonl"}


def test_different_bits_are_a_failed_check_that_names_both_folders(photos, monkeypatch, tmp_path):
    def pretend(words, out):
        out.mkdir(parents=True)
        (out / "metrics.jsonl").write_text("{}")
        (out / "model.safetensors").write_bytes(out.name.encode())

    def pretend_killed(words, out, **_):
        pretend(words, out)
        return [3]

    monkeypatch.setattr(doctor, "_to_the_end", pretend)
    monkeypatch.setattr(doctor, "_with_kills", pretend_killed)
    outcome = run(*SMALL, "--dataset", photos, "--quiet")

    assert outcome.code == 8 and "different bits: model.safetensors" in outcome.err


def test_a_recipes_own_mistakes_are_reported_first(photos):
    assert run("doctor", "resume", "--recipe", "finetune/nothing").code == 2
    assert "at least two steps" in run(*SMALL[:-4], "--steps", "1", "--dataset", photos).err


@pytest.mark.slow
def test_a_run_that_ends_before_it_is_killed_proves_nothing(photos):
    short = ("2" if word == "12" else word for word in SMALL)
    outcome = run(*short, "--dataset", photos, "--batch-size", 8, "--kills", 4, "--quiet")

    assert outcome.code == 8 and "ended before kill" in outcome.err


@pytest.mark.slow
def test_several_processes_are_all_killed(photos):
    small = ("40" if word == "12" else word for word in SMALL)
    words = (*small, "--dataset", photos, "--batch-size", 8, "--num-processes", 2, "--kills", 2)
    proved = run(*words, "--json", "--quiet").json

    assert proved["same_bits"] and len(proved["killed_at"]) == 2 and max(proved["killed_at"]) < 40
