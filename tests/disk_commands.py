"""Commands that a sweep of a failing disk runs, by name: what they write, and from where."""

import io
import json
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import constants
from safetensors.torch import save

from tests import faulty_disk, model_hub
from tests.faulty_disk import command, in_a_fork
from tests.http_server import Files, serving
from tests.training.test_finetune import SMALL, TRICKY
from tests.weights.servers import network, npz_of, serve, timm_files
from vitcli.weights import onnx

STREAMS = []  # servers, until this process ends


@dataclass(frozen=True)
class Writer:
    """A command that writes below "{out}".

    Attributes:
        words: its command line.
        names: globs of the files that depend on no clock, and that are whole wherever they are.
        earlier: a command line whose result the first one replaces.
        appended: globs of files that grow, and are right only at the end.
        result: below the scratch folder, what to look at in the place of "{out}".
        uploads: returns what a server has, or what a reader makes of the files; {} of others.
        clear: makes all anew.
        is_cleared: as of a sweep.
    """

    words: list[object]
    names: tuple[str, ...]
    earlier: list[object] | None = None
    appended: tuple[str, ...] = ()
    result: str = "out"
    uploads: Callable[[], dict[str, bytes]] = dict
    clear: Callable[[], None] = lambda: None
    is_cleared: bool = False


def run_words(photos: str) -> list[object]:
    words = [word for word in SMALL if word not in ("--quiet", "--json")]
    return [*words, "--dataset", photos, "--steps", 8, *TRICKY, "--out"]


def writer(what: str, scratch: Path, photos: str) -> Writer:
    """Return a command by its name; "-again" replaces an earlier result, "-cache" writes to the cache."""
    os.environ["XDG_CACHE_HOME"] = str(scratch / ("out" if what.endswith("cache") else "cache"))
    name, is_again = what.removesuffix("-again"), what.endswith("-again")
    if name.startswith("export"):
        return _exports(name, scratch, is_again)
    data = ("--dataset", photos)
    match name:
        case "evaluate":
            trained = scratch / "trained"
            assert in_a_fork(command([*run_words(photos), trained]), scratch / "output") == 0
            words = ["evaluate", "--ckpt", trained, *data, "--save-predictions", "{out}/saved.parquet"]
            more = ["--out", "{out}", "--overwrite"]
            return Writer([*words, *more], ("*.csv", "mistakes.json", "*.parquet"))
        case "fewshot" | "fewshot-cache":
            words = ["fewshot", "--ckpt", "demo", *data, "--shots", "1,2", "--out"]
            is_cached = name == "fewshot-cache"
            out, result = ([scratch / "result", "--overwrite"], "result") if is_cached else (["{out}"], "out")
            return Writer([*words, *out], ("draws.json", "recipe.toml"), None, ("metrics.jsonl",), result)
        case "embed":
            words = ["embed", "--ckpt", "demo", *data, "--batch-size", 5, "--out", "{out}/f.safetensors"]
            earlier = [*words, "--split", "test"] if is_again else None
            more = ["--overwrite"] if is_again else []
            return Writer([*words, "--split", "train", *more], ("f.safetensors",), earlier)
        case "predict":
            words = ["predict", "--ckpt", "demo", "--out", "{out}/p.csv", "--overwrite"]
            earlier = [*words, f"{photos}/test"] if is_again else None
            return Writer([*words, f"{photos}/train"], ("p.csv",), earlier)
    return _served(name, scratch, photos)


def _exports(name: str, scratch: Path, is_again: bool) -> Writer:
    out = {"export": "model", "export-npz": "x.npz"}.get(name, "x.onnx")
    words = ["export", "demo", f"{{out}}/{out}", "--overwrite"]
    names = ("model.safetensors", "config.json") if name == "export" else (out,)
    earlier = [*words, "--res", 48] if is_again else None
    if name == "export-onnx-data":  # weights in a file of their own, by whose contents it is named
        onnx.MAX_BYTES_IN_ONE_FILE = 0
        return Writer(words, names, earlier, uploads=partial(_logits, scratch / "out" / out))
    return Writer(words, names, earlier)


def _logits(path: Path) -> dict[str, bytes]:
    """Return what onnxruntime makes of an ONNX file and the weights that it names."""
    if not path.exists():
        return {}
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = 1  # no threads in a process that forks
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    images_BHWC = np.ones((1, 48, 48, 3), np.uint8)
    return {"logits": session.run(["logits"], {"images": images_BHWC})[0].tobytes()}


