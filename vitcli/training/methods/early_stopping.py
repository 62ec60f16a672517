"""A run that ends where it no longer improves (`train.patience`), and delivers its best weights.

Evaluations during training then score a part that is cut from the training images, never the images to
report on. The best weights and the count of evaluations since are in every checkpoint, so a resumed run ends
where an unbroken one does.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitcli.errors import WeightsError


@dataclass
class BestWeights:
    """The weights of the best evaluation so far.

    Attributes:
        patience: evaluations without improvement after which the run ends.
        tensors: its weights, averaged if the run averages them, in main memory.
        score: its accuracy, if it has one (of several labels the mean average precision), and its negative
            loss: the higher pair is better.
        step: at which it was; 0 before the first.
        num_since: evaluations since.
        last_step: of the last evaluation.
    """

    patience: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    score: tuple[float, float] | None = None
    step: int = 0
    num_since: int = 0
    last_step: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the run is to end."""
        return self.num_since >= self.patience

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
        self.tensors = {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint's state.json stores."""
        return {
            "score": self.score,
            "step": self.step,
            "num_since": self.num_since,
            "last_step": self.last_step,
        }

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any], like: dict[str, Tensor]) -> None:
        """Load what a checkpoint has stored.

        Raises:
            WeightsError: it lacks the weights of the best evaluation.
        """
        step = state.get("step", 0)
        if step and {name: x.shape for name, x in tensors.items()} != {n: x.shape for n, x in like.items()}:
            raise WeightsError(
                "the checkpoint lacks the weights of the best evaluation",
                where="checkpoints/, tensors best",
                fix="move it out of checkpoints/, or start again with --overwrite",
            )
        self.tensors, self.step = tensors, step
        self.score = tuple(state["score"]) if state.get("score") else None
        self.num_since, self.last_step = state.get("num_since", 0), state.get("last_step", 0)
