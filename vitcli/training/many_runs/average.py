"""The average of several runs as one model: `vit average`, and `train.average_runs` of a recipe.

The averages are made in one network, a tensor at a time, and scored on a dev split that no run was trained on
and none is reported on. One is delivered if it is not worse there than the runs, see `paired_test`; else the
best run is. Letters: N images of the dev split.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vitcli import recipe as recipes
from vitcli.conversion.model_card import model_card
from vitcli.data.image_cache import ImageCache
from vitcli.data.seen_images import KEY, merged
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import peers
from vitcli.distributed.runtime import start as start_runtime
from vitcli.evaluation import inference
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.intervals import interval_of, mcnemar, paired_interval
from vitcli.evaluation.metrics import metrics_of, scores_of
from vitcli.evaluation.predictions import Predictions, scores_of_classes, unique_names
from vitcli.evaluation.setup import settings_of_run, starts_of
from vitcli.output import run_folder
from vitcli.output.atomic import read_json
from vitcli.output.owned_folder import refuse_other
from vitcli.output.progress import Progress
from vitcli.output.redaction import public_name
from vitcli.output.run_folder import AVERAGE, RunFolder
from vitcli.output.summaries import RunScores, TrainingSummary
from vitcli.output.text import lines_of
from vitcli.training.many_runs.average_inputs import (
    FinishedRun,
    find_runs,
    in_classes_of,
    open_named_dev,
    read_runs,
    refuse_multilabel,
    refuse_without_dev,
    usable_dev,
    with_data,
)
from vitcli.training.many_runs.runs import SharedParts
from vitcli.training.many_runs.sweep_results import totals_of
from vitcli.training.results import write_run_predictions
from vitcli.training.setup import RunOptions
from vitcli.training.splits import RunData
from vitcli.weights.average import START, check_names, fill, mean_of, opened
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import read_weights, write_weights
from vitcli.weights.licences import KEY as LICENCE
from vitcli.weights.load import load_for_inference

AUTO, UNIFORM, GREEDY = "auto", "uniform", "greedy"
RUN = "run"  # what is delivered where no average is accepted
PASSES = 2  # over the dev split, besides one of each run: its uniform average and its greedy soup
SIGNIFICANT = 0.05  # p-value of McNemar's test below which an average is worse than the best run
# Of the summary of the first run: what holds for the average, too.
COMMON = (
    "command", "model", "ckpt", "dataset", "train_split", "num_train_examples", "num_classes", "resolution",
    "steps", "batch_size", "epochs", "lr", "eval_split", "eval_fingerprint", "classes_not_held_out",
    "num_held_out_copies", "num_held_out_seen", "preprocessing", "num_left_out_files", "left_out_files",
    "precision", "ckpt_fetched_from", "images_per_s", "peak_memory_gib", "eval_precision", "license",
)  # fmt: skip
KEPT = ("from", START, LICENCE, "steps", "averaged", "dev_cut")  # of the metadata of its weights


@dataclass(frozen=True)
class AverageOptions:
    """Options of `vit average`.

    Attributes:
        method: "uniform", "greedy", or "auto" for the better of the two.
        dataset: where the data set of the runs is now; None for where it was.
        split: the dev split; None for the one that the runs held out.
    """

    method: str = AUTO
    dataset: str | None = None
    split: str | None = None
    out: Path | None = None
    overwrite: bool = False
    workers: int | None = None
    quiet: bool = False
    arguments: Sequence[str] = ()


@dataclass(frozen=True)
class AverageTask:
    """Runs to average, and the images to select and to report on.

    Attributes:
        dev: the dev split; None if there is none, and the mean is delivered without validation.
        out: the folder to write, and what was asked for, by which a repeated command knows it again.
    """

    runs: Sequence[FinishedRun]
    method: str
    dev: Split | None
    eval_split: Split
    settings: EvalSettings
    out: Path
    asked: dict[str, Any]
    arguments: Sequence[str]

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing.from_dict(self.runs[0].preprocessing)


def average(places: Sequence[str], options: AverageOptions) -> dict[str, Any]:
    """Make one model of several finished runs, and return its summary.

    Without a dev split it is the mean of the runs, and says that it is not validated.
    """
    runs = read_runs(find_runs(places))
    recipe = with_data(runs[0], options.dataset)
    out = options.out or run_folder.new_folder("average", str(recipe.data.dataset), runs[0].arch.name)
    asked = {"method": options.method, "dataset": recipe.data.dataset, "split": options.split}
    asked |= {"runs": [run.sha256 for run in runs]}
    if earlier := finished(out, asked, overwrite=options.overwrite):
        return earlier

    # The data are opened before the processes join: a long download would time out in a collective.
    data = RunData(starts_of(recipe), quiet=True)
    _, reported = data.train_and_eval(recipe)
    refuse_multilabel([reported])
    dev = None
    if options.split:
        dev = open_named_dev(recipe, options.split, runs)
    elif all(run.recipe.data.hold_out_dev for run in runs):
        dev = data.held_out_dev(recipe)
    elif options.method == GREEDY:
        refuse_without_dev()
    runtime = start_runtime("fp32", stall_minutes=recipe.train.stall_minutes)
    progress = Progress(quiet=options.quiet, is_main=runtime.is_main)
    settings = settings_of_run(recipe, runtime, progress, workers=options.workers)
    task = AverageTask(runs, options.method, dev, reported, settings, out, asked, options.arguments)
    images = ImageCache(recipe.data.cache, processes_here=runtime.processes_here)
    with peers.watched(runtime):
        task = _ready(task, images, is_held_out=options.split is None)
        summary = Averaging(task).run(overwrite=options.overwrite)
    runtime.shutdown()
    return summary


def average_of_sweep(
    paths: Sequence[Path], method: str, out: Path, options: RunOptions, shared: SharedParts
) -> dict[str, Any]:
    """Make one model of the runs of a sweep, by the dev split that they held out, and return its summary."""
    runs = read_runs(paths)
    recipe, asked = runs[0].recipe, {"method": method, "runs": [run.sha256 for run in runs]}
    if earlier := shared.runtime.on_main(partial(finished, out, asked)):
        return earlier
    _, reported = shared.data.train_and_eval(recipe)
    dev = shared.data.held_out_dev(recipe)
    settings = settings_of_run(recipe, shared.runtime, shared.progress, workers=options.workers)
    task = AverageTask(runs, method, dev, reported, settings, out, asked, options.arguments)
    with peers.watched(shared.runtime):
        return Averaging(_ready(task, shared.images, is_held_out=True)).run()


def _ready(task: AverageTask, images: ImageCache, *, is_held_out: bool) -> AverageTask:
    """Return the task with usable images, labelled as the runs number their classes and kept once decoded."""
    first, progress = task.runs[0], task.settings.progress
    keep = partial(images.attach, preprocessing=task.preprocessing)
    reported = keep(in_classes_of(task.eval_split, first), visits=1)
    dev = task.dev and usable_dev(in_classes_of(task.dev, first), task.runs, is_held_out=is_held_out)
    if dev:
        dev = keep(dev, visits=len(task.runs) + PASSES)
        progress.note(f"averages are selected on {len(dev):,} images that no run was trained on: {dev.name}")
        for line in dev.lines:
            progress.note(line)
    else:
        progress.note("note: the runs held out no dev split: their average is not validated")
    return replace(task, dev=dev, eval_split=reported)


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


@dataclass(frozen=True)
class DevScore:
    """Predictions of one network on the dev split.

    Attributes:
        is_right_N: whether the top class is right.
        loss: mean cross-entropy in nats.
    """

    is_right_N: np.ndarray
    loss: float

    @classmethod
    def of(cls, predictions: Predictions) -> "DevScore":
        return cls(predictions.is_right_N, float(predictions.losses_N.mean()))

    @property
    def num_right(self) -> int:
        return int(self.is_right_N.sum())

    @property
    def top1(self) -> float:
        return self.num_right / len(self.is_right_N)

    @property
    def rank_key(self) -> tuple[int, float]:
        """Rank by accuracy, then by the smaller loss; largest is best."""
        return self.num_right, -self.loss


@dataclass(frozen=True)
class Candidate:
    """An average that may be delivered, or a run.

    Attributes:
        method: "uniform", "greedy" or "run".
        members: numbers of the runs in it.
        score: on the dev split; None without one.
    """

    method: str
    members: tuple[int, ...]
    score: DevScore | None = None

    def weight(self, number: int) -> float:
        """Return the weight of a run in the average."""
        return 1 / len(self.members) if number in self.members else 0.0

    def record(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "members": list(self.members),
            "dev_top1": self.score.top1 if self.score else None,
            "dev_loss": self.score.loss if self.score else None,
        }


def best_run(runs: Sequence[DevScore]) -> int:
    """Return the number of the best run on the dev split; the first of equals."""
    return max(range(len(runs)), key=lambda number: runs[number].rank_key)


def best_candidate(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the best score on the dev split; the first of equals, or the only one."""
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda candidate: candidate.score.rank_key)


