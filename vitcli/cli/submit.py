"""The options of `--submit`, for commands of many runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli.help import DEVICES
from vitcli.cli.options import Printing, given_arguments, option
from vitcli.submission.settings import PRINTED, Place


# fmt: off
@dataclass(frozen=True)
class SubmitOptions:
    """Where a command of many runs is to run instead of here."""

    submit: Annotated[Place | None, option("--submit", DEVICES,
        "Run elsewhere: print:sky, print:k8s or print:hf print the file for SkyPilot, Kubernetes or hf jobs "
        "(default: run here).", "PLACE")] = None
    submit_workers: Annotated[int | None, option("--submit-workers", DEVICES,
        "With --submit: how many workers divide the runs among themselves, in one --out (default: 1).",
        "N", min=1)] = None
    submit_set: Annotated[list[str] | None, option("--submit-set", DEVICES,
        "With --submit: what each worker gets, such as image=me/vit:1, volume=shared or gpus_per_node=1 "
        "(default: as the place has it). Repeatable.", "KEY=VALUE")] = None
# fmt: on

    def print_file(self, out: Path | None, printing: Printing) -> None:
        """Print the file for a place and end; what the line names is there, so nothing is looked up here."""
        if self.submit in PRINTED:
            self._end(out, printing)

    def hand_over(self, out: Path | None, printing: Printing) -> None:
        """Submit the command line, whose mistakes have been reported, and end; go on where it runs here."""
        if self.submit:
            self._end(out, printing)
        for name, value in (("--submit-workers", self.submit_workers), ("--submit-set", self.submit_set)):
            if value:
                raise typer.BadParameter("it belongs to --submit", param_hint=name)

    def _end(self, out: Path | None, printing: Printing) -> None:
        from vitcli.submission import submission

        prepared = submission.prepare(
            self.submit, self.submit_workers or 1, self.submit_set or (), out, given_arguments
        )
        raise typer.Exit(printing.show(submission.run(prepared), submission.as_text))
