"""Write docs/reference from the code: `python docs/make_reference.py`; a test compares."""

from pathlib import Path

from vitcli.cli import skill

FOLDER = Path(__file__).with_name("reference")
NOTE = "<!-- written by docs/make_reference.py: change the help or the schema, not this page -->\n\n"


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    options = "Every command with its examples and options, as `vit COMMAND --help` prints them."
    keys = "Every key of a recipe with its default and what it does."
    results = "What the keys of a result hold, and the names of the others."
    codes = "What the exit code of a command says, the same for every command."
    set_keys = "`--set SECTION.KEY=VALUE` sets any of them; `vit recipes show NAME` says where each is from."
    fractions = "A fraction is between 0 and 1."
    return {
        "commands.md": f"# Commands\n\n{options}\n\n{skill.commands(level=2)}",
        "recipe-keys.md": f"# Keys of a recipe\n\n{keys} {set_keys}\n\n{skill.recipe_keys()}",
        "json-keys.md": f"# Keys of `--json`\n\n{results} {fractions}\n\n{skill.json_keys(level=2)}",
        "exit-codes.md": f"# Exit codes\n\n{codes}\n\n{skill.exit_codes()}",
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in pages().items():
        (FOLDER / name).write_text(NOTE + page.rstrip("\n") + "\n", encoding="utf-8")
