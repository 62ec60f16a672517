"""Web servers that drop, stall, shrink, refuse, lie: a row is right, or the command ends and resumes."""

import os
import shutil

import fsspec
import pytest

from tests.conftest import run
from tests.data.shards.test_hub_streaming import tar
from tests.data.shards.test_streaming import STREAMED, picture
from tests.http_server import Files, Trouble, serving
from tests.training.test_finetune import fingerprint
from vitcli.cache import user_cache
from vitcli.data.dataset import DataSet
from vitcli.data.shards import remote
from vitcli.data.sources.tables import Choices
from vitcli.errors import MachineError
from vitcli.io import http
from vitcli.io.http import WrongAnswer, check_range

# How a server fails for good, and the words of the error.
FOREVER = {
    500: "answers with status 500",
    503: "answers with status 503",
    429: "answers with status 429",
    404: "it does not exist",
    "drop": "payload is not completed|bytes instead of",
    "short": "payload is not completed|bytes instead of",
    "longer": "another range|bytes instead of",
    "stall": "has sent nothing for 0.1 s",
    "silent": "has sent nothing for 0.1 s",
    "whole": "does not support range|bytes instead of",
    "shifted": "another range|bytes instead of",
    "circle": "redirects in a circle",
    "gzip": "cannot be read",
    "page": "does not support range|bytes instead of",
    "other": "changed while being read",
}
QUICK = (503, "whole", "shifted", "other")  # in the default suite; all of them in the slow lane
PASSING = [kind for kind in FOREVER if kind != 404]
RUNS = int(os.environ.get("VIT_SERVERS", "16"))


def needs_aiohttp() -> None:
    pytest.importorskip("aiohttp", reason="pip install 'vitcli[remote]'")


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """75 training images in three Parquet shards or 40 in two tars, and some to test on."""
    import datasets

    files, place = {}, tmp_path_factory.mktemp("shards") / "shard"
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["green", "red"])}
    shards = {
        "train-0": range(20),
        "train-1": range(20, 51),
        "train-2": range(51, 75),
        "test-0": range(500, 511),
    }
    for name, numbers in shards.items():
        images = [{"bytes": picture(number, (40, 48)), "path": None} for number in numbers]
        rows = {"image": images, "label": [number % 2 for number in numbers]}
        table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        table.to_parquet(place, batch_size=6)
        files[f"{name}.parquet"] = place.read_bytes()
    for name, numbers in (("train-0", range(13)), ("train-1", range(13, 40)), ("test-0", range(100, 107))):
        files[f"{name}.tar"] = tar(numbers)
    return files


@pytest.fixture
def web(contents, tmp_path, monkeypatch):
    """A server with them; its clients are impatient, and nothing is kept from another test."""
    needs_aiohttp()
    monkeypatch.setattr(remote, "WAITS_S", (0.01,) * 3)
    monkeypatch.setattr(http, "STALL_S", 0.1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fsspec.get_filesystem_class("http").clear_instance_cache()
    with serving(Files(files=contents)) as server:
        yield server


def source(server: Files, kind: str) -> str:
    names = "{train-{0..2},test-0}.parquet" if kind == "parquet" else "{train-{0..1},test-0}.tar"
    return f"{server.address}/{names}"


def rows(server: Files, kind: str, trouble: Trouble | None = None) -> list:
    split = DataSet(source(server, kind), Choices(num_classes=2)).open("train")
    server.trouble = trouble
    try:
        return [split.read_row(row) for row in range(len(split))]
    finally:
        if trouble:
            trouble.is_over.set()
        server.trouble = None


@pytest.mark.parametrize("kind", ["parquet", "tar"])
@pytest.mark.parametrize(
    "fault", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in FOREVER]
)
def test_a_row_is_right_or_none(web, contents, kind, fault):
    count = 75 if kind == "parquet" else 40
    right = [(picture(number, (40, 48)), number % 2) for number in range(count)]
    if fault in PASSING:
        assert rows(web, kind, Trouble(fault, after=1, times=2)) == right
        shutil.rmtree(user_cache.cache_folder("shards"))  # what was read is kept there

    if kind == "tar" and fault in ("whole", "longer"):  # whole files are what is asked for
        assert rows(web, kind, Trouble(fault, after=1)) == right
        return
    with pytest.raises(MachineError, match=FOREVER[fault]):
        rows(web, kind, Trouble(fault, after=1))
    assert rows(web, kind) == right  # nothing wrong was kept


@pytest.mark.parametrize(
    "fault", [503, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (500, 429, "silent", "circle"))]
)
def test_a_server_that_fails_at_the_start_is_never_said_to_lack_the_file(web, fault):
    web.trouble = Trouble(fault, times=2, on_head=True)
    assert len(DataSet(source(web, "parquet")).open("train")) == 75
    shutil.rmtree(user_cache.cache_folder("shards"))
    fsspec.get_filesystem_class("http").clear_instance_cache()

    web.trouble = Trouble(fault, on_head=True)
    with pytest.raises(MachineError, match=FOREVER[fault]):
        DataSet(source(web, "parquet")).open("train")


@pytest.mark.parametrize(
    ("status", "stated", "is_right"),
    [
        (206, {"Content-Range": "bytes 10-19/100", "ETag": '"a"'}, True),
        (206, {"Content-Range": "bytes 10-19/100", "ETag": '"b"'}, False),
        (206, {"Content-Range": "bytes 10-19/100", "ETag": '"b"', "Last-Modified": '"a"'}, True),
        (206, {"Content-Range": "bytes 1-19/100"}, False),
        (206, {"Content-Range": "bytes 100-119/1000"}, False),
        (206, {}, False),
        (200, {}, False),
        (302, {}, True),
        (503, {}, True),
    ],
)
def test_an_answer_is_the_range_that_was_asked_for(status, stated, is_right):
    def check(first: int) -> None:
        check_range({"Range": f"bytes={first}-19"}, status, stated, stamp='"a"')

    if is_right:
        check(10)
    else:
        with pytest.raises(WrongAnswer):
            check(10)
    if status == 200:
        check(0)  # the beginning of a whole file is the beginning


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_a_run_from_a_faulty_server_is_the_same_or_resumes(web, tmp_path, kind):
    """Wrong answers at several places of a run, some in passing and some for good."""
    words = (*STREAMED, "--dataset", source(web, kind), "--set", "data.num_classes=2", "--steps", 8)
    assert run(*words, "--out", tmp_path / "right").code == 0
    right, codes = fingerprint(tmp_path / "right"), []
    cases = [(fault, after, times) for after in (2, 5, 7) for fault in FOREVER for times in (1, 1 << 30)]

    for fault, after, times in cases[:RUNS]:
        shutil.rmtree(user_cache.cache_folder("shards"), ignore_errors=True)
        web.trouble = Trouble(fault, after=after, times=times)
        out = tmp_path / f"{fault}-{after}-{times}"
        first = run(*words, "--out", out)
        web.trouble.is_over.set()
        web.trouble = None
        assert first.code == 0 or ((times > 1 or fault == 404) and first.code in (3, 5)), first
        if first.code:
            assert set(first.json["error"]) >= {"message", "where", "fix"}
            assert run(*words, "--out", out).code == 0
        assert fingerprint(out) == right, (fault, after, times)
        codes.append(first.code)
    print(f"{len(codes)} runs from a faulty server of {kind}: {codes.count(0)} at once, the others resumed")
