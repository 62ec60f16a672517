"""A network beside what it was exported to: their outputs and accuracies on the same images, their speeds.

A file that takes images gets what its users have: decoded images, or bytes of the network's size.

`vit export --gate` accepts or refuses a file by accuracy. Both networks see the same images, so only those
count that one has right and the other wrong. The file passes if the upper end of a one-sided 95 % interval of
the accuracy that it loses is at most `--max-drop`. Without `--gate` a note says what the file changes.

Letters: N images, B of a batch, K outputs.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.data import loader
from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.errors import CheckFailed, DataError, WeightsError
from vitcli.evaluation.inference import outputs_of
from vitcli.output.progress import Progress
from vitcli.output.text import count_of

BATCH_SIZE = 16
CPU = torch.device("cpu")
Z = 1.6448536269514722  # standard normal quantile of 0.95
BATCH_SIZES = (1, 8, 32)  # whose speed is measured
ENOUGH_S, MOST_S = 0.1, 2.0  # of a batch size: measured; beyond this a larger one is not
MOST_BYTES = 50_000_000  # of the images of a batch: one that is larger is not measured
TURNS, RUNS_OF_A_TURN = 2, 3


@dataclass(frozen=True)
class Agreement:
    """Differences between the outputs of two networks.

    Attributes:
        max_difference: the largest absolute difference of any output.
        max_output: the largest absolute output of the first network.
        num_images: that were compared.
        num_same: of these, what both assign to the same class; None where outputs are not of classes.
    """

    max_difference: float
    max_output: float
    num_images: int
    num_same: int | None

    @property
    def top1(self) -> float | None:
        """Return the fraction of the images that both assign to the same class."""
        return None if self.num_same is None else self.num_same / self.num_images

    @property
    def max_rel_difference(self) -> float:
        """Return the largest difference as a fraction of the largest output."""
        if not self.max_output:
            return float("inf") if self.max_difference else 0.0
        return self.max_difference / self.max_output


def compare(outputs_NK: Tensor, exported_NK: Tensor, *, are_logits: bool) -> Agreement:
    """Return the agreement of finite outputs.

    Args:
        are_logits: of classes, of which an image has one.
    """
    is_same_class_N = outputs_NK.argmax(1) == exported_NK.argmax(1)
    return Agreement(
        max_difference=float((exported_NK - outputs_NK).abs().max()),
        max_output=float(outputs_NK.abs().max()),
        num_images=len(outputs_NK),
        num_same=int(is_same_class_N.sum()) if are_logits else None,
    )


class NotFinite(Exception):
    """An output of what was exported is not a finite number."""


def outputs_of_all(
    networks: Sequence[nn.Module],
    split: Split,
    preprocessing: Preprocessing,
    progress: Progress,
    *,
    title: str,
    on_bad_image: str = "skip",
    option: str = "--images",
) -> list[Tensor]:
    """Return outputs_NK of each network or exported file, then labels_N, on the CPU.

    Labels are -1 where there are none, or several per image.

    Args:
        on_bad_image: "error", or "skip", which leaves out images that cannot be decoded.
        option: that names other images.

    Raises:
        WeightsError: an output of the first is not finite, if it is a network of torch.
        NotFinite: an output of another, or of a file.
        DataError: an image cannot be decoded, or none can.
    """
    exact = replace(preprocessing, decode="exact")  # a file cannot shrink a JPEG while it is decoded
    batches = loader.eval_batches(
        split, exact, batch_size=BATCH_SIZE, rank=0, world_size=1, on_bad_image=on_bad_image,
        num_threads=loader.default_threads(),
    )  # fmt: skip
    functions = [_outputs_by(network, split, exact) for network in networks]
    parts: list[list[Tensor]] = []
    with progress.bar(title, len(split)):
        for batch in batches:
            if num_images := len(batch.rows_B):
                labels_B = batch.labels_B if batch.labels_B.ndim == 1 else torch.full((num_images,), -1)
                parts.append([*_of_batch(functions, batch), labels_B])
            progress.update(min(len(parts) * BATCH_SIZE, len(split)))
    if not parts:
        raise DataError("no image can be decoded", where=split.name, fix=f"name others: {option}")
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def _of_batch(functions: Sequence[Callable[[Batch], Tensor]], batch: Batch) -> list[Tensor]:
    outputs = []
    for number, function in enumerate(functions):
        try:
            outputs.append(function(batch))
        except WeightsError as error:
            if number:
                raise NotFinite from error
            raise
        if not torch.isfinite(outputs[-1]).all():
            raise NotFinite
    return outputs


def divergence(outputs_NK: Tensor, others_NK: Tensor) -> float:
    """Return the mean over images of the Kullback-Leibler divergence of the softmax of others, in nats."""
    log_p_NK, log_q_NK = (each.double().log_softmax(1) for each in (outputs_NK, others_NK))
    return float((log_p_NK.exp() * (log_p_NK - log_q_NK)).sum(1).mean())


def _outputs_by(network: nn.Module, split: Split, preprocessing: Preprocessing) -> Callable[[Batch], Tensor]:
    def of_decoded(batch: Batch) -> Tensor:
        images = (loader.read_example(split, row)[0] for row in batch.rows_B.tolist())
        return torch.cat([network(torch.from_numpy(image_HWC)[None]) for image_HWC in images])

    match getattr(network, "takes_any_size", None):
        case None:
            return lambda batch: next(outputs_of(network, iter([batch]), preprocessing, CPU, "fp32"))[1]
        case True:
            return of_decoded
    return lambda batch: network(batch.images_BCHW.permute(0, 2, 3, 1).contiguous())


@dataclass(frozen=True)
class Verdict:
    """What the images say of an exported file.

    Attributes:
        lost: images that only the checkpoint has right.
        gained: images that only the file has right.
        num_right: that the checkpoint has.
        max_drop: the loss of accuracy that is allowed, a fraction.
        z: standard normal quantile of the confidence.
    """

    num_images: int
    num_right: int
    lost: int
    gained: int
    max_drop: float
    z: float = Z

    @property
    def drop(self) -> float:
        """Return the accuracy that is lost on these images, a fraction."""
        return (self.lost - self.gained) / self.num_images

    @property
    def highest_drop(self) -> float:
        """Return the end of the one-sided interval, of 95 % unless `z` says otherwise."""
        return highest_drop(self.lost, self.gained, self.num_images, z=self.z)

    @property
    def is_accepted(self) -> bool:
        return self.highest_drop <= self.max_drop

    def as_json(self) -> dict[str, Any]:
        return {
            "num_images": self.num_images,
            "top1_checkpoint": self.num_right / self.num_images,
            "top1_exported": (self.num_right - self.lost + self.gained) / self.num_images,
            "only_checkpoint_right": self.lost,
            "only_exported_right": self.gained,
            "drop": self.drop,
            "highest_drop": self.highest_drop,
            "max_drop": self.max_drop,
            "confidence": round(NormalDist().cdf(self.z), 6),
        }


def judge(
    outputs_NK: Tensor, exported_NK: Tensor, labels_N: Tensor, *, max_drop: float, z: float = Z
) -> Verdict:
    """Return the verdict on logits of both networks."""
    is_right_N, exported_is_right_N = (
        logits_NK.argmax(1) == labels_N for logits_NK in (outputs_NK, exported_NK)
    )
    return Verdict(
        num_images=len(labels_N),
        num_right=int(is_right_N.sum()),
        lost=int(torch.sum(is_right_N & ~exported_is_right_N)),
        gained=int(torch.sum(exported_is_right_N & ~is_right_N)),
        max_drop=max_drop,
        z=z,
    )


def note_of(agreement: Agreement, verdict: Verdict | None, precision: str, images: str) -> str:
    """Return what a file in another precision changes on images, for which no gate was named.

    Args:
        verdict: on images with labels.
        images: what they are.
    """
    shown = f"{count_of(agreement.num_images, 'image')} of {images}"
    if agreement.num_same is None:
        changed = f"outputs differ by up to {agreement.max_rel_difference:.2g} of the largest on {shown}"
        return f"{precision} is not judged: {changed}"
    changed = f"{agreement.num_same} of {shown} have the class of the checkpoint ({agreement.top1:.2%})"
    if verdict is None:
        return f"{precision}: {changed}; --gate DATA, or --images, measures it on images of yours"
    facts = verdict.as_json()
    right = f"{facts['top1_exported']:.2%} are right, by the checkpoint {facts['top1_checkpoint']:.2%}"
    return f"{precision}: {changed}; {right}; --gate DATA --max-drop POINTS refuses what loses more"


def points(fraction: float) -> str:
    """Return percentage points, rounded up so that they are enough."""
    return f"{math.ceil(1000 * fraction) / 10:g}"


def refuse(verdict: Verdict, *, option: str = "--gate") -> CheckFailed:
    """Return the error for a file that is not accepted, with what would change the verdict.

    Args:
        option: "--fastest" chooses the precision itself.
    """
    images = count_of(verdict.num_images, "image")
    fix = f"--max-drop {points(verdict.highest_drop)} would accept it"
    if verdict.lost:
        answers = f"{verdict.lost} right answers and gains {verdict.gained}"
        what = f"of {images} the file loses {answers}, a drop of {verdict.drop:.2%}"
        fix += ", or export in a higher --precision" if option == "--gate" else ""
    else:
        what = f"no right answer is lost, but {images} are too few to show it"
        if verdict.max_drop:
            enough = enough_images(verdict.max_drop, z=verdict.z)
            fix += f"; {count_of(enough, 'image')} without a change would show it"
    return CheckFailed(
        f"{what}: a drop of up to {verdict.highest_drop:.2%} cannot be ruled out",
        where=f"{option}, --max-drop {100 * verdict.max_drop:g}",
        fix=f"nothing was kept; {fix}",
    )


def enough_images(max_drop: float, *, z: float = Z) -> int:
    """Return how many images without a change show that at most this fraction is lost."""
    return math.ceil(z**2 * (1 - max_drop) / max_drop)


def highest_drop(lost: int, gained: int, num_images: int, *, z: float = Z) -> float:
    """Return the end of Tango's one-sided score interval of (lost - gained) / num_images, of 95 % by default.

    "Equivalence test and confidence interval for the difference in proportions for the paired-sample design"
    (Statistics in Medicine 17, 1998): the largest drop that the score test does not reject.
    """
    low, high = max((lost - gained) / num_images, -1.0), 1.0
    for _ in range(60):
        drop = (low + high) / 2
        low, high = (drop, high) if _score(lost, gained, num_images, drop) > -z else (low, drop)
    return high


def _score(lost: int, gained: int, num_images: int, drop: float) -> float:
    """Return the score statistic of a drop, with the fraction gained that is most likely at this drop."""
    a = 2 * num_images
    b = (2 * num_images - lost + gained) * drop - lost - gained
    c = -gained * drop * (1 - drop)
    gained_fraction = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = num_images * (2 * gained_fraction + drop * (1 - drop))
    difference = lost - gained - num_images * drop
    return difference / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, difference)


def measured(exported: nn.Module, model: nn.Module, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return latency per image and throughput at the best batch size, of both, with as many threads.

    The two take turns, so that a machine that slows down slows both. The first run of a turn does not count:
    threads of the other that still wait for work take the cores from it, and PyTorch twice as long.
    """

    def of_torch(images_BHWC: torch.Tensor) -> None:
        images_BCHW = images_BHWC.permute(0, 3, 1, 2)
        with torch.inference_mode():
            model(to_model_range(images_BCHW, mean=preprocessing.mean, std=preprocessing.std))

    times = seconds_by_batch_size({"exported": exported, "pytorch": of_torch}, preprocessing.image_size)
    return {
        "threads": torch.get_num_threads(),
        **{name: figures(of_side) for name, of_side in times.items()},
    }


