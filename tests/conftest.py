"""Small data sets made on the spot, and the way to the real ones."""

import copy
import functools
import gc
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitcli.io.files import lock_file

ONE_LAYER = "--ckpt random --model ViT-demo/8 --set model.layers=1"  # the cheapest network to train
REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("VIT_TEST_DATA", REPOSITORY.parent / "shared")).absolute()

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("COLUMNS", None)  # a pipe has no width; pytest-xdist sets that of its own terminal
os.environ["OMP_NUM_THREADS"] = "1"  # before torch: several test processes share the cores
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # more threads of a test wait for work without a core
# What is compiled is kept: the asserts of all test modules take each worker 6 s, and a process of vit 1 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    """Load torch as commands do, without the compiler, unless workers of pytest-xdist run the tests."""
    from vitcli.distributed import startup

    if config.getoption("dist", "no") == "no" or not config.getoption("tx", None):
        startup.load()
        gc.disable()  # test modules and their cases stay: a search for garbage among them takes seconds
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a job in the background; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # as commands do with what they have loaded
    gc.set_threshold(100_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_waited_for_or_built_twice():
    """Spare tests within this process the wait for the disk, and what calls of commands have in common.

    That is the app, 0.04 s a call; what a network costs, which each run counts anew, 0.1 s; the names and
    shapes of its tensors, with which weights are compared; which shipped recipes are of a data set; and the
    code of templates, 0.02 s a model card. Power that is lost is imagined by
    `tests/training/test_power_loss.py`, which records each fsync.
    """
    import jinja2
    import typer.main

    from vitcli import recipe
    from vitcli.models import flops
    from vitcli.weights import diagnose

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)  # a handle must still be open
    patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
    patch.setattr(flops, "costs_without_head", once(flops.costs_without_head))
    patch.setattr(flops, "activation_bytes", once(flops.activation_bytes))
    patch.setattr(diagnose, "expected_tensors", once(diagnose.expected_tensors))
    patch.setattr(recipe, "candidates", once(recipe.candidates))
    codes, compiled = {}, jinja2.Environment.compile
    patch.setattr(
        jinja2.Environment,
        "compile",
        lambda env, *source: codes.get(source) or codes.setdefault(source, compiled(env, *source)),
    )
    yield
    patch.undo()


def once(function: Callable) -> Callable:
    """Call a function once for all arguments that look the same; those of an architecture have no hash."""
    results = {}

    @functools.wraps(function)
    def remembered(*args: object, **named: object) -> object:
        key = repr((args, named))
        if key not in results:
            results[key] = function(*args, **named)
        return results[key]

    return remembered


