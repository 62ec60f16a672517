"""`vit export --fastest`: the fastest ONNX file of which images show that it keeps the accuracy.

Candidates are the checkpoint in other precisions, at smaller images, without its last blocks, products of
these, and students that were distilled from it. Each becomes a file, whose latency is measured in turns with
that of the file in fp32 at full size, so that a machine that slows down slows both, and again once all are
made: the median of the ratios counts.

Screening, without labels: training images tell how far the answers of a candidate diverge from those of the
checkpoint. One that is slower and diverges more than another has lost, and so has one that is hardly faster.

Verdict: the others are judged from the slowest to the fastest on images that the run held out, each by the
paired test of `--gate` at 5 %, up to the first that is refused. The order is fixed before any label is read,
and a file counts as accepted only if all before it do. So the probability that a file is accepted which loses
more than `--max-drop` is at most 5 %, however many candidates there are (fixed-sequence testing; Maurer,
Hothorn and Lehmann 1995). Students are a sequence of their own, as their divergence tells little about
accuracy; each of two sequences has 2.5 %.

Letters: N images, K classes.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

from torch import Tensor

from vitcli.conversion import comparison, export, fastest_text
from vitcli.conversion.comparison import NotFinite, Verdict
from vitcli.conversion.export import Export, ExportOptions
from vitcli.conversion.images import (
    NUM_FOR_SCALES,
    Images,
    check_decodable,
    evenly,
    images_for_scales,
    open_for_screening,
    open_for_verdict,
    open_images,
    open_named,
)
from vitcli.conversion.onnx_process import OnnxProcess
from vitcli.data import loader
from vitcli.data.seen_images import SeenImages
from vitcli.data.split import Split
from vitcli.errors import CheckFailed, DataError, VitError, WeightsError
from vitcli.output import plots, run_folder
from vitcli.output.atomic import check_out
from vitcli.output.progress import Progress
from vitcli.output.text import count_of, first_few, short_names, size_text
from vitcli.weights.io import Weights, read_weights
from vitcli.weights.load import num_blocks, with_first_blocks
from vitcli.weights.production.program import PRECISIONS, ProgramNetwork

ALPHA = 0.05  # probability that a file is kept which loses too much
SIDES = (6 / 7, 11 / 14, 5 / 7, 9 / 14, 4 / 7, 3 / 7)  # of images, of that of the checkpoint
MOST_DROPPED = 2  # last blocks
FASTER = ("fp16", "int8")  # precisions that may be; int8-weights computes as fp32 does
LEAST_GAIN = 0.05  # of latency: one that is less faster than another is hardly faster
NUM_SCREENED, NUM_FOR_SIZE = 256, 16  # images to compare answers on; those that tell what is measured
REFUSED, NOT_JUDGED = "refused", "not judged"
ENOUGH_S, NUM_MEASURED = 0.6, 3  # of measuring the latency of a candidate: seconds, times


@dataclass(frozen=True)
class Variation:
    """A network and what is to become of it.

    Attributes:
        weights: of the whole network.
        num_dropped: last blocks that are left out.
        student: its name, "" of the checkpoint itself.
    """

    weights: Weights = field(compare=False)
    image_size: tuple[int, int]
    precision: str = PRECISIONS[0]
    num_dropped: int = 0
    student: str = ""

    @property
    def name(self) -> str:
        height, width = self.image_size
        parts = [self.student] if self.student else []
        parts += [self.precision, f"{size_text(height if height == width else self.image_size)} px"]
        if self.num_dropped:
            depth = num_blocks(self.weights)
            parts.append(f"{depth - self.num_dropped} of {depth} blocks")
        return ", ".join(parts)


@dataclass
class TriedFile:
    """A candidate as a file, and what is known of it.

    Attributes:
        latency_ratio: of its latency to that of the file in fp32 at full size, the median of `ratios`.
        images_per_s, batch_size: at the batch size where it is fastest.
        agreement, divergence: of its answers with those of the checkpoint on the images of the screening:
            the fraction of equal top classes, and the mean divergence in nats.
        why: it lost; "" of the file that is kept.
    """

    candidate: Variation
    path: Path
    latency_ratio: float = float("inf")
    ratios: list[float] = field(default_factory=list)
    images_per_s: float = 0.0
    batch_size: int = 1
    num_bytes: int = 0
    peak_memory_mb: float | None = None
    agreement: float | None = None
    divergence: float = float("inf")
    verdict: Verdict | None = None
    why: str = ""

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def is_accepted(self) -> bool:
        return self.verdict is not None and self.verdict.is_accepted

    def as_json(self, latency_ms: float) -> dict[str, Any]:
        """Return the object of `candidates`; `latency_ms` is that of the file in fp32 at full size."""
        candidate, verdict = self.candidate, self.verdict.as_json() if self.verdict else {}
        was_measured = self.images_per_s > 0
        return {
            "name": self.name,
            "ckpt": candidate.weights.source,
            "precision": candidate.precision,
            "resolution": list(candidate.image_size),
            "dropped_blocks": candidate.num_dropped,
            "latency_ms": latency_ms * self.latency_ratio if was_measured else None,
            "speed_up": 1 / self.latency_ratio if was_measured else None,
            "images_per_s": self.images_per_s if was_measured else None,
            "batch_size": self.batch_size if was_measured else None,
            "num_bytes": self.num_bytes or None,
            "peak_memory_mb": self.peak_memory_mb,
            "top1_agreement": self.agreement,
            "divergence": self.divergence if was_measured else None,
            "top1": verdict.get("top1_exported"),
            "highest_drop": verdict.get("highest_drop"),
            "on_front": self.verdict is not None or self.why.startswith((REFUSED, NOT_JUDGED)),
            "kept": not self.why,
            "why": self.why,
        }


@dataclass
class FastestSearch:
    """The trials of one command.

    Attributes:
        weights: of the checkpoint.
        screened: images that candidates are compared on, without their labels.
        outputs_NK: of the checkpoint on them.
        size: height and width of the images whose latency is measured: what the user's have.
        folder: for the files, each in a folder of its own.
        baseline: the file in fp32 at full size, and its latencies in seconds, beside each other file.
    """

    weights: Weights
    options: ExportOptions
    screened: Split
    outputs_NK: Tensor
    size: tuple[int, int]
    folder: Path
    name: str
    progress: Progress
    trials: list[TriedFile] = field(default_factory=list)
    baseline: ProgramNetwork | None = None
    latencies_s: list[float] = field(default_factory=list)

    def prepared(self, candidate: Variation, images: Images | None = None) -> Export:
        """Return the export of a candidate, to be compared on these images if on any."""
        weights, dropped = candidate.weights, candidate.num_dropped
        weights = with_first_blocks(weights, num_blocks(weights) - dropped) if dropped else weights
        options = replace(
            self.options, image_size=candidate.image_size, precision=candidate.precision, gate=None
        )
        return export.prepare(weights, "onnx", options, images or Images(self.screened))

    def run(self, first: Variation, students: Sequence[Variation]) -> None:
        """Try the checkpoint, what changes one thing of it, products of what is faster, and students."""
        self.try_all([first])
        self.try_all(singles(first))
        self.try_all(products(self.trials))
        self.try_all(student for each in students for student in (each, replace(each, precision="int8")))
        # Latencies again at other times: the machine may have been busy while one was measured
        for _ in range(NUM_MEASURED - 1):
            for trial in self.trials:
                if trial.ratios:
                    self._measure_latency(trial, ProgramNetwork(trial.path))

    def try_all(self, candidates: Iterable[Variation]) -> None:
        """Write, measure and compare each; one that cannot be exported has lost."""
        for candidate in candidates:
            self.progress.note(f"candidate {len(self.trials) + 1}: {candidate.name}")
            trial = TriedFile(candidate, self.folder / str(len(self.trials) + 1) / self.name)
            self.trials.append(trial)
            try:
                self._try(trial)
            except VitError as error:
                if trial is self.trials[0]:
                    raise
                trial.why = f"cannot be exported: {error.message}"

    def _try(self, trial: TriedFile) -> None:
        candidate, path = trial.candidate, trial.path
        prepared = self.prepared(candidate)
        path.parent.mkdir()
        same = replace(candidate, precision="fp32")
        in_fp32 = [each.path for each in self.trials if each.candidate == same and each.path.exists()]
        samples = images_for_scales(evenly(self.screened, NUM_FOR_SCALES), prepared.form)
        prepared.write(path, samples, fp32=in_fp32[0] if in_fp32 else None)
        trial.num_bytes = sum(file.stat().st_size for file in path.parent.iterdir())
        network = ProgramNetwork(path)
        self.baseline = self.baseline or network
        try:
            outputs_NK = self.outputs_of(trial, self.screened)
        except NotFinite as error:
            raise export.failure("are not finite numbers", prepared) from error
        trial.agreement = float((outputs_NK.argmax(1) == self.outputs_NK.argmax(1)).double().mean())
        trial.divergence = comparison.divergence(self.outputs_NK, outputs_NK)
        self._measure(trial, network)

    def outputs_of(self, trial: TriedFile, split: Split) -> Tensor:
        """Return outputs_NK of a file, in the order of the checkpoint's classes."""
        weights, network = trial.candidate.weights, ProgramNetwork(trial.path)
        preprocessing, _ = export.preprocessing_of(weights, trial.candidate.image_size)
        outputs_NK, _ = comparison.outputs_of_all(
            [network], split, preprocessing, self.progress, title=trial.name
        )
        return outputs_NK[:, order_of(weights, self.weights)]

    def _measure_latency(self, trial: TriedFile, network: ProgramNetwork) -> None:
        """Measure it beside the baseline."""
        image_1HWC, first_1HWC = (
            comparison.drawn(1, self._size_for(each)) for each in (trial, self.trials[0])
        )
        sides: dict[str, Callable[[Any], Any]] = {
            "file": network,
            "baseline": lambda _: self.baseline(first_1HWC),
        }
        seconds = comparison.medians(sides, image_1HWC, enough_s=ENOUGH_S)
        self.latencies_s.append(seconds["baseline"])
        trial.ratios.append(1.0 if trial is self.trials[0] else seconds["file"] / seconds["baseline"])
        trial.latency_ratio = median(trial.ratios)

    def _size_for(self, trial: TriedFile) -> tuple[int, int]:
        return self.size if self.options.input == "images" else trial.candidate.image_size

    def _measure(self, trial: TriedFile, network: ProgramNetwork) -> None:
        """Measure latency, throughput, and memory in a process of its own."""
        size = self._size_for(trial)
        self._measure_latency(trial, network)
        figures = comparison.figures(comparison.seconds_by_batch_size({"file": network}, size)["file"])
        trial.images_per_s, trial.batch_size = figures["images_per_s"], figures["batch_size"]
        image_HWC = comparison.drawn(1, size)[0].numpy()
        with (
            suppress(VitError),  # a large image may need more than its limits
            OnnxProcess(trial.path, num_bytes=trial.num_bytes + 4 * image_HWC.nbytes) as process,
        ):
            process.answers(image_HWC)
            trial.peak_memory_mb = process.peak_memory_mb()

    @property
    def latency_ms(self) -> float:
        """Return the latency of the baseline."""
        return 1000 * median(self.latencies_s)


