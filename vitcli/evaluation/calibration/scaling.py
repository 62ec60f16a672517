"""Temperature scaling: what is done to logits before the softmax makes probabilities those of being right.

Guo et al., "On Calibration of Modern Neural Networks" (arXiv 1706.04599), section 4.2:

    probabilities = softmax(logits / temperature)

It changes no ranking, so no accuracy. Another method is another `Scaling`, fitted by `fitted_scaling`, and
its keys in `output/summaries.py`; what applies, stores, shows or exports it does not ask what is in it. N
rows, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Logits = TypeVar("Logits", np.ndarray, "Tensor")

MOST_SCALE, LEAST_SCALE = 1e3, 1e-3  # of scores at chance level the best scale is 0
DIGITS = 6  # of stored numbers: fewer than NumPy's sums agree in on other numbers of threads
CERTAIN = 2.58  # standard errors: as far from 0 as 1 % of samples are by chance


@dataclass(frozen=True)
class Scaling:
    """What is done to the logits of a network before the softmax; nothing by default."""

    temperature: float = 1.0

    def scaled(self, logits: Logits) -> Logits:
        """Return logits (..., K) of NumPy or torch as the softmax takes them."""
        return logits / self.temperature

    def probabilities(self, log_p_NK: np.ndarray) -> np.ndarray:
        """Return the softmax of scaled logits or log-probabilities, float64."""
        scaled_NK = self.scaled(log_p_NK.astype(np.float64))
        weights_NK = np.exp(scaled_NK - scaled_NK.max(axis=1, keepdims=True))
        return weights_NK / weights_NK.sum(axis=1, keepdims=True)

    def losses(self, log_p_NK: np.ndarray, labels_N: np.ndarray) -> np.ndarray:
        """Return the cross-entropy of each row, (N,) in nats, float64."""
        scaled_NK = self.scaled(log_p_NK.astype(np.float64))
        scaled_NK -= scaled_NK.max(axis=1, keepdims=True)
        return np.log(np.exp(scaled_NK).sum(axis=1)) - scaled_NK[np.arange(len(labels_N)), labels_N]

    @property
    def text(self) -> str:
        """What a person reads of it."""
        return f"temperature {self.temperature:.3g}"

    def as_json(self) -> dict[str, Any]:
        """Return its keys in the metadata of weights, and in results."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "Scaling":
        """Return the one that these keys hold, among others.

        Raises:
            KeyError, ValueError: a key is missing, or damaged.
        """
        temperature = stored["temperature"]
        is_number = type(temperature) in (int, float)
        if not (is_number and 1 / MOST_SCALE / 2 <= temperature <= 2 / LEAST_SCALE):
            raise ValueError(f"temperature is {temperature!r:.40}")
        return cls(float(temperature))


def softmax_scale(scores_NK: np.ndarray, labels_N: np.ndarray) -> float:
    """Return the factor of the scores with the smallest cross-entropy: the inverse of a temperature.

    A row counts as 1 - 1/(N + 2) of its class and 1/(N + 2) of all alike, as in Platt's scaling: that keeps
    it finite where all rows are right.
    """
    num_rows = len(scores_NK)
    centred_NK = scores_NK - scores_NK.max(axis=1, keepdims=True)
    spread = 1 / (num_rows + 2)
    label_scores_N = centred_NK[np.arange(num_rows), labels_N]
    target_score = ((1 - spread) * label_scores_N + spread * centred_NK.mean(axis=1)).mean()

    def slope(scale: float) -> float:  # of the cross-entropy: expected score less that of the target
        weights_NK = np.exp(scale * centred_NK)
        return float(((weights_NK * centred_NK).sum(axis=1) / weights_NK.sum(axis=1)).mean() - target_score)

    return _root(slope, LEAST_SCALE, MOST_SCALE)


def fitted_scaling(log_p_NK: np.ndarray, labels_N: np.ndarray) -> Scaling:
    """Return the temperature of these rows, rounded to DIGITS digits; 1 unless they show that it is another.

    Few rows have a best temperature of their own by chance: among few mistakes a single confident one decides
    it. So the slope of the cross-entropy at temperature 1 has to differ from 0 by CERTAIN standard errors,
    which the slopes of the rows give (a score test that holds for any network), and the rows have to get
    likelier.

    Args:
        log_p_NK: logits, or log-probabilities, of rows that were not fitted to.
    """
    log_p_NK = log_p_NK.astype(np.float64)
    centred_NK = log_p_NK - log_p_NK.max(axis=1, keepdims=True)
    expected_N = (Scaling().probabilities(log_p_NK) * centred_NK).sum(axis=1)
    slopes_N = expected_N - centred_NK[np.arange(len(labels_N)), labels_N]
    if abs(slopes_N.sum()) <= CERTAIN * np.sqrt((slopes_N**2).sum()):
        return Scaling()
    scaling = Scaling(float(f"{1 / softmax_scale(log_p_NK, labels_N):.{DIGITS}g}"))
    gain_N = Scaling().losses(log_p_NK, labels_N) - scaling.losses(log_p_NK, labels_N)
    return scaling if gain_N.sum() > 0 else Scaling()


def _root(rising: Callable[[float], float], least: float, most: float) -> float:
    """Return where a rising function is 0, halving the interval on a logarithmic scale; else an end of it."""
    low, high = np.log(least), np.log(most)
    for _ in range(40):  # to 1e-11 of the value
        middle = (low + high) / 2
        low, high = (low, middle) if rising(float(np.exp(middle))) > 0 else (middle, high)
    return float(np.exp((low + high) / 2))