@pytest.fixture(scope="session", autouse=True)
def _no_figure_is_drawn():
    """Let commands write a white pixel for each figure, whose axes and words take 0.1 to 0.5 s.

    Those of a run have no curves either. A test of a figure runs its command within
    `tests.figures.drawn_figures`.
    """
    from matplotlib.figure import Figure

    from vitcli.training import figures

    savefig, pixel = Figure.savefig, io.BytesIO()
    Image.new("RGB", (1, 1), "white").save(pixel, "PNG")
    white = {
        "png": pixel.getvalue(),
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>',
    }

    @functools.wraps(figures.training_curves)
    def training_curves(*_: object, **__: object) -> dict[str, Figure]:
        return {name: Figure() for name in ("loss", "learning_rate", "accuracy")}

    @functools.wraps(savefig)
    def save(figure: Figure, file: object, *, format: str, **more: object) -> None:
        if isinstance(file, Path):
            file.write_bytes(white[format])
        else:
            savefig(figure, file, format=format, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        patch.setattr(figures, "training_curves", training_curves)
        yield


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory):
    """`datasets` caches what it has read; tests keep that away from the user's own cache.

    A table that is made of another has no hash of both there, for which `datasets` pickles them: nothing is
    looked up by it, and it is a tenth of the time of a command. Nor is its description copied with it.
    """
    os.environ["HF_HOME"] = str(tmp_path_factory.mktemp("hf"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    import datasets

    def copied(value: object) -> object:
        if not isinstance(value, datasets.Dataset):
            return copy.deepcopy(value)
        twin = copy.copy(value)  # tables and types of columns are replaced, never changed
        twin._info = copy.copy(value._info)
        twin._info.features = datasets.Features(value._info.features)
        return twin

    datasets.arrow_dataset.copy = SimpleNamespace(copy=copy.copy, deepcopy=copied)
    numbers = itertools.count()
    for module in (datasets.fingerprint, datasets.arrow_dataset):
        for name in ("generate_fingerprint", "update_fingerprint"):
            setattr(module, name, lambda *_: f"{next(numbers):016x}")
    datasets.config.HF_DATASETS_CACHE = Path(os.environ["HF_HOME"], "datasets")


@pytest.fixture(scope="session")
def _files_so_far() -> Iterator[int]:
    return itertools.count()


@pytest.fixture(scope="module", autouse=True)
def _what_stays_is_not_searched_for_garbage(_files_so_far):
    """Hide modules and reports of tests from searches for garbage; each that a run makes would take 0.6 s."""
    if next(_files_so_far) % 8 == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def _empty_folder(tmp_path_factory) -> Path:
    """The working folder of all tests, so that the caller's, with the runs/ of a demo, is not seen."""
    folder = tmp_path_factory.mktemp("work")
    # Processes that tests start find this checkout from there.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    os.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def _nothing_in_the_working_folder(_empty_folder):
    yield
    assert not os.listdir(_empty_folder), "a test writes into tmp_path, never into the working folder"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real images, weights and golden vectors; tests that need it skip without it."""
    if not (SHARED / "data").is_dir():
        pytest.skip("real data is not here; VIT_TEST_DATA names its folder")
    return SHARED


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Make a folder that tests only read, once for all workers: the first that asks for it, behind a lock."""
    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "made_once"
    root.mkdir(exist_ok=True)

    def folder_of(name: str, make: Callable[[Path], None]) -> Path:
        with lock_file(root / f"{name}.lock", wait_s=float("inf")):
            if not (root / f"{name}.done").exists():
                make(root / name)
                (root / f"{name}.done").touch()
        return root / name

    return folder_of


@pytest.fixture(scope="session")
def plain_run(made_once, photos) -> Path:
    """A finished run of eight steps with `test_finetune.TRICKY`, to be read and never changed."""
    from tests.training.test_finetune import TRICKY, small_run

    return made_once("plain_run", lambda folder: small_run(photos, folder, *TRICKY))


@pytest.fixture(scope="session")
def unsure_run(made_once, photos) -> Path:
    """A finished run of two steps at 16x24 pixels, right about some photos and wrong about others."""
    words = f"finetune {ONE_LAYER} --res 16x24 --steps 2 --batch-size 8 --lr 0.01 -q"

    def train(folder: Path) -> None:
        outcome = run(*words.split(), "--dataset", photos, "--out", folder)
        assert outcome.code == 0, outcome.err

    return made_once("unsure_run", train)


@pytest.fixture(scope="session")
def photos(made_once) -> Path:
    """24 training and 10 test pictures in class folders: two colours under noise, learnt in a few steps."""
    return made_once("photos", write_photos)


def write_photos(root: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 5)):
        for name, colour in (("red", (200, 40, 40)), ("green", (40, 200, 40))):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(-40, 40, (40, 48, 3))
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number:02}.png")


@pytest.fixture
def in_ten_seconds():
    """End a test that waits for ever."""

    def give_up(*_) -> None:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def data_section(dataset: object, **keys: object):
    """The [data] section of a recipe that names a data set, and other keys as they are given."""
    from vitcli import recipe

    data = recipe.load("evaluate/default", (), {"data.dataset": str(dataset)}, training=False).data
    return data.model_copy(update=keys)


def vit(
    *arguments: object,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    on_start: Callable[[subprocess.Popen], None] = lambda process: None,
    new_group: bool = False,
) -> subprocess.CompletedProcess:
    """Run the command line in a process of its own, as a user does."""
    words = [sys.executable, "-m", "vitcli", *map(str, arguments)]
    everything = {**os.environ, **(env or {})}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=new_group)
    with subprocess.Popen(words, env=everything, **pipes) as process:
        on_start(process)
        out, err = process.communicate(timeout=timeout)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return Answer(json.loads(self.out))


class Answer(dict):
    """What a command said as JSON; a key that is not there shows all of it, as that of an error."""

    def __missing__(self, key: str):
        raise KeyError(f"no {key} in {dict(self)}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file of a folder as another process would, which is not waited for."""
    from vitcli.output import owned_folder

    with lock_file(path) as lock, pytest.MonkeyPatch.context() as patch:
        patch.setattr(owned_folder, "JOINED_WITHIN_S", 0.1)
        lock.truncate(0)
        lock.write(b"pid 1 on elsewhere")
        yield


def run(*arguments: object) -> Outcome:
    """Run the command line in this process, which saves the seconds that importing torch takes."""
    from vitcli.cli import app

    out, err = io.StringIO(), io.StringIO()
    environment = dict(os.environ)  # --device changes it for the rest of a process
    unraisable = sys.unraisablehook
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            app.main([str(argument) for argument in arguments])
    finally:
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = unraisable
    return Outcome(ended.value.code or 0, out.getvalue(), err.getvalue())
