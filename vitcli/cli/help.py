"""The text of --help: what a command is for, an example, its options by panel; and names that do not exist.

Typer's own page gives each part of an option a column of its own, so that 80 columns leave little for the
text, and its first words load Rich. This one has two columns.
"""

import os
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from vitcli.cli import hints

DATA, MODEL, TRAINING, DEVICES, RUN, ADVANCED = PANELS = (
    "Data", "Model", "Training", "Devices", "Run", "Advanced",
)  # fmt: skip
TRAIN, USE, UNDERSTAND, MANAGE = TASKS = "Train", "Use", "Understand", "Manage"  # panels of commands
ARGUMENTS = "Arguments"
MOST_COLUMNS = 110  # lines of text get hard to read beyond
NAME_COLUMNS = 28  # a longer name has its text on the next line


class VitCommand(TyperCommand):
    """A command with our help page and our answer to words that are not options."""

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:
        """Write the page: usage, purpose, example, options."""
        _write_head(self, ctx, formatter)
        _write_panels(formatter, options_by_panel(self, ctx))

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Parse the options; a word that belongs to none is refused with the option that takes it."""
        ctx.allow_extra_args, given = True, list(args)
        words = super().parse_args(ctx, args)
        if words and not ctx.resilient_parsing:
            raise hints.unexpected_word(words[0], given, ctx.command_path, option_names(self))
        return words


def group(help: str, examples: str) -> typer.Typer:
    """Return an app for commands of one noun, such as `vit cache list`; without any it prints its help."""
    return typer.Typer(cls=VitGroup, help=help, epilog=examples, no_args_is_help=True)


class VitGroup(TyperGroup):
    """Commands with our help page and our answer to names that are not commands."""

    def make_context(self, info_name: str | None, args: list[str], **more: Any) -> typer.Context:
        """Give --help a default: to convert one that is None, typer would load pydantic, 0.07 s."""
        return super().make_context(info_name, args, **{"default_map": {"help": False}} | more)

    def format_help(self, ctx: typer.Context, formatter: Any) -> None:
        """Write the page: usage, purpose, example, commands by task, options."""
        _write_head(self, ctx, formatter)
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            first_line = (command.help or "").partition("\n")[0]
            panels.setdefault(command.rich_help_panel or "Commands", []).append((name, first_line))
        panels["Options"] = [_row(parameter) for parameter in self.get_params(ctx)]
        _write_panels(formatter, panels)

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple:
        """Return the named command; one that does not exist is refused with the nearest."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise hints.unknown_command(args[0], ctx.command_path, list(self.commands))
        return super().resolve_command(ctx, args)


def options_by_panel(command: Any, ctx: typer.Context) -> dict[str, list[tuple[str, str]]]:
    """Return what is typed for each option and argument, and what it does, by panel."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        panels.setdefault(_panel_of(parameter), []).append(_row(parameter))
    return panels


def usage(command: Any, ctx: typer.Context) -> str:
    """Return what follows the name of a command: IMAGES... [OPTIONS]."""
    if isinstance(command, TyperGroup):
        return "[COMMAND] [OPTIONS]" if command.invoke_without_command and ctx.parent else "COMMAND"
    arguments = [parameter for parameter in command.params if isinstance(parameter, TyperArgument)]
    return " ".join([*map(_usage_of_argument, arguments), "[OPTIONS]"])


def option_names(command: Any) -> list[str]:
    """Return the long names of a command's options."""
    names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    return [name for name in names if name.startswith("--")] + ["--help"]


def _write_head(command: Any, ctx: typer.Context, formatter: Any) -> None:
    purpose, _, rest = (command.help or "").partition("\n\n")
    formatter.write_text(_styled(purpose, bold=True))
    formatter.write_paragraph()
    formatter.write_usage(ctx.command_path, usage(command, ctx))
    if command.epilog:
        formatter.write_paragraph()
        for line in command.epilog.split("\n"):
            formatter.write(f"  {line}\n" if line.startswith("vit ") else f"{_styled(line, bold=True)}\n")
    if rest:
        formatter.write_paragraph()
        formatter.write_text(rest.replace("\\[", "["))


def _usage_of_argument(argument: TyperArgument) -> str:
    several = "..." if argument.nargs != 1 else ""
    return f"{argument.metavar}{several}" if argument.required else f"[{argument.metavar}{several}]"


def _write_panels(formatter: Any, panels: dict[str, list[tuple[str, str]]]) -> None:
    """Write each panel under its name; the texts of all panels start in the same column."""
    lengths = [len(name) for rows in panels.values() for name, _ in rows]
    column = max((length for length in lengths if length <= NAME_COLUMNS), default=0)
    order = [ARGUMENTS, *TASKS, *PANELS]
    for panel in sorted(panels, key=lambda panel: order.index(panel) if panel in order else len(order)):
        formatter.write_paragraph()
        formatter.write(f"{_styled(panel, bold=True)}\n")
        with formatter.indentation():
            # Padded, since each panel would else have a first column of its own width.
            rows = [(_styled(name.ljust(column), fg="cyan"), text) for name, text in panels[panel]]
            formatter.write_dl(rows, col_max=column)


def _panel_of(parameter: Any) -> str:
    if isinstance(parameter, TyperArgument):
        return ARGUMENTS
    return RUN if parameter.name == "help" else parameter.rich_help_panel or "Options"


def _row(parameter: Any) -> tuple[str, str]:
    """Return what is typed, and what it does."""
    text = (parameter.help or "").replace("\\[", "[")
    if isinstance(parameter, TyperArgument):
        return parameter.metavar, text
    if parameter.name == "help":
        return "--help, -h", "Show this page."
    # Of a pair of flags the one that changes something.
    names = parameter.secondary_opts if parameter.default is True else parameter.opts
    metavar = "" if parameter.is_flag else f" {parameter.metavar}"
    return ", ".join(names) + metavar, text


def _styled(text: str, **style: Any) -> str:
    return text if "NO_COLOR" in os.environ else typer.style(text, **style)
