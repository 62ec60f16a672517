"""Options against options: each pair of them trains to the end, or is refused before the first step.

Every case is one command line on a folder of its own kind: with images that cannot be read, near duplicates,
several labels, numbers, or shards. What runs is compared with its own predictions, printed again by the same
line, and, where it was stopped, with the bits of a run that was not.
"""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import Outcome, run, vit
from tests.training.test_finetune import stopped_in_part, when_logged
from tests.training.test_time_limit import a_second_a_step  # noqa: F401, a fixture

CLASSES = ("green", "red")
NUM_IMAGES, NUM_TEST = 24, 8  # that can be read; only shards have a test split
TINY = ("--res", 32, "--batch-size", 8, "--json", "--quiet", "--set", "train.log_every=1")


def setting(*keys: str) -> tuple[str, ...]:
    return tuple(word for key in keys for word in ("--set", key))


OPTIONS: dict[str, tuple[object, ...]] = {
    "skip-bad": ("--skip-bad",),
    "folds": ("--folds", 2),
    "runs": ("--runs", 2),
    "lrs": ("--lr", "0.001,0.003"),
    "groups": setting("data.group_column=near_duplicates"),
    "max-time": ("--max-time", "90s"),
    "several-labels": setting("objective.loss=sigmoid"),
    "numbers": setting("objective.loss=regression", "data.label_column=age"),
    "keep-head": ("--keep-head",),
    "stop": (),
    "processes": ("--num-processes", 2),
    "streamed": setting("data.streaming=true", "data.shuffle_window=16"),
    "patience": setting("train.patience=1", "eval.every=1"),
    "average-runs": ("--runs", 2, *setting("train.average_runs=auto")),
    "lora": setting("model.lora_rank=2"),
    "freeze": setting("model.freeze=backbone"),
    "mixup": setting("objective.mixup=0.2"),
    "class-weights": setting("objective.class_weights=balanced"),
    "sampling": setting("data.sampling=balanced"),
    "exact": ("--exact",),
}
REFUSED = {  # pairs with words of the message
    ("folds", "runs"): "train.runs is 2, and train.folds 2",
    ("folds", "several-labels"): "folds are scored by top-1",
    ("folds", "numbers"): "train.folds is for classes",
    ("folds", "streamed"): "streamed shards are not",
    ("folds", "average-runs"): "train.runs is 2, and train.folds 2",
    ("groups", "streamed"): "its images cannot be grouped",
    ("several-labels", "numbers"): "objective.loss is set twice",
    ("several-labels", "average-runs"): "these have several labels each",
    ("several-labels", "class-weights"): "objective.class_weights is for objective.loss = 'softmax'",
    ("several-labels", "sampling"): "they belong to no class",
    ("numbers", "streamed"): "numbers are read from tables alone",
    ("numbers", "average-runs"): "compares accuracies",
    ("numbers", "mixup"): "objective.mixup is for classes",
    ("numbers", "class-weights"): "objective.class_weights is for objective.loss = 'softmax'",
    ("numbers", "sampling"): "has no classes",
    ("processes", "exact"): "has no exact sum on 2 processes of 8",  # whose parts are to fit any number
    ("streamed", "class-weights"): "is read in the order of its shards",
    ("streamed", "sampling"): "streamed shards are read in their own order",
    ("lora", "freeze"): "nothing for LoRA to correct",
    ("class-weights", "sampling"): "count twice",
}
THREE = [  # what met in runs of users, and its kin
    ("skip-bad", "folds", "groups"),
    ("skip-bad", "folds", "lrs"),
    ("skip-bad", "folds", "stop"),
    ("skip-bad", "lrs", "patience"),
    ("skip-bad", "groups", "average-runs"),
    ("skip-bad", "groups", "keep-head"),
    ("folds", "lrs", "max-time"),
    ("folds", "groups", "stop"),
    ("lrs", "groups", "stop"),
    ("streamed", "lrs", "stop"),
]
PAIRS = [pair for pair in combinations(OPTIONS, 2) if pair != ("runs", "average-runs")]


