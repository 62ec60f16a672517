"""The whole command line: every command, option and help text. Bodies are one import and one call."""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="vit",
    help="Vision Transformers from the command line, exactly as in the paper: fine-tune, evaluate, predict.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipes_app = typer.Typer(help="List, show, check and copy recipes.", no_args_is_help=True)
app.add_typer(recipes_app, name="recipes")

DATA, MODEL, TRAINING, RUN = "Data", "Model", "Training", "Run"


def _recipe_names(incomplete: str) -> list[str]:
    from vitcli import recipe

    return [name for name, _ in recipe.available() if name.startswith(incomplete)]


def _dataset_names(incomplete: str) -> list[str]:
    from vitcli import recipe

    return [name for name in ("demo", *recipe.dataset_aliases()) if name.startswith(incomplete)]


def _model_names(incomplete: str) -> list[str]:
    from vitcli.variants import VARIANTS

    return [name for name in VARIANTS if name.lower().startswith(incomplete.lower())]


def _option(*names: str, panel: str, help: str, **more):
    return typer.Option(*names, rich_help_panel=panel, help=help, show_default=False, **more)


Dataset = Annotated[
    str | None,
    _option("--dataset", panel=DATA, autocompletion=_dataset_names, metavar="DATA",
            help="A folder of class folders, Parquet, Arrow or save_to_disk files; an alias such as oxford_pets; "
            "a Hub id owner/name; or demo. \\[data.dataset]"),
]  # fmt: skip
Res = Annotated[
    str | None,
    _option(
        "--res",
        panel=DATA,
        metavar="PX",
        help="Image size in pixels: 384, or 384x512 (height x width). \\[data.image_size]",
    ),
]
Ckpt = Annotated[
    str | None,
    _option("--ckpt", panel=MODEL, metavar="WEIGHTS",
            help="A run folder, .safetensors, official .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME, or demo. "
            "\\[model.ckpt]"),
]  # fmt: skip
Model = Annotated[
    str | None,
    _option("--model", panel=MODEL, autocompletion=_model_names, metavar="NAME",
            help="The paper's name (ViT-B/16, L/16) or any timm model; a checkpoint usually knows its own. \\[model.name]"),
]  # fmt: skip
Steps = Annotated[int | None, _option("--steps", panel=TRAINING, help="Optimizer steps. \\[schedule.steps]")]
BatchSize = Annotated[
    int | None,
    _option("--batch-size", panel=TRAINING, help="Images a step, over all processes. \\[train.batch_size]"),
]
Lr = Annotated[
    str | None, _option("--lr", panel=TRAINING, metavar="RATE", help="Base learning rate. \\[optimizer.lr]")
]
Seed = Annotated[int | None, _option("--seed", panel=TRAINING, help="Seed of the whole run. \\[train.seed]")]
RecipeName = Annotated[
    str | None,
    _option("--recipe", panel=RUN, autocompletion=_recipe_names, metavar="NAME|FILE",
            help="A shipped recipe (vit recipes list) or a .toml file; found by the data set if left out."),
]  # fmt: skip
Set = Annotated[
    list[str] | None,
    _option(
        "--set",
        panel=RUN,
        metavar="KEY=VALUE",
        help="Any other recipe key, such as data.flip=false; repeatable.",
    ),
]
Precision = Annotated[
    str | None,
    _option("--precision", panel=RUN, metavar="KIND",
            help="auto, fp32, bf16 or fp16; auto is bf16 where the device computes it natively. \\[precision.compute]"),
]  # fmt: skip
EvalPrecision = Annotated[
    str | None,
    _option(
        "--precision",
        panel=RUN,
        metavar="KIND",
        help="fp32 unless bf16 or fp16 is named. \\[precision.compute]",
    ),
]
Out = Annotated[
    Path | None,
    _option("--out", panel=RUN, metavar="FOLDER",
            help="Run folder; the same command goes on with an unfinished run. Default: a new one under runs/."),
]  # fmt: skip
NumProcesses = Annotated[
    int | None,
    _option("--num-processes", panel=RUN, min=1, help="Processes on this machine, one for each GPU."),
]
PerDeviceBatch = Annotated[
    int | None,
    _option(
        "--per-device-batch",
        panel=RUN,
        min=1,
        help="Images of one forward pass; must divide the batch evenly.",
    ),
]
Workers = Annotated[
    int | None, _option("--workers", panel=RUN, min=1, help="Loader threads; changes no result.")
]
Compile = Annotated[
    bool, _option("--compile/--no-compile", panel=RUN, help="Compile the model with torch.compile.")
]
Track = Annotated[
    str | None,
    _option(
        "--track",
        panel=RUN,
        metavar="NAME",
        help="Also log to tensorboard, wandb, trackio or mlflow (extra: track).",
    ),
]
Overwrite = Annotated[bool, _option("--overwrite", panel=RUN, help="Delete an earlier run in --out first.")]
DryRun = Annotated[
    bool, _option("--dry-run", panel=RUN, help="Print the resolved recipe and its plan; touch nothing.")
]
Measure = Annotated[bool, _option("--measure", panel=RUN, help="With --dry-run: time ten real steps.")]
Json = Annotated[bool, _option("--json", panel=RUN, help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, _option("--quiet", "-q", panel=RUN, help="No progress, no notes.")]
Debug = Annotated[bool, _option("--debug", panel=RUN, help="Show tracebacks.")]


@app.callback(invoke_without_command=True)
def _vit(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", show_default=False)
    ] = False,
) -> None:
    if version:
        from vitcli import __version__

        typer.echo(f"vit {__version__}")
        raise typer.Exit()


