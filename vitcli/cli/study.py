"""`vit study data-size` and `vit study compute`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete, options, submit
from vitcli.cli.help import RUN, group
from vitcli.cli.options import DeviceOptions, Printing, command, launch, option

app = group("Run scaling studies: a grid of runs, a table, a plot.", "Example:\nvit study data-size demo")


# fmt: off
@dataclass(frozen=True)
class StudyOptions:
    """A study, and where its output goes."""

    file: Annotated[str, typer.Argument(autocompletion=complete.studies, metavar="FILE",
        help="Shipped study, such as demo, or .toml file.")]
    set_: Annotated[list[str] | None, option("--set", RUN,
        "Set any recipe key of every run, such as data.dataset=./photos (default: as in its recipe). "
        "Repeatable.", "KEY=VALUE", autocompletion=complete.recipe_keys)] = None
    out: Annotated[Path | None, option("--out", RUN,
        "Folder of the study; an unfinished study in it is resumed (default: runs/study-NAME).",
        "FOLDER")] = None
    overwrite: options.Overwrite = False
    dry_run: Annotated[bool, option("--dry-run", RUN,
        "Print the grid and the cost of each run; write nothing, need no data.")] = False
# fmt: on


@command(app, "data-size", example="vit study data-size demo")
def data_size(study: StudyOptions, devices: DeviceOptions, printing: Printing) -> int:
    """Plot accuracy by the number of training images.

    Paper, section 4.3, Figures 3 and 4.
    """
    return _run("data-size", study, devices, printing)


@command(app, "compute", example="vit study compute figure5-jft --dry-run")
def compute(study: StudyOptions, devices: DeviceOptions, printing: Printing) -> int:
    """Plot accuracy by training compute, with the Pareto front.

    Paper, section 4.4, Figures 5 and 8.
    """
    return _run("compute", study, devices, printing)


def _run(view: str, given: StudyOptions, devices: DeviceOptions, printing: Printing) -> int:
    from vitcli.experiments import study
    from vitcli.experiments.study_text import as_text

    submit.print_file(devices, given.out, printing)
    prepared = study.prepare(view, given.file, given.set_ or ())  # mistakes come before torch is loaded
    submit.hand_over(devices, given.out, printing)
    launch(devices.num_processes, devices.device)
    from vitcli.experiments.study_runs import work_of

    # Each run of the grid resumes on its own: --overwrite and --dry-run are for the study.
    work = work_of(prepared.study, devices.run_options(quiet=printing.quiet))
    if given.dry_run:
        return printing.show(study.plan(prepared, work), as_text)
    result = study.run(prepared, work, out=given.out, overwrite=given.overwrite, quiet=printing.quiet)
    return printing.show(result, as_text)
