"""Several processes of a run within a second: copies of the test's own, joined as those of a run are."""

import os
import pickle
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from vitcli.distributed.runtime import Runtime

DEADLINE_S = 60


def of_processes(count: int, action: Callable[[Runtime], Any]) -> list[Any]:
    """Return what `action` returns in each of `count` processes, in the order of their ranks.

    They are forked, which spares them the seconds of imports, and meet through a file, over gloo.
    """
    if sys.platform != "linux":
        pytest.skip("other systems do not fork a process that has loaded torch")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that the test has besides
        children = []
        for rank in range(count):
            if not (child := os.fork()):
                _be_process(rank, count, action, Path(folder))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert codes == [0] * count, f"exit codes {codes}, see above"
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(count)]


def _be_process(rank: int, count: int, action: Callable[[Runtime], Any], folder: Path) -> None:
    """Join the others, leave the result in the folder, and end without the rest of the test session."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE_S)
        store = dist.FileStore(str(folder / "store"), count)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        accelerator = SimpleNamespace(
            device=torch.device("cpu"), process_index=rank, num_processes=count, end_training=lambda: None
        )
        runtime = Runtime(accelerator, "fp32", None, dist.group.WORLD, timedelta(seconds=DEADLINE_S))
        (folder / str(rank)).write_bytes(pickle.dumps(action(runtime)))
        dist.barrier()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
