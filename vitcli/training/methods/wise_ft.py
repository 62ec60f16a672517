"""What a run with a probe head delivers: the probe, the fine-tuned network, or weights between the two.

Weights on the line from the start to the end of fine-tuning are often better than both (WiSE-FT, Wortsman et
al., arXiv 2109.01903):

    weights(a) = (1 - a) start + a fine-tuned,        a = 0 is the probe, a = 1 the fine-tuned network

The choice is made on images that are neither trained on nor scored, see `held_out`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vitcli.data.split import Split
from vitcli.distributed import launch
from vitcli.evaluation import inference
from vitcli.evaluation.metrics import Metrics
from vitcli.evaluation.predictions import Predictions
from vitcli.output.text import INTERPOLATED, probe_head_text
from vitcli.recipe import Recipe
from vitcli.recipe.schema import PROBE
from vitcli.training.checkpoint import Checkpoint
from vitcli.training.methods.imbalance import balance_of
from vitcli.training.methods.initial_head import InitialHead, copy_of, fit_heads, start_weights
from vitcli.training.methods.method import Keys, Method, Results
from vitcli.training.methods.outputs import MOST_KEPT, MOST_ROWS, Outputs, of_rows, sample
from vitcli.training.splits import RunSplits

if TYPE_CHECKING:  # they import this module
    from vitcli.training.run import TrainingRun
    from vitcli.training.setup import TrainingJob

ALPHAS = (1.0, 0.75, 0.5, 0.25, 0.0)  # in the order in which equals are preferred
NAMES = {0.0: "probe", 1.0: "finetuned"}


def interpolate(start: dict[str, Tensor], final: dict[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Return the weights at `alpha` between two state dicts; counters are those of the second.

    The ends are returned as they are: 0 times a number that is not finite is none.
    """
    if alpha in (0.0, 1.0):
        return final if alpha else start
    return {
        name: (1 - alpha) * start[name].to(value.device) + alpha * value
        if value.is_floating_point()
        else value
        for name, value in final.items()
    }


@dataclass(frozen=True)
class Delivery:
    """The choice between probe, fine-tuned network and what is between them.

    Attributes:
        scores: top-1 on the dev split, by alpha; None where an output is not a finite number.
        alpha: of the weights that are delivered.
        split: the name of the dev split; `num_examples` images.
        diverged: why training ended early, or "".
    """

    scores: dict[float, float | None]
    alpha: float
    split: str
    num_examples: int
    facts: dict[str, Any]
    diverged: str = ""

    @property
    def name(self) -> str:
        return NAMES.get(self.alpha, INTERPOLATED)

    def summary(self) -> dict[str, Any]:
        """Return the keys of summary.json."""
        keys = {
            "probe_top1": self.scores[0.0],
            "finetuned_top1": self.scores.get(1.0),
            "delivered": self.name,
            "delivered_alpha": self.alpha,
            "interpolation": {f"{alpha:g}": score for alpha, score in sorted(self.scores.items())},
            "choice_split": self.split,
            "num_choice_examples": self.num_examples,
            "probe_head": self.facts,
        }
        return keys | ({"diverged": self.diverged} if self.diverged else {})

    def record(self) -> dict[str, Any]:
        """Return the line of metrics.jsonl."""
        names = ("probe_top1", "finetuned_top1", "delivered", "delivered_alpha", "interpolation")
        return {"delivery": {name: self.summary()[name] for name in names}}