def fastest(
    ckpt: str, out: str, options: ExportOptions, *, budget_ms: float | None, students: list[str], quiet: bool
) -> dict[str, Any]:
    """Export the fastest candidate of which images show that it loses at most `options.max_drop`.

    Args:
        budget_ms: the largest latency of the file that is kept; None for any.
        students: checkpoints of the same classes that are candidates too.

    Raises:
        VitError: the network has no accuracy, or images are missing or too few.
        CheckFailed: no candidate is accepted within the budget; nothing is kept.
    """
    began_at = time.perf_counter()
    progress, target = Progress(quiet=quiet), Path(os.path.abspath(out))
    figure = export.front_path(target)
    export.check_target(replace(options, calibrate=()), target)  # images that candidates are compared on
    check_out(figure, overwrite=options.overwrite, option="OUT")
    named = open_named(options.images, progress) if options.images else None
    # Images to judge on, others to screen on, and those that the file is checked on at the end
    weights = read_weights(ckpt, model_name=options.model_name, quiet=quiet)
    judged = open_for_verdict(weights, options.gate, options.split)
    of_students = _students(weights, students, judged, options.max_drop, progress)
    z = quantile(bool(of_students))
    _check_enough(judged, options.max_drop, z)
    screened = open_for_screening(weights, options.calibrate, judged, most=NUM_SCREENED)
    images = named or open_images(weights, judged if options.gate else None, progress, precision="int8")
    check_decodable(images)
    # Outputs of the checkpoint, with which candidates are compared
    checkpoint = export.prepare(weights, "onnx", options, Images(screened))
    how = {"preprocessing": checkpoint.preprocessing, "progress": progress, "title": "checkpoint"}
    of_checkpoint = partial(comparison.outputs_of_all, [checkpoint.model], **how)
    outputs_NK, _ = of_checkpoint(screened, option="--calibrate FOLDER")
    on_judged = of_checkpoint(judged, option="--gate DATA")
    size = _median_size(screened)
    with export.temporary_folder(target) as folder:
        search = FastestSearch(weights, options, screened, outputs_NK, size, folder, target.name, progress)
        search.run(Variation(weights, checkpoint.preprocessing.image_size), of_students)
        for is_student in (False, True):
            sequence = [each for each in search.trials if bool(each.candidate.student) == is_student]
            judge(front(sequence), search, judged, *on_judged, z=z)
        kept = choose(search, budget_ms)
        # The file as every export leaves it
        rows, verdict = [trial.as_json(search.latency_ms) for trial in search.trials], kept.verdict.as_json()
        plots.save(kept.path.with_name(figure.name), fastest_text.front_of(rows, verdict))
        prepared = search.prepared(kept.candidate, images)
        facts = export.finish(prepared, kept.path, out, progress)
        facts |= {
            "notes": list(judged.notes),
            "gate": {"dataset": options.gate, "split": judged.name, **verdict},
            "candidates": rows,
            "figure": str(Path(out).with_name(figure.name)),
            "measured_on": list(size) if options.input == "images" else None,
            "budget_ms": budget_ms,
        }
        export.put_in_place(kept.path, target)
    result = export.result_of(prepared, kept.candidate.weights, out, facts, progress)
    return result | {"elapsed_s": time.perf_counter() - began_at}


