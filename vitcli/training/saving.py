"""Checkpoints beside the run: a step's state is copied at once and written while the next steps go on."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from vitcli.distributed.runtime import Runtime


class Saver:
    """Writes one checkpoint at a time, in a thread.

    Args:
        take: copies what this process has of a checkpoint, on every process, if it is anything; the copy does
            not change any more.
        write: makes a checkpoint of such a copy; where several processes have one, all of them write.
        every_minutes: None for no saves by the clock.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        take: Callable[[], Any],
        write: Callable[[Any], None],
        every_minutes: float | None,
    ):
        self.runtime, self.take, self.write = runtime, take, write
        self.every_s = every_minutes * 60 if every_minutes else float("inf")
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="vit-save")
        self._writing: Future | None = None
        self._began_at = time.monotonic()

    def is_due(self) -> bool:
        """Whether this process's clock asks for a save, or one has failed and must be spoken of."""
        failed = self._writing is not None and self._writing.done() and self._writing.exception() is not None
        return failed or time.monotonic() - self._began_at > self.every_s

    def save(self, *, wait: bool) -> None:
        """Save the present state, on every process at the same step; with `wait`, be done when it returns.

        Raises:
            MachineError, NotFiniteError: on every process, what the last or, with `wait`, this save met.
        """
        self.finish()
        copied = self.take()
        if copied is not None:
            self._writing = self._pool.submit(self.write, copied)
        self._began_at = time.monotonic()
        if wait:
            self.finish()

    def finish(self) -> None:
        """Wait for the save that is under way."""
        writing, self._writing = self._writing, None
        error = writing.exception() if writing is not None else None

        def result() -> None:  # what another process met while writing, the first has met too
            if error is not None:
                raise error

        self.runtime.on_main(result)

    def close(self) -> None:
        """Let a save that is under way end, whatever has happened to the run; it says nothing more."""
        with suppress(Exception):
            if self._writing is not None:
                self._writing.result()
