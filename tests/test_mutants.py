"""Deliberate breaks of the code: each must turn a test red.

One slow test for each break: the checkout is copied, one place of it changed, and tests are run until the
first fails. `python -m pytest -m slow tests/test_mutants.py -k "fsync or SIGTERM"` runs some.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

CHECKPOINT, LOOP, STATE = (f"vitcli/training/{name}.py" for name in ("checkpoint", "loop", "state"))
LOADER, DECODING = "vitcli/data/loader.py", "vitcli/data/decoding.py"
POWER, SAVES, CONTENTS = (
    f"tests/training/test_{name}.py" for name in ("power_loss", "checkpoint", "checkpoint_contents")
)
RUNS, QUEUED = "tests/training/test_finetune.py", "tests/training/test_queued_device.py"
FOLDER, ATOMIC = "tests/output/test_run_folder.py", "tests/output/test_atomic.py"


@dataclass(frozen=True)
class Mutant:
    """A change of a file, of a text that occurs once, and the tests of which one must fail."""

    what: str
    file: str
    before: str
    after: str
    tests: str


MUTANTS = [
    Mutant("no fsync of a checkpoint's files", CHECKPOINT, "        sync(path)\n", "", POWER),
    Mutant("no fsync of the manifest", CHECKPOINT, "    sync(folder / MANIFEST)\n", "", POWER),
    Mutant(
        "no fsync of the temporary folder", CHECKPOINT, "MANIFEST)\n    sync(folder)\n", "MANIFEST)\n", POWER
    ),
    Mutant("no fsync of checkpoints/", CHECKPOINT, "        sync(folder)\n    except", "    except", POWER),
    Mutant("no fsync of the run folder", CHECKPOINT, "sync(run_dir)  # the", "pass  # the", POWER),
    Mutant(
        "no fsync of new parents",
        "vitcli/output/atomic.py",
        "                sync(path.parent)",
        "                pass",
        POWER,
    ),
    Mutant(
        "no fsync of the metrics",
        "vitcli/output/run_folder.py",
        "os.fsync(self._metrics.fileno())",
        "pass",
        POWER,
    ),
    Mutant(
        "one checkpoint too many is retired", CHECKPOINT, "(run_dir)[keep:]", "(run_dir)[keep - 1 :]", POWER
    ),
    Mutant("no rename before a deletion", CHECKPOINT, "old.rename(_retired(old))", "old", SAVES),
    Mutant("damaged ones are not put aside", CHECKPOINT, "bad.rename(_free_name(", "str(_free_name(", SAVES),
    Mutant(
        "one damaged name for all times",
        CHECKPOINT,
        "path.with_name(name) for name in names if not",
        "path for name in names if True or not",
        SAVES,
    ),
    Mutant(
        "leftovers of saves are kept",
        CHECKPOINT,
        "        shutil.rmtree(leftover, ignore_errors=True)",
        "        pass",
        SAVES,
    ),
    Mutant(
        "contents of a checkpoint are not looked at",
        CHECKPOINT,
        "    if problem:\n",
        "    if False:\n",
        CONTENTS,
    ),
    Mutant(
        "an empty optimizer goes on", CHECKPOINT, "if has_state and not found and", "if False and", CONTENTS
    ),
    Mutant("hashes are not compared", CHECKPOINT, "digest_of_file(path).hex() != sha256", "False", SAVES),
    Mutant(
        "weights that are not finite are saved",
        CHECKPOINT,
        "        check_finite(find_non_finite(checkpoint.tensors), step)",
        "        pass",
        SAVES,
    ),
    Mutant(
        "a failed save is swallowed",
        STATE,
        "            if error is not None:\n                raise error",
        "            pass",
        "tests/training",
    ),
    Mutant(
        "changed data are resumed on", STATE, "if is_known and before[key] != now[key]:", "if False:", RUNS
    ),
    Mutant(
        "32 images stand for all",
        STATE,
        '"train_data", "eval_data", *IMAGES',
        '"train_data", "eval_data"',
        RUNS,
    ),
    Mutant(
        "an interrupted evaluation is forgotten",
        STATE,
        'saved.state.get("evaluation_due", False)',
        "False",
        RUNS,
    ),
    Mutant(
        "a signal waits for the end of an evaluation",
        "vitcli/evaluation/inference.py",
        "if number < num_of_each and",
        "if False and",
        RUNS,
    ),
    Mutant(
        "SIGTERM leaves without saving", LOOP, "is_end or stop_signal or is_saved", "is_end or is_saved", RUNS
    ),
    Mutant(
        "dropout is the same in every micro-batch",
        LOOP,
        '"model", step, global_part',
        '"model", step, 0',
        "tests/training",
    ),
    Mutant(
        "dropout is the same in every step",
        LOOP,
        '"model", step, global_part',
        '"model", 0, global_part',
        "tests/training",
    ),
    Mutant(
        "a loss that is not finite goes on",
        LOOP,
        "            self._loss,\n            0.0 if",
        "            0.0,\n            0.0 if",
        "tests/training",
    ),
    Mutant(
        "metrics are not cut to their checkpoint",
        "vitcli/output/run_folder.py",
        "        os.truncate(self.path / METRICS, num_bytes)",
        "        pass",
        RUNS,
    ),
    Mutant(
        "links are followed", "vitcli/output/owned_folder.py", "        self._refuse_links()\n", "", FOLDER
    ),
    Mutant(
        "a pipe is waited for",
        "vitcli/output/atomic.py",
        "os.O_RDONLY | os.O_NONBLOCK",
        "os.O_RDONLY",
        ATOMIC,
    ),
    Mutant(
        "two writers in one folder",
        "vitcli/output/owned_folder.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        FOLDER,
    ),
    Mutant(
        "damage is taken for grey",
        DECODING,
        "if any(words in str(error).lower() for words in DAMAGE)",
        "if False",
        "tests/data/test_decoding.py",
    ),
    Mutant("no limit of scans", DECODING, "> MOST_SCANNED_PIXELS", "> 2**60", "tests/data/test_decoding.py"),
    Mutant(
        "the augmentation forgets its position",
        LOADER,
        '"augment", position',
        '"augment", 0',
        "tests/data/test_loader.py",
    ),
    Mutant(
        "the loader takes OpenMP threads",
        "vitcli/distributed/threads.py",
        "        torch.set_num_threads(1)",
        "        pass",
        "tests/distributed/test_threads.py",
    ),
    Mutant(
        "weights carry no checksum",
        "vitcli/weights/files.py",
        'not in ("", checksum_of(state, text))',
        'not in ("", metadata.get(CHECKSUM))',
        "tests/weights/test_files.py",
    ),
    Mutant(
        "strides of 0 are unpacked",
        "vitcli/weights/files.py",
        "if not _is_whole(tensor)",
        "if False",
        "tests/weights/test_files.py",
    ),
    Mutant(
        "children look for modules in the working folder",
        "vitcli/distributed/launch.py",
        '"-P", str(',
        "str(",
        "tests/distributed/test_launch.py",
    ),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the code, its tests and recipes, to be changed at will."""
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("vitcli", "tests", "recipes"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(REPOSITORY / file, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.what for mutant in MUTANTS])
def test_a_deliberate_break_turns_a_test_red(copy, mutant):
    file = copy / mutant.file
    text = file.read_text()
    assert text.count(mutant.before) == 1, f"the place of the break has changed: {text.count(mutant.before)}"
    file.write_text(text.replace(mutant.before, mutant.after))
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environ |= {name: "" for name in os.environ if name.startswith("PYTEST_XDIST")}
    try:
        ended = subprocess.run(words, cwd=copy, env=environ, capture_output=True, text=True, timeout=600)
    finally:
        file.write_text(text)

    assert ended.returncode == 1, f"no test of {mutant.tests} noticed:\n{ended.stdout[-1500:]}"
