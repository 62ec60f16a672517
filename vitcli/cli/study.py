"""The commands below `vit study`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli import options
from vitcli.cli.options import given_arguments, launch
from vitcli.output import text

app = typer.Typer(help="Scaling studies: a grid of runs to a table and a picture.", no_args_is_help=True)

File = Annotated[
    str,
    typer.Argument(
        autocompletion=options.study_names,
        metavar="FILE",
        help="A shipped study, such as demo, or a .toml file.",
    ),
]


@app.command("data-size", epilog="Example: vit study data-size demo")
def data_size(
    context: typer.Context,
    file: File,
    set_: options.StudySet = None,
    out: options.StudyOut = None,
    num_processes: options.NumProcesses = None,
    per_device_batch: options.PerDeviceBatch = None,
    workers: options.Workers = None,
    exact: options.Exact = False,
    shard: options.Shard = False,
    compile: options.Compile = False,
    overwrite: options.StudyOverwrite = False,
    dry_run: options.StudyDryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Accuracy by the number of training images (paper, section 4.3, Figures 3 and 4)."""
    return _study("data-size", context.params)


@app.command("compute", epilog="Example: vit study compute figure5-jft --dry-run")
def compute(
    context: typer.Context,
    file: File,
    set_: options.StudySet = None,
    out: options.StudyOut = None,
    num_processes: options.NumProcesses = None,
    per_device_batch: options.PerDeviceBatch = None,
    workers: options.Workers = None,
    exact: options.Exact = False,
    shard: options.Shard = False,
    compile: options.Compile = False,
    overwrite: options.StudyOverwrite = False,
    dry_run: options.StudyDryRun = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Accuracy by training compute, with the Pareto front (paper, section 4.4, Figures 5 and 8)."""
    return _study("compute", context.params)


def _study(view: str, given: dict[str, Any]) -> int:
    from vitcli.experiments import study
    from vitcli.experiments.study_text import as_text

    prepared = study.prepare(
        view, given["file"], given["set_"] or ()
    )  # mistakes are told before torch is loaded
    code = launch(given["num_processes"])
    if code is not None:
        return code
    from vitcli.experiments.study_runs import work_of
    from vitcli.training.setup import RunOptions

    run_options = RunOptions(
        **{name: given[name] for name in ("workers", "exact", "shard", "compile", "quiet")},
        per_device_batch=options.count_or_auto(given["per_device_batch"]),
        out=None,
        track=None,
        arms_parallel=0,
        overwrite=False,  # of each run: they go on
        dry_run=False,
        measure=False,
        arguments=given_arguments,
    )
    work = work_of(prepared.study, run_options)
    if given["dry_run"]:
        return text.show(study.plan(prepared, work), given["as_json"], as_text)
    out = Path(given["out"]) if given["out"] else None
    result = study.run(prepared, work, out=out, overwrite=given["overwrite"], quiet=given["quiet"])
    return text.show(result, given["as_json"], as_text)