class WiseFineTuning(Method):
    """Training that starts from the closed form, and delivers the best of start, end and what is between.

    Delivered is the probe that is fitted on the dev split too. Training whose numbers are not
    finite leaves the probe.
    """

    feature_passes = 1
    survives_divergence = True
    head: InitialHead
    frozen: tuple[Outputs, Outputs] | None = None  # of training images and dev split, if they are not many

    @staticmethod
    def is_asked_for(command: str, recipe: Recipe, splits: RunSplits) -> bool:
        return recipe.model.head == PROBE

    def num_scored(self, job: "TrainingJob") -> int:
        return (len(ALPHAS) - 1) * len(job.splits.choice or ())  # the probe's score is known from its start

    def take(self, model: nn.Module) -> None:
        self.head = start_weights(model)

    def place(self, model: nn.Module) -> None:
        self.head.tensors = copy_of(model)

    def state(self) -> Keys:
        return {"probe_head": self.head.state()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"start": self.head.stored}

    def restore(self, saved: Checkpoint) -> None:
        self.head.restore(saved.tensors["start"], saved.state.get("probe_head"))

    def before_steps(self, run: "TrainingRun") -> None:
        """Make the closed form on the training images the head of the network, unless a checkpoint had it."""
        if self.head.facts:
            return
        evaluation, splits = run.evaluation, run.job.splits
        launch.enter("the feature pass of the probe head")
        with evaluation.evaluated_model() as model:
            how = evaluation.preprocessing, evaluation.as_in_training
            parts = sample(splits.train, MOST_ROWS), splits.choice
            passes = [inference.features_and_logits(model, part, *how) for part in parts]
        train, choice = map(of_rows, passes, parts)
        loss, balance = self.recipe.objective.loss, balance_of(self.recipe)
        fit = partial(fit_heads, train, choice, splits.train, loss=loss, balance=balance)
        # The first process solves, so that all have the same bits.
        self.head.set_heads(run.state.model, *run.runtime.on_main(fit))
        self.frozen = (train, choice) if len(train.labels_N) <= MOST_KEPT else None
        run.state.skipped.update(*(rows.skipped for rows in passes))
        run.job.progress.detail(probe_head_text(self.head.facts))

    def after_steps(self, run: "TrainingRun", diverged: str) -> Keys:
        launch.enter("the choice between the probe head and the fine-tuned network")
        state, job, evaluation = run.state, run.job, run.evaluation
        outputs: dict[float, Outputs] = {}
        final = {name: value.detach().clone() for name, value in state.weights.items()}

        def load(alpha: float, start: dict[str, Tensor]) -> None:
            state.deliver(interpolate(start, final, alpha))

        def score(alpha: float) -> Metrics | None:
            if alpha == 0:
                return self.head.score
            load(alpha, self.head.tensors)
            metrics, outputs[alpha] = evaluation.score_choice()
            return metrics

        delivery = choose(score, job.splits.choice, facts=self.head.facts, diverged=diverged)
        load(delivery.alpha, self.head.delivered)
        if delivery.alpha:  # calibrated by the candidate, whose head was not fitted to the dev split
            evaluation.keep(job.splits.choice, outputs[delivery.alpha])
        elif self.frozen:
            for split, rows in zip((job.splits.train, job.splits.choice), self.frozen, strict=True):
                evaluation.keep(split, rows)
        if diverged:
            job.progress.note(f"note: training diverged, the probe head is delivered: {diverged}")
        if run.folder:
            run.folder.log({"step": job.plan.total_steps, **delivery.record()})
        return delivery.summary()

    def results(self, run: "TrainingRun", predictions: Predictions | None, summary: Keys) -> Results:
        return {}, {"delivered": summary["delivered"]}


def choose(
    score: Callable[[float], Metrics | None], split: Split, *, facts: dict[str, Any], diverged: str
) -> Delivery:
    """Score every candidate and take the best; of equals the one nearest to the fine-tuned network.

    Args:
        score: of the weights at an alpha; None if their outputs are not finite.
        diverged: why training ended early, which leaves the probe alone.
    """
    alphas = ALPHAS[-1:] if diverged else ALPHAS
    metrics = {alpha: score(alpha) for alpha in alphas}
    scores = {alpha: metric.top1 if metric else None for alpha, metric in metrics.items()}
    best = max(alphas, key=lambda alpha: -1.0 if scores[alpha] is None else scores[alpha])
    counted = [metric.num_examples for metric in metrics.values() if metric]
    return Delivery(scores, best, split.name, max(counted, default=len(split)), facts, diverged)
