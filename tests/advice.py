"""What the program tells a person to type: found in its screens and errors, and in its own source."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import typer

from vitcli.cli import app

# A word; quotes count where a shell would read them: at its beginning, or behind a `=`.
WORD = re.compile(r"""'[^']*'[^\s']*|"[^"]*"[^\s"]*|[^\s='"(]+='[^']*'\S*|[^\s='"(]+="[^"]*"\S*|\S+""")
OPTION = re.compile(r"--[a-z][a-z0-9-]*")
FREE = re.compile(r"[A-Z][A-Z_/.]*[A-Z](\.[a-z]+)?|[A-Z]")  # DATA, OWNER/NAME, FILE.html, A: to be filled in
VALUE = re.compile(r"""['"]|.*[/.=*\d:]|.*,\w""")  # what a value looks like, besides free words
NAMES = {
    "all", "auto", "balanced", "bf16", "cpu", "demo", "dev", "fp32", "greedy", "int8", "last",
    "least-squares", "logistic", "none", "paper", "random", "softmax", "sigmoid", "sqrt", "sweep",
    "tensorboard", "timm", "token", "train",
    "uniform", "validation", "wandb",
}  # fmt: skip
DROPS = frozenset(("drop", "leave", "without"))


@dataclass(frozen=True)
class Advice:
    """Something to type.

    Attributes:
        words: a whole command line without `vit`, or options to add to the one just typed.
        drops: whether these are options to leave out.
        command: the command that takes these options, where the sentence names it; else the one just typed.
    """

    words: tuple[str, ...]
    drops: bool = False
    command: str = ""

    @property
    def is_command(self) -> bool:
        return not self.words[0].startswith("-")

    def __str__(self) -> str:
        before = "without " if self.drops else "vit " if self.is_command else ""
        return (f"vit {self.command} with " if self.command else before) + shlex.join(self.words)


@cache
def commands() -> dict[str, typer.core.TyperCommand]:
    """Return every command by its words, such as "datasets check"."""
    top = typer.main.get_command(app.app)
    found = {}
    for name, command in top.commands.items():
        found[name] = command
        found |= {f"{name} {inner}": one for inner, one in getattr(command, "commands", {}).items()}
    return found


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the command of a command line, and the words behind it."""
    name = " ".join(words[:2])
    return (name, list(words[2:])) if name in commands() else (words[0], list(words[1:]))


@cache
def options_of(name: str) -> dict[str, bool]:
    """Return the options of a command, and whether each takes a value."""
    options = {"--help": False, "-h": False}
    for one in commands()[name].params:
        if one.param_type_name == "option":
            options |= dict.fromkeys((*one.opts, *one.secondary_opts), not one.is_flag)
    return options


@cache
def all_options() -> dict[str, bool]:
    return {option: takes for name in commands() for option, takes in options_of(name).items()} | {
        "--version": False,
        "--show-completion": False,
        "--install-completion": False,
    }


def advice_in(text: str) -> Iterator[Advice]:
    """Find what a text tells a person to type: whole commands, and options with what they take."""
    words = [_Word(found.group()) for found in WORD.finditer(text)]
    at, clause_begins, drops = 0, True, False
    while at < len(words):
        word = words[at]
        if clause_begins:
            drops = False
        drops = (drops or word.text.lower() in DROPS) and word.text not in ("with", "add")
        if word.text == "vit" and not word.ends and at + 1 < len(words) and words[at + 1].text in commands():
            taken, at = _command(words, at + 1)
            name = " ".join(taken)
            if name in commands() and [word.text for word in words[at : at + 1]] == ["with"]:
                taken, after = _options(words, at + 1, options_of(name))
                if taken:
                    at = after
                    yield Advice(tuple(taken), command=name)
            else:
                yield Advice(tuple(taken))
        elif OPTION.fullmatch(word.text.partition("=")[0]):
            taken, at = _options(words, at, all_options())
            if drops:
                dropped = [taken[0]]
                while (
                    at + 1 < len(words) and words[at].text == "and" and OPTION.fullmatch(words[at + 1].text)
                ):
                    dropped, at = [*dropped, words[at + 1].text], at + 2
                yield Advice(tuple(dropped), drops=True)
            elif taken and not (
                len(taken) == 1 and all_options().get(taken[0], True) and "=" not in taken[0]
            ):
                yield Advice(tuple(taken))  # no value is known for what is only mentioned
        else:
            at += 1
        clause_begins = words[at - 1].ends


@dataclass(frozen=True)
class _Word:
    raw: str

    @property
    def text(self) -> str:
        """The word without the punctuation of the sentence, and as a shell reads it."""
        bare = (
            self.raw.lstrip("(").rstrip(",;:.)?…") if self.raw[:1] not in "'\"" else self.raw.rstrip(",;:)?")
        )
        try:
            (read,) = shlex.split(bare) if bare else [""]
        except ValueError:
            return bare
        return read

    @property
    def ends(self) -> bool:
        """Whether a clause of the sentence ends with it."""
        return self.raw[-1] in ",;:)…" or (self.raw.endswith(".") and len(self.raw) > 1 and self.raw != "..")

    @property
    def is_value(self) -> bool:
        is_quoted = self.raw[:1] in "'\""
        text = self.text
        return bool(is_quoted or text in NAMES or FREE.fullmatch(text) or VALUE.match(text))


def _options(
    words: Sequence[_Word], at: int, known: Mapping[str, bool], *, is_command: bool = False
) -> tuple[list[str], int]:
    """Return options with their values as long as one follows the other, and the place behind them.

    Args:
        is_command: whether they stand in a whole command, where every option that takes a value has one.
    """
    taken: list[str] = []
    while at < len(words) and OPTION.fullmatch(words[at].text.partition("=")[0]):
        taken.append(words[at].text)
        ended, needs = words[at].ends, known.get(words[at].text, False)
        at += 1
        if needs and not ended and at < len(words) and (is_command or words[at].is_value):
            taken.append(words[at].text)
            ended = words[at].ends
            at += 1
        if ended:
            break
    return taken, at


def _command(words: Sequence[_Word], at: int) -> tuple[list[str], int]:
    """Return the words of a command from its name on, up to where prose goes on."""
    taken = [words[at].text]
    ended = words[at].ends
    at += 1
    if not ended and at < len(words) and f"{taken[0]} {words[at].text}" in commands():
        taken.append(words[at].text)
        ended = words[at].ends
        at += 1
    name = " ".join(taken)
    room = sum(
        1 if one.nargs == 1 else 99 for one in commands()[name].params if one.param_type_name == "argument"
    )
    while not ended and at < len(words):
        if words[at].text.startswith("-"):
            options, after = _options(words, at, options_of(name), is_command=True)
            if not options:
                break
            taken, ended, at = taken + options, words[after - 1].ends, after
        elif room and words[at].is_value:
            taken.append(words[at].text)
            ended, at, room = words[at].ends, at + 1, room - 1
        else:
            break
    return taken, at


def composed(typed: Sequence[str], advice: Advice) -> list[str]:
    """Return the command line that a person types who follows an advice on the one just typed."""
    if advice.is_command:
        return list(advice.words)
    name, rest = split_command(typed)
    known = options_of(name) if name in commands() else all_options()
    added = list(_pairs(advice.words, known))
    named = {_key_of(pair) for pair in added}
    kept = [pair for pair in _pairs(rest, known) if _key_of(pair) not in named]
    if advice.command not in ("", name):  # of the line, the other command gets the options that it has
        kept = [pair for pair in kept if pair[0].partition("=")[0] in options_of(advice.command)]
        name = advice.command
    new = [] if advice.drops else [word for pair in added for word in pair]
    return [*name.split(), *(word for pair in kept for word in pair), *new]


def _pairs(words: Sequence[str], known: Mapping[str, bool]) -> Iterator[tuple[str, ...]]:
    at = 0
    while at < len(words):
        size = 2 if words[at].startswith("-") and known.get(words[at]) and at + 1 < len(words) else 1
        yield tuple(words[at : at + size])
        at += size


def _key_of(pair: tuple[str, ...]) -> str:
    """Return what another value of the same option, or of the same recipe key, replaces."""
    if pair[0] == "--set" and len(pair) == 2:
        return pair[1].partition("=")[0]
    return pair[0].partition("=")[0] if pair[0].startswith("-") else f"word {pair[0]}"


def texts_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return the line and the text of each string of a module but docstrings; {} is what is filled in."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body:
            skipped.add(getattr(node.body[0], "value", None))
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(parts)


def sources() -> Iterator[Path]:
    import vitcli

    return Path(vitcli.__file__).parent.rglob("*.py")
