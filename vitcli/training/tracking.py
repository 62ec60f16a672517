"""Experiment trackers (--track): each metrics record of a run is sent to one of them."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.tracking import filter_trackers

from vitcli.distributed.runtime import Runtime
from vitcli.errors import VitError, nearest

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")


def start_tracker(
    runtime: Runtime, track: str, run_dir: Path, config: dict[str, Any]
) -> Callable[[dict[str, Any]], None]:
    """Start a tracker for a run and return the function that logs a metrics record to it.

    A tracker that fails later is dropped: it never stops a run.
    """
    accelerator = runtime.accelerator
    accelerator.project_configuration.set_directories(str(run_dir))
    accelerator.log_with = filter_trackers(track, str(run_dir))
    accelerator.init_trackers("vit", config={key: str(value) for key, value in config.items()})
    errors = []

    def log(record: dict[str, Any]) -> None:
        values = {f"eval/{key}": value for key, value in record.get("eval", {}).items()}
        values |= {key: value for key, value in record.items() if key not in ("step", "eval")}
        if not errors:
            try:
                accelerator.log(values, step=record["step"])
            except Exception as error:  # of the tracker: the network, an account, a full disk
                errors.append(error)

    return log


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
            f"{track} is not installed", where="--track", fix=f"pip install {track}, or 'vitcli[track]'"
        )