def quantile(has_students: bool) -> float:
    """Return the standard normal quantile of a verdict, of which two sequences share the error."""
    return NormalDist().inv_cdf(1 - ALPHA / (2 if has_students else 1))


def singles(first: Variation) -> list[Variation]:
    """Return the candidates that change one thing of the network as it is."""
    smaller = [replace(first, image_size=size) for size in smaller_sizes(first)]
    others = [replace(first, precision=precision) for precision in FASTER]
    most = min(MOST_DROPPED, num_blocks(first.weights) - 1)
    return [*others, *smaller, *(replace(first, num_dropped=number) for number in range(1, most + 1))]


def products(trials: Sequence[TriedFile]) -> list[Variation]:
    """Return smaller images in the precisions that are faster; in the fastest without a block, too."""
    first = trials[0].candidate
    ratios = {trial.candidate.precision: trial.latency_ratio for trial in trials
              if trial.candidate == replace(first, precision=trial.candidate.precision)}  # fmt: skip
    quick = sorted((name for name, ratio in ratios.items() if ratio < 1 - LEAST_GAIN), key=ratios.__getitem__)
    sizes = smaller_sizes(first)
    candidates = [replace(first, image_size=size, precision=name) for size in sizes for name in quick]
    if quick and num_blocks(first.weights) > 1:
        candidates += [
            replace(first, image_size=size, precision=quick[0], num_dropped=1) for size in sizes[:2]
        ]
    return candidates


