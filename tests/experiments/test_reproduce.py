"""`vit reproduce`: the protocol on small data, the verdict by exit code, costs, what is refused."""

import json
import os
import re
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace

import pyarrow.parquet
import pytest

from tests.conftest import locked, run
from vitcli import recipe as recipes
from vitcli.experiments import reproduce
from vitcli.experiments.reproduce import resolve
from vitcli.experiments.reproduce_rows import find_row, read_rows

CIFAR = "table5/b16-in21k/cifar10"
ROWS_FILE = """
[shared]
set = {{ "train.runs" = 2 }}

[tasks.colours]
recipe = "finetune/default"
dataset = "{photos}"
test_examples = 10

[tasks.colours-real]
recipe = "finetune/default"
dataset = "{photos}"
labels = "real"

[columns.mine]
about = "two colours"
model = "ViT-demo/8"
ckpt = "demo"
published = {{ colours = {published}, colours-real = 99.0 }}

[columns.mine.set]
"data.image_size" = 16
"data.train_crop" = "none"
"optimizer.lr" = 0.1
"schedule.steps" = 2
"train.batch_size" = 8
"""


def rows_file(path: Path, photos: Path, published: object) -> Path:
    path.write_text(ROWS_FILE.format(photos=photos, published=published))
    return path


@pytest.fixture(scope="module")
def small(photos, tmp_path_factory) -> tuple[Path, Path, dict]:
    """A row of two colours, reproduced once: the file of rows, the run folder, the result."""
    folder = tmp_path_factory.mktemp("reproduce")
    rows, out = rows_file(folder / "rows.toml", photos, [60.0, 5.0]), folder / "out"
    outcome = run("reproduce", "mine/colours", "--rows", rows, "--out", out, "--json", "--quiet")
    assert outcome.code in (0, 8), outcome.err
    return rows, out, outcome.json


def times_of(out: Path) -> dict[str, str]:
    """Of each run, its steps' times: they grow or change if anything is trained again."""
    return {str(file): file.read_text() for file in sorted(out.rglob("timing.jsonl"))}


def test_ours_is_the_mean_of_the_runs_that_lie_in_the_folder(small):
    _, out, told = small
    runs = [json.loads((out / f"runs/seed-{seed}/summary.json").read_text()) for seed in (0, 1)]
    accuracies = [one["top1"] for one in runs]

    assert told["ours"]["mean"] == pytest.approx(fmean(accuracies))
    assert told["ours"]["std"] == pytest.approx(stdev(accuracies))
    assert told["ours"]["runs"] == [{"seed": seed, "top1": top1} for seed, top1 in enumerate(accuracies)]
    assert told["published"] == {"mean": 0.6, "std": 0.05}
    assert told["difference"] == pytest.approx(fmean(accuracies) - 0.6)
    assert told["z"] == pytest.approx(told["difference"] / told["standard_error"])
    assert (told["num_test_examples"], told["row"], told["run_dir"]) == (10, "mine/colours", str(out))
    assert told["lr"] == 0.1
    written = json.loads((out / "reproduce.json").read_text())
    assert written == {key: value for key, value in told.items() if key != "error"}


@pytest.mark.parametrize(("off", "code"), [(0.0, 0), (10.0, 8), (-10.0, 8)])
def test_a_published_value_ten_points_off_ends_with_exit_8(tmp_path, off, code):
    out = finished(tmp_path, CIFAR, [0.80, 0.801, 0.799], 10_000)
    text = recipes.catalog.paper_tables().read_text()
    altered = tmp_path / "rows.toml"
    altered.write_text(text.replace("cifar10 = 98.95\n", f"cifar10 = {80 + off}\n"))

    words = ("reproduce", CIFAR, "--rows", altered, "--out", out, "--quiet")
    outcome, as_json = run(*words), run(*words, "--json")

    assert (outcome.code, as_json.code) == (code, code), outcome.err + outcome.out
    assert f"{off and -off:+.2f} points" in outcome.out
    assert as_json.json["verdict"] == ("reproduced" if code == 0 else "not reproduced")
    if code:
        lines = outcome.err.strip().splitlines()
        assert lines[0].startswith(f"error: {CIFAR} is not reproduced: 80.00% against {80 + off:.2f}%")
        assert lines[1].startswith("  where: ") and lines[2].startswith("  fix:   ")
        assert (
            set(as_json.json["error"]) == {"message", "where", "fix", "code", "command"} and as_json.err == ""
        )
    else:
        assert outcome.err == "" and "error" not in as_json.json


