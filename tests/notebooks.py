"""The notebooks of examples/, run by nbmake in a folder of their own.

    python -m tests.notebooks [NAME ...]

runs them, two minutes on one core, and writes their outputs into them anew.
"""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "examples").glob("*.ipynb"))
MOST_SECONDS = 180
NO_NETWORK = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}


def execute(notebook: Path, folder: Path) -> dict[str, Any]:
    """Return the notebook with the outputs of a run within a folder, which reaches no network.

    Raises:
        RuntimeError: a cell failed, or took too long; its words are the report of nbmake.
    """
    copy = Path(shutil.copy(notebook, folder))
    # Of the switches that keep tests off the network only the proxy: a reader has no other.
    env = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "PYTEST_ADDOPTS")}
    env |= NO_NETWORK | {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder)}
    options = ["-q", "-p", "no:cacheprovider", "--nbmake", f"--nbmake-timeout={MOST_SECONDS}", "--overwrite"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, copy.name],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stdout)
    return json.loads(copy.read_text())


def in_few_colours(png: str) -> str:
    """Return a picture in base64 with a palette of 256 colours, a third of its size."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        file = io.BytesIO()
        picture.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def small(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return it without the times of its cells, its lines as one output, its pictures in few colours."""
    for cell in notebook["cells"]:
        cell["metadata"].pop("execution", None)
        outputs: list[dict[str, Any]] = []
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = in_few_colours(output["data"]["image/png"])
            if outputs and "name" in output and output["name"] == outputs[-1].get("name"):
                outputs[-1]["text"] += output["text"]
            else:
                outputs.append(output)
        if "outputs" in cell:
            cell["outputs"] = outputs
    notebook["metadata"]["language_info"] = {"name": "python"}
    return notebook


def text_of(notebook: dict[str, Any]) -> str:
    """Return what its cells print, and the text of their results."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return "".join(
        "".join(output.get("text") or output.get("data", {}).get("text/plain", ())) + "\n"
        for output in outputs
    )


if __name__ == "__main__":
    for path in NOTEBOOKS:
        if path.stem in sys.argv[1:] or not sys.argv[1:]:
            with tempfile.TemporaryDirectory() as name:
                made = small(execute(path, Path(name)))
            path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
