"""The checkpoints of a real run, damaged in every way: each damage is found, and the one before is used."""

import json
import os
import random
import shutil
from itertools import permutations
from pathlib import Path

import pytest

from tests.conftest import run
from tests.training.test_finetune import SMALL, TRICKY, fingerprint, small_run
from vitcli.output.run_folder import step_of_checkpoint
from vitcli.training import checkpoint

FLIPS = int(os.environ.get("VIT_FLIPS", "500"))
CUTS, SHOWN = 50, 4  # of each kind so many are also resumed from by the command


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    small_run(photos, path, *TRICKY)
    (path / "summary.json").unlink()  # as if it had been stopped at its end
    return path


def damages_of(folder: Path, other: Path, rng: random.Random):
    """Give the name of each damage to a checkpoint, and the files to put there; None deletes one."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    others = {path.name: path.read_bytes() for path in sorted(other.iterdir())}
    sizes = [len(content) for content in files.values()]
    for number in range(FLIPS):  # every second one in a small file, which would else hardly be hit
        (name,) = rng.choices(list(files), sizes if number % 2 else None)
        changed = bytearray(files[name])
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        yield f"flip in {name}", {name: bytes(changed)}
    for number in range(CUTS):
        name = list(files)[number % len(files)]
        yield f"cut {name}", {name: files[name][: rng.randrange(len(files[name]))]}
    for name in files:
        yield f"{name} deleted", {name: None}
        if files[name] != others[name]:
            yield f"{name} of the other step", {name: others[name]}
        yield f"{name} longer", {name: files[name] + b"\0"}
        yield f"a second {name}", {f"{name}.bak": files[name]}
    for one, two in permutations(files, 2):
        yield f"{one} in the place of {two}", {two: files[one]}
    for name in (".hidden", "extra.safetensors", "model-00001-of-00002.safetensors"):
        yield f"{name} added", {name: b""}


@pytest.mark.slow
def test_every_damage_is_found_and_the_checkpoint_before_it_gives_the_same_run(photos, trained, tmp_path):
    truth, counts, shown = fingerprint(trained), {}, {}
    newest, before = sorted(trained.glob("checkpoints/step_*"), reverse=True)
    whole = tmp_path / "whole"
    shutil.copytree(newest, whole)

    for what, changes in damages_of(newest, before, random.Random(0)):
        for name, content in changes.items():
            (newest / name).unlink(missing_ok=True)
            if content is not None:
                (newest / name).write_bytes(content)
        kind = what.split()[0] if what.split()[0] in ("flip", "cut") else "file"
        counts[kind] = counts.get(kind, 0) + 1
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] <= SHOWN:
            words = [word for word in SMALL if word != "--quiet"]
            outcome = run(*words, "--dataset", photos, "--out", trained, "--steps", 8, *TRICKY)
            assert outcome.code == 0, (what, outcome.err)
            assert f"{newest.name} is damaged" in outcome.err and fingerprint(trained) == truth, what
            (trained / "summary.json").unlink()
        else:
            step, notes = checkpoint.find_newest(trained)
            assert step == step_of_checkpoint(before), what
            assert f"{newest.name} is damaged" in notes[0], what
        for aside in trained.glob("checkpoints/damaged_*"):
            shutil.rmtree(aside)
        shutil.rmtree(newest, ignore_errors=True)
        shutil.copytree(whole, newest)

    print(counts, sum(counts.values()))
    assert counts["flip"] == FLIPS and counts["cut"] == CUTS and counts["file"] > 40


@pytest.mark.slow
def test_the_only_checkpoint_damaged_is_exit_code_4_and_nothing_is_overwritten(photos, trained, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    newest, before = sorted(out.glob("checkpoints/step_*"), reverse=True)
    shutil.rmtree(before)
    content = bytearray((newest / "optimizer.safetensors").read_bytes())
    content[-7] ^= 16
    (newest / "optimizer.safetensors").write_bytes(content)
    kept = {path: path.read_bytes() for path in newest.iterdir()}

    refused = run(*SMALL, "--dataset", photos, "--out", out, "--steps", 8, *TRICKY)

    assert refused.code == 4 and "optimizer.safetensors has changed" in json.dumps(refused.json["error"])
    assert {path: path.read_bytes() for path in newest.iterdir()} == kept
