"""A run that ends where it no longer improves (`train.patience`), and delivers its best weights.

Evaluations during training then score a part that is cut from the training images, never the images to
report on. The best weights and the count of evaluations since are in every checkpoint, so a resumed run ends
where an unbroken one does.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitcli.errors import WeightsError
from vitcli.output.text import count_of
from vitcli.recipe import Recipe
from vitcli.training.checkpoint import Checkpoint
from vitcli.training.methods.method import Keys, Method
from vitcli.training.splits import RunSplits

if TYPE_CHECKING:  # they import this module
    from vitcli.training.run import TrainingRun
    from vitcli.training.setup import TrainingJob

BEST = "best"  # in checkpoints


class EarlyStopping(Method):
    """The weights of the best evaluation so far, and the end of a run that no longer improves.

    Attributes:
        patience: evaluations without improvement after which the run ends.
        weights: of the best evaluation, averaged if the run averages them, in main memory.
        score: its accuracy, if it has one (of several labels the mean average precision), and its negative
            loss: the higher pair is better.
        step: at which it was; 0 before the first.
    """

    decides_by_evaluations = True

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.patience = recipe.train.patience
        self.weights: dict[str, Tensor] = {}
        self.score: tuple[float, float] | None = None
        self.step = self.num_since = self.last_step = 0

    @staticmethod
    def is_asked_for(command: str, recipe: Recipe, splits: RunSplits) -> bool:
        return recipe.train.patience > 0

    def num_scored(self, job: "TrainingJob") -> int:
        return len(job.splits.choice or ())  # once more, where the run ends between two evaluations

    def state(self) -> Keys:
        scored = {"score": self.score, "step": self.step}
        return {BEST: scored | {"num_since": self.num_since, "last_step": self.last_step}}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {BEST: self.weights} if self.weights else {}

    def restore(self, saved: Checkpoint) -> None:
        """Load what a checkpoint has stored.

        Raises:
            WeightsError: it lacks the weights of the best evaluation.
        """
        weights, state = saved.tensors.get(BEST, {}), saved.state.get(BEST, {})
        shapes, expected = (
            {name: value.shape for name, value in tensors.items()}
            for tensors in (weights, saved.tensors["model"])
        )
        if state.get("step", 0) and shapes != expected:
            raise WeightsError(
                "the checkpoint lacks the weights of the best evaluation",
                where="checkpoints/, tensors best",
                fix="move it out of checkpoints/, or start again with --overwrite",
            )
        self.weights, self.step = weights, state.get("step", 0)
        self.score = tuple(state["score"]) if state.get("score") else None
        self.num_since, self.last_step = state.get("num_since", 0), state.get("last_step", 0)

    @property
    def reason_to_end(self) -> str:
        if self.num_since < self.patience:
            return ""
        return f"no improvement in {count_of(self.patience, 'evaluation')}"

    def observe(self, step: int, metrics: Any, weights: dict[str, Tensor]) -> None:
        """Take an evaluation, and copy its weights if it is the best."""
        if step == self.last_step:  # again, after an interruption
            return
        accuracies = (getattr(metrics, name, None) for name in ("mean_ap", "top1"))
        accuracy = next((value for value in accuracies if value is not None), 0.0)
        score = (float(accuracy), -float(metrics.loss))
        self.last_step = step
        if self.score is not None and not score > self.score:
            self.num_since += 1
            return
        self.score, self.step, self.num_since = score, step, 0
        self.weights = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}

    def after_steps(self, run: "TrainingRun", diverged: str) -> Keys:
        """Deliver the best weights, those of the last step among them."""
        if diverged:
            return {}
        if self.last_step != run.state.step:
            run.evaluation.score_periodic(run.state.step)
        run.state.deliver(self.weights)
        run.job.progress.note(f"delivered: the weights of step {self.step}, the best evaluation")
        return {"best_step": self.step}
