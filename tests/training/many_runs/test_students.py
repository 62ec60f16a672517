"""`vit distill`: two students, of which the dev split chooses, in one folder that is a run."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.conftest import Outcome, run
from vitcli import load_model
from vitcli.conversion import fastest
from vitcli.data.dataset import DataSet
from vitcli.data.seen_images import SeenImages
from vitcli.output.run_folder import WEIGHTS
from vitcli.report.runs import read_run
from vitcli.training.many_runs.average import DevScore
from vitcli.training.many_runs.students import is_not_worse
from vitcli.weights.io import read_weights

# Random crops of two colours: what a teacher says of them is all that a student knows of the classes.
WORDS = ("--res", 24, "--steps", 8, "--batch-size", 8, "--lr", 0.05, "--quiet", "--json", "--precision",
         "fp32", "--set", "data.dev_fraction=0.3", "--set", "train.save_every=2")  # fmt: skip


def distilled(teacher: Path, photos: Path, out: Path, *more: object) -> Outcome:
    return run("distill", "--teacher", teacher, "--dataset", photos, "--out", out, *WORDS, *more)


def sha256_of(folder: Path) -> str:
    return hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def students(photos, plain_run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("students") / "all"
    outcome = distilled(plain_run, photos, path, "--ckpt", "random", "--model", "ViT-demo/8", "--set",
                        "model.layers=1")  # fmt: skip
    assert outcome.code == 0, outcome.err + outcome.out
    return path


def test_the_folder_is_the_run_of_the_better_student(students, plain_run):
    summary = json.loads((students / "summary.json").read_text())
    record = summary["distill"]
    arms = {name: json.loads((students / "arms" / name / "summary.json").read_text())
            for name in ("baseline", "distilled")}  # fmt: skip

    assert sha256_of(students) == sha256_of(students / "arms" / record["delivered"])
    assert summary["top1"] == arms[record["delivered"]]["top1"]
    assert record["teacher"] == [str(plain_run)]
    assert record["teacher_top1"] == json.loads((plain_run / "summary.json").read_text())["top1"]
    assert summary["elapsed_s"] == sum(arm["elapsed_s"] for arm in arms.values())
    model = load_model(str(students))
    assert model is not None


def test_both_students_leave_the_dev_split_out_and_see_the_same_images(students):
    record = json.loads((students / "summary.json").read_text())["distill"]
    for name in ("baseline", "distilled"):
        summary = json.loads((students / "arms" / name / "summary.json").read_text())
        assert summary["num_train_examples"] + record["num_dev_examples"] == 24
        assert record[name]["top1"] == summary["top1"]
        assert name == "baseline" or "--folds" not in str(summary["findings"]["advice"])
    texts = [(students / "arms" / name / "recipe.toml").read_text() for name in ("baseline", "distilled")]
    assert "[distill]" not in texts[0] and "[distill]" in texts[1]


def test_images_that_its_teacher_was_trained_on_count_as_seen(photos, plain_run, tmp_path):
    words = (
        "--set",
        "distill.compare=false",
        "--set",
        "data.train_split=test",
        "--set",
        "data.eval_split=train",
    )
    outcome = distilled(plain_run, photos, tmp_path / "out", "--ckpt", "random", "--model", "ViT-demo/8",
                        "--set", "model.layers=1", *words, "--steps", 1)  # fmt: skip

    assert outcome.json["num_held_out_seen"] == 24
    seen = SeenImages.of(read_weights(str(tmp_path / "out"), quiet=True).metadata)
    assert seen.num_trained_on(DataSet(str(photos)).open("train")) == 24


def test_a_student_is_found_beside_its_teacher_from_any_folder(students, plain_run, tmp_path):
    """Its recipe names the teacher as it was typed, from another folder."""
    environment = json.loads((students / "environment.json").read_text())
    assert environment["teacher_paths"] == [str(plain_run)]
    shutil.copytree(plain_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    student = tmp_path / "student"
    student.mkdir()
    for name in ("recipe.toml", WEIGHTS):
        shutil.copy(students / name, student)
    recipe = (student / "recipe.toml").read_text().replace(str(plain_run), "run")
    (student / "recipe.toml").write_text(recipe)
    (student / "environment.json").write_text(json.dumps({"teacher_paths": [str(tmp_path / "run")]}))

    assert fastest._distilled_from(str(tmp_path / "run")) == [student]


@pytest.mark.parametrize(
    ("num_right", "loss", "p", "expected"),
    [
        (8, 0.5, 1.0, True),
        (8, 0.9, 1.0, True),
        (7, 0.4, 0.3, True),
        (7, 0.6, 0.3, False),
        (7, 0.4, 0.01, False),
    ],
)
def test_fewer_right_images_than_the_baseline_need_a_smaller_loss(num_right, loss, p, expected):
    baseline = DevScore(np.arange(10) < 8, 0.5)
    assert is_not_worse(DevScore(np.arange(10) < num_right, loss), baseline, mcnemar_p=p) is expected


def test_a_report_draws_the_curve_of_the_student_that_is_delivered(students):
    drawn, name = (
        read_run(students),
        json.loads((students / "summary.json").read_text())["distill"]["delivered"],
    )

    assert drawn.losses == read_run(students / "arms" / name).losses and len(drawn.losses) == 1


def test_the_student_of_a_teacher_that_is_wrong_is_not_delivered(photos, plain_run, tmp_path):
    liar = shutil.copytree(plain_run, tmp_path / "liar")
    shutil.rmtree(liar / "checkpoints")
    state = {name: tensor.clone() for name, tensor in load_file(liar / WEIGHTS).items()}
    for name in ("head.weight", "head.bias"):
        state[name] = state[name].flip(0) * 5  # sure of the other class
    with safe_open(liar / WEIGHTS, "pt") as file:
        metadata = file.metadata()
    metadata.pop("checksum", None)
    save_file(state, liar / WEIGHTS, metadata)

    outcome = distilled(liar, photos, tmp_path / "out", "--ckpt", plain_run, "--set", "model.head=keep")

    assert outcome.code == 0, outcome.err + outcome.out
    record = outcome.json["distill"]
    assert (
        record["delivered"] == "baseline" and record["baseline"]["dev_top1"] > record["distilled"]["dev_top1"]
    )
    assert sha256_of(tmp_path / "out") == sha256_of(tmp_path / "out/arms/baseline")


def test_a_student_starts_from_its_teacher_and_on_its_data_as_finetune_does(photos, plain_run, tmp_path):
    outcome = run("distill", "--teacher", plain_run, "--out", tmp_path / "out", *WORDS, "--dry-run")

    assert outcome.code == 0, outcome.err + outcome.out
    recipe = outcome.json["recipe"]
    for line in (f'ckpt = "{plain_run}"', 'head = "refit"', f'dataset = "{photos}"', "image_size = 24"):
        assert line in recipe, recipe
    assert outcome.json["num_runs"] == 2


@pytest.mark.parametrize("words", [(), ("--dataset",)])
def test_a_student_holds_out_what_its_teacher_did(photos, tmp_path, words):
    """So images that neither was trained on can judge both."""
    short = ("--steps", 2, "--batch-size", 8, "--quiet", "--set", "data.eval_split=dev_fraction")
    of_teacher = ("--set", "data.dev_fraction=0.6", "--set", "data.dev_stratified=true")
    run("finetune", "--ckpt", "demo", "--dataset", photos, *short, *of_teacher, "--out", tmp_path / "teacher")
    more = (*words, photos) if words else ()
    run("distill", "--teacher", tmp_path / "teacher", *more, *short, "--out", tmp_path / "student",
        "--set", "distill.compare=false")  # fmt: skip

    seen, held_out = (
        SeenImages.of(read_weights(str(tmp_path / name), quiet=True).metadata)
        for name in ("student", "teacher")
    )
    assert not np.isin(held_out.held_out, seen.ever_trained_on).any() and len(held_out.held_out) > 3


def test_a_student_may_have_the_first_layers_of_a_checkpoint(photos, plain_run, tmp_path):
    words = ("finetune", "--recipe", "finetune/default", "--ckpt", "demo", "--dataset", photos, "--json",
             "-q", "--steps", 1, "--batch-size", 4, "--res", 16, "--out")  # fmt: skip
    outcome = run(*words, tmp_path / "short", "--set", "model.layers=2", "--lr", 1e-9)

    assert outcome.code == 0, outcome.err + outcome.out
    short, whole = (read_weights(str(name), quiet=True) for name in (tmp_path / "short", "demo"))
    assert short.architecture.model_args["depth"] == 2 < whole.architecture.model_args["depth"]
    blocks = {name for name in short.state if name.startswith("blocks.")}
    assert blocks == {name for name in whole.state if name.startswith(("blocks.0.", "blocks.1."))}
    assert all(torch.allclose(short.state[name], whole.state[name], atol=1e-6) for name in blocks)
    refused = run(*words, tmp_path / "none", "--set", "model.layers=99")
    assert refused.code == 4 and "blocks to keep, not 99" in refused.json["error"]["message"]


def test_a_finished_folder_is_not_trained_again(students, photos, plain_run):
    before = sha256_of(students)
    outcome = distilled(plain_run, photos, students, "--ckpt", "random", "--model", "ViT-demo/8", "--set",
                        "model.layers=1")  # fmt: skip
    assert outcome.code == 0 and sha256_of(students) == before


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        ((), 2, "name a checkpoint or an .onnx file"),
        (("--teacher", "nowhere"), 4, "no file, folder or known weights called 'nowhere'"),
        (("--teacher", "nowhere.onnx", "--ckpt", "demo"), 2, "there is no nowhere.onnx"),
        (("--teacher", "demo", "--runs", 2), 2, "makes two runs"),
        (("--teacher", "demo", "--set", "distill.images=nowhere"), 3, "no image found in 'nowhere'"),
        (("--teacher", "demo", "--lr", "0.1,0.2"), 2, "lists values to choose from"),
        (
            ("--teacher", "demo", "--set", "data.randaugment=[2,9]", "--res", 32),
            2,
            "depends on the image size",
        ),
    ],
    ids=str,
)
def test_what_is_typed_wrong_is_refused(photos, tmp_path, words, code, what):
    outcome = run("distill", *words, "--dataset", photos, "--out", tmp_path / "out", "--json", "-q")

    error = outcome.json["error"]
    assert outcome.code == code and what in error["message"], outcome.out
    assert "--runs" not in words or "--runs" in error["where"]
    assert not (tmp_path / "out").exists()