def greedy_members(
    runs: Sequence[DevScore], score_of: Callable[[tuple[int, ...]], DevScore]
) -> tuple[tuple[int, ...], DevScore]:
    """Return the runs of the greedy soup and its score (arXiv 2203.05482, recipe 1).

    From the best run down, each is added if the accuracy of the mean does not fall.

    Args:
        score_of: scores the mean of these runs.
    """
    order = sorted(range(len(runs)), key=lambda number: runs[number].rank_key, reverse=True)
    members, score = (order[0],), runs[order[0]]
    for number in order[1:]:
        trial = tuple(sorted((*members, number)))
        trial_score = score_of(trial)
        if trial_score.num_right >= score.num_right:
            members, score = trial, trial_score
    return members, score


def paired_test(score: DevScore, runs: Sequence[DevScore]) -> dict[str, Any]:
    """Return how an average compares with its runs on the dev split, and whether it is accepted.

    It is, if it has at least as many images right as the runs have in the mean, and McNemar's test does not
    find it worse than the best of them, which was selected on the same images and so is biased.
    """
    best = runs[best_run(runs)]
    only_best = int((best.is_right_N & ~score.is_right_N).sum())
    only_average = int((~best.is_right_N & score.is_right_N).sum())
    p_value = mcnemar(only_best, only_average)
    is_worse_than_best = only_average < only_best and p_value < SIGNIFICANT
    is_below_mean = score.num_right * len(runs) < sum(run.num_right for run in runs)
    return {
        "difference_to_best": (only_average - only_best) / len(score.is_right_N),
        "interval": list(paired_interval(only_best, only_average, len(score.is_right_N))),
        "mcnemar_p": p_value,
        "accepted": not (is_worse_than_best or is_below_mean),
    }


