"""Files for tools that start workers in containers: a SkyPilot task, a Kubernetes Job, `hf jobs run`."""

import shlex
from operator import itemgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vitcli.errors import CheckFailed, DataError, NotFiniteError, VitError, WeightsError
from vitcli.output.text import json_of
from vitcli.submission.submission import Submission, keys_of

REPEATED = (VitError, DataError, WeightsError, NotFiniteError, CheckFailed)  # another try ends in them, too
as_text = itemgetter("file")


def submit(submission: Submission) -> dict[str, Any]:
    """Return the object of --json, with the file by which the place's own tool starts the workers."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    env.filters |= {"json": json_of, "shell": shlex.quote}  # each JSON value is one of YAML, too
    words = ["vit", *submission.arguments]
    text = env.get_template(f"{submission.place.removeprefix('print:')}.j2").render(
        dict.fromkeys(keys_of(submission.place)) | submission.values,
        submission=submission,
        mount=f"/{submission.out.parts[1]}",  # of the volume: /runs for /runs/photos
        words=words,
        line=shlex.join(words),
        repeated=[error.exit_code for error in REPEATED],
    )
    return {"command": "submit", "place": submission.place, "file": text}
