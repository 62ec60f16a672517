"""The parts of a command's work, such as its runs, which several workers share.

Loads no torch by itself.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.errors import Stopped
from vitcli.output.leases import Cells, Lease, Superseded, clock
from vitcli.output.progress import Progress
from vitcli.output.text import count_of

if TYPE_CHECKING:
    from vitcli.distributed.runtime import Runtime

POLL_S = 0.5  # for the cells of other workers
RESULTS = "results"  # the cell of a command's own results, when all others are done


@dataclass(frozen=True)
class WorkCell:
    """A part of the work of a command.

    Attributes:
        name: of the claims; the same for all workers.
        covers: folder or file that nobody else writes while the cell is held.
        work: does it, and returns its result.
        finished: returns the result of a cell that any worker has finished, or None.
    """

    name: str
    covers: Path
    work: Callable[[], Any]
    finished: Callable[[], Any]


class SharedWork:
    """The cells of a command, of which each of its workers does those that no other one does.

    Args:
        folder: of the command, which its workers share.
        on_done: called with number and result of each cell in order, also of other workers.
        noun: name of a cell.
    """

    def __init__(
        self,
        cells: Sequence[WorkCell],
        folder: Path,
        runtime: "Runtime",
        progress: Progress,
        on_done: Callable[[int, Any], None] = lambda number, result: None,
        noun: str = "run",
    ):
        self.cells, self.folder, self.runtime, self.noun = cells, folder, runtime, noun
        self.progress, self.on_done, self.claims = progress, on_done, Cells(folder)
        self.left = {cell.name: number for number, cell in enumerate(cells)}
        self.results: dict[int, Any] = {}
        self._lease: Lease | None = None  # on the first process
        self._num_told = 0
        self._waits_since: float | None = None

    def run(self) -> list[Any]:
        """Do what is left until all is done; return the results in order.

        Raises:
            Stopped: a cell was asked to stop and has saved a checkpoint.
        """
        from vitcli.distributed.runtime import shared_process_group  # loads torch

        on_main = self.runtime.on_main
        with shared_process_group():
            self._collect(on_main(lambda: self._finished(self.left)))
            on_main(lambda: self.claims.begin(self.left))
            while self.left:
                if name := on_main(self._claim):
                    self._work(name)
                elif not self._collect(on_main(self._done_by_others)):
                    time.sleep(POLL_S)
        return [self.results[number] for number in range(len(self.cells))]

    def _claim(self) -> str | None:
        self._lease = self.claims.claim(list(self.left), [self.cells[n].covers for n in self.left.values()])
        return self._lease and self._lease.name

    def _work(self, name: str) -> None:
        cell, lease = self.cells[self.left[name]], self._lease or nullcontext()
        self._waits_since = self._lease = None
        try:
            with lease:
                result = self.runtime.on_main(cell.finished) or cell.work()
        except Stopped as stopped:
            stopped.out = self.folder  # resume the command, not the single run
            raise
        except Superseded as error:
            if self.runtime.world_size > 1:  # whose other processes are in the middle of it
                raise
            self.progress.note(f"note: {error.message}")
            return
        self._collect({name: result})

    def _collect(self, results: dict[str, Any]) -> bool:
        """Add results, and tell of those that are next in order; return whether there are any."""
        for name, result in results.items():
            self.results[self.left.pop(name)] = result
        while self._num_told in self.results:
            self.on_done(self._num_told, self.results[self._num_told])
            self._num_told += 1
        return bool(results)

    def _finished(self, names: Iterable[str]) -> dict[str, Any]:
        results = {name: self.cells[self.left[name]].finished() for name in names}
        return {name: result for name, result in results.items() if result is not None}

    def _done_by_others(self) -> dict[str, Any]:
        """Return the results of cells that others have done; say once that this worker waits for them."""
        is_over = not self.claims.home.exists()  # another worker has written the results of the command
        done = list(self.left) if is_over else self.claims.done(list(self.left))
        if results := self._finished(done):
            self._waits_since = None
            return results
        if self._waits_since is None:
            self._waits_since = clock()
            self.progress.note(f"waiting for {count_of(len(self.left), self.noun)} of other workers")
        elif clock() - self._waits_since > self.claims.seconds:  # results that have been deleted
            self.claims.begin()
            for name in done:
                self.claims.reopen(name)
        return {}
