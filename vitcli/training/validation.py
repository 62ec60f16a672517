"""What is looked at while a run goes on: the held-out split, a few-shot probe, pictures of predicted patches.

Shared by the commands that train; no command of its own.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vitcli.data.transforms import preprocessing_of
from vitcli.evaluation import inference, masked_patch
from vitcli.evaluation.inference import EvalSettings
from vitcli.features import draws as features_draws
from vitcli.features import least_squares
from vitcli.models.masked_patch import MaskedPatchModel
from vitcli.output import plots
from vitcli.training import figures
from vitcli.training.objective import TrainingTask
from vitcli.training.setup import TrainingJob
from vitcli.training.state import TrainingState

PROBE_SEEDS = (0, 1, 2)  # as the authors' evaluator draws
NUM_PICTURES = 4


class PeriodicEvaluation:
    """Looks at a run's model; the averaged weights where there are any, for they are what the run leaves."""

    def __init__(
        self,
        job: TrainingJob,
        state: TrainingState,
        task: TrainingTask,
        *,
        path: Path | None,
        num_threads: int,
    ):
        self.job, self.state, self.task, self.path = job, state, task, path
        self.preprocessing = preprocessing_of(job.recipe.data)
        self.settings = EvalSettings(
            runtime=job.runtime,
            batch_size=job.recipe.eval.batch_size,
            on_bad_image=job.recipe.data.on_bad_image,
            num_threads=num_threads,
            progress=job.progress,
        )

    def after(self, step: int) -> Iterator[tuple[dict[str, Any], str]]:
        """Whatever is due after this step: a record for metrics.jsonl, and a line for a person."""
        wanted = self.job.recipe.eval
        if wanted.every and step % wanted.every == 0:
            scores, _ = self.evaluate()
            yield {"eval": asdict(scores)}, self.task.line(scores)
        if wanted.probe and wanted.probe_every and step % wanted.probe_every == 0:
            probed = self.probe(step)
            yield {"probe": probed}, _probe_line(probed)

    def evaluate(self) -> tuple[Any, list[str]]:
        """Scores of the held-out split, and the places of the images that could not be decoded."""
        with self._model_to_leave() as model:
            found = self.task.score(model, self.job.eval_split, self.preprocessing, self.settings)
            if isinstance(model, MaskedPatchModel) and self.path:
                self._draw_patches(model)
        return found

    def probe(self, step: int) -> dict[str, Any]:
        """Few-shot accuracy in closed form on the recipe's probe data set, with the compute spent so far."""
        wanted, (train, test) = self.job.recipe.eval, self.job.probe
        labels_N, shots = train.read_labels(), wanted.probe_shots
        draws = features_draws.draw_support_sets(
            labels_N, num_classes=train.num_classes, shots=[shots], seeds=PROBE_SEEDS
        )
        needed = features_draws.drawn_rows(draws)
        with self._model_to_leave() as model:
            known_ND, _ = inference.features(model, train.rows(needed), self.preprocessing, self.settings)
            tests_ND, test_labels_N = inference.features(model, test, self.preprocessing, self.settings)
        problem = features_draws.FewshotProblem(
            features_of=lambda rows: known_ND[np.searchsorted(needed, rows)],
            labels_N=labels_N,
            tests_TD=tests_ND,
            test_labels_T=test_labels_N.numpy(),
            num_classes=train.num_classes,
        )
        found = features_draws.score_draws(
            problem, draws, classifier="least-squares", l2=least_squares.DEFAULT_L2
        )
        runs = [scored.top1 for scored in found[shots]]
        plan = self.job.plan
        exaflops = plan.exaflops * step / plan.total_steps if plan.exaflops is not None else None
        return {
            "dataset": wanted.probe,
            "shots": wanted.probe_shots,
            "top1": mean(runs),
            "runs": runs,
            "images_seen": step * plan.batch_size,
            "exaflops": exaflops,
        }

    def _model_to_leave(self):
        state = self.state
        state.share_buffers()
        return state.average.swapped_in(state.model) if state.average else nullcontext(state.model)

    def _draw_patches(self, model: MaskedPatchModel) -> None:
        views = masked_patch.patch_views(
            model,
            self.job.eval_split,
            self.preprocessing,
            num_images=NUM_PICTURES,
            device=self.job.runtime.device,
        )
        if not views or not self.job.runtime.is_main:  # none of them could be decoded
            return
        name = f"patches_step_{self.state.counters.step:07d}.png"
        plots.save(self.path / "figures" / name, figures.masked_patch_grid(views))


def _probe_line(probed: dict[str, Any]) -> str:
    compute = "" if probed["exaflops"] is None else f" at {probed['exaflops']:.3g} exaFLOPs"
    return f"{probed['shots']}-shot {probed['dataset']} {probed['top1']:.2%}{compute}"
