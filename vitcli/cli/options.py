"""Options that several commands share, and the decorator by which a command takes a group of them.

A shorthand for a recipe key names the key in brackets. Options of one command are in that command's file.
"""

import copy
import gc
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import typer

from vitcli.cli import complete, hints, inputs
from vitcli.cli.help import ADVANCED, DATA, DEVICES, MODEL, PANELS, RUN, TRAINING, VitCommand
from vitcli.distributed import accelerate_settings, startup
from vitcli.distributed import device as devices
from vitcli.distributed import launch as launcher
from vitcli.distributed.launch import global_rank, report_to_launcher
from vitcli.errors import VitError
from vitcli.output import text
from vitcli.submission.submission import Place

BY_RECIPE = "(default: by the recipe)"
NO_DEFAULTS: Mapping[str, str] = MappingProxyType({})
INFERENCE_BYTES = 2**26  # freed memory that is kept for the next batch; training keeps more
given_arguments: list[str] = []  # the command line as given, for the launcher and environment.json
_kept: list[tuple[dict[str, Any], str]] | None = None  # results, where Python asks for them


def option(
    name: str, panel: str | None, help: str, metavar: str | None = "", *, short: str | None = None, **more
):
    """Declare an option; `metavar` names its value, in place of the Python type."""
    names = [name, short] if short else [name]
    more = {"case_sensitive": False} | more  # of closed choices
    return typer.Option(*names, rich_help_panel=panel, help=help, metavar=metavar, show_default=False, **more)


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    panel: str | None = None,
    example: str = "",
    defaults: Mapping[str, str] = NO_DEFAULTS,
    no_args_is_help: bool = False,
) -> Callable:
    """Register a function as a command of `app`.

    A parameter whose type is a dataclass stands for a group of options: typer sees one option per field, the
    function gets the dataclass. Panels come in the order of PANELS in every --help.

    Args:
        panel: of the command in the help of `app`.
        example: command lines for the top of its help, one a line.
        defaults: by option, what its help names in the place of "by the recipe".
        no_args_is_help: print its help where nothing is given.
    """
    heading = "Examples" if "\n" in example else "Example"
    epilog = f"{heading}:\n{example}" if example else None

    def register(function: Callable[..., int]) -> Callable[..., int]:
        # The options that typer is to see, and the groups that they fill.
        groups = {}
        parameters = []
        for parameter in signature(function).parameters.values():
            if hasattr(parameter.annotation, "__dataclass_fields__"):
                groups[parameter.name] = parameter.annotation
                parameters += map(_parameter_of, fields(parameter.annotation))
            else:
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

        # The function that typer calls.
        @wraps(function)
        def ungrouped(**given: Any) -> int:
            filled = {
                group: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
                for group, kind in groups.items()
            }
            return function(**filled, **given)

        parameters = [_with_default(parameter, defaults) for parameter in parameters]
        ungrouped.__signature__ = signature(ungrouped).replace(
            parameters=sorted(parameters, key=_panel_index)
        )
        # A paragraph of the docstring is one line.
        purpose = "\n\n".join(" ".join(part.split()) for part in function.__doc__.split("\n\n"))
        more = {"help": purpose, "epilog": epilog, "rich_help_panel": panel}
        app.command(name, cls=VitCommand, no_args_is_help=no_args_is_help, **more)(ungrouped)
        return function

    return register


def _with_default(parameter: Parameter, defaults: Mapping[str, str]) -> Parameter:
    """Return a parameter whose help names the default that the command has for it."""
    (declared,) = parameter.annotation.__metadata__
    default = defaults.get(declared.default)  # within Annotated, typer has the name of an option there
    if default is None:
        return parameter
    changed = copy.copy(declared)
    changed.help = declared.help.replace(BY_RECIPE, f"(default: {default})")
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, changed])


def _parameter_of(field) -> Parameter:
    default = Parameter.empty if field.default is MISSING else field.default
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=field.type)


def _panel_index(parameter: Parameter) -> int:
    """Return the place of an option's panel; arguments, which have no panel, come first."""
    panel = parameter.annotation.__metadata__[0].rich_help_panel
    return PANELS.index(panel) if panel else -1


DATA_HELP = (
    "Folder of class folders or with labels.csv, alias such as oxford_pets, Hub id OWNER/NAME, or demo."
)
WEIGHTS_HELP = (
    "Run folder, .safetensors, .npz or .pth file, timm's NAME.TAG, ViT-B/16@in21k, Hub id OWNER/NAME, "
    "https:// or gs:// address, or demo; see vit models --weights"
)
SIZE_HELP = "Image size in pixels: 384, or 384x512 (height x width)"