def _served(name: str, scratch: Path, photos: str) -> Writer:
    """Return a command that reads from a server of this machine, or writes to one."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    state = network()[1]
    match name:
        case "download-cache":
            stand_in = _enter(serve())
            stand_in.bucket["b/x.npz"] = npz_of(state)
            return Writer(["inspect", "--summary", f"{stand_in.address}/b/x.npz"], ("x.npz",))
        case "download-hub":
            stand_in = _enter(serve())
            stand_in.repositories["ann/net"] = _in_two_shards(state)
            _name_hub(stand_in.address, scratch / "out")
            return Writer(["inspect", "--summary", "hf-hub:ann/net"], ("snapshots/*/*",))
        case "stream-cache":
            stand_in = _enter(serving(Files(files={f"test-{k}.parquet": _shard(photos, k) for k in (0, 1)})))
            words = ["embed", "--ckpt", "demo", "--dataset", f"{stand_in.address}/test-{{{{0..1}}}}.parquet"]
            words += ["--split", "test", "--batch-size", 5, "--overwrite", "--out"]
            out = scratch / "result/f.safetensors"
            return Writer([*words, out], ("f.safetensors",), result="result", is_cleared=True)
        case "push":
            stand_in = _enter(model_hub.stand_in())
            _name_hub(stand_in.address, scratch / "cache")
            os.environ["HF_TOKEN"], tempfile.tempdir = model_hub.TOKEN, str(scratch / "out")

            def uploads() -> dict[str, bytes]:
                there = stand_in.repositories.get("ann/pets")
                return there.files() if there else {}

            def clear() -> None:
                stand_in.repositories.clear()
                (scratch / "out").mkdir(exist_ok=True)  # of temporary files

            words = ["export", "demo", "--push-to-hub", "ann/pets"]
            return Writer(words, (), uploads=uploads, clear=clear, is_cleared=True)
    raise SystemExit(f"no sweep of {name}")


def _enter(server):
    STREAMS.append(server)
    return server.__enter__()


def _name_hub(address: str, home: Path) -> None:
    """Let a stand-in be the Hub of this process and its forks."""
    values = {"ENDPOINT": address, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    values |= {"HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}"}
    values |= {"HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token")}
    for key, value in values.items():
        setattr(constants, key, value)
    huggingface_hub.close_session()


def _in_two_shards(state: dict) -> dict[str, bytes]:
    """Return a repository whose weights are in two files and a list of them."""
    names = sorted(state)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    index = {"weight_map": {name: file for file, there in parts.items() for name in there}}
    files = {file: save({name: state[name] for name in there}) for file, there in parts.items()}
    files |= {"model.safetensors.index.json": json.dumps(index).encode()}
    return files | {"config.json": timm_files(state)["config.json"]}


def _shard(photos: str, number: int) -> bytes:
    """Return half of the test images as a Parquet file."""
    paths, file = sorted(Path(photos, "test").rglob("*.png"))[number::2], io.BytesIO()
    images = [{"bytes": path.read_bytes(), "path": None} for path in paths]
    pq.write_table(pa.table({"image": images, "label": [int("red" in str(path)) for path in paths]}), file)
    return file.getvalue()


def digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: sha256(content).hexdigest() for name, content in files.items()}


def of_two_processes(words: list[object], victim: int, scratch: Path) -> Callable[[], int]:
    """Return a function that runs a command line in two processes; the disk of one of them fails."""

    def run() -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        outputs = [scratch / f"output.{rank}" for rank in range(2)]
        children = [_start(words, rank, port, outputs[rank], is_struck=rank == victim) for rank in range(2)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if -signal.SIGKILL in codes:
            os.kill(os.getpid(), signal.SIGKILL)
        said = [outputs[rank].read_text() for rank in (victim, 1 - victim)]
        print(said[0] if "error: " in said[0] else said[1])  # the first process says what any of them met
        return codes[victim] or codes[1 - victim]

    return run


def _start(words: list[object], rank: int, port: int, output: Path, *, is_struck: bool) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        if not is_struck:
            faulty_disk.arm(faulty_disk.NONE, Path("/nowhere"))
        with output.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            code = command(words)()
    finally:
        os._exit(code)
