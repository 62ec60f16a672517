"""Completion in the shell: the script of each shell, and the names that options and arguments take."""

import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from vitcli.errors import VitError, nearest

Names = Callable[[str], list[str]]  # from the word typed so far
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
KEY_OF_SET = "VIT_COMPLETE_KEY"  # what stands before = in --set KEY=VALUE, where the shell cuts it off


def variable(script_name: str) -> str:
    """Return the environment variable by which a shell asks for completions."""
    return f"_{script_name.upper()}_COMPLETE"


def script(script_name: str, shell: str | None) -> str:
    """Return the completion script of a shell (default: the user's)."""
    from typer.completion import get_completion_script

    shell = _known(shell)
    text = get_completion_script(prog_name=script_name, complete_var=variable(script_name), shell=shell)
    # Bash would set a space behind the = of a key.
    no_space = "    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n    return 0"
    return text.replace("    return 0", no_space) if shell == "bash" else text


def install(script_name: str, shell: str | None) -> str:
    """Write the completion script where the shell reads it; say where."""
    from typer.completion import install as write_script

    name, path = write_script(_known(shell), script_name, variable(script_name))
    if name == "bash":
        path.write_text(script(script_name, name) + "\n", encoding="utf-8")
    return f"completion of {script_name} for {name} is in {path}: it starts with the next terminal"


def _known(shell: str | None) -> str:
    """Return the name of a shell that has completion, by default that of the user."""
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise VitError(
            f"there is no completion for the shell {shell!r}{nearest(shell, SHELLS)}",
            where="--show-completion, --install-completion",
            fix=f"name one: {', '.join(SHELLS)}",
        )
    return shell


def prepare(variable: str) -> None:
    """Get ready to answer a shell, if it is one that runs the command.

    Bash cuts `--name=value` and `--set KEY=VALUE` at the =: they become words without = and KEY.
    """
    if variable not in os.environ:
        return
    from typer.completion import completion_init

    completion_init()  # registers the shells
    if os.environ[variable] != "complete_bash":
        return
    given = os.environ.setdefault("COMP_WORDS", "vit")
    words, place = given.split("\n" if "\n" in given else " "), int(os.environ.setdefault("COMP_CWORD", "1"))
    before, word = words[:place], words[place] if place < len(words) else ""
    if before[-2:-1] == ["--set"] and word == "=":
        key, before, word = before[-1], before[:-1], ""
    elif before[-3:-2] == ["--set"] and before[-1] == "=":
        key, before = before[-2], before[:-2]
    elif before[-1:] == ["="]:
        key, before = "", before[:-1]
    else:
        return
    os.environ |= {
        KEY_OF_SET: key, "COMP_WORDS": " ".join([*before, word]), "COMP_CWORD": str(len(before)),
    }  # fmt: skip


def among(names: Callable[[Any], Iterable[str]]) -> Names:
    """Return a completion among `names(vitcli.recipe)`."""

    def complete(incomplete: str) -> list[str]:
        from vitcli import recipe

        return [name for name in names(recipe) if name.startswith(incomplete)]

    return complete


recipes = among(lambda recipe: [name for name, _ in recipe.available()])
datasets = among(lambda recipe: ["demo", "vtab", *recipe.dataset_aliases()])
class_maps = among(lambda recipe: recipe.catalog.class_maps())
studies = among(lambda recipe: recipe.catalog.studies())
layers = among(lambda _: ("all", "last"))
devices = among(lambda _: ("cpu", "cuda", "mps"))


def models(incomplete: str) -> list[str]:
    """Complete the name of an architecture, whatever the case of its letters."""
    from vitcli.models.variants import VARIANTS

    # In the letters already typed: the shell would drop another spelling.
    matching = (name for name in VARIANTS if name.lower().startswith(incomplete.lower()))
    return [incomplete + name[len(incomplete) :] for name in matching]


def ckpts(incomplete: str) -> list[str]:
    """Complete "demo"; a shell completes files and run folders itself where it is offered nothing."""
    is_meant = incomplete and "demo".startswith(incomplete)
    return ["demo"] if is_meant and not glob.glob(f"{glob.escape(incomplete)}*") else []


def numbers(incomplete: str) -> list[str]:
    """Complete the key of --assert 'KEY>=NUMBER'."""
    from vitcli.evaluation.assertions import NUMBERS, OF_REAL

    return [name for name in (*NUMBERS, *OF_REAL) if name.startswith(incomplete)]


def rows(incomplete: str) -> list[str]:
    """Complete the name of a row of the paper's tables."""
    from vitcli.experiments.reproduce_rows import read_rows, rows_of

    return [name for name in rows_of(read_rows(None)) if name.startswith(incomplete)]


def recipe_keys(incomplete: str) -> list[tuple[str, str]]:
    """Complete --set KEY=VALUE: the key with what it means, then the values of a closed choice."""
    from vitcli.recipe.schema import KEYS

    key, equals, _ = incomplete.partition("=")
    if rejoined := os.environ.get(KEY_OF_SET):
        words = [(value, "") for value in _values_of(rejoined)]
    elif equals:
        words = [(f"{key}={value}", "") for value in _values_of(key)]
    else:
        # A bracket is markup to typer.
        brackets = str.maketrans("[]", "()")
        words = [(f"{name}=", (info.description or "").translate(brackets)) for name, info in KEYS.items()]
    return [(word, about) for word, about in words if word.startswith(incomplete)]


def _values_of(key: str) -> list[str]:
    from vitcli.recipe.schema import KEYS

    return choices_in(KEYS[key].annotation) if key in KEYS else []


def choices_in(annotation: Any) -> list[str]:
    """Return the values of a type that has few, as TOML writes them."""
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in choices_in(part)]
