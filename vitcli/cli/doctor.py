"""`vit doctor` and `vit doctor resume`."""

from typing import Annotated

import typer

from vitcli.cli import options
from vitcli.cli.help import ADVANCED, RUN, TRAINING, VitGroup
from vitcli.cli.options import Printing, command, launch, option

app = typer.Typer(
    cls=VitGroup,
    help="Check this machine; prove that runs resume exactly.",
    epilog="Examples:\nvit doctor\nvit doctor resume",
    invoke_without_command=True,
)


@app.callback()
def doctor(
    context: typer.Context,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """List what is installed and usable on this machine."""
    if context.invoked_subcommand:
        return 0
    from vitcli.training import doctor

    return Printing(as_json).show(doctor.check_environment(), doctor.environment_as_text)


@command(app, example="vit doctor resume --recipe finetune/demo --steps 40 --kills 3")
def resume(
    *,
    ckpt: options.Ckpt = None,
    recipe: options.RecipeOptions,
    steps: Annotated[int, option("--steps", TRAINING,
        "Number of optimizer steps (default: 40). [schedule.steps]", "N")] = 40,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    precision: options.Precision = None,
    device: options.Device = None,
    num_processes: options.NumProcesses = None,
    exact: Annotated[bool, option("--exact", ADVANCED,
        "Prove it for runs with --exact, as a GPU may need it.")] = False,
    kills: Annotated[int, option("--kills", RUN, "SIGKILLs at random steps (default: 3).", "N", min=1)] = 3,
    printing: Printing,
) -> int:  # fmt: skip
    """Prove that a killed run resumes bit for bit.

    Trains a recipe (default: finetune/demo, 40 steps) once unbroken and once killed at random steps, and
    compares the weights; exit code 8 if they differ.
    """
    launch(None, device)
    from vitcli.training import doctor

    recipe_keys = recipe.shorthands(ckpt, precision) | {
        "schedule.steps": steps,
        "train.batch_size": batch_size,
        "optimizer.lr": lr,
    }
    name, overrides = recipe.recipe or "finetune/demo", recipe.set_ or ()
    words = ["--num-processes", str(num_processes)] if num_processes else []
    words += ["--exact"] if exact else []
    result = doctor.prove_resume(
        name, overrides, recipe_keys, kills=kills, options=words, quiet=printing.quiet
    )
    return printing.show(result, doctor.proof_as_text)
