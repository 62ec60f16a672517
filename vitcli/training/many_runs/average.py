"""The average of several runs as one model: `vit average`, and `train.average_runs` of a recipe.

The averages are made in one network, a tensor at a time, and scored on images that no run was trained on and
none is reported on. One is delivered if it is not worse there than the runs, see `paired_test`; else the best
run is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from vitcli import recipe as recipes
from vitcli.data import classes as data_classes
from vitcli.data.image_cache import ImageCache
from vitcli.data.seen_images import KEY, merged, never_trained_on
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import DataError, VitError
from vitcli.evaluation import inference
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.metrics import metrics_of
from vitcli.evaluation.predictions import Predictions, scores_of_classes, unique_names
from vitcli.evaluation.statistics import interval_of
from vitcli.export.model_card import model_card
from vitcli.output import run_folder
from vitcli.output.atomic import read_json
from vitcli.output.owned_folder import refuse_other
from vitcli.output.redaction import public_name
from vitcli.output.run_folder import AVERAGE, RunFolder
from vitcli.output.summaries import RunScores, TrainingSummary
from vitcli.output.text import lines_of
from vitcli.training.many_runs.average_choice import (
    Candidate,
    DevScore,
    best_candidate,
    best_run,
    greedy_members,
    paired_test,
)
from vitcli.training.many_runs.average_inputs import FinishedRun, start_of, trained_on
from vitcli.training.results import write_run_predictions
from vitcli.weights.average import START, WeightsFiles, check_names, fill, mean_of, model_stock
from vitcli.weights.io import read_weights, write_weights
from vitcli.weights.licences import KEY as LICENCE
from vitcli.weights.load import load_for_inference

AUTO, UNIFORM, GREEDY, STOCK, RUN = (
    "auto",
    "uniform",
    "greedy",
    "stock",
    "run",
)  # what is delivered, the last: a run
SUMS = ("elapsed_s", "exaflops")
# Of the summary of the first run: what holds for the average, too.
COMMON = (
    "command", "model", "ckpt", "dataset", "train_split", "num_train_examples", "num_classes", "resolution",
    "steps", "batch_size", "epochs", "lr", "eval_split", "eval_fingerprint", "classes_not_held_out",
    "num_held_out_copies", "num_held_out_seen", "preprocessing", "num_left_out_files", "left_out_files",
    "precision", "ckpt_fetched_from", "images_per_s", "peak_memory_gib", "eval_precision", "license",
)  # fmt: skip
KEPT = ("from", START, LICENCE, "steps", "averaged", "dev_cut")  # of the metadata of its weights


@dataclass(frozen=True)
class AverageTask:
    """Runs to average, and the images to choose and to report by.

    Attributes:
        method: "uniform", "greedy", "stock", or "auto" for the best of these.
        dev: images to choose by, see `open_dev`; None if there are none, and the mean is delivered untested.
        eval_split: images to report on.
        is_held_out: whether `dev` is the part that the runs held out.
        images: keeps decoded images for several passes.
        out: the folder to write, and what was asked for, by which a repeated command knows it again.
        arguments: the command line.
    """

    runs: Sequence[FinishedRun]
    method: str
    dev: Split | None
    is_held_out: bool
    eval_split: Split
    settings: EvalSettings
    images: ImageCache
    out: Path
    asked: dict[str, Any]
    arguments: list[str]

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing.from_dict(self.runs[0].preprocessing)


def usable_dev(dev: Split, runs: Sequence[FinishedRun], *, is_held_out: bool) -> Split:
    """Return the images of a dev part that none of the runs was trained on.

    Args:
        is_held_out: whether it is the part that the runs held out.

    Raises:
        DataError: there are none, or they are those that the runs report on.
    """
    reported = {run.summary.get("eval_fingerprint") for run in runs}
    where = f"{dev.name}, to choose the average by"
    if dev.fingerprint in reported:
        fix = "name others with --split: an average that is chosen by its test images has no test"
        raise DataError("the runs report on these images", where=where, fix=fix)
    part = never_trained_on(dev, trained_on(runs), is_held_out=is_held_out)
    if not len(part):
        fix = "name others with --split, or train with --set train.average_runs=auto, which holds some out"
        raise DataError(f"all {len(dev):,} images were trained on", where=where, fix=fix)
    return part


def in_classes_of(split: Split, run: FinishedRun) -> Split:
    """Return a split with its labels in the order of the classes of a run."""
    spelled = data_classes.spelled_as(split, run.class_names)
    matched, _ = data_classes.match_class_names(
        spelled, run.class_names, num_classes=run.arch.num_classes, ckpt=str(run.path)
    )
    return matched


def finished(out: Path, asked: Mapping[str, Any], *, overwrite: bool = False) -> dict[str, Any] | None:
    """Return the summary of a finished average of the same request; refuse another one, or a run of training.

    Args:
        overwrite: take the place of another average, but never of a run.

    Raises:
        VitError: as described.
    """
    stored = read_json(out / AVERAGE)
    if stored is None:
        run_folder.refuse_run(out, run_folder.AVERAGED)
    if stored is None or overwrite:
        return None
    before = stored.get("asked") if isinstance(stored.get("asked"), dict) else {}
    different = [
        f"{key} {before.get(key)} there, {value} here"
        for key, value in asked.items()
        if before.get(key) != value
    ]
    refuse_other(out, "another average", different)
    summary = run_folder.finished_summary(out) if (out / run_folder.WEIGHTS).exists() else None
    return summary and summary | {"run_dir": str(out), "weights": str(out / run_folder.WEIGHTS)}


def make_average(task: AverageTask, *, overwrite: bool = False) -> dict[str, Any]:
    """Choose an average or a run, write it as a run folder and return its summary; all processes call it."""
    return Averaging(task).run(overwrite=overwrite)


class Averaging:
    """Averages made in one network and scored, and the folder of the one that is delivered.

    Each process makes the same averages, and scores its part of the images.
    """

    def __init__(self, task: AverageTask):
        self.task, self.settings, self.runtime = task, task.settings, task.settings.runtime
        self.folder: RunFolder | None = None  # open on the first process only
        self.start: dict[str, np.ndarray] | None = None
        self.skipped: set[str] = set()  # images that this process could not decode
        self.notes: list[str] = []

    def run(self, *, overwrite: bool) -> dict[str, Any]:
        """Choose, score and write."""
        task = self.task
        self.runtime.on_main(lambda: self._open_folder(overwrite))
        try:
            # The network, and the start of all runs where Model Stock is to be tried.
            first = task.runs[0]
            if task.method in (STOCK, AUTO):
                self._read_start()
            self.model, self.arch = load_for_inference(
                read_weights(str(first.path), quiet=True),
                first.arch.image_size,
                first.recipe.model.posemb_resample,
                self.runtime.device,
                self.settings.progress,
            )
            for run in task.runs:
                check_names(self.model.state_dict(), run.tensor_names, where=f"RUN {run.path}")
            with WeightsFiles([run.weights_file for run in task.runs]) as self.files:
                # Choose by the dev part; then score what is delivered on the images to report on.
                scores, candidates = self._candidates()
                delivered, record = self._choice(scores, candidates)
                self._load(delivered)
            predictions = self._predict(task.eval_split)
            return self._write(delivered, record, predictions, self.runtime.union(self.skipped))
        finally:
            if self.folder:
                self.folder.close()

    def _open_folder(self, overwrite: bool) -> None:
        task = self.task
        self.folder = RunFolder(task.out, overwrite=overwrite)
        self.folder.rewind_metrics(0)
        self.folder.write_json(
            AVERAGE, {"asked": task.asked}
        )  # first: it tells the folder from that of a run
        run_folder.write_origin(self.folder, task.runs[0].recipe, task.arguments)
        self.settings.progress.note(f"run folder {task.out}")

    def _read_start(self) -> None:
        try:
            self.start = start_of(self.task.runs[0])
        except VitError as error:
            if self.task.method == STOCK:
                raise
            self.notes.append(f"Model Stock was not tried: {error.message}")
            self.settings.progress.note(f"note: {self.notes[-1]}")

    def _load(self, candidate: Candidate) -> Candidate:
        """Make an average in the network, and return it with the ratio of Model Stock."""
        if candidate.method != STOCK:
            fill(self.model, lambda name: mean_of(self.files.tensors(name, candidate.members)))
            return candidate
        ratios: list[float] = []

        def stock(name: str) -> np.ndarray:
            averaged, ratio = model_stock(self.files.tensors(name), self.start[name])
            ratios.append(ratio)
            return averaged

        fill(self.model, stock)
        return replace(candidate, ratio=mean(ratios))

    def _candidates(self) -> tuple[list[DevScore], list[Candidate]]:
        """Return the scores of the runs on the dev part, and the averages to choose from, scored."""
        task, everyone = self.task, tuple(range(len(self.task.runs)))
        if task.dev is None:
            return [], [self._load(Candidate(STOCK if task.method == STOCK else UNIFORM, everyone))]
        scores = []
        for run in task.runs:
            self._load(Candidate(RUN, (len(scores),)))
            scores.append(self._score())
            self.settings.progress.note(f"{run.path}: {scores[-1].top1:.2%} of {self._dev_text()}")
        candidates = []
        if task.method in (UNIFORM, AUTO):
            candidates.append(self._scored(Candidate(UNIFORM, everyone)))
        if task.method in (GREEDY, AUTO):
            members, score = greedy_members(scores, self._score_of_mean)
            candidates.append(Candidate(GREEDY, members, score))
        if task.method == STOCK or (task.method == AUTO and self.start is not None):
            candidates.append(self._scored(Candidate(STOCK, everyone)))
        return scores, candidates

    def _scored(self, candidate: Candidate) -> Candidate:
        return replace(self._load(candidate), score=self._score())

    def _score_of_mean(self, members: tuple[int, ...]) -> DevScore:
        return self._scored(Candidate(UNIFORM, members)).score

    def _score(self) -> DevScore:
        predictions = self._predict(self.task.dev)
        return DevScore(predictions.is_right_N, float(predictions.losses_N.mean()))

    def _predict(self, split: Split) -> Predictions:
        predictions, skipped = inference.predict_split(
            self.model,
            split,
            self.task.preprocessing,
            self.settings,
            num_classes=self.arch.num_classes,
            project=None,
        )
        self.skipped |= set(skipped)
        return predictions

    def _dev_text(self) -> str:
        return f"{len(self.task.dev):,} images held out to choose by"

    def _choice(
        self, scores: Sequence[DevScore], candidates: Sequence[Candidate]
    ) -> tuple[Candidate, dict[str, Any]]:
        """Return what is delivered, an average or a run, and the record of the choice."""
        task, chosen = self.task, best_candidate(candidates)
        delivered, tests = chosen, []
        if scores:
            tests = [paired_test(candidate.score, scores) for candidate in candidates]
            if not tests[list(candidates).index(chosen)]["accepted"]:
                best = best_run(scores)
                delivered = Candidate(RUN, (best,), scores[best])
        weights = delivered.weights(len(task.runs))
        record = {
            "method": task.method,
            "tried": chosen.method,
            "delivered": delivered.method,
            "accepted": delivered is chosen if scores else None,
            "dev_split": task.dev.name if task.dev else None,
            "num_dev_examples": len(scores[0].is_right_N) if scores else 0,
            "candidates": [
                {**_facts(candidate), **test}
                for candidate, test in zip(candidates, tests or [{}], strict=True)
            ],
            "best_run": str(task.runs[best_run(scores)].path) if scores else None,
            "runs": [
                self._run_record(number, weights[number], scores[number] if scores else None)
                for number in range(len(task.runs))
            ],
            "start_weight": 1 - sum(weights) if delivered.method == STOCK else 0.0,
            "start_digest": task.runs[0].start or None,
            "notes": self.notes,
        }
        return delivered, record

    def _run_record(self, number: int, weight: float, score: DevScore | None) -> dict[str, Any]:
        run = self.task.runs[number]
        return {
            "run_dir": str(run.path),
            "seed": run.recipe.train.seed,
            "sha256": run.sha256,
            "weight": weight,
            "dev_top1": score.top1 if score else None,
            "dev_loss": score.loss if score else None,
            "top1": run.summary["top1"],
        }

    def _write(
        self, delivered: Candidate, record: dict[str, Any], predictions: Predictions, skipped: set[str]
    ) -> dict[str, Any]:
        """Write the run folder, its summary last, and return the summary."""
        task, first = self.task, self.task.runs[0]
        metrics = metrics_of(*map(torch.from_numpy, (predictions.ranks_N, predictions.losses_N)))
        record |= {"top1": metrics.top1, "mean_top1": mean(run.summary["top1"] for run in task.runs)}
        scores = {name: value for name, value in asdict(metrics).items() if name != "num_examples"}
        by_class = scores_of_classes(predictions)
        scores |= by_class.means() if by_class else {}
        summary = _summary_of(task, record, scores, metrics.num_examples, skipped)
        if self.folder:
            state = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
            described = {"preprocessing": first.preprocessing, "class_names": first.class_names}
            write_weights(
                task.out, state, self.arch, **described, metadata=_metadata(task, record, metrics.top1)
            )
            names = unique_names(first.class_names or [f"class {k}" for k in range(self.arch.num_classes)])
            if first.class_names:
                self.folder.write_text(run_folder.CLASSES, lines_of(first.class_names))
            write_run_predictions(task.out, task.eval_split, task.preprocessing, names, predictions, summary)
            self.folder.log({"average": record, "eval": asdict(metrics)})
            card = model_card(summary, recipes.to_toml(first.recipe), self.arch)
            self.folder.write_text("README.md", card)
            self.folder.write_json(AVERAGE, {"asked": task.asked, **record})
            self.folder.write_summary(summary)
        return summary


def _facts(candidate: Candidate) -> dict[str, Any]:
    score = candidate.score
    return {
        "method": candidate.method,
        "members": list(candidate.members),
        "ratio": candidate.ratio,
        "dev_top1": score.top1 if score else None,
        "dev_loss": score.loss if score else None,
    }


def _summary_of(
    task: AverageTask, record: dict[str, Any], scores: dict[str, float], num_examples: int, skipped: set[str]
) -> dict[str, Any]:
    """Return the object of summary.json: that of a run, with the record of the average."""
    first, each = task.runs[0].summary, [run.summary for run in task.runs]
    needed = TrainingSummary.model_fields.keys() | TrainingSummary.UNREAD
    common = {
        key: first.get(key) for key in COMMON if key in first or key in needed - TrainingSummary.SOMETIMES
    }
    totals = {name: [summary.get(name) for summary in each] for name in SUMS}
    return TrainingSummary.written(
        {
            **common,
            "run_dir": str(task.out),
            "dev_top1_by_lr": None,
            **scores,
            "top1_std": None,
            "runs": [RunScores.written({"seed": task.runs[0].recipe.train.seed, **scores})],
            "intervals": {name: interval_of(scores[name], num_examples) for name in ("top1", "top5")},
            "num_eval_examples": num_examples,
            "fewshot": None,
            "num_skipped_images": len(skipped),
            "skipped_images": sorted(skipped)[:100],
            **{name: None if None in values else sum(values) for name, values in totals.items()},
            "num_processes": task.settings.runtime.world_size,
            "average": record,
            "weights": str(task.out / run_folder.WEIGHTS),
        }
    )


def _metadata(task: AverageTask, record: dict[str, Any], top1: float) -> dict[str, Any]:
    """Return what is stored with the weights: where they come from, and the images of all their runs."""
    first = task.runs[0].metadata
    runs = [
        {"name": public_name(run["run_dir"]), "sha256": run["sha256"], "weight": run["weight"]}
        for run in record["runs"]
    ]
    seen = merged([run.seen for run in task.runs])
    return {
        "trained_by": first.get("trained_by"),
        **{key: first[key] for key in KEPT if key in first},
        "average": {"delivered": record["delivered"], "start_weight": record["start_weight"], "runs": runs},
        **({KEY: seen} if seen else {}),
        "top1": top1,
    }