def test_the_same_command_again_trains_nothing(small):
    rows, out, told = small
    before = times_of(out)

    again = run("reproduce", "mine/colours", "--rows", rows, "--out", out, "--json", "--quiet")

    assert again.json == told and times_of(out) == before and len(before) == 3  # both runs, the whole


def test_a_folder_in_which_another_process_reproduces_a_row_is_refused(small):
    rows, out, _ = small
    before = times_of(out)
    with locked(out / ".vit-reproduce.lock"):
        refused = run("reproduce", "mine/colours", "--rows", rows, "--out", out, "--json", "--quiet")

    assert (
        refused.code == 5
        and "another reproduction is writing this folder: pid 1" in refused.json["error"]["message"]
    )
    assert times_of(out) == before


def test_real_labels_score_the_runs_that_are_there(small, photos, tmp_path):
    """Of lists that call two red pictures green and leave one out, counted by hand in saved predictions."""
    rows, out, _ = small
    before, lists = times_of(out), [[0]] * 5 + [[1]] * 2 + [[0]] * 2 + [[]]
    real = tmp_path / "real.json"
    real.write_text(json.dumps(lists))
    words = ("reproduce", "mine/colours-real", "--rows", rows, "--out", out, "--real", real)

    scored = run(*words, "--json", "--quiet").json

    for seed, found in enumerate(scored["ours"]["runs"]):
        ckpt = out / f"runs/seed-{seed}"
        asked = ("--ckpt", ckpt, "--dataset", photos, "--save-predictions", tmp_path / f"{seed}.parquet")
        assert run("evaluate", *asked, "--quiet").code == 0
        table = pyarrow.parquet.read_table(tmp_path / f"{seed}.parquet").to_pydict()
        right = [top[0] in lists[row] for row, top in zip(table["row"], table["top_classes"], strict=True)]
        assert found == {"seed": seed, "top1": pytest.approx(sum(right) / 9)}
        assert sum(right) < 9
    assert (scored["labels"], scored["num_test_examples"]) == ("real", 9)
    assert times_of(out) == before
    assert json.loads((out / "reproduce.json").read_text())["row"] == "mine/colours"
    assert json.loads((out / "reproduce-real.json").read_text())["row"] == "mine/colours-real"


def finished(folder: Path, row_name: str, accuracies: list[float], num_examples: int) -> Path:
    """A folder as a finished selection of the row leaves it, with accuracies of our choice."""
    row = find_row(read_rows(None), row_name, scale=None, ckpt=None)
    (recipe,) = resolve(row, precision=None).values()
    return write_finished(folder / "out", recipe, accuracies, num_examples)


def write_finished(out: Path, recipe: recipes.Recipe, accuracies: list[float], num_examples: int) -> Path:
    out.mkdir(parents=True)
    (out / "recipe.toml").write_text(recipes.to_toml(recipe))
    (out / "model.safetensors").write_bytes(b"")
    summary = {
        "top1": fmean(accuracies),
        "top1_std": stdev(accuracies),
        "runs": [{"seed": seed, "top1": top1} for seed, top1 in enumerate(accuracies)],
        "num_eval_examples": num_examples,
        "lr": 0.03,
        "elapsed_s": 1.0,
        **dict(command="finetune", model="ViT-B/16", dataset="cifar10", resolution=384),
        **dict(steps=10_000, batch_size=512),
    }
    (out / "summary.json").write_text(json.dumps(summary))
    return out


