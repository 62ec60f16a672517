"""Files for tools that start workers in containers: a SkyPilot task, a Kubernetes Job, `hf jobs run`."""

import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vitcli.errors import CheckFailed, DataError, NotFiniteError, VitError, WeightsError
from vitcli.output.text import json_of
from vitcli.submission import settings
from vitcli.submission.submission import Submission

TEMPLATES = {settings.SKY: "sky.yaml.j2", settings.K8S: "k8s.yaml.j2", settings.HF: "hf.sh.j2"}
REPEATED = (VitError, DataError, WeightsError, NotFiniteError, CheckFailed)  # another try ends in them, too


def file_text(submission: Submission) -> str:
    """Return the file by which the place's own tool starts the workers.

    The volume is mounted where --out begins: /runs for /runs/photos.
    """
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {"json": json_of, "shell": shlex.quote}  # each JSON value is one of YAML, too
    words = ["vit", *submission.arguments]
    return env.get_template(TEMPLATES[submission.place]).render(
        dict.fromkeys(settings.KEYS) | submission.values,
        name=submission.name,
        num_workers=submission.num_workers,
        mount=f"/{submission.out.parts[1]}",
        words=words,
        line=shlex.join(words),
        resources=_resources(submission.values),
        repeated=[error.exit_code for error in REPEATED],
    )


def _resources(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the resources of a container of Kubernetes; a GPU is asked for by its limit."""
    memory = {"memory": f"{values['mem_gb']}Gi"} if "mem_gb" in values else {}
    cpus = {"cpu": values["cpus_per_task"]} if "cpus_per_task" in values else {}
    gpus = {"nvidia.com/gpu": values["gpus_per_node"]} if "gpus_per_node" in values else {}
    return {"requests": cpus | memory, "limits": memory | gpus}
