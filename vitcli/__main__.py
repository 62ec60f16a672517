"""`python -m vitcli`. Processes that vit starts itself run this file by its path (`launch.program`)."""

import sys
from pathlib import Path

if not __package__:  # run by its path; last, so that nothing beside the package takes the place of a library
    sys.path.append(str(Path(__file__).parents[1]))

from vitcli.cli import main

main()