def picture(number: int) -> bytes:
    """Draw a JPEG of a class's colour; numbers 2 n and 2 n + 1 look nearly alike."""
    rng = np.random.default_rng(number // 2)
    colour = np.array([(60, 160, 60), (160, 60, 60)][number // 2 % 2])
    blocks = (colour + rng.integers(-60, 60, (4, 5, 3)) + number % 2).clip(0, 255).astype(np.uint8)
    written = io.BytesIO()
    Image.fromarray(blocks).resize((48, 40), Image.Resampling.BICUBIC).save(written, "JPEG", quality=95)
    return written.getvalue()


def truth_of(number: int) -> tuple[str, list[str], float]:
    """Return the class of a picture, its several labels, and its number."""
    labels = [name for bit, name in enumerate(("big", "old")) if number // 2 >> bit & 1]
    return CLASSES[number // 2 % 2], labels, number / 4


def make_data(root: Path, labels: str, *, has_bad: bool, is_sharded: bool) -> Path:
    """Write a data set of one kind of labels; of its bad images one is cut off and one is empty."""
    images = {number: picture(number) for number in range(NUM_IMAGES)}
    if has_bad:
        images |= {98: picture(98)[:-300], 99: b""}
    if is_sharded:
        tests = {number: picture(number) for number in range(40, 40 + NUM_TEST)}
        _write_shards(root, labels, {"train-0": images, "test-0": tests})
        return root
    rows = []
    for number, content in images.items():
        name, several, age = truth_of(number)
        file = f"{name}/{number:02}.jpg" if labels == "classes" else f"{number:02}.jpg"
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(content)
        rows.append({"file_name": file, "labels": several} if labels == "several" else (file, age))
    if labels == "several":
        (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if labels == "numbers":
        (root / "labels.csv").write_text("file,age\n" + "".join(f"{file},{age}\n" for file, age in rows))
    return root


def _write_shards(root: Path, labels: str, splits: dict[str, dict[int, bytes]]) -> None:
    kinds = {
        "classes": ("label", datasets.ClassLabel(names=list(CLASSES)), 0),
        "several": ("labels", datasets.Sequence(datasets.ClassLabel(names=["big", "old"])), 1),
        "numbers": ("age", datasets.Value("float64"), 2),
    }
    column, feature, place = kinds[labels]
    features = datasets.Features({"image": datasets.Image(), column: feature})
    root.mkdir(parents=True)
    for name, images in splits.items():
        values = [truth_of(number)[place] for number in images]
        pixels = [{"bytes": content, "path": None} for content in images.values()]
        table = datasets.Dataset.from_dict({"image": pixels, column: values}, features=features)
        table.to_parquet(root / f"{name}.parquet", batch_size=6)


@dataclass(frozen=True)
class Case:
    """A command line of two options or three.

    Attributes:
        labels: "classes", "several" or "numbers".
    """

    options: tuple[str, ...]
    labels: str
    words: tuple[object, ...]

    def __contains__(self, option: str) -> bool:
        return option in self.options

    def run(self, out: Path) -> Outcome:
        """Run in this process, unless there are two."""
        words = (*self.words, "--out", out)
        if "processes" not in self:
            return run(*words)
        ended = vit(*words, timeout=300)
        return Outcome(ended.returncode, ended.stdout, ended.stderr)

    def run_and_stop(self, out: Path) -> Outcome:
        """Run until a SIGTERM in a step of the first run, or of the second if there are several."""
        words = (*self.words, "--out", out)
        if "processes" not in self:
            with stopped_in_part(self.stopped_at):
                return run(*words)
        ended = vit(*words, on_start=lambda process: when_logged(out, 1, process.terminate), timeout=300)
        return Outcome(ended.returncode, ended.stdout, ended.stderr)

    @property
    def stopped_at(self) -> int:
        if "max-time" in self:
            return 9
        return 5 if {"folds", "runs", "lrs"} & {*self.options} else 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Callable[..., Path]:
    root = tmp_path_factory.mktemp("folders")

    @cache
    def folder(labels: str, *, has_bad: bool = False, is_sharded: bool = False) -> Path:
        name = f"{labels}{'-bad' * has_bad}{'-shards' * is_sharded}"
        return make_data(root / name, labels, has_bad=has_bad, is_sharded=is_sharded)

    return folder


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory) -> Callable[[str], Path]:
    """Return a run on images with labels of a kind, whose head is to be kept."""
    root = tmp_path_factory.mktemp("trained")
    kinds = {"classes": (), "several": OPTIONS["several-labels"], "numbers": OPTIONS["numbers"]}

    @cache
    def checkpoint(labels: str) -> Path:
        words = ("finetune", "--ckpt", "demo", "--dataset", folders(labels), *TINY, *kinds[labels])
        outcome = run(*words, "--steps", 1, "--out", root / labels)
        assert outcome.code == 0, outcome
        return root / labels

    return checkpoint


def case_of(options: tuple[str, ...], folders: Callable[..., Path], trained: Callable[[str], Path]) -> Case:
    labels = "several" if "several-labels" in options else "numbers" if "numbers" in options else "classes"
    data = folders(labels, has_bad="skip-bad" in options, is_sharded="streamed" in options)
    weights = trained(labels) if "keep-head" in options else "demo"
    steps = 100_000 if "max-time" in options else 3
    words = ("finetune", "--ckpt", weights, "--dataset", data, *TINY, "--steps", steps)
    words = (*words, *(word for option in options for word in OPTIONS[option]))
    if {"max-time", "processes"} <= {*options}:  # on the real clock
        words = tuple("60s" if word == "90s" else word for word in words)
    return Case(options, labels, words)


@pytest.mark.slow
@pytest.mark.parametrize("options", [*PAIRS, *THREE], ids=" with ".join)
def test_options_train_to_the_end_or_are_refused_before_the_first_step(
    request, folders, trained, tmp_path, options
):
    case = case_of(options, folders, trained)
    if "max-time" in case and "processes" not in case:
        request.getfixturevalue("a_second_a_step")
    out = tmp_path / "run"
    outcome = case.run(out)

    if words := REFUSED.get(options):
        check_refusal(outcome, words, out)
        return
    assert outcome.code == 0, outcome.err + outcome.out
    check_result(case, outcome.json, out)
    if "processes" not in case:
        again = case.run(out)
        assert (again.code, again.json) == (0, outcome.json), again.err
    if "stop" in case:
        stopped = case.run_and_stop(tmp_path / "stopped")
        assert stopped.code == 143, stopped.err + stopped.out
        resumed = case.run(tmp_path / "stopped")
        assert resumed.code == 0, resumed.err + resumed.out
        assert bits_of(tmp_path / "stopped") == bits_of(out)


def check_refusal(outcome: Outcome, words: str, out: Path) -> None:
    """Check that nothing was trained, and that the error says what, where and what to do."""
    assert outcome.code in (2, 3), outcome.err + outcome.out
    error = outcome.json["error"]
    assert words in error["message"] and error["where"] and error["fix"], error
    assert not [line for file in out.rglob("metrics.jsonl") for line in file.open()]


def check_result(case: Case, summary: dict, out: Path) -> None:
    """Compare the summary with the predictions behind it, and with what is known of the images."""
    assert summary == json.loads((out / "summary.json").read_text())
    if {"several-labels", "streamed"} == {*case.options}:  # whose predictions are not kept
        assert 0 <= summary["top1"] <= 1 and summary["num_eval_examples"] == NUM_TEST
        return
    name = "numbers.parquet" if case.labels == "numbers" else "predictions.parquet"
    rows = pq.read_table(out / name).to_pylist()
    assert len(rows) == summary["num_eval_examples"] > 0
    num_skipped = summary["num_skipped_images"]
    assert num_skipped == (2 if "skip-bad" in case else 0)
    num_lost = num_held_out(case, summary) - len(rows)
    assert num_lost in range(num_skipped + 1)
    if case.labels == "numbers":
        errors = [abs(row["prediction"] - row["target"]) for row in rows]
        assert summary["runs"][0]["mae"] == pytest.approx(np.mean(errors), rel=1e-5)
    elif case.labels == "several":
        assert 0 <= summary["mean_ap"] <= 1
    else:
        hits = [row["top_classes"][0] == row["label"] for row in rows]
        delivered = summary["average"] if "average-runs" in case else summary["runs"][0]
        assert delivered["top1"] == pytest.approx(np.mean(hits))
    assert summary["steps"] < 100_000


def num_held_out(case: Case, summary: dict) -> int:
    """Return how many images are neither trained on nor chosen by; where there are folds, of all."""
    if "streamed" in case:
        return NUM_TEST
    num_left = NUM_IMAGES + summary["num_skipped_images"]
    if "folds" not in case:
        num_left -= summary["num_train_examples"] + (summary.get("num_choice_examples") or 0)
    if "average-runs" in case:
        num_left -= summary["average"]["num_dev_examples"]
    return num_left


def bits_of(out: Path) -> dict[str, str]:
    """Hash the weights and metrics of all runs of a folder, in which its own name stands for nothing."""
    files = [*out.rglob("model.safetensors"), *out.rglob("metrics.jsonl")]
    contents = {
        str(file.relative_to(out)): file.read_bytes().replace(str(out).encode(), b"")
        for file in files
        if "checkpoints" not in file.parts
    }
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_what_is_refused_is_in_the_table():
    assert {*REFUSED} <= {*PAIRS} and len(PAIRS) >= 66