# Closed choices. Those of a recipe key are repeated here, since the schema takes time to load.
Compute = Literal["auto", "fp32", "bf16", "fp16"]
FeatureLayer = Literal["pre_logits", "token", "gap"]
Tracker = Literal["tensorboard", "wandb", "trackio", "mlflow"]

# fmt: off
Dataset = Annotated[str | None, option("--dataset", DATA,
    f"{DATA_HELP} Also Parquet, Arrow, save_to_disk and WebDataset files; see vit datasets list (default: "
    "by the recipe; without one, demo). [data.dataset]", "DATA", autocompletion=complete.datasets)]
Split = Annotated[str, option("--split", DATA,
    "Split to use, such as test or train[:10%] (default: test, else validation).", "SPLIT")]
Res = Annotated[str | None, option("--res", DATA,
    f"{SIZE_HELP} (default: by recipe and checkpoint). [data.image_size]", "PX")]
SkipBad = Annotated[bool, option("--skip-bad", DATA,
    "Leave out images that cannot be read, and count them (default: stop at the first). [data.on_bad_image]")]
Ckpt = Annotated[str | None, option("--ckpt", MODEL,
    f"{WEIGHTS_HELP} (default: by the recipe). [model.ckpt]", "CKPT", autocompletion=complete.ckpts)]
RequiredCkpt = Annotated[str | None, option("--ckpt", MODEL,
    f"Required. {WEIGHTS_HELP}. [model.ckpt]", "CKPT", autocompletion=complete.ckpts)]
Model = Annotated[str | None, option("--model", MODEL,
    "Architecture: the paper's name (ViT-B/16, L/16) or any timm model (default: by checkpoint and "
    "recipe). [model.name]", "NAME", autocompletion=complete.models)]
Layer = Annotated[FeatureLayer | None, option("--layer", MODEL,
    "Features: pre_logits, the input of the head; token or gap, after the last norm (default: pre_logits). "
    "[eval.layer]", "NAME")]
Steps = Annotated[int | None, option("--steps", TRAINING,
    "Number of optimizer steps (default: by the recipe). [schedule.steps]", "N")]
BatchSize = Annotated[int | None, option("--batch-size", TRAINING,
    "Images per optimizer step, over all processes (default: by the recipe). [train.batch_size]", "N")]
Lr = Annotated[str | None, option("--lr", TRAINING,
    "Base learning rate; of several (0.003,0.01) the best on the dev split is chosen (default: by the "
    "recipe). [optimizer.lr]", "RATE")]
Precision = Annotated[Compute | None, option("--precision", DEVICES,
    "auto, fp32, bf16 or fp16 (default: auto, bf16 where the device supports it). [precision.compute]",
    "KIND")]
Device = Annotated[str | None, option("--device", DEVICES,
    "cpu, cuda, cuda:1 (several: cuda:0,2) or mps (default: a GPU for each process, else the "
    "CPU).",
    "NAME", autocompletion=complete.devices)]
NumProcesses = Annotated[int | None, option("--num-processes", DEVICES,
    "Processes on this machine, one per GPU (default: 1).", "N", min=1)]
Workers = Annotated[int | None, option("--workers", ADVANCED,
    "Data loader threads; results do not depend on them (default: by the number of CPU cores).", "N", min=1)]
PartRows = Annotated[int | None, option("--part-rows", RUN,
    "Work in files of N images below the folder --out; the same command on more machines shares the "
    "work (default: one file).", "N", min=1)]
RecipeName = Annotated[str | None, option("--recipe", RUN,
    "Shipped recipe (vit recipes list) or .toml file; it has the defaults of the options that name a [key] "
    "(default: by command and data set).", "NAME",
    autocompletion=complete.recipes)]
Set = Annotated[list[str] | None, option("--set", RUN,
    "Set any other recipe key, such as data.flip=false (default: as in the recipe). Repeatable.", "KEY=VALUE",
    autocompletion=complete.recipe_keys)]
Track = Annotated[Tracker | None, option("--track", ADVANCED,
    "Also log to tensorboard, wandb, trackio or mlflow (extra: track; default: to the run folder alone).",
    "NAME")]
Profile = Annotated[bool, option("--profile", ADVANCED,
    "Trace three steps into the output folder, and say where their time goes and what to try.")]
Overwrite = Annotated[bool, option("--overwrite", RUN, "Replace earlier output of this command.")]
Json = Annotated[bool, option("--json", RUN, "Print one JSON object to standard output.")]
Quiet = Annotated[bool, option("--quiet", RUN, "Hide progress and notes; the result is still printed.",
    short="-q")]
