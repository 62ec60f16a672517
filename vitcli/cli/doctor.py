"""The commands below `vit doctor`."""

import typer

from vitcli.cli import options
from vitcli.output import text

app = typer.Typer(help="What is usable here, and a proof of exact resume.", invoke_without_command=True)


@app.callback()
def doctor(
    context: typer.Context,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """What is installed and usable on this machine."""
    if context.invoked_subcommand:
        return 0
    from vitcli.training import doctor

    return text.show(doctor.check_environment(), as_json, doctor.environment_as_text)


@app.command(epilog="Example: vit doctor resume --recipe finetune/demo --steps 40 --kills 3")
def resume(
    recipe: options.RecipeName = "finetune/demo",
    dataset: options.Dataset = None,
    res: options.Res = None,
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    steps: options.Steps = 40,
    batch_size: options.BatchSize = None,
    lr: options.Lr = None,
    set_: options.Set = None,
    precision: options.Precision = None,
    num_processes: options.NumProcesses = None,
    kills: options.Kills = 3,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> int:
    """Run a recipe unbroken and killed at random steps, and compare weights bit for bit; exit 8 if not."""
    from vitcli.training import doctor

    shorthands = {
        "data.dataset": dataset,
        "data.image_size": res,
        "model.ckpt": ckpt,
        "model.name": model,
        "precision.compute": precision,
        "schedule.steps": steps,
        "train.batch_size": batch_size,
        "optimizer.lr": lr,
    }
    more = ["--num-processes", str(num_processes)] if num_processes else []
    result = doctor.prove_resume(recipe, set_ or (), shorthands, kills=kills, options=more, quiet=quiet)
    return text.show(result, as_json, doctor.proof_as_text)
