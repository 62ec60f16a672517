"""The command line: `main` is what the script `vit` runs."""

from vitcli.cli.app import main

__all__ = ["main"]
