"""The other processes of a run: this one ends when one of them is gone and its own main thread cannot know.

A collective of gloo fails in a second if a peer dies. One of NCCL does not: the main thread stays in a
synchronisation of the GPU, in which Python runs no signal handler, until torch's watchdog aborts the process.
So a thread of each process exchanges beats with those of the others, over a process group of its own.
It ends this process with exit code 7 if both are true:

- a peer is gone: its connection is closed, or it has not answered, or is behind, for `Runtime.stall_timeout`;
- the main thread waits for the others at its end; or for STUCK_S it has not executed a line of Python, nor is
  a file being written (`finishing`).

So slow steps, long evaluations and saves end nothing. Time is counted in ticks of this thread: a process
that is stopped by a signal, or suspended with its machine, counts none.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vitcli.distributed import launch
from vitcli.distributed.runtime import Runtime
from vitcli.errors import reason_of

BEAT_S, TICK_S = 5.0, 0.5
STUCK_S = 20.0
_unfinished: list[bool] = []  # not empty inside `finishing`


@contextmanager
def finishing() -> Iterator[None]:
    """Keep this process until the block ends, such as one that writes a checkpoint; for minutes, at most."""
    _unfinished.append(True)
    try:
        yield
    finally:
        _unfinished.pop()


@contextmanager
def watched(runtime: Runtime) -> Iterator[None]:
    """Watch the other processes inside the block; wait for them at its end, unless it ends with an error."""
    if runtime.world_size == 1:
        yield
        return
    # The thread counts the silence itself.
    group = dist.new_group(backend="gloo", timeout=timedelta(days=365))
    watch = Watch(group, runtime.stall_timeout.total_seconds())
    thread = threading.Thread(target=watch.run, name="vit-peers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.has_left.set()
    watch.only_waits.set()
    thread.join()


@dataclass
class Watch:
    """What the thread of a process knows of the main thread and of the other processes.

    Attributes:
        group: of the beats.
        longest_s: how long to wait for another process.
        has_left: set when the main thread is at the end of its block.
        only_waits: set when it waits there for the others.
    """

    group: Any
    longest_s: float
    main_thread: int = field(default_factory=threading.get_ident)
    has_left: threading.Event = field(default_factory=threading.Event)
    only_waits: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Exchange beats until every process has left its block, or one is gone, silent or late before."""
        num_left, waited_s = 0, 0.0
        try:
            while num_left < dist.get_world_size(self.group):
                left = torch.tensor(int(self.has_left.is_set()), device="cpu")
                work = dist.all_reduce(left, group=self.group, async_op=True)
                silent_s = 0.0
                while not work.is_completed():
                    if max(silent_s, waited_s) > self.longest_s:
                        return self.end_once_stuck(f"no answer for {max(silent_s, waited_s):.0f} s")
                    time.sleep(TICK_S)
                    silent_s += TICK_S
                    waited_s += TICK_S * self.only_waits.is_set()
                work.wait()
                num_left = int(left)
                self.has_left.wait(BEAT_S)
        except RuntimeError as error:
            # Close the connections, by which the others learn of it at once.
            dist.destroy_process_group(self.group)
            self.end_once_stuck(reason_of(error))

    def end_once_stuck(self, reason: str) -> None:
        """End this process with exit code 7 once its main thread does not move; usually it ends by itself."""
        place, still_s, waited_s = None, 0.0, 0.0
        while still_s < STUCK_S or (_unfinished and waited_s < launch.SAVING_TIME_S):
            if self.only_waits.is_set():
                break
            time.sleep(TICK_S)
            waited_s += TICK_S
            frame = sys._current_frames().get(self.main_thread)
            now = frame and (id(frame), frame.f_lasti)
            place, still_s = now, still_s + TICK_S if now == place else 0.0
        error = launch.lost_peer(reason)
        error.rank = launch.global_rank()  # every process prints its own
        launch.print_error(error)
        os._exit(error.exit_code)
