"""What a run with a probe head delivers: the probe, the fine-tuned network, or weights between the two.

Weights on the line from the start to the end of fine-tuning are often better than both (WiSE-FT, Wortsman et
al., arXiv 2109.01903):

    weights(a) = (1 - a) start + a fine-tuned,        a = 0 is the probe, a = 1 the fine-tuned network

The choice is made on images that are neither trained on nor scored, see `held_out`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitcli.data.split import Split
from vitcli.evaluation.metrics import Metrics
from vitcli.output.text import INTERPOLATED

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
        scores: top-1 on the images to choose by, by alpha; None where an output is not a finite number.
        alpha: of the weights that are delivered.
        split: the name of the images to choose by; `num_examples` of them.
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


def choose(
    score: Callable[[float], Metrics | None],
    split: Split,
    *,
    facts: dict[str, Any],
    diverged: str,
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