def smaller_sizes(first: Variation) -> list[tuple[int, int]]:
    """Return sizes of about the fractions SIDES that the patches divide; none if patches are unknown."""
    patch = first.weights.architecture.patch_size
    if not patch:
        return []
    scaled = ((round(side * fraction / patch) for side in first.image_size) for fraction in SIDES)
    sizes = [(height * patch, width * patch) for height, width in scaled if min(height, width) > 1]
    return [size for size in dict.fromkeys(sizes) if size != first.image_size]


def order_of(weights: Weights, reference: Weights) -> list[int]:
    """Return the places of the classes of the reference among those of other weights."""
    if weights.class_names and reference.class_names:
        return [weights.class_names.index(name) for name in reference.class_names]
    return list(range(reference.architecture.num_classes))


def _students(
    weights: Weights, named: Sequence[str], judged: Split, max_drop: float, progress: Progress
) -> list[Variation]:
    """Return those that are named, and those that were distilled from the checkpoint and stand beside it.

    Raises:
        WeightsError: one that is named has other classes, or was trained on images that it is judged by.
    """
    beside = _distilled_from(weights.source)
    enough = comparison.enough_images(max_drop, z=quantile(True))
    if beside and not named and len(judged) < enough:
        names = ", ".join(folder.name for folder in beside)
        progress.note(f"note: no student is tried ({names}): with them {enough:,} labelled images are needed")
        beside = []
    ckpts: dict[Path, str] = {}
    for ckpt in (*named, *map(str, beside)):
        path = Path(ckpt).resolve()
        ckpts.setdefault(path.parent if path.name == run_folder.WEIGHTS else path, ckpt)
    students = []
    for ckpt, name in short_names(ckpts.values()).items():
        try:
            student = read_weights(ckpt, quiet=progress.is_silent)
            _check_classes(student, weights)
            _check_unseen(student, judged, progress)
        except VitError as error:
            if ckpt in named:
                raise
            progress.note(f"note: the student {ckpt} is left out: {error.message}")
            continue
        preprocessing, _ = export.preprocessing_of(student, None)
        students.append(Variation(student, preprocessing.image_size, student=name))
    return students


