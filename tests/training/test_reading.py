"""How often a command that trains opens its image files: once to recognise them, once to decode them."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import run

SHORT = ("finetune", "--ckpt", "demo", "--res", 16, "--steps", 2, "--batch-size", 8, "--quiet", "--json",
         "--set", "schedule.warmup=1", "--set", "eval.batch_size=16")  # fmt: skip
_opened: list[Counter] = []  # the counts of the recorder that is on, if any


def _count(event: str, arguments: tuple) -> None:
    if _opened and event == "open" and isinstance(arguments[0], str) and arguments[0].endswith(".png"):
        _opened[-1][arguments[0]] += 1


@pytest.fixture(scope="module", autouse=True)
def audited():
    sys.addaudithook(_count)  # which stays for as long as the process lives


@contextmanager
def counted_opens() -> Iterator[Counter]:
    """Count how often each image file is opened inside the block, by path."""
    _opened.append(Counter())
    try:
        yield _opened[-1]
    finally:
        _opened.pop()


@pytest.fixture(autouse=True)
def files_are_older_than_a_tick_of_the_clock(monkeypatch):
    monkeypatch.setattr("vitcli.data.columns.CLOCK_TICK_NS", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three classes of 20 images each, without a test split."""
    path = tmp_path_factory.mktemp("unsplit")
    random = np.random.default_rng(0)
    for number, name in enumerate(("blue", "green", "red")):
        (path / name).mkdir()
        for index in range(20):
            pixels = random.integers(0, 60, (20, 24, 3)) + 180 * (np.arange(3) == 2 - number)
            Image.fromarray(pixels.astype(np.uint8)).save(path / name / f"{index:02}.png")
    return path


@pytest.mark.parametrize(
    "more",
    [
        ("--folds", 2),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in ((), ("--lr", "0.01,0.02,0.03"), ("--folds", 5), ("--folds", 3, "--lr", "0.01,0.02"))
        ),
    ],
    ids=str,
)
def test_an_image_is_opened_once_for_digests_and_once_to_be_decoded(folder, tmp_path, more):
    with counted_opens() as opens:
        outcome = run(*SHORT, *more, "--dataset", folder, "--out", tmp_path / "run")

    assert outcome.code == 0, outcome.err
    files = {str(file): opens[str(file)] for file in folder.glob("*/*.png")}
    assert len(files) == 60 and max(files.values()) <= 2, Counter(files.values())
