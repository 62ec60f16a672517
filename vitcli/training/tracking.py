"""Experiment trackers (--track): each metrics record of a run is sent to one of them, once.

Project, name and the like come from the tracker's own environment variables, and files go into the run
folder. A resumed run repeats the steps after its last checkpoint, with the same numbers. How many records
were sent is kept beside metrics.jsonl, so that those are not sent twice; TensorBoard forgets them
and gets them again. Records from before --track was given are sent first.
"""

import importlib.util
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitcli import recipe as recipes
from vitcli.errors import MachineError, VitError, nearest, pip_install, reason_of
from vitcli.output.atomic import TEMPORARY, read_json, read_jsonl
from vitcli.output.redaction import without_secrets
from vitcli.output.run_folder import METRICS, RECIPE, TRACKING, RunFolder
from vitcli.recipe import Recipe

PROJECT = "vit"  # unless the environment names another
MAX_PARAM_LENGTH = 500  # of a setting's value, for MLflow

Values = dict[str, float]


class Tracker(NamedTuple):
    """A tracker that has started; `run_id` finds the same run again when it is resumed."""

    run_id: str | None
    log: Callable[[Values, int], Any]  # values and their step
    finish: Callable[[], Any]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker gets to know of a run before its first record.

    Attributes:
        run_id: of a tracker that has records of this run; None for a new run.
        first_step: of the records that follow; those from it on are sent again.
    """

    folder: Path
    name: str
    config: dict[str, str]
    quiet: bool
    run_id: str | None
    first_step: int


class Tracking:
    """The connection of a run to its tracker, which may fail at any time: it never stops a run.

    Raises:
        MachineError: the tracker does not start, for want of an account, say.
    """

    def __init__(self, kind: str, folder: RunFolder, recipe: Recipe, *, note: Callable, quiet: bool):
        self.kind, self.note = kind, note
        self._state_file = folder.path / TRACKING
        self._tracker: Tracker | None = None

        # Records that the run has, and how many an earlier call of the command has sent, maybe more.
        before = read_json(self._state_file) or {}
        before = before if before.get("tracker") == kind else {}
        records = read_jsonl(folder.path / METRICS)
        self._num_sent = before.get("num_sent", 0)
        self._num_seen = min(self._num_sent, len(records))
        run = TrackedRun(
            folder=folder.path,
            name=run_name(folder.path),
            config={key: without_secrets(str(value)) for key, value in recipes.flat(recipe).items()},
            quiet=quiet,
            run_id=before.get("run_id"),
            first_step=records[self._num_seen - 1]["step"] + 1 if self._num_seen else 0,
        )
        self._forgotten_from = run.first_step if kind == "tensorboard" else math.inf
        try:
            with redirect_stdout(sys.stderr):
                self._tracker = TRACKERS[kind](run)
        except Exception as error:  # of the tracker: anything
            raise _not_started(kind, error) from error
        for record in records[self._num_seen :]:
            self.log(record)

    def log(self, record: dict[str, Any]) -> None:
        """Send a record of metrics.jsonl that an earlier call has not sent; give up after an error."""
        self._num_seen += 1
        is_there = self._num_seen <= self._num_sent and record["step"] < self._forgotten_from
        if self._tracker is None or is_there:
            return
        values = flat_numbers({key: value for key, value in record.items() if key != "step"})
        if self._attempt(lambda tracker: tracker.log(values, record["step"])):
            self._num_sent = self._num_seen
            self._write_state()

    def close(self) -> None:
        """Send what the tracker holds back; the next run of this process can start its own."""
        self._attempt(lambda tracker: tracker.finish())
        self._tracker = None

    def _attempt(self, action: Callable[[Tracker], None]) -> bool:
        """Do something with the tracker, if it has not been given up; return True if that went well."""
        if self._tracker is None:
            return False
        try:
            with redirect_stdout(sys.stderr):  # standard output is the result's
                action(self._tracker)
        except Exception as error:  # of the tracker: the network, an account, a full disk
            self._tracker = None
            rest = f"{METRICS} in the run folder has every record"
            self.note(f"note: {self.kind} is given up for the rest of this run: {reason_of(error)}; {rest}")
            return False
        return True

    def _write_state(self) -> None:
        """Replace the file that counts the records sent; unlike results it is not forced to disk."""
        state = {"tracker": self.kind, "run_id": self._tracker.run_id, "num_sent": self._num_sent}
        temporary = self._state_file.with_name(f"{TEMPORARY}{TRACKING}")
        with suppress(OSError):
            temporary.write_text(json.dumps(state))
            temporary.replace(self._state_file)


def _tensorboard(run: TrackedRun) -> Tracker:
    """Write event files in tensorboard/ of the run folder."""
    from torch.utils.tensorboard import SummaryWriter

    folder = run.folder / "tensorboard"
    if not run.first_step:  # what a run has left that was stopped before its first checkpoint
        shutil.rmtree(folder, ignore_errors=True)
    writer = SummaryWriter(folder, purge_step=run.first_step or None)
    if not run.first_step:
        writer.add_hparams(run.config, {}, run_name=".")
    writer.flush()

    def log(values: Values, step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, global_step=step)
        writer.flush()

    return Tracker(None, log, writer.close)


def _wandb(run: TrackedRun) -> Tracker:
    """Start a run of W&B: WANDB_PROJECT, WANDB_NAME, WANDB_ENTITY ...; files in wandb/ of the run folder."""
    import wandb

    started = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=os.environ.get("WANDB_NAME", run.name),
        dir=os.environ.get("WANDB_DIR", str(run.folder)),
        id=os.environ.get("WANDB_RUN_ID", run.run_id),
        resume="allow" if run.run_id else None,
        config=run.config,
        settings=wandb.Settings(console="off", silent=run.quiet),
    )
    return Tracker(started.id, lambda values, step: started.log(values, step=step), started.finish)


def _trackio(run: TrackedRun) -> Tracker:
    """Start a run in Trackio's one database for all projects (TRACKIO_DIR): TRACKIO_PROJECT, TRACKIO_NAME."""
    import trackio

    run_id = run.run_id or os.environ.get("TRACKIO_NAME", run.name)
    started = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=run_id,
        resume="allow" if run.run_id else "never",
        config=run.config,
    )
    return Tracker(run_id, lambda values, step: started.log(values, step=step), started.finish)