def _check_classes(student: Weights, weights: Weights) -> None:
    names, others = (set(each.class_names or ()) for each in (weights, student))
    if names != others or weights.architecture.num_classes != student.architecture.num_classes:
        problem = first_few(sorted(names ^ others)) or f"{student.architecture.num_classes} of them"
        raise WeightsError(
            f"{student.source} has other classes than {weights.source}: {problem}",
            where="--student",
            fix="leave it out, or distil it on the data of the checkpoint",
        )


def _check_unseen(student: Weights, judged: Split, progress: Progress) -> None:
    num_seen = SeenImages.of(student.metadata).num_trained_on(judged)
    if num_seen is None:
        progress.note(f"note: whether {student.source} was trained on evaluation images is not known")
    elif num_seen:
        raise WeightsError(
            f"{student.source} was trained on {num_seen:,} of the {len(judged):,} evaluation images",
            where="--student, --gate",
            fix="vit distill --teacher RUN holds out what the run did; or name other images with --gate DATA",
        )


def _distilled_from(ckpt: str) -> list[Path]:
    """Return the run folders beside that of a checkpoint whose recipe names it as a teacher."""
    folder, students = run_folder.folder_of(ckpt), []
    if not folder:
        return []
    with suppress(OSError):  # the folder around may be another user's
        for other in sorted(folder.resolve().parent.iterdir()):
            with suppress(OSError, VitError):  # so may this one, or its recipe is of another version
                if not (other / run_folder.RECIPE).is_file() or not (other / run_folder.WEIGHTS).is_file():
                    continue
                teachers = run_folder.recipe_of(other)[0].teachers
                if any((run_folder.folder_of(name) or Path(name)).resolve() == folder.resolve()
                       for name in teachers):  # fmt: skip
                    students.append(other)
    return students


