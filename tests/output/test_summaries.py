"""Each command writes an object whose keys and values are those of the model that a report reads it with."""

import json
from pathlib import Path

import pytest

from tests.conftest import run
from tests.training.test_finetune import SMALL
from vitcli.experiments import vtab
from vitcli.output import summaries

SHORT = ("--batch-size", 8, "--per-device-batch", 8, "--steps", 2, "--set", "schedule.warmup=1", "--quiet")
FINETUNE = (*(word for word in SMALL if word not in ("--lr", "0.02")), *SHORT)
OBJECTIVE = ("loss=masked_patch", "patch_target=mean_color", "corrupted=0.5", "masked=0.8", "replaced=0.1")
PATCHES = [word for item in OBJECTIVE for word in ("--set", f"objective.{item}")]
PROBE = ("--set", "eval.probe=demo", "--set", "eval.probe_shots=2")


@pytest.fixture(scope="module")
def written(photos, tmp_path_factory):
    """Run a command on the photos; return the object it wrote."""
    folder = tmp_path_factory.mktemp("written")

    def written_by(*words: object, file: str = "summary.json") -> dict:
        out = folder / str(len(list(folder.iterdir())))
        outcome = run(*words, "--out", out)
        assert outcome.code == 0, outcome.err
        return json.loads((out / file).read_text())

    return written_by


def assert_is(model: type[summaries.FileModel], values: dict) -> None:
    """The keys are those of the model, and what is read is what was written, in every field."""
    assert model.written(values) is values
    read = model.model_validate_json(json.dumps(values))
    assert read.model_dump(exclude_unset=True, mode="json") == only_read(model, values)


def only_read(model: type[summaries.FileModel], values: dict) -> dict:
    """The values without the keys that no report reads, in the objects inside as well."""
    inner = {"runs": summaries.RunScores, "fewshot": summaries.Probe, "shots": summaries.ShotScores,
             "tasks": summaries.VtabTask, "resolutions": summaries.ResolutionScore}  # fmt: skip
    kept = {}
    for name, value in values.items():
        if name not in model.model_fields:
            continue
        part = inner.get(name)
        if isinstance(value, list) and value and isinstance(value[0], dict) and part:
            value = [checked(part, item) for item in value]
        elif isinstance(value, dict) and part is summaries.Probe:
            value = checked(part, value)
        elif isinstance(value, dict) and part:
            value = {key: checked(part, item) for key, item in value.items()}
        kept[name] = value
    return kept


def checked(model: type[summaries.FileModel], values: dict) -> dict:
    return only_read(model, model.written(values))


def test_a_fine_tuning_run_with_a_probe(written, photos):
    summary = written(*FINETUNE, "--dataset", photos, "--lr", 0.02, *PROBE)

    assert_is(summaries.TrainingSummary, summary)
    assert summary["fewshot"]["shots"] == 2


@pytest.mark.slow
def test_a_sweep_with_two_runs(written, photos):
    more = ("--lr", "0.01,0.02", "--set", "data.dev_fraction=0.25", "--set", "train.runs=2")
    summary = written(*FINETUNE, "--dataset", photos, *more)

    assert_is(summaries.TrainingSummary, summary)
    assert len(summary["runs"]) == len(summary["choices"]) == 2


@pytest.mark.slow
def test_a_pre_training_run_on_masked_patches(written, photos):
    model = ("--model", "ViT-demo/8", "--set", "model.layers=1", "--res", 16, "--set", "eval.batch_size=8")
    summary = written("pretrain", "--recipe", "pretrain/demo", *model, "--dataset", photos, *SHORT, *PATCHES)

    assert_is(summaries.TrainingSummary, summary)
    assert summary["patch_accuracy"] is not None and "top1" not in summary


def test_a_few_shot_run(written, photos):
    words = ("fewshot", "--ckpt", "demo", "--dataset", photos, "--shots", "1,3", "--seeds", 2, "--quiet")

    assert_is(summaries.FewshotSummary, written(*words))


@pytest.mark.parametrize("more", [(), ("--res", "48x64", "--assert", "top1>=0")])
def test_an_evaluation(written, more):
    words = ("evaluate", "--ckpt", "demo", "--dataset", "demo:pretrain", "--split", "test[:48]", "--quiet")

    assert_is(summaries.Evaluation, written(*words, *more, file="evaluation.json"))


@pytest.mark.slow
def test_two_evaluations(written):
    words = (
        "evaluate",
        "--ckpt",
        "demo",
        "--ckpt",
        "demo",
        "--dataset",
        "demo:pretrain",
        "--split",
        "test[:48]",
        "--quiet",
    )
    both = written(*words, file="evaluation.json")

    for evaluation in both["evaluations"]:
        assert_is(summaries.Evaluation, evaluation)
    assert len(summaries.Evaluations.model_validate_json(json.dumps(both)).evaluations) == 2


def test_the_tasks_of_vtab():
    done = {"svhn": {"top1": 0.5, "num_eval_examples": 10}}
    summary = vtab._result("finetune", {"svhn": "structured", "dtd": "natural"}, done, Path("out"))

    assert_is(summaries.VtabSummary, summary)
    assert summary["tasks"]["dtd"]["top1"] is None


@pytest.mark.parametrize("change", [lambda s: s.pop("runs"), lambda s: s.update(topp1=0.5)])
def test_a_key_that_is_missing_or_unknown_is_an_error_of_ours(change):
    scores = {"mean": 0.5, "std": None, "runs": [0.5], "chosen": [1.0]}
    change(scores)

    with pytest.raises(AssertionError, match="ShotScores"):
        summaries.ShotScores.written(scores)
