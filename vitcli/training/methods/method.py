"""What a method of training does besides the steps of the loop, at a few named moments of a run.

    set-up             the data are open: refuse what the method cannot train on
    network            built, and then in its place: on its device, or in slices
    checkpoint         what is stored beside weights and optimizer, and restored
    before the steps   of a resumed run, too
    evaluation         during training; of the dev split, where a method decides by it
    after the steps    which weights are delivered; keys of the summary
    results            after the final evaluation; what is stored with the weights

No other moment is between two steps: the order of events there is read in `loop.train`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from vitcli.data.split import Split
from vitcli.evaluation.predictions import Predictions
from vitcli.recipe import Recipe
from vitcli.training.checkpoint import Checkpoint
from vitcli.training.objective import Targets
from vitcli.training.splits import RunSplits

if TYPE_CHECKING:  # they import this module
    from vitcli.training.run import TrainingRun
    from vitcli.training.setup import TrainingJob

Keys = dict[str, Any]  # of summary.json, or of the metadata of weights
Results = tuple[Keys, Keys]  # of both


class Method:
    """A method that a recipe asks for; nothing happens at the moments that it does not define.

    Attributes:
        feature_passes: how often each training image is read besides in steps.
        survives_divergence: whether something is delivered if training diverges.
        decides_by_evaluations: whether evaluations during training are of the dev split, for it to observe.
        reason_to_end: why the run is to end after its current step, or "".
    """

    feature_passes: ClassVar[int] = 0
    survives_divergence: ClassVar[bool] = False
    decides_by_evaluations: ClassVar[bool] = False
    reason_to_end: str = ""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @staticmethod
    def is_asked_for(command: str, recipe: Recipe, splits: RunSplits) -> bool:
        """Return whether a run has this method."""
        raise NotImplementedError

    def check(self, splits: RunSplits) -> None:
        """Refuse data that the method cannot train on, with a VitError."""

    def candidates(self) -> list[str]:
        """Return what the method will choose between, each choice in words, for a plan."""
        return []

    def num_scored(self, job: "TrainingJob") -> int:
        """Return how many images it passes through the network at the end of a run."""
        return 0

    def take(self, model: nn.Module) -> None:
        """Look at the network before it is sharded."""

    def place(self, model: nn.Module) -> None:
        """Look at the network once it is in its place."""

    def state(self) -> Keys:
        """Return what a checkpoint's state.json stores."""
        return {}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that a checkpoint stores, by kind and name."""
        return {}

    def restore(self, saved: Checkpoint) -> None:
        """Load what a checkpoint has stored; refuse what no run has written, with a WeightsError."""

    def before_steps(self, run: "TrainingRun") -> None:
        """Begin with the network of step 0, or of the checkpoint that a run resumes from."""

    def targets(self, run: "TrainingRun") -> Targets | None:
        """Return what computes a tensor that the objective takes besides the labels of a micro-batch."""
        return None

    def observe(self, step: int, metrics: Any, weights: dict[str, Tensor]) -> None:
        """Take an evaluation of the dev split during training, and the weights that it is of."""

    def after_steps(self, run: "TrainingRun", diverged: str) -> Keys:
        """Leave the weights to deliver in the network; return keys of the summary.

        Args:
            diverged: why training ended early, or "".
        """
        return {}

    def results(self, run: "TrainingRun", predictions: Predictions | None, summary: Keys) -> Results:
        """Return keys of the summary, and of the metadata of the weights.

        Args:
            predictions: of the images to report on, where they are kept.
            summary: keys of all methods from `after_steps`.
        """
        return {}, {}


def periodic_split(methods: Iterable[Method], splits: RunSplits) -> Split:
    """Return the images of an evaluation during training."""
    return splits.choice if any(method.decides_by_evaluations for method in methods) else splits.eval