Verbose = Annotated[bool, option("--verbose", RUN,
    "Show everything: each note on weights and data, and all rows of the result.", short="-v")]
Debug = Annotated[bool, option("--debug", RUN, "Show the traceback of an error.")]
# fmt: on


@dataclass(frozen=True)
class Printing:
    """What is printed; every command takes these."""

    as_json: Json = False
    quiet: Quiet = False
    debug: Debug = False  # read from the command line by end_of_command, before any command has its options

    def show(self, result: dict[str, Any], render: Callable[[Any], str]) -> int:
        """Print a result, on the first process alone, as JSON or by `render`; return exit code 0."""
        if _kept is not None:
            _kept.append((result, render(result)))
        elif global_rank() == 0:
            text.write(text.json_text(result) if self.as_json else render(result))
        return 0

    def show_and_fail(
        self, result: dict[str, Any], error: VitError | None, render: Callable[[dict[str, Any]], str]
    ) -> int:
        """Print a result and end with the check that failed in it, if any; the first process does both."""
        if error and self.as_json:  # one object on standard output, so it holds the error too
            more = {"code": error.exit_code, "command": hints.command_of(given_arguments)}
            result = result | {"error": error.as_dict() | more}
        self.show(result, render)
        if error is None or global_rank() != 0:
            return 0
        if self.as_json:
            report_to_launcher(error, is_printed=True)
            return error.exit_code
        raise error


@contextmanager
def results_kept(arguments: list[str]) -> Iterator[list[tuple[dict[str, Any], str]]]:
    """Keep what a command line would print, as an object and as text; for callers in Python."""
    global _kept
    before, line, _kept = _kept, given_arguments[:], []
    given_arguments[:] = arguments
    try:
        yield _kept
    finally:
        _kept, given_arguments[:] = before, line


@dataclass(frozen=True)
class RecipeOptions:
    """A recipe, and shorthands for the keys that most commands share."""

    dataset: Dataset = None
    res: Res = None
    model: Model = None
    recipe: RecipeName = None
    set_: Set = None
    skip_bad: SkipBad = False

    def shorthands(
        self, ckpt: str | None, precision: str | None, *, keeps_head: bool = False
    ) -> dict[str, Any]:
        """Return the values by recipe key; typer.BadParameter for an empty one.

        A checkpoint that is a run's brings what the run remembers of the same data, see `inputs.remembered`;
        what the command line or a recipe that it names says counts first.
        """
        given = {"--dataset": self.dataset, "--res": self.res, "--ckpt": ckpt, "--model": self.model}
        for name, value in given.items():
            if value == "":  # a variable of a script that was not set
                raise typer.BadParameter("the value is empty", param_hint=name)
        if ckpt:
            inputs.check_ckpt(ckpt)
        if self.dataset:
            inputs.check_dataset(self.dataset)
        keys = {
            "data.dataset": self.dataset,
            "data.image_size": self.res,
            "data.on_bad_image": "skip" if self.skip_bad else None,
            "model.ckpt": ckpt,
            "model.name": self.model,
            "precision.compute": precision,
        }
        of_run = self.without_given(inputs.remembered(ckpt, self.dataset, keeps_head=keeps_head))
        return of_run | {key: value for key, value in keys.items() if value is not None or key not in of_run}

    def without_given(self, keys: dict[str, Any]) -> dict[str, Any]:
        """Return those of the keys that neither --set nor a recipe named on the command line gives."""
        if not keys:
            return {}
        from vitcli import recipe as recipes

        given = {override.partition("=")[0].strip() for override in self.set_ or ()}
        given |= set(recipes.merge(self.recipe).values) if self.recipe else set()
        return {key: value for key, value in keys.items() if key not in given}

    def load(
        self,
        ckpt: str | None,
        inference: "InferenceOptions",
        more: dict[str, Any] | None = None,
        *,
        default: str = "evaluate/default",
        command: str | None = None,
    ):
        """Load the recipe of a command that does not train; mistakes are reported before torch is loaded.

        Args:
            more: further recipe keys.
            command: see `recipe.load_for_inference`.
        """
        from vitcli import recipe as recipes

        keys = self.shorthands(ckpt, inference.precision) | {"eval.batch_size": inference.batch_size}
        keys |= more or {}
        return recipes.load_for_inference(
            self.recipe, self.set_ or (), keys, default=default, command=command
        )


