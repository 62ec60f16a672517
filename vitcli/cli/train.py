"""`vit finetune` and `vit pretrain`: their options, and the processes they ask for."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from vitcli.cli import options
from vitcli.cli.options import given_arguments, launch, shorthands
from vitcli.output import text

app = typer.Typer()


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


def _train(name: str, command, given: dict[str, Any]) -> int:
    """Run a training command with what the command line gave, here or in the processes it asks for."""
    from vitcli import recipe as recipes
    from vitcli.experiments import vtab

    recipe_keys = shorthands(
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
        each = vtab.resolve(list(groups), given["recipe"], given["set_"] or (), recipe_keys)
    else:
        recipe_name = given["recipe"] or recipes.find_for_dataset(name, given["dataset"])
        resolved = recipes.load(recipe_name, given["set_"] or (), recipe_keys)
    # Side by side, each of the processes has a run of its own.
    code = None if given["arms_parallel"] else launch(given["num_processes"])
    if code is not None:
        return code
    from vitcli.training.setup import RunOptions

    own = RunOptions.__dataclass_fields__.keys() - {"out", "arguments", "per_device_batch", "arms_parallel"}
    run_options = RunOptions(
        **{name: given[name] for name in own},
        per_device_batch=options.count_or_auto(given["per_device_batch"]),
        arms_parallel=_side_by_side(given) if given["arms_parallel"] else 0,
        out=Path(given["out"]) if given["out"] else None,  # before typer 0.29 it is still a string here
        arguments=given_arguments,
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
    from vitcli.training.text import as_text

    return text.show(command(resolved, run_options), given["as_json"], as_text)


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