def _train_command(
    command: str, recipe_name, sets, shorthands: dict[str, Any], num_processes, options
) -> int:
    if num_processes and num_processes > 1 and not _is_launched():
        return _launch(num_processes)
    from vitcli.commands import finetune, pretrain
    from vitcli.commands.job import RunOptions

    run = {"finetune": finetune.finetune, "pretrain": pretrain.pretrain}[command]
    as_json = options.pop("json")
    return _print(run(recipe_name, sets or (), shorthands, RunOptions(**options)), as_json)


@app.command(epilog="Example: vit finetune --ckpt vit_l16.safetensors --dataset oxford_pets --res 384")
def finetune(
    context: typer.Context,
    dataset: Dataset = None,
    res: Res = None,
    ckpt: Ckpt = None,
    model: Model = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    lr: Lr = None,
    seed: Seed = None,
    recipe: RecipeName = None,
    sets: Set = None,
    out: Out = None,
    precision: Precision = None,
    num_processes: NumProcesses = None,
    per_device_batch: PerDeviceBatch = None,
    workers: Workers = None,
    compile: Compile = False,
    track: Track = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    measure: Measure = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Transfer a checkpoint to a data set (paper, section 3.2). Without options: the embedded demo."""
    return _train_command(*_training_arguments("finetune", context.params))


@app.command(epilog="Example: vit pretrain --recipe pretrain/demo --out runs/demo")
def pretrain(
    context: typer.Context,
    dataset: Dataset = None,
    res: Res = None,
    model: Model = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    lr: Lr = None,
    seed: Seed = None,
    recipe: RecipeName = None,
    sets: Set = None,
    out: Out = None,
    precision: Precision = None,
    num_processes: NumProcesses = None,
    per_device_batch: PerDeviceBatch = None,
    workers: Workers = None,
    compile: Compile = False,
    track: Track = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    measure: Measure = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Train from fresh weights (paper, sections 3.1 and 4.1). Without options: the demo's own recipe."""
    return _train_command(*_training_arguments("pretrain", context.params))


@app.command(epilog="Example: vit evaluate --ckpt runs/pets --dataset oxford_pets --json")
def evaluate(
    dataset: Dataset = None,
    split: Annotated[
        str,
        _option(
            "--split",
            panel=DATA,
            metavar="SPLIT",
            help="Such as test or train[:10%]; auto finds the test split.",
        ),
    ] = "auto",
    res: Res = None,
    ckpt: Ckpt = None,
    model: Model = None,
    batch_size: Annotated[
        int | None, _option("--batch-size", panel=RUN, help="Images of one forward pass. \\[eval.batch_size]")
    ] = None,
    recipe: RecipeName = None,
    sets: Set = None,
    precision: EvalPrecision = None,
    num_processes: NumProcesses = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """Top-1, top-5 and loss of a checkpoint on a split; every example counts exactly once."""
    if num_processes and num_processes > 1 and not _is_launched():
        return _launch(num_processes)
    from vitcli.commands.evaluate import evaluate

    shorthands = _shorthands(dataset, res, ckpt, model, precision) | {"eval.batch_size": batch_size}
    result = evaluate(recipe, sets or (), shorthands, split=split, workers=workers, quiet=quiet)
    return _print(result, as_json)


@app.command(epilog="Example: vit predict --ckpt runs/pets photos/ 'more/*.jpg'")
def predict(
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURES...", help="Files, folders and globs.")],
    ckpt: Ckpt = None,
    model: Model = None,
    res: Res = None,
    topk: Annotated[
        int, _option("--topk", panel=RUN, help="Classes a picture (5, or all if there are fewer).")
    ] = 0,
    batch_size: Annotated[
        int | None, _option("--batch-size", panel=RUN, help="Images of one forward pass. \\[eval.batch_size]")
    ] = None,
    sets: Set = None,
    precision: EvalPrecision = None,
    workers: Workers = None,
    jsonl: Annotated[bool, _option("--jsonl", panel=RUN, help="Print one JSON object a picture.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int:
    """The likeliest classes of pictures, with the very pixels that evaluation sees."""
    from vitcli.commands.predict import predict

    shorthands = _shorthands(None, res, ckpt, model, precision) | {"eval.batch_size": batch_size}
    result = predict(pictures, sets or (), shorthands, topk=topk, workers=workers, quiet=quiet)
    if jsonl and not as_json:
        for prediction in result["predictions"]:
            typer.echo(json.dumps(prediction))
        return 0
    return _print(result, as_json)


@recipes_app.command("list")
def recipes_list(as_json: Json = False) -> int:
    """Every shipped recipe, and which row of the paper it is."""
    from vitcli.commands import recipes

    return _print(
        {"recipes": recipes.list_recipes()}, as_json, lambda found: recipes.render("list", found["recipes"])
    )


@recipes_app.command("show")
def recipes_show(
    name: Annotated[str, typer.Argument(autocompletion=_recipe_names, help="Shipped name or .toml file.")],
    sets: Set = None,
    as_json: Json = False,
) -> int:
    """A recipe with everything filled in, each value with where it comes from."""
    from vitcli.commands import recipes

    return _print(recipes.show(name, sets or ()), as_json, lambda found: recipes.render("show", found))


@recipes_app.command("check")
def recipes_check(
    names: Annotated[
        list[str] | None, typer.Argument(autocompletion=_recipe_names, help="All shipped ones if left out.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Read recipes against the schema; exit 2 if one has a mistake."""
    from vitcli.commands import recipes

    found = recipes.check(names or ())
    _print(found, as_json, lambda found: recipes.render("check", found))
    return 0 if found["ok"] else 2


@recipes_app.command("schema")
def recipes_schema() -> int:
    """The JSON Schema of a recipe, for editors."""
    from vitcli.commands import recipes

    return _print(recipes.schema(), True)


@recipes_app.command("copy")
def recipes_copy(
    name: Annotated[str, typer.Argument(autocompletion=_recipe_names, help="Shipped recipe.")],
    destination: Annotated[Path, typer.Argument(help="File or folder; nothing is overwritten.")],
    as_json: Json = False,
) -> int:
    """A recipe as a file of your own."""
    from vitcli.commands import recipes

    return _print(recipes.copy(name, destination), as_json, lambda found: recipes.render("copy", found))


def _shorthands(dataset, res, ckpt, model, precision) -> dict[str, Any]:
    return {
        "data.dataset": dataset,
        "data.image_size": res,
        "model.ckpt": ckpt,
        "model.name": model,
        "precision.compute": precision,
    }


def _training_arguments(command: str, given: dict[str, Any]) -> tuple:
    """What the two training commands were given, in the words of `_train_command`."""
    shorthands = _shorthands(
        given["dataset"], given["res"], given.get("ckpt"), given["model"], given["precision"]
    ) | {
        "schedule.steps": given["steps"],
        "train.batch_size": given["batch_size"],
        "optimizer.lr": given["lr"],
        "train.seed": given["seed"],
    }
    names = (
        "out",
        "per_device_batch",
        "workers",
        "compile",
        "track",
        "overwrite",
        "dry_run",
        "measure",
        "quiet",
    )
    options = {name: given[name] for name in names} | {"json": given["as_json"], "arguments": _arguments}
    return command, given["recipe"], given["sets"], shorthands, given["num_processes"], options


def _print(result: dict[str, Any], as_json: bool, render=None) -> int:
    """The result, on standard output, by the first process alone."""
    if not _is_first():
        return 0
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return 0
    from vitcli import tables

    typer.echo((render or tables.render)(result).rstrip("\n"))
    return 0


def _is_first() -> bool:
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0))) == 0


def _is_launched() -> bool:
    from vitcli import launching

    launching.adopt_slurm()
    return launching.is_launched()


def _launch(num_processes: int) -> int:
    from vitcli import launching

    return launching.launch(num_processes, _arguments)


_arguments: list[str] = []


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    from vitcli import exits

    _arguments[:] = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # until a training loop knows something better
    command = partial(app, args=_arguments, prog_name="vit", standalone_mode=False)
    sys.exit(exits.exit_code_of(command, _arguments))
