"""A run that ends on time: its speed is measured, and the number of its steps is planned by it.

The first plan has the steps of the recipe, the most that are made. After the first steps, and wherever the
forecast later misses the end, the steps that are left are planned again; warm-up and decay are those of a run
of the new length. A new plan is recorded in the run folder before its first step, so that a resumed run has
the learning rates of an unbroken one (`TrainingJob.part_at`).
"""

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from vitcli.errors import VitError
from vitcli.output.text import count_of, duration
from vitcli.training.methods.method import periodic_split
from vitcli.training.setup import TrainingJob

MEASURED_STEPS = 6  # before the first plan, after one that is slow
LONG_STEPS = 0.05  # of the time: this many measured steps are enough
LATE, EARLY = 0.01, 0.03  # of the time: what a forecast may miss the end by before the run is planned again
CHECKED_AFTER = 1 / 4  # of the time that is left
FEWEST_STEPS = 2  # that a later forecast is made from
RESULTS_S = 5.0  # to write weights, figures and predictions
SAVED_AFTER = 1 / 20  # of the time: what a killed run loses at most
LEAST_SAVED_S = 5.0


@dataclass(frozen=True)
class Scoring:
    """The images that a run scores: at each multiple of `every` steps, unless it is 0, and at its end."""

    every: int
    num_periodic: int
    num_final: int

    def num_between(self, step: int, total_steps: int) -> int:
        """Return how many images are scored after `step`, in a run of `total_steps`."""
        times = (total_steps - 1) // self.every - step // self.every if self.every else 0
        return max(0, times) * self.num_periodic + self.num_final


def scoring_of(job: TrainingJob) -> Scoring:
    """Return the images that a run scores.

    At its end these are the images to report on, those of a few-shot probe, and what the methods of the run
    pass through the network.
    """
    splits = job.splits
    num_periodic = len(periodic_split(job.methods, splits))
    num_final = sum(method.num_scored(job) for method in job.methods)
    num_final += 0 if job.is_of_all_folds else len(splits.eval)
    num_final += len(splits.probe[1]) if splits.probe else 0
    return Scoring(job.recipe.eval.every, num_periodic, num_final)


class TimeLimit:
    """The clock of a run that is to end after `limit_s`, and the forecast of its end.

    Forecasts are those of the first process; the others follow its plans.

    Args:
        limit_s: from the start of the command to its end, in seconds.
        began_at: when the command started, by `clock`.
        most_steps: of the recipe.
        is_planned: whether an earlier part of the run has planned its steps.

    Attributes:
        used_before_s: time of the earlier parts of a resumed run.
        score_s: seconds to score an image.
    """

    def __init__(
        self,
        limit_s: float,
        scoring: Scoring,
        *,
        began_at: float,
        most_steps: int,
        is_planned: bool,
        is_main: bool,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.limit_s, self.scoring, self.most_steps = limit_s, scoring, most_steps
        self.is_planned, self.is_main = is_planned, is_main
        self.used_before_s = self.score_s = 0.0
        self._clock, self._began_at = clock, began_at
        self._step_s = 0.0
        self._is_first_check, self._checked_at_s = True, 0.0
        self.start_measuring()

    @property
    def save_every_s(self) -> float:
        """Seconds between checkpoints, so that a run that is killed still ends on time."""
        return max(LEAST_SAVED_S, self.limit_s * SAVED_AFTER)

    def used_s(self) -> float:
        """Return the seconds since the start of the command, and of those that it resumes."""
        return self.used_before_s + self._clock() - self._began_at

    def start_measuring(self) -> None:
        """Measure steps from the next one on."""
        self._first: tuple[int, float] | None = None
        self._scored_s = 0.0

    def scored(self, seconds: float) -> None:
        """Take the time of an evaluation during training."""
        self.score_s = seconds / self.scoring.num_periodic
        self._scored_s += seconds

    def misses(self, step: int, total_steps: int) -> bool:
        """Return whether a run of `total_steps` would not end on time, measured after each `step`."""
        if not self.is_main:
            return False
        if self._first is None:
            self._first = (step, self.used_s())
            return False
        first_step, first_s = self._first
        count, measured_s = step - first_step, self.used_s() - first_s - self._scored_s
        if count < 1 or not self._is_due(count, measured_s):
            return False
        self._step_s = measured_s / count
        is_first, self._is_first_check = self._is_first_check and not self.is_planned, False
        self._checked_at_s = self.used_s()
        self.start_measuring()
        best = self._best_total(step)
        if is_first:
            return best != total_steps
        late_s = self._end_s(step, total_steps) - self.limit_s
        is_off = late_s > LATE * self.limit_s or late_s < -EARLY * self.limit_s
        return is_off and best != total_steps and total_steps - step > FEWEST_STEPS

    def _is_due(self, count: int, measured_s: float) -> bool:
        if self._is_first_check:
            return count >= MEASURED_STEPS or measured_s >= LONG_STEPS * self.limit_s
        left_s = self.limit_s - self._checked_at_s
        return count >= FEWEST_STEPS and self.used_s() - self._checked_at_s >= CHECKED_AFTER * left_s

    def plan(self, step: int) -> int:
        """Return the number of steps with which the run ends on time, at least one more than `step`.

        Raises:
            VitError: of the first plan, if there is no time for a step and the evaluation.
        """
        if not self.is_planned and self._end_s(step, step + 1) > self.limit_s:
            scored_s = self.scoring.num_final * self.score_s
            needed_s = self._end_s(step, step + 1) + MEASURED_STEPS * self._step_s
            raise VitError(
                f"{duration(self.limit_s)} are too short: {duration(self.used_s())} are over after "
                f"{count_of(step, 'step')} of {duration(self._step_s)}, and the evaluation takes "
                f"{duration(scored_s)}",
                where="--max-time (recipe key schedule.max_minutes)",
                fix=f"give it more than {math.ceil(needed_s / 30) / 2:g} minutes, in a new --out",
            )
        self.is_planned = True
        return self._best_total(step)

    def line(self, step: int, total_steps: int, *, before: int) -> str:
        """Return what a user should see of a new plan."""
        steps = count_of(total_steps, "step")
        limit, end_s = duration(self.limit_s), self._end_s(step, total_steps)
        limit = limit if self.limit_s % 60 == 0 else f"{self.limit_s:.0f} s"
        was = f"instead of {before:,}"
        speed = f"{duration(self._step_s)} per step"
        if self.scoring.num_final * self.score_s >= 0.1:
            speed += f", {duration(self.scoring.num_final * self.score_s)} for the final evaluation"
        is_on_time = end_s <= (1 + LATE) * self.limit_s
        when = f" for the end after {limit}" if is_on_time else f", as {limit} are over"
        return f"time: {steps} {was}{when} ({speed})"

    def _end_s(self, step: int, total_steps: int) -> float:
        """Return the forecast of the whole time of a run of `total_steps`, after `step`."""
        scored = self.scoring.num_between(step, total_steps) * self.score_s
        return self.used_s() + (total_steps - step) * self._step_s + scored + RESULTS_S

    def _best_total(self, step: int) -> int:
        """Return the most steps with which the run still ends on time."""
        totals = range(step + 1, self.most_steps + 1)
        best = bisect_right(totals, self.limit_s, key=lambda total: self._end_s(step, total))
        return totals[max(0, best - 1)] if totals else step