def test_part_of_the_test_set_is_no_reproduction(tmp_path):
    out = finished(tmp_path, CIFAR, [0.9895, 0.9894, 0.9896], 9_728)

    outcome = run("reproduce", CIFAR, "--out", out, "--quiet")

    assert outcome.code == 8 and "9,728 images were scored" in outcome.err
    assert "other test set" in outcome.out


def test_vtab_is_the_mean_over_tasks_run_by_run(tmp_path):
    row = find_row(read_rows(None), "table2/l16-in21k/vtab", scale=None, ckpt=None)
    out = tmp_path / "vtab"
    for number, (task, recipe) in enumerate(resolve(row, precision=None).items()):
        write_finished(out / task, recipe, [0.6 + number / 100, 0.7 + number / 100, 0.8 + number / 100], 100)

    told = run("reproduce", row.name, "--out", out, "--json", "--quiet").json

    # (0 + 1 + ... + 18) / 19 / 100 = 0.09 above the first task
    assert [one["top1"] for one in told["ours"]["runs"]] == pytest.approx([0.69, 0.79, 0.89])
    assert told["ours"]["std"] == pytest.approx(0.1)
    assert told["num_test_examples"] == 1900
    assert told["elapsed_s"] == 19.0  # of 19 tasks
    variance = sum((0.7 + n / 100) * (0.3 - n / 100) / 100 for n in range(19))
    assert told["standard_error_parts"]["test_set"] == pytest.approx(variance**0.5 / 19)


def test_released_weights_are_scored_as_they_are(photos, small, tmp_path):
    """The protocol of Noisy Student's column, on a run of ours: nothing is trained."""
    _, out, told = small
    rows = rows_file(tmp_path / "rows.toml", photos, 60.0)
    text = rows.read_text().partition("[columns.mine.set]")[0]
    text = text.replace('ckpt = "demo"', f'protocol = "evaluate"\nckpt = "{out / "runs/seed-0"}"')
    rows.write_text(text)

    scored = run("reproduce", "mine/colours", "--rows", rows, "--out", tmp_path / "o", "--json", "--quiet")

    assert scored.json["ours"]["mean"] == told["ours"]["runs"][0]["top1"]
    assert (scored.json["ours"]["n"], scored.json["ours"]["std"]) == (1, None)
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["reproduce.json"]


def test_a_dry_run_counts_by_hand_and_touches_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIT_DATA", raising=False)

    told = run("reproduce", CIFAR, "--dry-run", "--json").json
    text = run("reproduce", CIFAR, "--dry-run").out

    # 4 rates and 3 runs of 10,000 steps of 512; ViT-B/16 at 384 has 55.484 GMACs (paper.md, 1.2)
    assert (told["arms"], told["runs"], told["trainings"], told["steps"]) == (4, 3, 7, 10_000)
    assert told["images_seen"] == 7 * 10_000 * 512
    assert told["exaflops"] == pytest.approx(6 * 55.484e9 * 35.84e6 / 1e18, rel=1e-4)
    assert told["hours"] is None and "no copy of cifar10" in told["not_measured"]
    assert "lr = [0.001, 0.003, 0.01, 0.03]" in told["recipe"]
    assert "[optimizer]" not in text and "--dry-run --json" in text.splitlines()[-1]
    assert "35,840,000" in text and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("row", "trainings", "images", "gmacs"),
    [  # paper.md, 1.2 and 3.1: L/16 at 512 and 384, H/14 at 378
        ("table2/l16-in21k/imagenet-real", 7, 7 * 20_000 * 512, 361.985),
        ("table2/l16-in21k/vtab", 57, 57 * 2_500 * 512, 191.065),
        ("table5/h14-in21k/pets", 7, 7 * 500 * 512, 503.48),
    ],
)
def test_the_cost_of_other_rows(row, trainings, images, gmacs):
    told = run("reproduce", row, "--dry-run", "--json", "--quiet").json

    assert (told["trainings"], told["images_seen"]) == (trainings, images)
    assert told["exaflops"] == pytest.approx(6 * gmacs * 1e9 * images / 1e18, rel=1e-4)