def _mlflow(run: TrackedRun) -> Tracker:
    """Start a run of MLflow: MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_NAME, and MLFLOW_TRACKING_URI; without that
    one in mlflow/ of the run folder.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    folder = run.folder.resolve() / "mlflow"
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        folder.mkdir(exist_ok=True)
    client, run_id = MlflowClient(tracking_uri=uri or f"sqlite:///{folder}/mlflow.db"), run.run_id
    if run_id:
        client.update_run(run_id, status="RUNNING")
    else:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = client.get_experiment_by_name(name)
        artifacts = None if uri else folder.as_uri()
        identity = experiment.experiment_id if experiment else client.create_experiment(name, artifacts)
        run_name = os.environ.get("MLFLOW_RUN_NAME", run.name)
        run_id = client.create_run(identity, run_name=run_name).info.run_id
        for key, value in run.config.items():
            client.log_param(run_id, key, value[:MAX_PARAM_LENGTH])

    def log(values: Values, step: int) -> None:
        now_ms = round(time.time() * 1000)
        metrics = [Metric(name, value, now_ms, step) for name, value in values.items()]
        client.log_batch(run_id, metrics=metrics)

    return Tracker(run_id, log, lambda: client.set_terminated(run_id))


# By the value of --track.
TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio, "mlflow": _mlflow}


def flat_numbers(record: dict[str, Any], prefix: str = "") -> Values:
    """Return the numbers of nested objects by path, such as "eval/top1"; nulls, texts and lists have none."""
    values: Values = {}
    for key, value in record.items():
        if isinstance(value, dict):
            values |= flat_numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float):
            values[f"{prefix}{key}"] = float(value)
    return values


def run_name(folder: Path) -> str:
    """Return the run's name: that of its folder, after that of the sweep it belongs to, if any."""
    absolute = folder.absolute()
    of_sweep = absolute.parent.name in ("arms", "runs") and (absolute.parents[1] / RECIPE).exists()
    return f"{absolute.parents[1].name}/{absolute.name}" if of_sweep else absolute.name


def check_tracker(track: str) -> None:
    """Refuse a tracker that is unknown or not installed."""
    if track not in TRACKERS:
        raise VitError(
            f"there is no tracker {track!r}{nearest(track, TRACKERS)}",
            where="--track",
            fix=f"one of {', '.join(TRACKERS)}",
        )
    if importlib.util.find_spec(track) is None:
        raise VitError(
            f"{track} is not installed", where="--track", fix=f"{pip_install(track)}, or 'vitcli[track]'"
        )


def _not_started(kind: str, error: Exception) -> MachineError:
    fixes = {
        "tensorboard": "check that the run folder can be written",
        "wandb": "wandb login, or WANDB_MODE=offline",
        "trackio": "check TRACKIO_DIR and TRACKIO_SPACE_ID",
        "mlflow": "check MLFLOW_TRACKING_URI",
    }
    fix = f"{fixes[kind]}; or leave --track out"
    return MachineError(f"{kind} does not start: {reason_of(error)}", where=f"--track {kind}", fix=fix)