def _check_enough(judged: Split, max_drop: float, z: float) -> None:
    """Refuse images that are too few to show anything.

    Raises:
        VitError: even without a change.
    """
    enough = comparison.enough_images(max_drop, z=z)
    if len(judged) < enough:
        least = z**2 / (len(judged) + z**2)
        raise VitError(
            f"{count_of(len(judged), 'image')} of {judged.name} cannot show a drop of at most "
            f"{100 * max_drop:g} points: {enough:,} are needed even if no answer changes",
            where="--fastest, --max-drop",
            fix=f"--gate DATA with more images, or --max-drop {comparison.points(least)}",
        )


def _median_size(split: Split) -> tuple[int, int]:
    """Return the median height and width of some images, of which at least one can be decoded."""
    step, sizes = -(-len(split) // NUM_FOR_SIZE), []
    for row in sorted(range(len(split)), key=lambda row: row % step):  # some from all of it come first
        with suppress(DataError):
            sizes.append(loader.read_example(split, row)[0].shape[:2])
        if len(sizes) == NUM_FOR_SIZE:
            break
    heights, widths = zip(*sizes, strict=True)
    return int(median(heights)), int(median(widths))


def front(trials: Sequence[TriedFile]) -> list[TriedFile]:
    """Return those that no other beats, the slowest first; the others get the reason why they lost."""
    best: list[TriedFile] = []
    for trial in sorted((each for each in trials if not each.why), key=lambda each: each.latency_ratio):
        if best and trial.divergence >= best[-1].divergence:
            trial.why = f"slower, and diverges more than {best[-1].name}"
        else:
            best.append(trial)
    kept: list[TriedFile] = []
    for trial in reversed(best):
        if kept and trial.latency_ratio > (1 - LEAST_GAIN) * kept[-1].latency_ratio:
            trial.why = f"less than {LEAST_GAIN:.0%} faster than {kept[-1].name}, and diverges more"
        else:
            kept.append(trial)
    return kept


def judge(
    sequence: Sequence[TriedFile],
    search: FastestSearch,
    judged: Split,
    outputs_NK: Tensor,
    labels_N: Tensor,
    *,
    z: float,
) -> None:
    """Judge files in their order, up to the first that is refused."""
    for number, trial in enumerate(sequence):
        try:
            others_NK = search.outputs_of(trial, judged)
        except NotFinite:
            trial.why = f"{REFUSED}: its outputs are not finite"
        else:
            max_drop = search.options.max_drop
            trial.verdict = comparison.judge(outputs_NK, others_NK, labels_N, max_drop=max_drop, z=z)
            if trial.is_accepted:
                continue
            trial.why = f"{REFUSED}: may lose {comparison.points(trial.verdict.highest_drop)} points"
        for other in sequence[number + 1 :]:
            other.why = f"{NOT_JUDGED}: {trial.name} was refused"
        return


def choose(search: FastestSearch, budget_ms: float | None) -> TriedFile:
    """Return the fastest file that is accepted; the others get the reason why they lost.

    Raises:
        CheckFailed: none is, within the budget.
    """
    accepted = sorted(
        (trial for trial in search.trials if trial.is_accepted), key=lambda each: each.latency_ratio
    )
    if not accepted:
        verdicts = [trial.verdict for trial in search.trials if trial.verdict]
        if not verdicts:
            raise export.failure("are not finite numbers", search.prepared(search.trials[0].candidate))
        raise comparison.refuse(verdicts[0], option="--fastest")
    kept, *others = accepted
    latency_ms = search.latency_ms * kept.latency_ratio
    if budget_ms is not None and latency_ms > budget_ms:
        needed = -(-latency_ms * 11 // 10)  # whole, with room for what the clock varies
        raise CheckFailed(
            f"the fastest file that keeps the accuracy, {kept.name}, takes {latency_ms:.3g} ms",
            where=f"--budget {budget_ms:g}ms",
            fix=f"nothing was kept; --budget {needed:.0f}ms keeps it, or allow a larger --max-drop",
        )
    for trial in others:
        trial.why = f"accepted, but {kept.name} is faster"
    return kept
