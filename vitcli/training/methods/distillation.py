"""Distillation (`distill.teacher`): a run learns the predictions of teachers for the views that it trains on.

The view of an example is a function of the seed and its position in the run, so the predictions for it are
computed once, stored in the user's cache and read by every run with the same views: another student, another
rate, the same run after a resume. A row that is missing or damaged is computed again. Stored are the TOP
largest probabilities and the sum of the others, in 16 bits each; what has just been computed is rounded in
the same way, so a run has the same bits with and without a cache.

B batch, K classes, T targets of a view.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property, partial
from math import inf, log
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitcli.cache import row_store, user_cache
from vitcli.cache.row_store import RowStore, aligned
from vitcli.data.loader import Batch
from vitcli.data.sampler import seed_of_part, step_positions
from vitcli.data.seen_images import MOST_IMAGES
from vitcli.data.transforms import train_transform_of
from vitcli.distributed.transfer import seed_generators
from vitcli.errors import WeightsError
from vitcli.evaluation.setup import settings_of_run
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Distill
from vitcli.training.checkpoint import Checkpoint
from vitcli.training.methods.method import Keys, Method
from vitcli.training.objective import draw_mixing
from vitcli.training.splits import RunSplits
from vitcli.training.teacher import Teacher, check_teachers, open_teacher

if TYPE_CHECKING:  # they import this module
    from vitcli.training.run import TrainingRun

TOP = 32  # probabilities of a view
REVISION = 1  # raise it when targets change that have the same key
KIND = "teachers"  # in the user's cache
MOST_NEGATIVE = -65_000.0  # of the logarithm of a probability, in 16 bits
STAMP = 1  # of every row: the key holds what the images are


class Distillation(Method):
    """The predictions of teachers, added to each batch for the objective."""

    settings: Distill
    before: list[str] | None = None  # digests of the teachers of the checkpoint
    _teachers: list[Teacher] | None = None

    @staticmethod
    def is_asked_for(command: str, recipe: Recipe, splits: RunSplits) -> bool:
        return recipe.distill is not None

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        assert recipe.distill, "a run without a teacher has no such method"
        self.settings = recipe.distill

    def check(self, splits: RunSplits) -> None:
        check_teachers(self.recipe, splits.train)

    def state(self) -> Keys:
        digests = self.before if self._teachers is None else [each.digest for each in self._teachers]
        return {"teachers": digests}

    def restore(self, saved: Checkpoint) -> None:
        self.before = saved.state.get("teachers")

    def targets(self, run: "TrainingRun") -> "TeacherTargets":
        if self._teachers is None:
            self._teachers = self._opened(run)
        return TeacherTargets(run, self.settings, self._teachers)

    def _opened(self, run: "TrainingRun") -> list[Teacher]:
        """Open the teachers, whose networks are not built yet.

        Raises:
            WeightsError: they are not those that the run began with.
        """
        job = run.job
        settings = settings_of_run(job.recipe, job.runtime, job.progress, workers=run.num_threads)
        settings = replace(settings, precision=job.runtime.precision)
        teachers = [open_teacher(name, job.splits.train, settings) for name in self.settings.teacher or ()]
        if self.before not in (None, [teacher.digest for teacher in teachers]):
            raise WeightsError(
                "the teachers are no longer those that this run began with",
                where=f"recipe key distill.teacher, {', '.join(self.settings.teacher or ())}",
                fix="restore them, or start a new run in another folder",
            )
        for line in (line for teacher in teachers for line in teacher.notes):
            job.progress.note_once(line)
        return teachers


class TeacherTargets:
    """The predictions of teachers for the views of a run, with the plan that it has now."""

    def __init__(self, run: "TrainingRun", settings: Distill, teachers: Sequence[Teacher]):
        self.job, self.settings, self.teachers = run.job, settings, teachers
        self.num_classes = run.job.splits.train.num_classes
        self._views_at = cache(partial(TeacherViews, run))

    def __call__(self, batch: Batch, step: int, part: int) -> Tensor:
        """Return the targets (B, T, 2) of a micro-batch of this process, part `part` of that step."""
        plan, runtime, store = self.job.plan, self.job.runtime, self._store
        of_step = step_positions(
            step, batch_size=plan.batch_size, rank=runtime.rank, world_size=runtime.world_size
        )
        positions = of_step[part * plan.per_device_batch : (part + 1) * plan.per_device_batch]
        records_B = self._stored(store, positions) if store else None
        if records_B is None:
            records_B = self._computed(batch, step, part)
            for position, record in zip(positions, records_B, strict=True) if store else ():
                store.add(position, STAMP, record.reshape(1).view(np.uint8).reshape(-1, 1, 1))
        return unpacked(records_B)

    def _stored(self, store: RowStore, positions: range) -> np.ndarray | None:
        """Return the records of all these views; None if one is missing."""
        record, rows = record_of(self.num_classes), []
        for position in positions:
            content = store.get(position, STAMP)
            if content is None or content.nbytes != record.itemsize:
                return None
            rows.append(content.tobytes())
        return np.frombuffer(b"".join(rows), record)

    def _computed(self, batch: Batch, step: int, part: int) -> np.ndarray:
        """Return the records of a micro-batch, which is mixed as the objective will mix it."""
        job, mixing = self.job, None
        objective, size = job.recipe.objective, batch.images_BCHW.shape[-2:]
        if objective.mixup or objective.cutmix:
            number = job.runtime.rank * job.plan.accumulation_steps + part
            seed_generators(seed_of_part(job.recipe.train.seed, step, number), torch.device("cpu"))
            mixing = draw_mixing(size, mixup=objective.mixup, cutmix=objective.cutmix)
        logits = []
        for teacher in self.teachers:
            images_BCHW = batch.images_BCHW
            if tuple(size) != teacher.image_size:
                images_BCHW = self._views_at(teacher.image_size).at(step, part)
            logits.append(teacher.logits(images_BCHW, mixing))
        return targets_of(logits, temperature=self.settings.temperature)

    @cached_property
    def _store(self) -> RowStore | None:
        """The store of these views in the user's cache; None where it cannot be used, and in a dry run."""
        job = self.job
        if job.options.dry_run or job.recipe.data.cache == "off" or not user_cache.asked_limit():
            return None
        num_views = job.plan.total_steps * job.plan.batch_size
        room = num_views * aligned(record_of(self.num_classes).itemsize)
        try:
            return row_store.open_cached(KIND, self._about, num_views, limit_bytes=room, remembers=False)
        except OSError as error:
            job.progress.note_once(f"note: teacher predictions are not stored: {error.strerror}")
            return None

    @property
    def _about(self) -> dict[str, Any]:
        """Return everything that a target depends on but its position, as JSON: the key of the store."""
        job, recipe, train = self.job, self.job.recipe, self.job.splits.train
        data, objective, plan, contents = recipe.data, recipe.objective, job.plan, job.contents[0]
        view = asdict(train_transform_of(data))
        size, sides = view.pop("image_size"), recipe.schedule.image_sizes
        is_mixed = bool(objective.mixup or objective.cutmix)
        # Blocks of shards are shuffled, and images mixed, by batch; a GPU rounds by it.
        in_parts = is_mixed or train.block_starts is not None or job.runtime.device.type != "cpu"
        return {
            "revision": REVISION,
            "name": f"{', '.join(self.settings.teacher or ())} on {data.dataset}",
            "teachers": [[teacher.digest, teacher.image_size] for teacher in self.teachers],
            "temperature": self.settings.temperature,
            "data": [train.fingerprint, len(train), contents.images, data.on_bad_image],
            "files": contents.files if len(train) > MOST_IMAGES or train.is_large else None,
            "groups": data.group_column,
            "view": view,
            "moved": size if data.trivialaugment else None,  # by pixels of the student
            "seed": recipe.train.seed,
            "order": [data.sampling, data.shuffle_window],
            "parts": [plan.batch_size, plan.per_device_batch] if in_parts else None,
            "mixed": [objective.mixup, objective.cutmix] if is_mixed else None,
            "boxes": [size, sides, plan.total_steps if sides else 0] if objective.cutmix else None,
            "computed": [job.runtime.precision, job.runtime.device.type, torch.__version__],
            "hardware": job.runtime.hardware,
        }


