"""The progress bar and notes of a command, on standard error only.

A terminal gets a Rich bar, anything else a plain line every ten seconds, --quiet nothing.
"""

import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from vitcli.output.text import NO_LIMIT, plain

PLAIN_EVERY_S = 10.0
BAR_COLUMNS = 18


class Progress:
    """Notes and one progress bar at a time; silent with `quiet` and on all processes but the first.

    Args:
        noted: what `note_once` has printed; one set for the runs of one command.
    """

    def __init__(
        self, *, quiet: bool, verbose: bool = False, is_main: bool = True, noted: set[str] | None = None
    ):
        self.is_silent, self.is_verbose = quiet or not is_main or sys.stderr is None, verbose
        self.is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bar = self._task = None
        self.title, self._total, self._last_plain = "", 0, time.monotonic()
        self.is_busy = False
        self._noted = set() if noted is None else noted
        self._started_at = time.monotonic()

    @property
    def width(self) -> int:
        """Return the columns of the terminal; no limit elsewhere."""
        return shutil.get_terminal_size().columns if self.is_terminal else NO_LIMIT

    def note(self, text: str) -> None:
        """Print one line; never part of the result."""
        if self.is_silent:
            return
        text = "\n".join(map(plain, text.split("\n")))  # it may name files and classes
        if self.is_terminal:  # which would break words
            text = wrapped_lines(text, self.width)
        try:
            if self._bar is not None:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:  # standard error is closed; no reason to stop a run
            self.is_silent = True

    def note_once(self, text: str) -> None:
        """Print one line unless it was printed before: what several parts of a command have in common."""
        if self.is_first(text):
            self.note(text)

    def is_first(self, text: str) -> bool:
        """Return whether this was not asked before of this text, in the runs of one command."""
        is_new = text not in self._noted
        self._noted.add(text)
        return is_new

    def detail(self, text: str) -> None:
        """Print one line, once, for those who asked to see everything (--verbose)."""
        if self.is_verbose:
            self.note_once(text)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[None]:
        """Show a bar of `total` units within the block."""
        self.begin(title, total)
        try:
            yield
        finally:
            self.end()

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Start a bar of `total` units, `done` of which an earlier call has completed."""
        self.end()
        self.title, self._total, self.is_busy = title, total, True
        self._started_at = time.monotonic()
        self._done_before = done
        if self.is_silent or not self.is_terminal:
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_COLUMNS),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=RichConsole(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(title, total=total, completed=done, detail="")

    def update(self, done: int, *details: str) -> None:
        """Advance the bar to `done` of the total.

        Args:
            details: what else to show, the most important first: a narrow terminal gets no more than fits.
        """
        if self.is_silent:
            return
        now = time.monotonic()
        num_done_here = done - self._done_before  # the speed is that of this call
        if num_done_here > 0:
            left_s = (now - self._started_at) / num_done_here * (self._total - done)
            details = (f"{_clock(left_s)} left", *details)
        if self._bar is not None:
            count = len(f"{self._total}/{self._total}")
            room = self._bar.console.width - len(self.title) - BAR_COLUMNS - count - 3  # spaces between
            self._bar.update(self._task, completed=done, detail=fitting(details, room))
        elif now - self._last_plain >= PLAIN_EVERY_S:
            self._last_plain = now
            self.note(f"{self.title} {done}/{self._total}  {'  '.join(details)}")

    def end(self) -> None:
        """Remove the bar."""
        self.is_busy = False
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def wrapped_lines(text: str, width: int) -> str:
    """Return the text with its long lines broken at spaces; words and paths stay whole, to be copied."""
    whole = {"width": width, "break_long_words": False, "break_on_hyphens": False, "subsequent_indent": "  "}
    lines = (line if len(line) <= width else textwrap.fill(line, **whole) for line in text.split("\n"))
    return "\n".join(lines)


def fitting(details: Sequence[str], room: int) -> str:
    """Return as many of the details, from the first on, as fit into `room` columns."""
    texts = ("  ".join(details[:count]) for count in range(len(details), 0, -1))
    return next((text for text in texts if len(text) <= room), "")


def _clock(seconds: float) -> str:
    """Format a duration as h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
