"""The door: every command and its help text; bodies are one import and one call.

The options stand in `options`, what happens to errors in `exits`.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli import options
from vitcli.cli.checkpoints import app as weights_app
from vitcli.cli.datasets import app as datasets_app
from vitcli.cli.doctor import app as doctor_app
from vitcli.cli.evaluate import app as evaluate_app
from vitcli.cli.features import app as fewshot_app
from vitcli.cli.inspect import app as inspect_app
from vitcli.cli.recipes import app as recipes_app
from vitcli.cli.report import app as report_app
from vitcli.cli.reproduce import app as reproduce_app
from vitcli.cli.start import given_arguments as _arguments
from vitcli.cli.start import launch as _launch
from vitcli.cli.start import shorthands as _shorthands
from vitcli.cli.study import app as study_app
from vitcli.output import text

app = typer.Typer(
    name="vit",
    help="Vision Transformers from the command line, exactly as in the paper: fine-tune, evaluate, predict.",
    epilog="Start with: vit finetune (an embedded demo, minutes on a laptop)",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(evaluate_app)
app.add_typer(reproduce_app)
app.add_typer(fewshot_app)
app.add_typer(weights_app)
app.add_typer(inspect_app)
app.add_typer(report_app)
app.add_typer(recipes_app, name="recipes")
app.add_typer(datasets_app, name="datasets")
app.add_typer(doctor_app, name="doctor")
app.add_typer(study_app, name="study")


@app.callback(invoke_without_command=True)
def vit(version: options.Version = False) -> None:
    if version:
        from vitcli import __version__

        typer.echo(f"vit {__version__}")
        raise typer.Exit()


@app.command(
    epilog="Example: vit finetune --ckpt vit_l16.safetensors --dataset oxford_pets --res 384 --lr 0.01"
)
def finetune(
    context: typer.Context,
    dataset: options.Dataset = None,
    res: options.Res = None,
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    seed: options.Seed = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    out: options.Out = None,
    precision: options.Precision = None,
    num_processes: options.NumProcesses = None,
    per_device_batch: options.PerDeviceBatch = None,
    workers: options.Workers = None,
    exact: options.Exact = False,
    shard: options.Shard = False,
    arms_parallel: options.ArmsParallel = False,
    compile: options.Compile = False,
    track: options.Track = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    measure: options.Measure = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Transfer a checkpoint to a data set (paper, section 3.2). Without options: the embedded demo."""

    def command(*arguments) -> dict[str, Any]:
        from vitcli.training.finetune import finetune

        return finetune(*arguments)

    return _train("finetune", command, context.params)


