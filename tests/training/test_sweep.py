"""Lists in a recipe and several runs: what is chosen, on which rows, and that all runs are ordinary ones."""

import hashlib
import json
import os
import signal
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from tests.conftest import run, vit
from tests.figures import drawn_figures, points_of
from tests.training.test_finetune import SMALL, when_logged
from vitcli import recipe
from vitcli.data import loader
from vitcli.training.many_runs import workers
from vitcli.training.setup import RunOptions

RATES = "0.0001,0.05"
BASE = [word for word in SMALL if word not in ("--lr", "0.02")]
PLAIN = ("--batch-size", 8, "--per-device-batch", 4, "--steps", 6,
         "--precision", "fp32", "--set", "schedule.warmup=2", "--set", "model.dropout=0.1",
         "--set", "train.save_every=2", "--set", "train.log_every=1")  # fmt: skip
ASKED = ("--lr", RATES, "--set", "data.dev_fraction=0.25", "--set", "train.runs=2", *PLAIN)
TIMED = ("elapsed_s", "images_per_s", "peak_memory_gib", "run_dir", "weights")


def weights_of(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def untimed(summary: dict) -> dict:
    return {key: value for key, value in summary.items() if key not in TIMED}


@pytest.fixture(scope="module")
def decoded() -> list[bytes]:
    """Every file that was decoded for `selected`, in order."""
    return []


@pytest.fixture(scope="module")
def sweep(photos, tmp_path_factory, decoded) -> tuple[Path, dict[str, Figure]]:
    """The folder of a selection with two final runs, and its figures."""
    path, open_image = tmp_path_factory.mktemp("selected") / "all", loader.open_image

    def counted(data: bytes, **more):
        decoded.append(bytes(data))
        return open_image(data, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "open_image", counted)
        with drawn_figures("selection.png") as figures:
            outcome = run(*BASE, "--dataset", photos, *ASKED, "--out", path, "--workers", 1)
    assert outcome.code == 0, outcome.err + outcome.out
    return path, figures


@pytest.fixture(scope="module")
def selected(sweep) -> Path:
    return sweep[0]


@pytest.fixture(scope="module")
def summary(selected) -> dict:
    return json.loads((selected / "summary.json").read_text())


def test_the_best_on_the_dev_part_is_trained_again_on_all_of_train(selected, summary):
    by_lr = summary["dev_top1_by_lr"]
    assert by_lr == {"0.0001": 1.0, "0.05": 1.0}  # two colours are easy: the smaller loss decides
    losses = [choice["dev_loss"] for choice in summary["choices"]]
    assert losses[1] < losses[0]
    assert (summary["lr"], summary["chosen"]) == (0.05, {"optimizer.lr": 0.05})
    assert [choice["dev_top1"] for choice in summary["choices"]] == list(by_lr.values())
    arms = [json.loads((selected / f"arms/lr-{lr}/summary.json").read_text()) for lr in by_lr]
    assert {(arm["num_eval_examples"], arm["runs"][0]["seed"]) for arm in arms} == {(6, 0)}  # 24 times 0.25
    assert all("dev part" in arm["eval_split"] for arm in arms)
    assert not list((selected / "arms").rglob("*.safetensors"))


def test_the_figure_of_a_selection_has_its_scores_and_marks_the_chosen_rate(sweep, summary):
    figure = sweep[1]["selection.png"]

    assert points_of(figure) == [(lr, 100 * summary["dev_top1_by_lr"][str(lr)]) for lr in (0.0001, 0.05)]
    assert points_of(figure, 1) == [(0.05, 100.0)]


def test_the_result_is_the_mean_of_the_runs_with_the_deviation_of_a_sample(selected, summary):
    each = [json.loads((selected / f"runs/seed-{seed}/summary.json").read_text()) for seed in (0, 1)]

    assert summary["runs"] == [one["runs"][0] for one in each]
    for key in ("top1", "top5", "loss"):
        assert summary[key] == pytest.approx(mean(one[key] for one in each))
    assert summary["top1_std"] == stdev([one["top1"] for one in each])
    assert summary["num_eval_examples"] == 10
    total = sum(one["exaflops"] for one in each) + 2 * each[0]["exaflops"]
    assert summary["exaflops"] == pytest.approx(total)


def test_every_run_ends_with_the_bits_of_an_ordinary_one(photos, selected, tmp_path):
    """Whatever it had in common with the others: the network, its opened data, its decoded images."""
    words = (*BASE, "--dataset", photos, "--lr", 0.05, "--set", "data.dev_fraction=0.25", *PLAIN)
    assert run(*words, "--seed", 1, "--out", tmp_path / "alone").code == 0
    arm = (*words, "--set", "data.eval_split=dev_fraction", "--out", tmp_path / "arm")
    assert run(*arm).code == 0

    assert weights_of(tmp_path / "alone") == weights_of(selected / "runs/seed-1")
    logs = [folder / "metrics.jsonl" for folder in (tmp_path / "arm", selected / "arms/lr-0.05")]
    assert logs[0].read_bytes() == logs[1].read_bytes()


def test_the_folder_is_a_checkpoint_and_lists_every_run(photos, selected, summary):
    assert weights_of(selected) == weights_of(selected / "runs/seed-0")
    scored = run(
        "evaluate", "--ckpt", selected, "--dataset", photos, "--precision", "fp32", "--json", "-q"
    ).json
    assert scored["top1"] == summary["runs"][0]["top1"]
    records = [json.loads(line) for line in (selected / "metrics.jsonl").read_text().splitlines()]
    assert [record["run_dir"] for record in records] == [
        "arms/lr-0.0001", "arms/lr-0.05", "runs/seed-0", "runs/seed-1"
    ]  # fmt: skip
    for name in ("README.md", "config.json", "environment.json", "figures/selection.png", "table.txt"):
        assert (selected / name).is_file(), name


def test_the_same_command_again_trains_nothing_and_another_recipe_is_refused(photos, selected, summary):
    before = sorted((path, path.stat().st_mtime_ns) for path in selected.rglob("*"))

    assert run(*BASE, "--dataset", photos, *ASKED, "--out", selected).json == summary
    other = run(*BASE, "--dataset", photos, *ASKED, "--set", "train.batch_size=8", "--out", selected)
    assert other.code == 2  # --batch-size says it already
    other = run(*BASE, "--dataset", photos, "--lr", "0.1,0.2", *ASKED[2:], "--out", selected)
    assert "optimizer.lr: [0.0001, 0.05] against [0.1, 0.2]" in other.json["error"]["message"]
    assert sorted((path, path.stat().st_mtime_ns) for path in selected.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize("at", ["arms/lr-0.05", "runs/seed-0"])
def test_a_stopped_sweep_resumes_where_it_was(photos, selected, summary, tmp_path, at):
    out = tmp_path / "all"
    when_logged(out / at, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped = run(*BASE, "--dataset", photos, *ASKED, "--out", out)
    assert stopped.code == 143 and f"--out {out} resumes" in stopped.json["error"]["message"]
    first = out / "arms/lr-0.0001/timing.jsonl"
    timed = first.read_bytes()

    again = run(*BASE, "--dataset", photos, *ASKED, "--out", out)

    assert again.code == 0, again.err
    assert untimed(again.json) == untimed(summary) and first.read_bytes() == timed
    assert weights_of(out) == weights_of(selected)


def test_each_image_is_decoded_once_for_all_runs(selected, decoded):
    assert len(decoded) == len(set(decoded)) == 34  # 24 to train on and 10 to score


@pytest.mark.slow
def test_without_free_memory_images_are_decoded_again_and_nothing_else_changes(
    photos, selected, summary, tmp_path, monkeypatch
):
    monkeypatch.setattr("vitcli.distributed.launch.free_bytes", lambda: 0.0)

    assert untimed(run(*BASE, "--dataset", photos, *ASKED, "--out", tmp_path / "all").json) == untimed(
        summary
    )


@pytest.mark.slow
def test_any_key_of_one_value_can_be_chosen_and_every_combination_is_tried(photos, tmp_path):
    lists = ("--lr", "0.01,0.02", "--set", "data.flip=[true, false]")
    words = (*BASE, "--dataset", photos, *lists, "--set", "data.dev_fraction=0.25", "--batch-size", 8)

    told = run(*words, "--steps", 1, "--out", tmp_path / "all").json

    assert [(one["optimizer.lr"], one["data.flip"]) for one in told["choices"]] == [
        (0.01, True), (0.02, True), (0.01, False), (0.02, False)
    ]  # fmt: skip
    assert (told["dev_top1_by_lr"], len(told["runs"]), told["top1_std"]) == (None, 1, None)
    best = max(told["choices"], key=lambda one: (one["dev_top1"], -one["dev_loss"]))
    assert told["chosen"] == {key: best[key] for key in ("optimizer.lr", "data.flip")}
    assert sorted(path.name for path in (tmp_path / "all/arms").iterdir()) == [
        "flip-false_lr-0.01", "flip-false_lr-0.02", "flip-true_lr-0.01", "flip-true_lr-0.02"
    ]  # fmt: skip


@pytest.mark.slow
def test_a_diverged_arm_ranks_last_and_stops_nothing(photos, tmp_path):
    wild = ("--set", "optimizer.clip=0", "--set", "data.dev_fraction=0.25", "--steps", 4, "--batch-size", 8)
    words = (*BASE, "--dataset", photos, *wild, "--lr", "1e38,0.02")
    told = run(*words, "--out", tmp_path / "all").json
    all_wild = run(*words[:-1], "1e38,1e37", "--out", tmp_path / "none")

    assert told["chosen"] == {"optimizer.lr": 0.02} and told["dev_top1_by_lr"]["1e+38"] is None
    assert run(*words, "--out", tmp_path / "all").json == told
    (tmp_path / "all/summary.json").unlink()
    timed = tmp_path / "all/arms/lr-1e+38/timing.jsonl"
    before = timed.stat()
    assert untimed(run(*words, "--out", tmp_path / "all").json) == untimed(told)
    assert timed.stat() == before  # what diverged does so once
    assert all_wild.code == 6


@pytest.mark.slow
def test_overwriting_deletes_arms_and_repetitions_and_nothing_else(photos, tmp_path):
    words = (
        *BASE,
        "--dataset",
        photos,
        "--lr",
        "0.02",
        "--set",
        "train.runs=2",
        "--batch-size",
        8,
        "--steps",
        1,
    )
    assert run(*words, "--out", tmp_path).code == 0
    (tmp_path / "runs/mine").mkdir()

    assert run(*words, "--seed", 7, "--overwrite", "--out", tmp_path).code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["mine", "seed-7", "seed-8"]


@pytest.mark.slow
def test_runs_alone_choose_nothing(photos, tmp_path):
    words = (*BASE, "--dataset", photos, "--lr", "0.02", "--set", "train.runs=2", "--batch-size", 8)
    told = run(*words, "--steps", 1, "--seed", 5, "--out", tmp_path / "all").json

    assert [one["seed"] for one in told["runs"]] == [5, 6]
    assert (told["choices"], told["chosen"], told["dev_top1_by_lr"]) == ([], {}, None)
    assert not (tmp_path / "all/arms").exists()


def test_the_plan_counts_every_run(photos):
    plan = run(*BASE, "--dataset", photos, *ASKED, "--dry-run").json

    assert (plan["num_arms"], plan["num_runs"], plan["total_steps"], plan["all_steps"]) == (2, 2, 6, 24)
    assert plan["all_images_seen"] == 4 * plan["images_seen"]
    assert "lr = [0.0001, 0.05]" in plan["recipe"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lr", "0.1,0.1"), "names a value twice"),
        (("--lr", "0.1,-1"), "optimizer.lr, item 2"),
        (("--lr", "0.1,0.2", "--set", "data.dev_fraction=0"), "without a dev split"),
        (("--lr", "0.1", "--set", "train.seed=[0, 1]"), "it is a repetition"),
        (("--lr", "0.1", "--set", "data.dataset=[a, b]"), "data.dataset"),
        (("--lr", "0.1", "--set", "model.dropout=[0.1, 1.5]"), "model.dropout, item 2 is 1.5"),
        (("--lr", "0.1", "--set", "data.flip=[]"), "data.flip is []"),
        (("--lr", ",".join(str(k / 1000) for k in range(1, 300))), "299 combinations"),
        (("--lr", "0.1,0.2", "--arms-parallel", "--shard"), "--shard needs all devices"),
        (("--lr", "0.1", "--arms-parallel"), "there is only one run"),
        (("--lr", "0.1", "--set", "model.pre_logits=[false, true]"), "layer of zeros"),
    ],
)  # fmt: skip
def test_impossible_lists_are_refused_before_anything_runs(photos, tmp_path, words, said):
    outcome = run(*BASE, "--dataset", photos, *words, "--out", tmp_path / "all")

    assert outcome.code == 2 and said in outcome.json["error"]["message"], outcome.json
    assert not (tmp_path / "all").exists()


@pytest.mark.slow
def test_where_no_test_split_is_the_dev_part_is_cut_from_what_is_named_or_left(photos, tmp_path):
    few = ("--lr", "0.1,0.2", "--set", "data.dev_fraction=0.5", "--steps", 1, "--batch-size", 4)
    words = (*BASE, "--dataset", photos / "train", *few)
    named = ("--set", "data.train_split=train[:75%]", "--set", "data.eval_split=train[75%:]")

    told = {}
    for out, more in (("auto", ()), ("named", named)):
        final = run(*words, *more, "--out", tmp_path / out).json
        arm = json.loads((tmp_path / out / "arms/lr-0.1/summary.json").read_text())
        told[out] = [(one["num_train_examples"], one["num_eval_examples"]) for one in (arm, final)]

    # 24 rows: half stand in for a test split and half of the rest to choose by; or 18 of 24 are named
    assert told == {"auto": [(6, 6), (12, 12)], "named": [(9, 9), (18, 6)]}


@pytest.mark.slow
def test_masked_patches_are_chosen_by_their_colours(photos, tmp_path):
    words = ("pretrain", "--recipe", "pretrain/b16-masked-patch", "--model", "ViT-demo/8", "--res", 16,
             "--json", "-q", "--set", "schedule.warmup=0", "--dataset", photos, "--steps", 1,
             "--lr", "0.001,0.0001", "--set", "data.dev_fraction=0.25",
             "--batch-size", 4, "--out", tmp_path / "all")  # fmt: skip
    told = run(*words)

    assert told.code == 0, told.out
    assert all(choice["dev_patch_accuracy"] is not None for choice in told.json["choices"])
    assert "dev accuracy" in (tmp_path / "all/README.md").read_text()


@pytest.mark.slow
def test_the_time_of_all_runs_is_measured_on_fresh_weights_too():
    words = ("pretrain", "--lr", "0.001,0.0001", "--set", "data.dev_fraction=0.25", "--dry-run", "--measure")
    plan = run(*words, "--json", "-q")

    assert plan.code == 0, plan.out
    seconds = plan.json["all_images_seen"] / plan.json["measured_images_per_s"]
    assert plan.json["all_measured_hours"] == pytest.approx(seconds / 3600)


@pytest.mark.slow
def test_parallel_runs_are_the_same(photos, selected, summary, tmp_path):
    words = (*BASE, "--dataset", photos, *ASKED, "--arms-parallel", "--num-processes", 2)
    outcome = vit(*words, "--out", tmp_path / "all", env={"OMP_NUM_THREADS": "1"}, timeout=300)

    assert outcome.returncode == 0, outcome.stderr
    assert untimed(json.loads(outcome.stdout)) == untimed(summary)
    assert weights_of(tmp_path / "all") == weights_of(selected)


@pytest.mark.slow
def test_a_run_that_no_worker_can_make_is_reported_once(photos, tmp_path):
    (tmp_path / "all/runs/seed-1").mkdir(parents=True)
    (tmp_path / "all/.vit.lock").touch()
    (tmp_path / "all/runs/seed-1/mine.txt").write_text("precious")
    words = (*BASE, "--dataset", photos, "--lr", 0.02, "--set", "train.runs=2")
    words += ("--steps", 2, "--batch-size", 8, "--arms-parallel", "--num-processes", 2)
    outcome = vit(*words, "--out", tmp_path / "all", timeout=300)

    assert outcome.returncode == 2 and "mine.txt" in json.loads(outcome.stdout)["error"]["message"]
    assert (tmp_path / "all/runs/seed-1/mine.txt").read_text() == "precious"
    assert (tmp_path / "all/runs/seed-0/summary.json").exists()  # which is not trained again


@pytest.mark.slow
def test_two_processes_choose_and_score_the_same(photos, summary, tmp_path):
    words = (*BASE, "--dataset", photos, *ASKED, "--num-processes", 2)
    outcome = vit(*words, "--out", tmp_path / "all", timeout=300)

    assert outcome.returncode == 0, outcome.stderr
    told = json.loads(outcome.stdout)
    assert told["chosen"] == summary["chosen"] and told["num_processes"] == 2
    assert [one["loss"] for one in told["runs"]] == pytest.approx(
        [one["loss"] for one in summary["runs"]], rel=1e-4
    )


def test_an_arm_keeps_no_weights_and_names_the_sweep_that_does(selected, photos):
    refused = run("evaluate", "--ckpt", selected / "arms/lr-0.0001", "--dataset", photos, "-q")

    assert refused.code == 4 and f"keeps no weights: name the sweep, {selected.name}" in refused.err


def test_runs_side_by_side_are_each_on_a_gpu_of_its_own_among_those_that_may_be_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7,GPU-8932f937")
    assert [workers._device(number) for number in range(3)] == ["5", "7", "GPU-8932f937"]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [workers._device(number) for number in range(3)] == ["0", "1", "2"]


def test_a_worker_that_ended_with_an_error_is_told_of_with_the_end_of_its_output(tmp_path, monkeypatch):
    codes = iter([0, 3, -9])

    def start(*_, number=None, folder, **__):
        (folder / "2.err").write_text("\n".join(["one", "two", "  three", "four"]) + "\n\n")
        (folder / "3.err").write_text("")
        code = next(codes)
        return SimpleNamespace(wait=lambda: code, poll=lambda: code, returncode=code)

    told, options = [], SimpleNamespace(arms_parallel=4)
    monkeypatch.setattr(workers, "_start", lambda *words, **more: start(*words, **more))
    with workers.beside("finetune", None, options, tmp_path, SimpleNamespace(note=told.append)):
        pass

    beginning, *failed = told
    assert beginning == "4 workers, one per device"
    said = [("3", 3, "two | three | four"), ("4", -9, "nothing")]
    assert failed == [f"note: worker {number} ended with code {code}: {end}" for number, code, end in said]


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize(("cores", "parallel", "threads"), [(8, 3, "2"), (2, 4, "1")])
def test_runs_side_by_side_share_the_cores_and_have_the_options_of_the_sweep(
    monkeypatch, tmp_path, cores, parallel, threads, has_gpu
):
    started = []
    monkeypatch.setattr(workers.launch, "cpu_count", lambda: cores)
    monkeypatch.setattr(workers.torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(workers.subprocess, "Popen", lambda words, **how: started.append((words, how)))
    switches = dict(exact=True, shard=False, compile=False, quiet=True, arguments=())
    options = RunOptions(per_device_batch=4, workers=None, arms_parallel=parallel, **switches)
    small = recipe.load("finetune/default", (), {"model.ckpt": "demo", "data.dataset": "demo"})

    workers._start("finetune", small, options, tmp_path / "all", 1, folder=tmp_path)

    ((words, how),) = started
    assert how["env"]["OMP_NUM_THREADS"] == threads
    file = tmp_path / "1.toml"
    given = ["finetune", "--recipe", file, "--out", tmp_path / "all", "--quiet", "--arms-parallel"]
    given += ["--num-processes", parallel, "--per-device-batch", 4]
    asked = ["--workers", threads, "--exact", "--no-compile"]
    assert words[-len(given) - len(asked) :] == [*map(str, given), *asked]
    assert file.read_text() == recipe.to_toml(small) and how["start_new_session"]
