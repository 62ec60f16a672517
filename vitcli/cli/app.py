"""The command `vit`: its subcommands, and `main`, which ends the process with an exit code."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from vitcli import __version__
from vitcli.cli import complete
from vitcli.cli.average import app as average_app
from vitcli.cli.bench import app as bench_app
from vitcli.cli.cache import app as cache_app
from vitcli.cli.checkpoints import app as weights_app
from vitcli.cli.datasets import app as datasets_app
from vitcli.cli.doctor import app as doctor_app
from vitcli.cli.evaluate import app as evaluate_app
from vitcli.cli.features import app as fewshot_app
from vitcli.cli.help import MANAGE, MOST_COLUMNS, UNDERSTAND, VitGroup
from vitcli.cli.inspect import app as inspect_app
from vitcli.cli.label import app as label_app
from vitcli.cli.options import given_arguments, option
from vitcli.cli.recipes import app as recipes_app
from vitcli.cli.report import app as report_app
from vitcli.cli.reproduce import app as reproduce_app
from vitcli.cli.skill import app as skill_app
from vitcli.cli.study import app as study_app
from vitcli.cli.submit import app as submit_app
from vitcli.cli.teach import app as teach_app
from vitcli.cli.train import app as train_app
from vitcli.output import text

app = typer.Typer(
    name="vit",
    cls=VitGroup,
    help="Fine-tune, evaluate and use Vision Transformers.",
    epilog="Start with:\nvit finetune                       # an embedded demo, minutes on a laptop\n"
    "vit finetune --ckpt timm/vit_base_patch16_224.augreg_in21k --dataset photos/",
    no_args_is_help=True,
    add_completion=False,  # ours below also takes the name of a shell
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": MOST_COLUMNS},
)
for commands in (train_app, average_app, evaluate_app, fewshot_app, label_app, teach_app, weights_app,
                 inspect_app, report_app, reproduce_app, skill_app):  # fmt: skip
    app.add_typer(commands)
app.add_typer(study_app, name="study", rich_help_panel=UNDERSTAND)
app.add_typer(bench_app, name="bench", rich_help_panel=UNDERSTAND)
app.add_typer(recipes_app, name="recipes", rich_help_panel=MANAGE)
app.add_typer(datasets_app, name="datasets", rich_help_panel=MANAGE)
app.add_typer(cache_app, name="cache", rich_help_panel=MANAGE)
app.add_typer(doctor_app, name="doctor", rich_help_panel=MANAGE)
app.add_typer(submit_app, name="submit", rich_help_panel=MANAGE)


def _completion_script(given: bool) -> None:
    """Print the script that makes a shell complete the words of `vit`."""
    if given:
        typer.echo(complete.script(_script_name(), _word_after("--show-completion")))
        raise typer.Exit()


def _install_completion(given: bool) -> None:
    """Write that script where the shell reads it."""
    if given:
        typer.echo(complete.install(_script_name(), _word_after("--install-completion")))
        raise typer.Exit()


def _word_after(name: str) -> str | None:
    """Return the name of a shell behind a flag, which typer does not allow to have a value."""
    words = given_arguments[given_arguments.index(name) + 1 :] if name in given_arguments else []
    return words[0] if words else None


# fmt: off
@app.callback(invoke_without_command=True)
def vit(
    version: Annotated[bool, option("--version", None, "Print the version, with --json also those of what it "
        "is built on.", short="-V")] = False,
    as_json: Annotated[bool, option("--json", None, "Print one JSON object.")] = False,
    show_completion: Annotated[bool, option("--show-completion", None,
        "Print the completion script of a shell: bash, zsh, fish or powershell (default: yours).",
        is_eager=True, callback=_completion_script)] = False,
    install_completion: Annotated[bool, option("--install-completion", None,
        "Install it for that shell.", is_eager=True, callback=_install_completion)] = False,
) -> None:  # fmt: skip
    """Print the version where no command is named."""
    if version:
        typer.echo(text.json_text(_versions()) if as_json else f"vit {__version__}")
        raise typer.Exit()
    if as_json:
        raise typer.BadParameter("it belongs behind a command, or to --version", param_hint="--json")
# fmt: on


def _versions() -> dict[str, str | None]:
    """Return the versions of vit, Python and the main libraries, of which none is loaded for it."""
    import platform
    from importlib import metadata

    versions: dict[str, str | None] = {"vit": __version__, "python": platform.python_version()}
    for name in ("torch", "timm", "datasets", "accelerate", "safetensors"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def main(arguments: list[str] | None = None) -> None:
    """Run a command line (default: that of the process) and exit with its code."""
    from vitcli.cli import end_of_command
    from vitcli.distributed import launch

    given_arguments[:] = _as_options(sys.argv[1:] if arguments is None else arguments)
    # How long an OpenMP thread spins while it waits for another; must be set before torch is loaded. The
    # library's default is sixty times longer and makes training on a busy CPU slower, of small networks forty
    # times (docs/evidence/speed.md).
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    # Looking for plugins, of which none is used, reads the metadata of every installed package: 0.05 s.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    if getattr(sys.stdout, "errors", "") == "strict":  # a pipe of Windows has no letters for many file names
        sys.stdout.reconfigure(errors="backslashreplace")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # of --profile: torch's tracer reports on itself
    for number in {signal.SIGTERM, launch.TIME_LIMIT}:  # until a training loop saves a checkpoint first
        signal.signal(number, end_of_command.raise_at_signal)
    sys.unraisablehook = end_of_command.report_ignored
    launch.end_with_the_launcher()
    variable = complete.variable(_script_name())
    complete.prepare(variable)
    command = partial(
        app, args=given_arguments, prog_name="vit", complete_var=variable, standalone_mode=False
    )
    end_of_command.exit_with(end_of_command.exit_code_of(command, given_arguments))


def _as_options(arguments: list[str]) -> list[str]:
    """Return `vit help COMMAND` and `vit version` as options, and `--real` without a file as timm's copy."""
    ends = [*arguments[1:], "--"]
    arguments = [
        word
        for argument, following in zip(arguments, ends, strict=False)
        for word in ([argument, "timm"] if argument == "--real" and following.startswith("-") else [argument])
    ]
    match arguments:
        case ["help", *command]:
            return [*command, "--help"]
        case ["version"]:
            return ["--version"]
    return list(arguments)


def _script_name() -> str:
    """Return the name of the script that runs: vit, or vitcli, for where another package has a `vit`."""
    return "vitcli" if Path(sys.argv[0]).stem == "vitcli" else "vit"
