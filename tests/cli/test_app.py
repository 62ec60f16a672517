"""The command line as scripts see it: exit codes, three-line errors, JSON, and help that answers at once."""

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import save_file

from tests.conftest import Outcome, run
from vitcli.cli.options import DATA, PANELS, RUN, option
from vitcli.cli.options import command as option_groups
from vitcli.errors import VitError

COMMANDS = ["finetune", "pretrain", "fewshot", "embed", "evaluate", "compare", "predict", "recipes",
            "recipes list", "recipes show", "recipes check", "recipes schema", "recipes copy", "models",
            "interpolate-posemb", "inspect", "export", "doctor", "doctor resume", "reproduce", "report",
            "datasets", "datasets list", "datasets show", "datasets check",
            "study", "study data-size", "study compute"]  # fmt: skip
FRESH = (
    "finetune",
    "--ckpt",
    "random",
    "--model",
    "ViT-demo/8",
    "--res",
    "16",
    "--steps",
    "2",
    "--batch-size",
    "4",
)


def check_error(outcome: Outcome, code: int, *words: str) -> None:
    """The documented exit code and three lines that say what, where and what to do; no traceback."""
    assert outcome.code == code, outcome.err
    lines = outcome.err.strip().splitlines()[-3:]
    assert (
        lines[0].startswith("error: ")
        and lines[1].startswith("  where: ")
        and lines[2].startswith("  fix:   ")
    )
    assert outcome.out == "" and "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err, outcome.err


def test_help_loads_nothing_that_takes_its_time():
    code = (
        "import sys\n"
        "from vitcli.cli import main\n"
        "heavy = {'torch', 'datasets', 'timm', 'torchvision', 'numpy', 'accelerate', 'vitcli.recipe'}\n"
        f"for command in {['', *COMMANDS]!r}:\n"
        "    try:\n"
        "        main([*command.split(), '--help'])\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code\n"
        "    assert not heavy & set(sys.modules), (command, heavy & set(sys.modules))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.count("Usage: vit") == len(COMMANDS) + 1


@pytest.mark.parametrize(
    ("option", "begun", "completed"),
    [
        ("--recipe", "finetune/ci", "finetune/cifar10"),
        ("--dataset", "oxf", "oxford_pets"),
        ("--model", "vit-b", "vit-b/16"),
    ],
)
def test_the_shell_completes_names(option, begun, completed):
    env = {
        **os.environ,
        "_VIT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"vit finetune {option} {begun}",
        "COMP_CWORD": "3",
    }
    words = [sys.executable, "-c", "import sys; sys.argv[0] = 'vit'; from vitcli.cli import main; main()"]

    shown = subprocess.run(words, capture_output=True, text=True, env=env, timeout=60)

    assert completed in shown.stdout.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_panels_come_in_the_same_order_in_every_help(command):
    shown = run(*command.split(), "--help").out

    places = [shown.find(f"─ {panel} ─") for panel in ("Arguments", *PANELS)]
    present = [place for place in places if place >= 0]
    assert present == sorted(present)
    assert "Show the traceback of an error." in shown or command in ("recipes", "datasets", "study")


def test_a_group_of_options_fills_a_dataclass_and_keeps_its_defaults():
    @dataclass(frozen=True)
    class Group:
        rate: Annotated[float, option("--rate", RUN, "A number.")]
        name: Annotated[str, option("--name", DATA, "A name.")] = "none"

    app, filled = typer.Typer(), []

    @option_groups(app)
    def go(*, group: Group, out: Annotated[Path | None, option("--out", RUN, "A path.")] = None) -> int:
        """Collect the values."""
        filled.append((group, out))
        return 0

    app(["--rate", "0.5"], standalone_mode=False)
    app(["--name", "x", "--rate", "2", "--out", "here"], standalone_mode=False)

    assert filled == [(Group(0.5, "none"), None), (Group(2.0, "x"), Path("here"))]


def test_every_kind_of_error_has_the_exit_code_of_the_contract():
    codes = {kind.__name__: kind.exit_code for kind in (VitError, *VitError.__subclasses__())}

    assert codes == {
        "VitError": 2, "DataError": 3, "WeightsError": 4, "MachineError": 5, "NotFiniteError": 6,
        "ProcessError": 7, "CheckFailed": 8, "InternalError": 1,
    }  # fmt: skip


def test_recipes_never_load_torch():
    code = (
        "import sys\n"
        "from vitcli.cli import main\n"
        "for words in (['recipes', 'list'], ['recipes', 'check'], ['recipes', 'show', 'finetune/demo']):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_the_version_is_the_packages():
    from vitcli import __version__

    assert run("--version").out == f"vit {__version__}\n"


@pytest.mark.parametrize("words", [[], ["recipes"]])
def test_no_command_at_all_prints_the_help_and_no_error(words):
    outcome = run(*words)

    assert outcome.code == 2
    assert "Usage: vit" in outcome.out + outcome.err and "error:" not in outcome.err


def test_an_unknown_option_is_a_usage_error():
    check_error(run("finetune", "--bogus"), 2, "--bogus", "vit finetune --help")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("datasets check here --distance 99", "vit datasets check"),
        ("recipes show --nope", "vit recipes show"),
        ("datasets chekc", "vit datasets"),
        ("--nope", "vit"),
    ],
)
def test_a_usage_error_names_the_help_of_the_subcommand(words, command):
    check_error(run(*words.split()), 2, f"fix:   {command} --help lists")


