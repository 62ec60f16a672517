"""Evaluation during training: the held-out split, a few-shot probe, and figures of predicted patches."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import nn

from vitcli.data.split import Split
from vitcli.data.transforms import preprocessing_of
from vitcli.distributed import fsdp
from vitcli.errors import NotFiniteError
from vitcli.evaluation import inference, masked_patch, multilabel, regression
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.metrics import Metrics, PatchMetrics, metrics_of, metrics_of_logits
from vitcli.evaluation.multilabel import MultilabelMetrics
from vitcli.evaluation.predictions import Predictions
from vitcli.evaluation.regression import NumberPredictions, RegressionMetrics
from vitcli.evaluation.setup import settings_of_run
from vitcli.features import draws as features_draws
from vitcli.features import least_squares
from vitcli.models.masked_patch import MaskedPatchModel
from vitcli.output.summaries import Probe
from vitcli.output.text import compute_text
from vitcli.training.methods.method import periodic_split
from vitcli.training.methods.outputs import MOST_KEPT, Outputs, of_rows, sample
from vitcli.training.methods.partial import adapters_merged
from vitcli.training.objective import TrainingTask, gives_several_labels
from vitcli.training.setup import TrainingJob
from vitcli.training.state import TrainingState

TIMED_BATCHES = 2
PROBE_SEEDS = (0, 1, 2)  # as the authors' evaluator draws
NUM_PATCH_ROWS = 4
MOST_PREDICTIONS = 1_000_000  # rows whose predictions are kept
AnyMetrics = Metrics | PatchMetrics | RegressionMetrics | MultilabelMetrics


class PeriodicEvaluation:
    """Evaluation of a run's model, with the averaged weights if enabled, since those are what is published.

    Args:
        run_dir: for figures of predicted patches; None draws none.
    """

    def __init__(
        self,
        job: TrainingJob,
        state: TrainingState,
        task: TrainingTask,
        *,
        run_dir: Path | None,
        num_threads: int,
    ):
        self.job, self.state, self.task, self.run_dir = job, state, task, run_dir
        self.preprocessing = preprocessing_of(job.recipe.data)
        self.settings = settings_of_run(job.recipe, job.runtime, job.progress, workers=num_threads)
        self._kept: dict[int, Outputs] = {}  # of the network to deliver, by the split

    def seconds_per_image(self) -> float:
        """Measure the time to score a few images of the held-out split, after a first batch.

        That takes seconds on a GPU, whose kernels are loaded at their first use.
        """
        split, batch_size = self.job.splits.eval, self.settings.batch_size
        rows = np.arange(min(len(split), (1 + TIMED_BATCHES) * batch_size))
        with self.evaluated_model() as model:
            for few in (rows[:batch_size], rows[-TIMED_BATCHES * batch_size :]):
                began_at = time.perf_counter()
                self.task.score(model, split.rows(few), self.preprocessing, self.settings)
        return (time.perf_counter() - began_at) / len(few)

    @contextmanager
    def while_not(self, is_stopping: Callable[[], bool]) -> Iterator[None]:
        """Let what runs inside raise Interrupted as soon as `is_stopping` on any process."""
        before, self.settings = self.settings, replace(self.settings, is_stopping=is_stopping)
        try:
            yield
        finally:
            self.settings = before

    def is_due(self, step: int) -> bool:
        """Return True if `due_after` this step runs anything."""
        settings = self.job.recipe.eval
        is_probed = settings.probe and settings.probe_every and step % settings.probe_every == 0
        return bool(is_probed or (settings.every and step % settings.every == 0))

    def due_after(self, step: int) -> Iterator[tuple[dict[str, Any], str]]:
        """Run what is due after this step; yield a record for metrics.jsonl and a line for the terminal."""
        settings = self.job.recipe.eval
        if settings.every and step % settings.every == 0:
            metrics = self.score_periodic(step)
            yield {"eval": asdict(metrics)}, self.task.line(metrics)
        if settings.probe and settings.probe_every and step % settings.probe_every == 0:
            probe = self.few_shot_probe(step)
            compute = "" if probe["exaflops"] is None else f" at {compute_text(probe['exaflops'])}"
            yield {"probe": probe}, f"{probe['shots']}-shot {probe['dataset']} {probe['top1']:.2%}{compute}"

    def score_periodic(self, step: int) -> AnyMetrics:
        """Score the images of an evaluation during training, and let the methods decide by dev images."""
        split, methods = periodic_split(self.state.methods, self.job.splits), self.state.methods
        if split is self.job.splits.eval:
            return self.evaluate()[0]
        with self.evaluated_model() as model:
            metrics, _ = self.task.score(model, split, self.preprocessing, self.settings)
        for method in methods:
            method.observe(step, metrics, self.state.weights)
        return metrics

    def evaluate(self) -> tuple[AnyMetrics, list[str]]:
        """Score the held-out split; return the metrics and the names of the undecodable images."""
        # A run that survives destroyed weights has their error on all processes.
        survives = self.job.survives_divergence
        score = partial(inference.evaluate, may_overflow=True) if survives else self.task.score
        with self.evaluated_model() as model:
            metrics, skipped = score(model, self.job.splits.eval, self.preprocessing, self.settings)
            if isinstance(model, MaskedPatchModel) and self.run_dir:
                self._draw_patches(model)
        if metrics is None:
            raise NotFiniteError(
                "the model's outputs are not finite numbers",
                where=f"evaluation after step {self.state.step}",
                fix="lower --lr, in a new --out",
            )
        return metrics, skipped

    def score_choice(self) -> tuple[Metrics | None, Outputs]:
        """Score the dev split within the run; None as metrics if an output is not finite."""
        choice, about = self.job.splits.choice, {"layer": "one_layer", "num_logits": self._num_classes}
        with self.evaluated_model() as model:
            rows = inference.features_and_logits(
                model, choice, self.preprocessing, self.as_in_training, may_overflow=True, **about
            )
        is_finite = bool(rows.logits_NK.isfinite().all())
        metrics = metrics_of_logits(rows.logits_NK, rows.labels_N) if is_finite else None
        return metrics, of_rows(rows, choice)

    def keep(self, split: Split, outputs: Outputs) -> None:
        """Keep what the network to deliver says of a split, for `outputs_for`, unless that is much."""
        if len(outputs.labels_N) <= MOST_KEPT:
            self._kept[id(split)] = outputs

    def outputs_for(self, split: Split, most_rows: int = MOST_KEPT, *, with_logits: bool = False) -> Outputs:
        """Return what the network to deliver says of a split, or of a sample of it: kept, or of one pass now.

        Rows with an output that is not finite, or without a label, are left out.
        """
        if id(split) not in self._kept:
            # The run has refused unreadable images, or counted them.
            settings = replace(self.as_in_training, on_bad_image="skip")
            images = sample(split, min(most_rows, MOST_KEPT))
            about = {"layer": "one_layer", "num_logits": self._num_classes if with_logits else 0}
            with self.evaluated_model() as model:
                rows = inference.features_and_logits(
                    model, images, self.preprocessing, settings, may_overflow=True, **about
                )
            self.state.skipped |= set(rows.skipped)
            self._kept[id(split)] = of_rows(rows, images)
        return self._kept[id(split)]

    @property
    def _num_classes(self) -> int:
        return self.job.start.arch.num_classes

    @property
    def as_in_training(self) -> EvalSettings:
        """The precision of a training step: of what only compares weights of this run, or starts it."""
        return replace(self.settings, precision=self.job.runtime.precision)

    def predict(self) -> tuple[AnyMetrics, list[str], Predictions | NumberPredictions | None]:
        """As `evaluate`, and return the prediction of each row.

        None of patches, of too many rows, and of shards with several labels per row, which cannot be listed.
        """
        split = self.job.splits.eval
        if target := self.task.target:
            with self.evaluated_model() as model:
                numbers, skipped = regression.predict_numbers(
                    model, split, self.preprocessing, self.settings, target=target
                )
            return regression.metrics_of(numbers), skipped, numbers
        has_none = self.job.recipe.objective.loss == "masked_patch" or len(split) > MOST_PREDICTIONS
        if has_none or (split.is_multilabel and split.is_large):
            return *self.evaluate(), None
        predictions, skipped = self.predictions_of(split)
        if gives_several_labels(self.job.recipe.objective, self.job.splits.train):
            return multilabel.multilabel_metrics(predictions), skipped, predictions
        return metrics_of(predictions.ranks_N, predictions.losses_N), skipped, predictions

    def predictions_of(self, split: Split) -> tuple[Predictions, list[str]]:
        """Return the predictions of a split, and the names of the undecodable images."""
        num_classes, splits = self._num_classes, self.job.splits
        calibrates = splits.calibration is split or (splits.calibration and self.job.is_of_one_fold)
        with self.evaluated_model() as model:
            about = model, split, self.preprocessing, self.settings
            if not calibrates or split is not splits.eval or len(split) > MOST_KEPT:
                return inference.predict_split(*about, num_classes=num_classes)
            # Features, too, for the calibration.
            rows = inference.features_and_logits(*about, layer="one_layer", num_logits=num_classes)
        self.keep(split, of_rows(rows, split))
        return inference.predictions_of_rows(rows), rows.skipped

    def few_shot_probe(self, step: int) -> dict[str, Any]:
        """Return the closed-form few-shot accuracy on the recipe's probe data set, and the compute so far."""
        settings, (train, test) = self.job.recipe.eval, self.job.splits.probe
        labels_N, shots = train.read_labels(), settings.probe_shots

        # Extract the features of the support sets' rows and of the test split.
        draws = features_draws.draw_support_sets(
            labels_N, num_classes=train.num_classes, shots=[shots], seeds=PROBE_SEEDS
        )
        rows = features_draws.drawn_rows(draws)
        with self.evaluated_model() as model:
            of_train, of_test = (
                inference.features_and_logits(model, split, self.preprocessing, self.settings)
                for split in (train.rows(rows), test)
            )

        # Fit and score one classifier per support set, without the images that cannot be decoded.
        rows = rows[of_train.rows_N]
        draws = {
            seed: {shots: drawn[np.isin(drawn, rows)] for shots, drawn in by_shots.items()}
            for seed, by_shots in draws.items()
        }
        problem = features_draws.FewshotProblem(
            features_of=lambda support_rows: of_train.features_ND[np.searchsorted(rows, support_rows)],
            labels_N=labels_N,
            tests_TD=of_test.features_ND,
            test_labels_T=of_test.labels_N.numpy(),
            num_classes=train.num_classes,
        )
        scores = features_draws.score_draws(
            problem, draws, classifier="least-squares", l2=least_squares.DEFAULT_L2
        )
        accuracies = [score.top1 for score in scores[shots]]
        plan = self.job.plan
        return Probe.written(
            {
                "dataset": settings.probe,
                "shots": shots,
                "top1": mean(accuracies),
                "runs": accuracies,
                "images_seen": step * plan.batch_size,
                "exaflops": None if plan.exaflops is None else plan.exaflops * step / plan.total_steps,
            }
        )

    @contextmanager
    def evaluated_model(self) -> Iterator[nn.Module]:
        """Give the model to evaluate: its weights in fp32, never compiled, with averaged weights if enabled.

        `vit evaluate` compiles nothing, and compiled kernels differ in the last bits.
        """
        state, is_compiled = self.state, self.job.options.compile
        state.broadcast_buffers()
        with ExitStack() as stack:
            if is_compiled:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(fsdp.in_full_precision(state.model))
            averaged = state.average.swapped_in(state.model) if state.average else nullcontext(state.model)
            model = stack.enter_context(averaged)
            stack.enter_context(adapters_merged(state.model))
            yield model

    def _draw_patches(self, model: MaskedPatchModel) -> None:
        views = masked_patch.patch_views(
            model, self.job.splits.eval, self.preprocessing, self.settings, num_images=NUM_PATCH_ROWS
        )
        if not views or not self.job.runtime.is_main:  # no image could be decoded
            return
        from vitcli.output import plots  # both load matplotlib
        from vitcli.training import figures

        name = f"patches_step_{self.state.step:07d}.png"
        plots.save(self.run_dir / "figures" / name, figures.masked_patch_grid(views))