def seconds_by_batch_size(
    sides: dict[str, Callable[[Tensor], Any]], image_size: tuple[int, int]
) -> dict[str, dict[int, float]]:
    """Return seconds of a batch of each of BATCH_SIZES, for each side; up to one that is slow or large."""
    times: dict[str, dict[int, float]] = {name: {} for name in sides}
    for batch_size in BATCH_SIZES:
        if batch_size > 1 and batch_size * 3 * math.prod(image_size) > MOST_BYTES:
            break
        for name, seconds in medians(sides, drawn(batch_size, image_size)).items():
            times[name][batch_size] = seconds
        if max(of_side[batch_size] for of_side in times.values()) > MOST_S:
            break
    return times


def drawn(batch_size: int, image_size: tuple[int, int]) -> Tensor:
    """Return images_BHWC of noise."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch_size, *image_size, 3), dtype=torch.uint8, generator=generator)


def medians(
    sides: dict[str, Callable[[torch.Tensor], Any]],
    images_BHWC: torch.Tensor,
    *,
    enough_s: float | None = None,
) -> dict[str, float]:
    """Return seconds of a batch for each side, which take turns for `enough_s` (ENOUGH_S) at the least."""
    enough_s = ENOUGH_S if enough_s is None else enough_s
    laps: dict[str, list[float]] = {name: [] for name in sides}
    began_at = time.perf_counter()
    for turn in itertools.count(1):
        for name, run in sides.items():
            laps[name] += [_seconds(run, images_BHWC) for _ in range(RUNS_OF_A_TURN)][1:]
        spent = time.perf_counter() - began_at
        if (turn >= TURNS and spent > enough_s) or spent > 2 * MOST_S:
            break
    return {name: median(of_side) for name, of_side in laps.items()}


def _seconds(run: Callable[[torch.Tensor], Any], images_BHWC: torch.Tensor) -> float:
    began_at = time.perf_counter()
    run(images_BHWC)
    return time.perf_counter() - began_at


def figures(seconds: dict[int, float]) -> dict[str, Any]:
    """Return latency and throughput from seconds of a batch, by its size."""
    best = max(seconds, key=lambda batch_size: batch_size / seconds[batch_size])
    return {"latency_ms": 1000 * seconds[1], "images_per_s": best / seconds[best], "batch_size": best}


def speed_text(speed: dict[str, Any]) -> str:
    """Return a line for each of the two."""
    names = {"exported": "this file", "pytorch": "PyTorch"}
    lines = []
    for key, name in names.items():
        of_side = speed[key]
        rate = f"{of_side['images_per_s']:.3g} images/s in batches of {of_side['batch_size']}"
        lines.append(f"{name} {of_side['latency_ms']:.3g} ms per image, {rate}")
    return "; ".join(lines)