@pytest.mark.parametrize("ckpt", ["demo", "timm/vit_that_is_elsewhere.tag"])
def test_a_dry_run_takes_the_image_size_of_weights_that_are_here(photos, tmp_path, ckpt):
    rows = rows_file(tmp_path / "rows.toml", photos, 60.0)
    rows.write_text(rows.read_text().replace('"data.image_size" = 16\n', "").replace('"demo"', f'"{ckpt}"'))
    words = ("reproduce", "mine/colours", "--rows", rows, "--dry-run")

    plan, text = run(*words, "--json", "--quiet").json, run(*words).out

    assert plan["images_seen"] == 2 * 8 * 2
    if ckpt == "demo":
        assert "image_size = 64" in plan["recipe"] and plan["exaflops"] > 0
    else:
        assert 'image_size = "weights"' in plan["recipe"] and plan["exaflops"] is None
        assert "the image size of the weights, which are not on this machine" in " ".join(text.split())


def test_a_dry_run_of_weights_as_they_are_trains_nothing():
    told = run("reproduce", "table2/noisy-student/imagenet", "--dry-run", "--json", "--quiet").json

    assert (told["trainings"], told["exaflops"], told["recipe"]) == (0, 0, None)


def test_hours_are_those_of_ten_steps_times_the_protocol(small, tmp_path):
    rows, _, _ = small

    told = run("reproduce", "mine/colours", "--rows", rows, "--dry-run", "--json", "--quiet").json

    assert told["images_seen"] == 2 * 2 * 8  # runs, steps, images
    assert told["hours"] == pytest.approx(32 / told["measured_images_per_s"] / 3600)
    assert told["not_measured"] is None


