"""The command `vit`: its subcommands, and `main`, which ends the process with an exit code."""

import os
import signal
import sys
from functools import partial
from typing import Annotated

import typer

from vitcli.cli.checkpoints import app as weights_app
from vitcli.cli.datasets import app as datasets_app
from vitcli.cli.doctor import app as doctor_app
from vitcli.cli.evaluate import app as evaluate_app
from vitcli.cli.features import app as fewshot_app
from vitcli.cli.inspect import app as inspect_app
from vitcli.cli.options import given_arguments, option
from vitcli.cli.recipes import app as recipes_app
from vitcli.cli.report import app as report_app
from vitcli.cli.reproduce import app as reproduce_app
from vitcli.cli.study import app as study_app
from vitcli.cli.train import app as train_app

app = typer.Typer(
    name="vit",
    help="Pretrain, fine-tune, evaluate and inspect Vision Transformers, exactly as in the paper.",
    epilog="Start with: vit finetune (an embedded demo, minutes on a laptop)",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in (train_app, evaluate_app, reproduce_app, fewshot_app, weights_app, inspect_app, report_app):
    app.add_typer(commands)
app.add_typer(recipes_app, name="recipes")
app.add_typer(datasets_app, name="datasets")
app.add_typer(doctor_app, name="doctor")
app.add_typer(study_app, name="study")


@app.callback(invoke_without_command=True)
def vit(version: Annotated[bool, option("--version", None, "Print the version.")] = False) -> None:
    """Print the version where no command is named."""
    if version:
        from vitcli import __version__

        typer.echo(f"vit {__version__}")
        raise typer.Exit()


def main(arguments: list[str] | None = None) -> None:
    """Run a command line (default: that of the process) and exit with its code."""
    from vitcli.cli import exit_codes
    from vitcli.distributed import launch

    given_arguments[:] = sys.argv[1:] if arguments is None else arguments
    # How long an OpenMP thread spins while it waits for another; must be set before torch is loaded. The
    # library's default is a hundred times longer and makes training on a busy CPU four times slower
    # (docs/loader.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    for number in (signal.SIGTERM, signal.SIGUSR1):  # until a training loop saves a checkpoint first
        signal.signal(number, lambda *_: sys.exit(143))
    launch.end_with_the_launcher()
    command = partial(app, args=given_arguments, prog_name="vit", standalone_mode=False)
    exit_codes.exit_with(exit_codes.exit_code_of(command, given_arguments))