def test_an_error_with_json_is_one_object_on_standard_output():
    outcome = run("finetune", "--steps", "many", "--json")

    assert outcome.code == 2
    assert set(outcome.json["error"]) == {"message", "where", "fix"}


def test_debug_shows_the_traceback_as_well():
    assert "Traceback" in run("evaluate", "--debug").err


# Twenty and more kinds of bad input; {tmp} and {photos} are folders, {fresh} is a good command line on the
# photos, {bare} the same without a data set.
BAD_INPUT = {
    "a missing weights file": (
        "evaluate --ckpt {tmp}/none.safetensors --dataset {photos}",
        4,
        "none.safetensors",
    ),
    "a missing data set": ("{bare} --dataset {tmp}/none", 3, "there is no data set"),
    "an empty folder as data set": ("{bare} --dataset {tmp}", 3, "no images found"),
    "a wrong split": ("evaluate --ckpt demo --dataset demo --split tset", 3, "did you mean 'test'?"),
    "a split that is not there": ("{fresh} --set data.eval_split=tset", 3, "did you mean 'test'?"),
    "an empty split": ("{fresh} --set data.eval_split=test[:0]", 3, "has no rows"),
    "an unknown recipe key": ("{fresh} --set optimizer.learning_rate=1", 2, "optimizer.learning_rate"),
    "an unknown recipe": ("{bare} --recipe finetune/cifar1000", 2, "cifar100"),
    "an unknown model": ("finetune --ckpt random --model ViT-X/16 --dataset {photos}", 2, "ViT-X/16"),
    "no model for fresh weights": ("finetune --ckpt random --dataset {photos}", 2, "--model"),
    "an empty data set name": ("{bare} --dataset= ", 2, "the value is empty"),
    "an empty data set name for the proof of resume": ("doctor resume --dataset= ", 2, "the value is empty"),
    "no checkpoint": ("finetune --dataset {photos}", 2, "--ckpt"),
    "a number that is none": ("{fresh} --lr fast", 2, "fast"),
    "a resolution patches do not divide": (
        "finetune --ckpt random --model ViT-B/16 --res 100 --dataset {photos}",
        2,
        "100",
    ),
    "a batch that does not split": ("{fresh} --per-device-batch 3", 2, "does not split"),
    "a warm-up longer than the run": ("{fresh} --set schedule.warmup=50", 2, "warm"),
    "more examples than there are": ("{fresh} --set data.num_examples=1000", 3, "1000"),
    "a column that is not there": ("{fresh} --set data.label_column=labl", 3, "labl"),
    "the same key twice": ("{fresh} --set schedule.steps=3", 2, "schedule.steps"),
    "fp16 without a GPU": ("{fresh} --precision fp16", 5, "fp16"),
    "an unknown precision": ("{fresh} --precision fp8", 2, "fp8"),
    "an unknown tracker": ("{fresh} --track tensorbord", 2, "tensorboard"),
    "an output folder of something else": ("{fresh} --out {photos}", 2, "other files"),
    "an output folder that is a file": ("{fresh} --out {tmp}/file", 5, "file"),
    "an output folder nobody can make": ("{fresh} --out /proc/vit/run", 5, "/proc"),
    "a Hub id without network": ("{bare} --dataset nobody/nothing", 3, "nobody/nothing"),
    "an alias that is on no hub": ("{bare} --dataset vtab/sun397", 3, "VIT_DATA"),
    "images that are not there": ("predict --ckpt demo {tmp}/*.jpg", 3, "no image"),
    "images without a checkpoint": ("predict {photos}", 2, "--ckpt"),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_gets_its_exit_code_and_three_lines(kind, photos, tmp_path):
    words, code, said = BAD_INPUT[kind]
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    bare = " ".join(FRESH)
    filled = words.format(tmp=tmp_path, photos=photos, bare=bare, fresh=f"{bare} --dataset {photos}")
    outcome = run(*filled.split(), "--quiet")

    check_error(outcome, code, said)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left behind"


def test_a_text_file_named_jpg_is_named(photos, tmp_path):
    copy_with(photos, tmp_path, "train/red/note.jpg", b"this is text")

    check_error(
        run(*FRESH, "--dataset", tmp_path, "--out", tmp_path / "run", "-q"), 3, "note.jpg", "not a JPEG"
    )


def test_a_truncated_jpeg_is_named(photos, tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(
        tmp_path / "x.jpg"
    )
    copy_with(photos, tmp_path, "train/red/cut.jpg", (tmp_path / "x.jpg").read_bytes()[:-200])

    check_error(run(*FRESH, "--dataset", tmp_path, "--out", tmp_path / "run", "-q"), 3, "cut.jpg")


def test_an_unlabelled_split_is_refused_with_advice(tmp_path):
    write_table(tmp_path / "train.parquet", labels=[0, 1, 0, 1])
    write_table(tmp_path / "test.parquet", labels=[0, -1, -1, 1])

    check_error(run(*FRESH, "--dataset", tmp_path, "-q"), 3, "no label (-1)", "row 1", "data.eval_split")


@pytest.mark.parametrize("damage", ["cut", "text", "shape"])
def test_damaged_safetensors_are_refused(photos, tmp_path, damage):
    file = tmp_path / "w.safetensors"
    save_file({"cls_token": torch.zeros(1, 1, 192), "pos_embed": torch.zeros(1, 196, 192)}, file)
    if damage != "shape":
        file.write_bytes(file.read_bytes()[:-50] if damage == "cut" else b"hello")

    check_error(run("evaluate", "--ckpt", file, "--dataset", photos, "-q"), 4, "w.safetensors")


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(photos, tmp_path):
    class Attack:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "attacked",))

    (tmp_path / "w.pth").write_bytes(pickle.dumps(Attack()))
    torch.save({"model": Attack()}, tmp_path / "z.pth")

    for name in ("w.pth", "z.pth"):
        check_error(run("evaluate", "--ckpt", tmp_path / name, "--dataset", photos, "-q"), 4, name)
    assert not (tmp_path / "attacked").exists()