def test_the_list_has_every_row_and_whether_its_weights_are_public(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    everything = run("reproduce", "--list", "--json").json["rows"]
    text = run("reproduce", "--list", "table2/*").out
    some = run("reproduce", "--list", "B16-IN21K", "--json").json["rows"]

    assert len(everything) == 119 and len(some) == 6
    assert sum(row["released"] for row in everything) == 7 + 2 + 5 * 6 + 5
    assert re.search(r"table2/l16-in21k/vtab +72\.72 ± 0\.21 +public +ViT-L/16, ImageNet-21k", text)
    assert re.search(r"table2/h14-jft/imagenet +88\.55 ± 0\.04 +unreleased", text)
    assert len(text.splitlines()) == 31


REFUSED = {
    "no row": ("reproduce --scale demo", 2, "--list"),
    "a mistyped row": ("reproduce table5/b16-in21k/cifra10", 2, "did you mean 'table5/b16-in21k/cifar10'"),
    "JFT": ("reproduce table5/l16-jft/pets", 2, "never released"),
    "JFT on a small scale": ("reproduce table2/h14-jft/vtab --scale demo", 2, "table2/l16-in21k/vtab"),
    "an unknown scale": (f"reproduce {CIFAR} --scale dmeo", 2, "did you mean 'demo'"),
    "no ReaL labels": ("reproduce table2/l16-in21k/imagenet-real", 2, "--real"),
    "ReaL labels of nothing": (f"reproduce {CIFAR} --real {{tmp}}/file", 2, "not scored by ReaL"),
    "ReaL labels that are none": (
        "reproduce table5/b16-in21k/imagenet-real --real {tmp}/file",
        3,
        "not JSON",
    ),
    "ReaL labels that are not there": (
        "reproduce table5/b16-in21k/imagenet-real --real {tmp}/none",
        3,
        "no file",
    ),
    "no rows": (f"reproduce {CIFAR} --rows {{tmp}}/none.toml", 2, "no file"),
    "rows that are not TOML": (f"reproduce {CIFAR} --rows {{photos}}/train/red/00.png", 2, "not TOML"),
    "a pattern of nothing": ("reproduce --list table9", 2, "no row matches"),
    "measuring without a dry run": (f"reproduce {CIFAR} --measure", 2, "--dry-run"),
    "an empty checkpoint": (f"reproduce {CIFAR} --ckpt= ", 2, "empty"),
    "weights of one's own on a small scale": (f"reproduce {CIFAR} --scale demo --ckpt demo", 2, "--ckpt"),
    "an unknown precision": (f"reproduce {CIFAR} --precision fp8", 2, "fp8"),
    "an alias that is not here": (
        "reproduce table5/b16-in21k/pets --ckpt demo --out {tmp}/out",
        3,
        "timm/oxford-iiit-pet",
    ),
    "a folder of something else": (f"reproduce {CIFAR} --scale demo --out {{photos}}", 2, "other files"),
    "a part that does not split": (f"reproduce {CIFAR} --scale demo --per-device-batch x", 2, "auto"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_done_gets_its_exit_code_and_three_lines(kind, photos, tmp_path, monkeypatch):
    words, code, said = REFUSED[kind]
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIT_DATA", raising=False)
    (tmp_path / "file").write_text("")

    outcome = run(*words.format(tmp=tmp_path, photos=photos).split(), "--quiet")

    assert outcome.code == code and said in outcome.err, outcome.err
    lines = outcome.err.strip().splitlines()
    assert [line[:7] for line in lines] == ["error: ", "  where", "  fix: "] and outcome.out == ""
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "out"}  # the latter is the run's own


def test_the_shell_completes_rows():
    from vitcli.cli.complete import rows

    assert rows("table5/b32-in21k/c") == ["table5/b32-in21k/cifar10", "table5/b32-in21k/cifar100"]


@pytest.mark.slow
@pytest.mark.parametrize("row", [CIFAR, "table2/l16-in21k/imagenet-real"])
def test_the_demo_scale_passes_and_fails_by_ten_points(tmp_path, row):
    """The whole protocol for real: four rates, three runs, a verdict; then another value of the same runs."""
    words = ("reproduce", row, "--scale", "demo", "--out", tmp_path / "out", "--json", "--quiet")
    passed = run(*words)
    assert passed.code == 0 and passed.json["verdict"] == "reproduced"
    assert passed.json["ours"]["n"] == 3 and 0.80 < passed.json["ours"]["mean"] < 0.95

    text = recipes.catalog.paper_tables().read_text()
    for points in (10, -10):
        file = tmp_path / "rows.toml"
        before, value, after = re.split(r"published = \[([\d.]+)(?=, [\d.]+\]\n\[scales.demo.set\])", text)
        file.write_text(f"{before}published = [{float(value) + points}{after}")

        failed = run(*words, "--rows", file)

        assert failed.code == 8 and failed.json["verdict"] == "not reproduced"
        assert failed.json["ours"] == passed.json["ours"]


@pytest.mark.slow
def test_two_processes_reproduce_what_one_does(small, photos, tmp_path):
    from tests.conftest import vit

    rows, _, told = small
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    words = ("reproduce", "mine/colours", "--rows", rows, "--out", tmp_path / "out", "--num-processes", 2)
    outcome = vit(*words, "--json", "--quiet", env=env)

    assert outcome.returncode in (0, 8), outcome.stderr
    assert json.loads(outcome.stdout)["ours"]["mean"] == pytest.approx(told["ours"]["mean"])


def test_the_time_of_runs_scored_by_other_labels_is_that_of_training_and_scoring(tmp_path):
    for seed in (3, 4):
        (tmp_path / f"runs/seed-{seed}").mkdir(parents=True)
    trained = {"runs": [{"seed": 3}, {"seed": 4}], "lr": 0.1, "elapsed_s": 100.0}
    scores = {"seed-3": 0.8, "seed-4": 0.9}

    def evaluate(folder: str) -> dict:
        return {"real_top1": scores[Path(folder).name], "num_real_examples": 10, "elapsed_s": 7.0}

    row, options = SimpleNamespace(labels="real"), SimpleNamespace(out=tmp_path)
    result = reproduce._finetuned(row, None, options, lambda *_: trained, evaluate)

    assert result["elapsed_s"] == 114.0 and result["lr"] == 0.1
    assert result["runs"] == [{"seed": 3, "top1": 0.8}, {"seed": 4, "top1": 0.9}]
    assert result["scored"] == [(pytest.approx(0.85), 10)]