class TeacherViews:
    """Training images as a teacher of another size sees them, loaded from the first that is asked for on."""

    def __init__(self, run: "TrainingRun", image_size: tuple[int, int]):
        self._load, self._num_parts = partial(run.views, image_size), run.job.plan.accumulation_steps
        self._next: tuple[int, int] | None = None
        self._batches: Iterator[Batch] = iter(())

    def at(self, step: int, part: int) -> Tensor:
        """Return the images of a micro-batch of this process, (B, 3, H, W) uint8."""
        if self._next != (step, part):
            self._batches = self._load(step)
            for _ in range(part):
                next(self._batches)
        self._next = (step, part + 1) if part + 1 < self._num_parts else (step + 1, 0)
        return next(self._batches).images_BCHW


def num_targets(num_classes: int) -> int:
    """Return T: all classes, or the first TOP and one for the others."""
    return min(num_classes, TOP + 1)


def record_of(num_classes: int) -> np.dtype:
    """Return how the targets of a view are stored."""
    number = "<u2" if num_classes <= 2**16 else "<u4"
    count = (num_targets(num_classes),)
    return np.dtype([("classes", number, count), ("log_p", "<f2", count)])


def targets_of(logits: Sequence[Tensor], *, temperature: float) -> np.ndarray:
    """Return the records (B,) of the mean probabilities of teachers.

    The last target stands for all other classes where there are more than TOP + 1; its class is 0.

    Args:
        logits: of each teacher, (B, K).
    """
    of_each = torch.stack([(logits_BK / temperature).log_softmax(dim=1) for logits_BK in logits])
    log_p_BK = of_each.logsumexp(dim=0) - log(len(logits))
    num_classes = log_p_BK.shape[1]
    classes_BT, log_p_BT = torch.arange(num_classes).expand(log_p_BK.shape), log_p_BK
    if num_targets(num_classes) < num_classes:
        top_BT, classes_BT = log_p_BK.topk(TOP, dim=1)
        others_B1 = log_p_BK.scatter(1, classes_BT, -inf).logsumexp(dim=1, keepdim=True)
        log_p_BT = torch.cat([top_BT, others_B1], dim=1)
        classes_BT = torch.cat([classes_BT, torch.zeros_like(classes_BT[:, :1])], dim=1)
    records_B = np.empty(len(log_p_BK), record_of(num_classes))
    records_B["classes"] = classes_BT.numpy()
    records_B["log_p"] = log_p_BT.clamp(min=MOST_NEGATIVE).numpy()
    return records_B


def unpacked(records_B: np.ndarray) -> Tensor:
    """Return records as `objective.teacher_xent` takes them, (B, T, 2) float32; probabilities add up to 1."""
    log_p_BT = torch.from_numpy(records_B["log_p"].astype(np.float32)).log_softmax(dim=1)
    classes_BT = torch.from_numpy(records_B["classes"].astype(np.float32))
    return torch.stack([classes_BT, log_p_BT], dim=-1)