def copy_with(photos: Path, root: Path, name: str, contents: bytes) -> None:
    for file in photos.rglob("*.png"):
        copy = root / file.relative_to(photos)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    (root / name).write_bytes(contents)


def write_table(file: Path, labels: list[int]) -> None:
    import datasets

    image = {"bytes": png(), "path": None}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    datasets.Dataset.from_dict(
        {"image": [image] * len(labels), "label": labels}, features=features
    ).to_parquet(file)


def png() -> bytes:
    import io

    target = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(target, "PNG")
    return target.getvalue()


def test_the_json_schema_is_json():
    document = json.loads(run("recipes", "schema").out)

    assert document["properties"].keys() >= {"model", "data", "optimizer"}
    rate, mean = (
        document["$defs"][kind]["properties"][key] for kind, key in (("Optimizer", "lr"), ("Data", "mean"))
    )
    assert [branch["type"] for branch in rate["anyOf"]] == ["number", "array"]
    assert mean["type"] == "array"


@pytest.fixture
def ctrl_c():
    """The signal as a terminal gives it; a job in the background is started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda *_, **__: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_answered(monkeypatch, ctrl_c):
    monkeypatch.setattr("vitcli.recipe.available", ctrl_c)

    outcome = run("recipes", "list")

    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err == "stopped before there was anything to save\n"


def test_ctrl_c_while_features_are_made_says_that_they_are_kept(photos, tmp_path, monkeypatch, ctrl_c):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitcli.models.features.outputs", ctrl_c)

    outcome = run("fewshot", "--ckpt", "demo", "--dataset", photos, "--shots", "1", "-q")

    assert outcome.code == 130 and "computes only the rest" in outcome.err