# fmt: off
@dataclass(frozen=True)
class InferenceOptions:
    """How a network without gradients is run; no result depends on it but through the precision."""

    batch_size: Annotated[int | None, option("--batch-size", DEVICES,
        "Images per forward pass (default: by the recipe; evaluate/default: 64). [eval.batch_size]",
        "N")] = None
    precision: Annotated[Compute | None, option("--precision", DEVICES,
        "fp32, bf16 or fp16 (default: fp32). [precision.compute]", "KIND")] = None
    device: Device = None
    workers: Workers = None

    def settings(
        self,
        printing: Printing,
        out: Path | None = None,
        overwrite: bool = False,
        *,
        verbose: bool = False,
        profile: bool = False,
    ):
        """Return the RunSettings of a command that does not train."""
        from vitcli.evaluation.setup import RunSettings

        return RunSettings(self.workers, printing.quiet, out, overwrite, profile, verbose)


@dataclass(frozen=True)
class DeviceOptions:
    """Where and how a training run computes."""

    device: Device = None
    num_processes: NumProcesses = None
    compile: Annotated[bool | None, option("--compile/--no-compile", ADVANCED,
        "Compile the model with torch.compile (default: for long runs on CUDA).")] = None
    per_device_batch: Annotated[str | None, option("--per-device-batch", ADVANCED,
        "Images per forward pass, a divisor of each process's part of the batch; auto: the largest that fits "
        "(default: up to 64, on a CPU 32).", "N|auto")] = None
    workers: Workers = None
    exact: Annotated[bool, option("--exact", ADVANCED,
        "Bitwise equal results on 1, 2, 4, ... processes: gradients are summed as one tree; one thread per "
        "process on a CPU.")] = False
    shard: Annotated[bool, option("--shard", ADVANCED,
        "Shard weights, gradients and optimizer over the processes (FSDP2), for models larger than a "
        "device.")] = False
    submit: Annotated[Place | None, option("--submit", DEVICES,
        "Run elsewhere: slurm or local start a job array (extra: slurm); print:sky, print:k8s and print:hf "
        "print the file for SkyPilot, Kubernetes and hf jobs (default: run here).", "PLACE")] = None
    submit_workers: Annotated[int | None, option("--submit-workers", DEVICES, "With --submit: workers that "
        "divide the runs of the command among themselves, in one --out (default: 1).", "N", min=1)] = None
    submit_set: Annotated[list[str] | None, option("--submit-set", DEVICES, "With --submit: what a worker "
        "gets, such as timeout_min=720 or gpus_per_node=1 (default: none). Repeatable.", "KEY=VALUE")] = None

    def run_options(self, **more: Any):
        """Return the RunOptions of a run; `more` are those that only some commands have."""
        from vitcli.training.setup import RunOptions

        return RunOptions(
            **more,
            per_device_batch=count_or_auto(self.per_device_batch),
            workers=self.workers,
            exact=self.exact,
            shard=self.shard,
            compile=self.compile,
            arguments=given_arguments,
        )
# fmt: on


def height_and_width(res: str | None) -> tuple[int, int] | None:
    """Parse --res where no recipe takes it; typer.BadParameter for anything but a size in pixels."""
    if res is None:
        return None
    sides = re.fullmatch(r"([1-9]\d{0,4})(?:[xX]([1-9]\d{0,4}))?", res)
    if sides is None:
        message = f"{res!r} is not a size in pixels: 384, or 384x512 (height x width)"
        raise typer.BadParameter(message, param_hint="--res")
    return int(sides[1]), int(sides[2] or sides[1])


def count_or_auto(value: str | None) -> int | str | None:
    """Parse --per-device-batch; typer.BadParameter for anything but a count or auto."""
    if value is None or value == "auto":
        return value
    if not re.fullmatch(r"[1-9]\d{0,6}", value):
        message = f"{value!r} is neither a number of images nor auto"
        raise typer.BadParameter(message, param_hint="--per-device-batch")
    return int(value)


def launch(num_processes: int | None, device: str | None) -> None:
    """Settle the device, and load torch; or launch the processes asked for, and end with their exit code."""
    accelerate_settings.check(device)
    devices.select(device, num_processes)
    launcher.adopt_slurm()
    if num_processes is not None and launcher.must_launch(num_processes):
        devices.check_gpus_suffice(num_processes)
        raise typer.Exit(launcher.launch(num_processes, given_arguments))
    load_libraries()


def load_libraries() -> None:
    """Load torch, torchvision and timm for the rest of this process."""
    if startup.load():
        startup.keep_freed_memory(INFERENCE_BYTES)
        gc.freeze()  # they stay: a search for garbage need not pass over their quarter of a million objects
