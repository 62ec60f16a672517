"""`--exact`: the same bits on any number of processes, also when the number changes on the way."""

import json
import os
import signal
import time

import pytest

from tests.conftest import vit
from tests.evaluation.test_regression import REGRESSION, ages  # noqa: F401, a fixture
from tests.evaluation.test_several_labels import SEVERAL, shapes  # noqa: F401, a fixture
from tests.training.test_finetune import SMALL, fingerprint, losses, when_logged

ANY_TARGET = (
    *(*SMALL, "--exact", "--batch-size", 16, "--per-device-batch", 2, "--precision", "fp32"),
    *("--set", "model.dropout=0.1", "--set", "optimizer.average=0.9", "--set", "train.log_every=1"),
    *("--set", "eval.every=4", "--set", "train.save_every=3"),
    *("--set", "data.trivialaugment=true", "--set", "data.random_erasing=0.3"),
)
EXACT = (
    *(*ANY_TARGET, "--set", "objective.mixup=0.2", "--set", "objective.cutmix=1.0"),
    *("--set", "objective.class_weights=sqrt", "--set", "data.sampling=sqrt"),
)
# The fixture of the images and the words of each.
TARGETS = {
    "several labels": ("shapes", (*SEVERAL, "--set", "objective.mixup=0.2", "--set", "objective.cutmix=1.0")),
    "numbers": ("ages", REGRESSION),
}


def exact_run(photos, out, *, processes: int, steps: int = 6, **more):
    return vit(
        *EXACT, "--steps", steps, "--dataset", photos, "--out", out, "--num-processes", processes,
        timeout=300, **more,
    )  # fmt: skip


@pytest.mark.slow
def test_two_processes_make_the_bits_of_one(photos, tmp_path):
    for processes in (1, 2):
        ended = exact_run(photos, tmp_path / str(processes), processes=processes)
        assert ended.returncode == 0, ended.stderr

    assert fingerprint(tmp_path / "1") == fingerprint(tmp_path / "2")


@pytest.mark.slow
@pytest.mark.parametrize("how", [("--exact",), ("--shard",)], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_two_processes_learn_several_labels_and_numbers_as_one_does(request, tmp_path, target, how):
    fixture, more = TARGETS[target]
    words = [word for word in ANY_TARGET if word != "--exact"]
    words += [*more, "--dataset", request.getfixturevalue(fixture), "--steps", 6]
    for processes in (1, 2):
        given = [*words, *(how if processes == 2 or "--exact" in how else ())]
        out = ("--out", tmp_path / str(processes), "--num-processes", processes)
        ended = vit(*given, *out, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        scores = ("evaluate", "--ckpt", tmp_path / str(processes), "--precision", "fp32", "--json", "-q")
        again = [json.loads(vit(*scores, "--num-processes", number).stdout) for number in (1, 2)]
        summary = json.loads(ended.stdout)
        for key in set(again[0]) & {"mae", "rmse", "r2", "intervals", "mean_ap", "f1_at_thresholds", "loss"}:
            expected = again[0][key]
            if key == "loss" and how == ("--shard",):  # slices add in another order
                expected = pytest.approx(expected)
            assert summary[key] == expected and again[0][key] == again[1][key], key

    if "--exact" in how:
        assert fingerprint(tmp_path / "1") == fingerprint(tmp_path / "2")
    else:
        assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), rel=1e-4)


@pytest.mark.slow
def test_a_split_that_is_no_tree_is_refused_with_those_that_are(photos, tmp_path):
    words = ("--exact", "--batch-size", "12", "--per-device-batch", "2", "--num-processes", "2")
    ended = vit(*SMALL, *words, "--steps", 2, "--dataset", photos, "--out", tmp_path / "run")

    assert ended.returncode == 2 and "--num-processes 1 or 3 or 6" in ended.stdout


@pytest.mark.slow
def test_a_run_may_resume_with_another_number_of_processes(photos, tmp_path):
    assert exact_run(photos, tmp_path / "unbroken", processes=1, steps=40).returncode == 0
    broken = tmp_path / "broken"
    for processes, at in ((2, 3), (4, 8), (1, 13)):

        def stop_soon(process, at=at):
            when_logged(broken, at, lambda: (time.sleep(0.05), os.kill(process.pid, signal.SIGTERM)))

        assert exact_run(photos, broken, processes=processes, steps=40, on_start=stop_soon).returncode == 143
    ended = exact_run(photos, broken, processes=4, steps=40)

    assert ended.returncode == 0 and "no longer bit-exact" not in ended.stderr
    assert fingerprint(broken) == fingerprint(tmp_path / "unbroken")
