"""Data sets of the Hugging Face Hub read where they lie, from a stand-in for it on this machine."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

import datasets
import pytest

from tests.data.shards.test_streaming import picture
from tests.hub import Hub, stand_in
from tests.training.test_finetune import SMALL
from vitcli.data.dataset import DataSet

pytestmark = (
    pytest.mark.slow
)  # a process of its own for each, whose libraries read where the Hub is at import

STREAMED = (
    *(word for word in SMALL if word != "--json"),
    *("--batch-size", 12, "--precision", "fp32", "--steps", 6, "--set", "data.streaming=true"),
    *("--set", "train.log_every=1", "--set", "train.save_every=2"),
)
ROWS = """
import hashlib, json, sys
from vitcli.data.dataset import DataSet
from vitcli.data.sources.tables import Choices
found = {}
for source in sys.argv[1:]:
    data = DataSet(source, Choices(streaming=True))
    for name in data.split_names:
        split = data.open(name)
        rows = [split.read_row(row) for row in range(len(split))]
        digests = [[hashlib.md5(image).hexdigest(), label] for image, label in rows]
        found[f"{source} {name}"] = [digests, split.class_names, split.read_labels().tolist()]
print(json.dumps(found))
"""
OPEN = """
import sys
from vitcli.data.dataset import DataSet
print(len(DataSet(sys.argv[1]).open("train")))
"""
# Both the library and vit wait before they try again, longer than a test may take.
IMPATIENT = "import time; wait = time.sleep; time.sleep = lambda seconds: wait(min(seconds, 0.01))\n"
COMMANDS = """
import json, sys
from tests.conftest import run
outcomes = [run(*words) for words in json.loads(sys.argv[1])]
print(json.dumps([[outcome.code, outcome.out, outcome.err] for outcome in outcomes]))
"""


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """48 training pictures in two shards, larger than what is read ahead, and 20 test pictures."""
    root = tmp_path_factory.mktemp("pets") / "data"
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["green", "red"])}
    )
    shards = {"train-00000": range(24), "train-00001": range(24, 48), "test-00000": range(100, 120)}
    root.mkdir()
    for name, numbers in shards.items():
        rows = {
            "image": [{"bytes": picture(n, (40, 48)), "path": None} for n in numbers],
            "label": [n % 2 for n in numbers],
        }
        table = datasets.Dataset.from_dict(rows, features=features)
        table.to_parquet(root / f"{name}.parquet", batch_size=6)
    return root


def tar(numbers: range) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in numbers:
            for suffix, content in (("png", picture(number, (40, 48))), ("cls", str(number % 2).encode())):
                member = tarfile.TarInfo(f"{number:04}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def hub(parquet):
    with stand_in() as hub:
        files = {f"data/{path.name}": path.read_bytes() for path in sorted(parquet.glob("*.parquet"))}
        hub.files["them/pets@main"] = {"README.md": b"pets", ".gitattributes": b"", **files}
        hub.files["them/pets@v2/1"] = {
            "small/train-0.parquet": files["data/test-00000.parquet"],
            "big/train-0.parquet": files["data/train-00000.parquet"],
        }
        hub.files["them/tars@main"] = {"train-0.tar": tar(range(30)), "test-0.tar": tar(range(100, 107))}
        yield hub


def in_python(hub: Hub, home, script: str, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **hub.environment(home)}
    return subprocess.run(
        [sys.executable, "-c", script, *words], env=environment, capture_output=True, text=True, timeout=120
    )


def rows_here(place: object, split: str) -> list:
    found = DataSet(str(place)).open(split)
    rows = [found.read_row(row) for row in range(len(found))]
    digests = [[hashlib.md5(image).hexdigest(), label] for image, label in rows]
    return [digests, list(found.class_names), found.read_labels().tolist()]


def test_rows_come_from_the_hub_as_they_lie_in_the_files(hub, parquet, tmp_path):
    pattern = "hf://datasets/them/pets/data/train-*.parquet"
    braces = "hf://datasets/them/pets/data/{train,test}-{00000..00000}.parquet"
    found = in_python(hub, tmp_path, ROWS, "them/pets", pattern, braces, "them/pets:big@v2/1")

    assert found.returncode == 0, found.stderr
    found = json.loads(found.stdout)
    train, test = rows_here(parquet, "train"), rows_here(parquet, "test")
    first = rows_here(parquet / "train-00000.parquet", "train")
    assert (len(train[0]), len(first[0]), len(test[0])) == (48, 24, 20)
    assert found == {
        "them/pets test": test,
        "them/pets train": train,
        f"{pattern} train": train,
        f"{braces} test": test,
        f"{braces} train": first,
        "them/pets:big@v2/1 train": first,
    }


def test_processes_that_open_a_tar_of_the_hub_at_once_read_it_once_in_all(hub, tmp_path):
    hub.requests.clear()
    hub.seconds_a_request = 0.5  # so that none of them is done before the last has begun
    words = [sys.executable, "-c", OPEN, "hf://datasets/them/tars/train-*.tar"]
    environment = {**os.environ, **hub.environment(tmp_path)}
    try:
        opening = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
        counts = [process.communicate(timeout=60)[0].strip() for process in opening]
    finally:
        hub.seconds_a_request = 0.0

    assert counts == [b"30"] * 3
    assert sum(route == "info" for route, *_ in hub.requests) == 3
    assert len([path for route, _, path, _ in hub.requests if route == "file"]) == 1


# Name of a data set: the route that fails and how, the exit code, words of the message and of the advice.
TROUBLES = {
    "them/none": (None, 3, "none cannot be read: it does not exist", "check the name"),
    "them/pets@v9": (None, 3, "it does not exist", "check the name"),
    "hf://datasets/them/pets/data/nothing-*.parquet": (None, 3, "holds no shards", "folder"),
    "them/down": (("info", 500), 5, "500 Internal Server Error", "check the network"),
    "them/unlisted": (("tree", 503), 5, "503 Service Unavailable", "check the network"),
    "them/unlisting": (("tree", "cut"), 5, "cannot be read", "check the network"),
    "them/broken": (("file", 500), 5, "500 Internal Server Error", "check the network"),
    "them/cut": (("file", "cut"), 5, "cannot be read", "check the network"),
    "them/whole": (("file", "whole"), 5, "does not support range requests", "check the network"),
    "them/shifted": (("file", "shifted"), 5, "another range", "check the network"),
    "them/gated": (("file", 403), 5, "refuses it with status 403", "hf auth login"),
    "them/private": (("file", 401), 5, "refuses it with status 401", "hf auth login"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def outcomes(hub, parquet, home):
    """What the command said of each of them, all in one process, since to start one takes seconds."""
    for name, (fault, *_) in TROUBLES.items():
        if fault:
            hub.files[f"{name}@main"] = hub.files["them/pets@main"]
            hub.faults[name] = fault
    hub.spared = 4_096  # the footers come, and in the middle of the run some of the pictures do not
    commands = {
        "far": [*STREAMED, "--json", "--dataset", "them/pets", "--out", home / "far"],
        "near": [*STREAMED, "--json", "--dataset", parquet, "--out", home / "near"],
    }
    commands |= {
        name: [*STREAMED, "--dataset", name, "--out", home / name.replace("/", "-")] for name in TROUBLES
    }
    words = json.dumps([[str(word) for word in command] for command in commands.values()])
    done = in_python(hub, home, IMPATIENT + COMMANDS, words)
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout.splitlines()[-1]), strict=True))


def test_a_run_from_the_hub_is_the_run_from_the_same_files_here(outcomes, home):
    for name in ("far", "near"):
        code, out, err = outcomes[name]
        assert (code, json.loads(out)["num_eval_examples"]) == (0, 20), err
    far, near = ((home / name / "metrics.jsonl").read_text() for name in ("far", "near"))

    assert far == near
    assert far.count('"loss"') > 6


@pytest.mark.parametrize("name", TROUBLES)
def test_what_the_hub_does_not_give_is_an_error_of_three_lines(outcomes, name):
    code, out, err = outcomes[name]
    _, expected, words, advice = TROUBLES[name]
    what, where, fix = err.strip().splitlines()

    assert (code, out) == (expected, "")
    assert what.startswith("error: ") and words in what
    assert where.startswith("  where: ") and fix.startswith("  fix:   ") and advice in fix
    assert "hunter2" not in err  # the signature of the address that files come from