@app.command(epilog="Example: vit pretrain --recipe pretrain/demo --out runs/demo")
def pretrain(
    context: typer.Context,
    dataset: options.Dataset = None,
    res: options.Res = None,
    model: options.Model = None,
    steps: options.Steps = None,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    seed: options.Seed = None,
    recipe: options.RecipeName = None,
    set_: options.Set = None,
    out: options.Out = None,
    precision: options.Precision = None,
    num_processes: options.NumProcesses = None,
    per_device_batch: options.PerDeviceBatch = None,
    workers: options.Workers = None,
    exact: options.Exact = False,
    shard: options.Shard = False,
    arms_parallel: options.ArmsParallel = False,
    compile: options.Compile = False,
    track: options.Track = None,
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    measure: options.Measure = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Train from fresh weights (paper, sections 3.1 and 4.1). Without options: the demo's own recipe."""

    def command(*arguments) -> dict[str, Any]:
        from vitcli.training.pretrain import pretrain

        return pretrain(*arguments)

    return _train("pretrain", command, context.params)


@app.command(epilog="Example: vit predict --ckpt runs/pets photos/ 'more/*.jpg'")
def predict(
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURES", help="Files, folders and globs.")],
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    res: options.Res = None,
    topk: options.Topk = None,
    batch_size: options.EvalBatchSize = None,
    set_: options.Set = None,
    precision: options.EvalPrecision = None,
    workers: options.Workers = None,
    jsonl: options.JsonLines = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """The likeliest classes of pictures, from the very pixels that evaluation sees."""
    if jsonl and as_json:
        raise typer.BadParameter("--json prints one object, --jsonl one a picture: name one of them")
    from vitcli.evaluation.predict import predict

    shorthands = _shorthands(None, res, ckpt, model, precision) | {"eval.batch_size": batch_size}
    result = predict(pictures, set_ or (), shorthands, topk=topk, workers=workers, quiet=quiet)
    if jsonl:
        text.write("\n".join(json.dumps(prediction) for prediction in result["predictions"]))
        return 0
    return text.show(result, as_json)


def _train(name: str, command, given: dict[str, Any]) -> int:
    """Run a training command with what the command line gave, here or in the processes it asks for."""
    from vitcli import recipe
    from vitcli.experiments import vtab

    shorthands = _shorthands(
        given["dataset"], given["res"], given.get("ckpt"), given["model"], given["precision"]
    ) | {
        "schedule.steps": given["steps"],
        "train.batch_size": given["batch_size"],
        "optimizer.lr": given["lr"],
        "train.seed": given["seed"],
    }
    # Mistakes are told before torch is loaded.
    groups = vtab.tasks_of(given["dataset"]) if name == "finetune" else {}
    if groups:
        each = vtab.resolve(list(groups), given["recipe"], given["set_"] or (), shorthands)
    else:
        recipe_name = given["recipe"] or recipe.find_for_dataset(name, given["dataset"])
        resolved = recipe.load(recipe_name, given["set_"] or (), shorthands)
    # Side by side, each of the processes has a run of its own.
    code = None if given["arms_parallel"] else _launch(given["num_processes"])
    if code is not None:
        return code
    from vitcli.training.planning import RunOptions

    own = RunOptions.__dataclass_fields__.keys() - {"out", "arguments", "per_device_batch", "arms_parallel"}
    run_options = RunOptions(
        **{name: given[name] for name in own},
        per_device_batch=options.count_or_auto(given["per_device_batch"]),
        arms_parallel=_side_by_side(given) if given["arms_parallel"] else 0,
        out=Path(given["out"]) if given["out"] else None,  # before typer 0.29 it is still a string here
        arguments=_arguments,
    )
    if groups:
        result = vtab.finetune_tasks(
            groups,
            each,
            lambda one, out: command(one, replace(run_options, out=out)),
            out=run_options.out,
            dry_run=run_options.dry_run,
        )
        return text.show(result, given["as_json"], vtab.render)
    return text.show(command(resolved, run_options), given["as_json"])


def _side_by_side(given: dict[str, Any]) -> int:
    """How many runs --arms-parallel means: as many as there are devices, or as --num-processes says."""
    if given["shard"]:
        raise typer.BadParameter("--shard needs all devices for one run: leave one of the two out")
    if "RANK" in os.environ:
        raise typer.BadParameter("the runs start their own processes: call vit without a launcher")
    import torch

    devices = torch.accelerator.device_count()
    wanted = given["num_processes"] or max(1, devices)
    if devices and wanted > devices:
        raise typer.BadParameter(
            f"--num-processes {wanted} runs side by side need a device each: there are {devices}"
        )
    return wanted


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    from vitcli.cli import exit_codes
    from vitcli.distributed import launch

    _arguments[:] = sys.argv[1:] if arguments is None else arguments
    # Before torch is loaded: how long an OpenMP thread spins while it waits for another. The library's own
    # choice is a hundred times longer and makes training on a CPU that does anything else four times slower
    # (docs/loader.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for number in (signal.SIGTERM, signal.SIGUSR1):  # until a training loop knows something better
        signal.signal(number, lambda *_: sys.exit(143))
    launch.end_with_the_launcher()
    command = partial(app, args=_arguments, prog_name="vit", standalone_mode=False)
    exit_codes.leave(exit_codes.exit_code_of(command, _arguments))