class Averaging:
    """Averages made in one network and scored, and the folder of the one that is delivered.

    Each process makes the same averages, and scores its part of the images.
    """

    def __init__(self, task: AverageTask):
        self.task, self.settings, self.runtime = task, task.settings, task.settings.runtime
        self.folder: RunFolder | None = None  # open on the first process only
        self.skipped: set[str] = set()  # images that this process could not decode

    def run(self, *, overwrite: bool = False) -> dict[str, Any]:
        """Choose an average or a run, write it as a run folder and return its summary."""
        task = self.task
        self.runtime.on_main(lambda: self._open_folder(overwrite))
        try:
            first = task.runs[0]
            self.model, self.arch = load_for_inference(
                read_weights(str(first.path), quiet=True),
                first.arch.image_size,
                first.recipe.model.posemb_resample,
                self.runtime.device,
                self.settings.progress,
            )
            for run in task.runs:
                check_names(self.model.state_dict(), run.tensor_names, where=f"RUN {run.path}")
            with opened([run.path / run_folder.WEIGHTS for run in task.runs]) as self.files:
                # Choose on the dev split; then score what is delivered on the images to report on.
                scores, candidates = self._candidates()
                delivered, record = self._choice(scores, candidates)
                self._load(delivered.members)
            predictions = self._predict(task.eval_split)
            return self._write(record, predictions, self.runtime.union(self.skipped))
        finally:
            if self.folder:
                self.folder.close()

    def _open_folder(self, overwrite: bool) -> None:
        task = self.task
        self.folder = RunFolder(task.out, overwrite=overwrite)
        self.folder.rewind_metrics(0)
        # First, as it tells the folder from that of a run.
        self.folder.write_json(AVERAGE, {"asked": task.asked})
        run_folder.write_origin(self.folder, task.runs[0].recipe, task.arguments)
        self.settings.progress.note(f"run folder {task.out}")

    def _load(self, members: Sequence[int]) -> None:
        """Make the mean of these runs in the network."""
        fill(self.model, lambda name: mean_of([self.files[number].get_tensor(name) for number in members]))

    def _candidates(self) -> tuple[list[DevScore], list[Candidate]]:
        """Return the scores of the runs on the dev split, and the averages to choose from, scored."""
        task, everyone = self.task, tuple(range(len(self.task.runs)))
        if task.dev is None:
            return [], [Candidate(UNIFORM, everyone)]
        scores = []
        for number, run in enumerate(task.runs):
            scores.append(self._score((number,)))
            self.settings.progress.note(
                f"{run.path}: {scores[-1].top1:.2%} of {len(task.dev):,} images of the dev split"
            )
        candidates = []
        if task.method in (UNIFORM, AUTO):
            candidates.append(Candidate(UNIFORM, everyone, self._score(everyone)))
        if task.method in (GREEDY, AUTO):
            members, score = greedy_members(scores, self._score)
            candidates.append(Candidate(GREEDY, members, score))
        return scores, candidates

    def _score(self, members: tuple[int, ...]) -> DevScore:
        """Score the mean of these runs on the dev split."""
        self._load(members)
        return DevScore.of(self._predict(self.task.dev))

    def _predict(self, split: Split) -> Predictions:
        about = (self.model, split, self.task.preprocessing, self.settings)
        predictions, skipped = inference.predict_split(*about, num_classes=self.arch.num_classes)
        self.skipped |= set(skipped)
        return predictions

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
        record = {
            "method": task.method,
            "tried": chosen.method,
            "delivered": delivered.method,
            "accepted": delivered is chosen if scores else None,
            "dev_split": task.dev.name if task.dev else None,
            "num_dev_examples": len(scores[0].is_right_N) if scores else 0,
            "candidates": [
                {**candidate.record(), **test}
                for candidate, test in zip(candidates, tests or [{}], strict=True)
            ],
            "best_run": str(task.runs[best_run(scores)].path) if scores else None,
            "runs": [
                {
                    "run_dir": str(run.path),
                    "seed": run.recipe.train.seed,
                    "sha256": run.sha256,
                    "weight": delivered.weight(number),
                    "dev_top1": scores[number].top1 if scores else None,
                    "dev_loss": scores[number].loss if scores else None,
                    "top1": run.summary["top1"],
                }
                for number, run in enumerate(task.runs)
            ],
            "start_digest": task.runs[0].start or None,
        }
        return delivered, record

    def _write(self, record: dict[str, Any], predictions: Predictions, skipped: set[str]) -> dict[str, Any]:
        """Write the run folder, its summary last, and return the summary."""
        task, first = self.task, self.task.runs[0]
        metrics = metrics_of(predictions.ranks_N, predictions.losses_N)
        record |= {"top1": metrics.top1, "mean_top1": mean(run.summary["top1"] for run in task.runs)}
        by_class = scores_of_classes(predictions)
        scores = scores_of(metrics) | (by_class.means() if by_class else {})
        summary = _summary_of(task, record, scores, metrics.num_examples, skipped)
        if self.folder:
            state = {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}
            metadata = _metadata(task, record, metrics.top1)
            description = WeightsInfo(self.arch, first.preprocessing, first.class_names, metadata)
            write_weights(task.out, state, description)
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


def _summary_of(
    task: AverageTask, record: dict[str, Any], scores: dict[str, float], num_examples: int, skipped: set[str]
) -> dict[str, Any]:
    """Return the object of summary.json: that of a run, with the record of the average."""
    first = task.runs[0].summary
    common = {key: first[key] for key in COMMON if key in first}
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
            **totals_of([run.summary for run in task.runs]),
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
        "average": {"delivered": record["delivered"], "runs": runs},
        **({KEY: seen} if seen else {}),
        "top1": top1,
    }
