"""The command line as scripts see it: exit codes, three-line errors, JSON, and help that answers at once."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from safetensors.torch import save_file

from tests.conftest import REPOSITORY, Outcome, run
from vitcli import recipe
from vitcli.cli import app, end_of_command, hints
from vitcli.cli.complete import choices_in
from vitcli.cli.features import Classifier
from vitcli.cli.help import DATA, PANELS, RUN
from vitcli.cli.options import Compute, FeatureLayer, Tracker, option
from vitcli.cli.options import command as option_groups
from vitcli.errors import VitError, nearest, nearest_path, pip_install
from vitcli.recipe import auto
from vitcli.recipe.schema import KEYS
from vitcli.training import tracking

COMMANDS = ["average", "finetune", "pretrain", "fewshot", "embed", "evaluate", "compare", "predict",
            "recipes", "recipes list", "recipes show", "recipes check", "recipes schema", "recipes copy",
            "models", "interpolate-posemb", "inspect", "export", "doctor", "doctor resume", "reproduce",
            "report", "datasets", "datasets list", "datasets show", "datasets check",
            "datasets preview",
            "cache", "cache list", "cache clear", "study", "study data-size", "study compute",
            "bench", "bench data", "bench train", "bench infer",
            "submit", "submit status", "submit cancel"]  # fmt: skip
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
        "heavy = {'torch', 'datasets', 'timm', 'torchvision', 'numpy', 'accelerate', 'pydantic'}\n"
        "heavy |= {'vitcli.recipe'}\n"
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
        ("finetune --recipe", "finetune/ci", "finetune/cifar10 finetune/cifar100"),
        ("finetune --dataset", "oxford_p", "oxford_pets"),
        ("finetune --dataset =", "oxford_p", "oxford_pets"),  # bash cuts words at =
        ("finetune --model", "vit-b/1", "vit-b/16"),
        ("finetune --precision", "f", "fp32 fp16"),
        ("finetune --device", "c", "cpu cuda"),
        ("fewshot --classifier", "l", "least-squares logistic"),
        ("fewshot --layer", "", "pre_logits token gap"),
        ("embed --set", "data.fl", "data.flip="),
        ("embed --set data.flip", "=", "true false"),
        ("embed --set data.flip =", "f", "false"),
        ("embed --set optimizer.name =", "", "sgd adam"),
        ("embed --set data.nothing =", "", ""),
        ("evaluate --classes", "imagenet_v", "imagenet_v2"),
        ("evaluate --assert", "to", "top1 top5"),
        ("evaluate --ckpt", "demo", "demo"),
        ("evaluate --ckpt", "de_no", ""),  # the shell completes files
        ("finetune --ckpt", "dem", ""),  # a file or folder begins so
        ("finetune --ckpt", "", ""),
    ],
)
def test_the_shell_completes_names(option, begun, completed, monkeypatch, tmp_path):
    (tmp_path / "dem_run").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["vit", *option.split()]
    env = {"_VIT_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join([*words, begun])}
    with monkeypatch.context() as patched:
        patched.setattr(os, "environ", {**os.environ, **env, "COMP_CWORD": str(len(words))})
        shown = run().out

    assert shown.split() == completed.split()


@pytest.mark.parametrize(
    ("shell", "sign"),
    [
        ("bash", "complete -o default"),
        ("zsh", "compdef"),
        ("fish", "commandline"),
        ("powershell", "Register"),
    ],
)
def test_every_shell_gets_its_own_script_under_the_name_that_was_called(shell, sign, monkeypatch):
    assert sign in run("--show-completion", shell).out
    monkeypatch.setattr(sys, "argv", ["/bin/vitcli"])
    script = run("--show-completion", shell).out
    assert "_VITCLI_COMPLETE" in script and "_VIT_COMPLETE" not in script


def test_completion_is_installed_for_the_users_shell_and_no_other_shell_is_guessed(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")

    assert "for bash" in run("--install-completion").out
    installed = [
        file for file in tmp_path.rglob("*") if file.is_file() and "_VIT_COMPLETE" in file.read_text()
    ]
    assert len(installed) == 1 and "compopt -o nospace" in installed[0].read_text()
    check_error(run("--show-completion", "zhs"), 2, "did you mean 'zsh'?")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_help_page_has_its_panels_in_order_an_example_first_defaults_and_no_types_of_python(
    command, monkeypatch
):
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        check_help(command, run(*command.split(), "--help").out, width)


def check_help(command: str, shown: str, width: int) -> None:
    places = [shown.find(f"\n{panel}\n") for panel in ("Arguments", *PANELS)]
    present = [place for place in places if place >= 0]
    assert present == sorted(present)
    groups = ("recipes", "datasets", "cache", "study", "bench", "submit")
    assert "Show the traceback of an error." in shown or command in groups
    head, *panels = re.split(r"\n\n(?=[A-Z][a-z]+\n)", shown)
    assert "Example" in head and f"\n  vit {command}" in head
    assert not re.search(r"<bool>|<str>|list\[|\[\[|\{[A-Z]|x>=|\x1b", shown)
    assert max(map(len, shown.splitlines())) <= width
    for panel in panels:
        for row in re.split(r"\n  (?=--)", panel)[1:]:
            names, text = re.split(r"\s{2,}", " ".join(row.splitlines()), maxsplit=1)
            takes_value = " " in names.replace(", ", ",")
            assert not takes_value or "default: " in " ".join(text.split()) or "Required" in text, row


@pytest.mark.parametrize("panel", ["Train", "Use", "Understand", "Manage"])
def test_the_commands_come_in_four_groups(panel):
    shown = run("-h").out

    assert shown.startswith("Fine-tune, evaluate and use Vision Transformers.\n")
    assert f"\n{panel}\n  " in shown


def test_numbers_and_choices_in_help_are_those_of_recipes_and_schema():
    shown = " ".join(run("pretrain", "--help").out.split()) + " ".join(run("fewshot", "--help").out.split())
    defaults = [
        (*pair, key)
        for pairs, key in re.findall(r"by the recipe; ([^)]*)\)\. \[([\w.]+)\]", shown)
        for pair in re.findall(r"(\w+/default): ([\d.,]*\d)", pairs)
    ]

    assert len(defaults) >= 6
    for name, number, key in defaults:
        value = recipe.flat(recipe.load(name, training=False))[key]
        assert str(value).strip("(),").replace(" ", "") == number, key
    for choices, key in ((Compute, "precision.compute"), (FeatureLayer, "eval.layer"),
                         (Classifier, "fewshot.classifier")):  # fmt: skip
        assert list(get_args(choices)) == choices_in(KEYS[key].annotation)
    assert get_args(Tracker) == tuple(tracking.TRACKERS)


# What people type first, and what it must say.
FIRST_TRIES = {
    "train": "finetune", "val": "vit evaluate", "test": "vit evaluate", "eval": "vit evaluate",
    "resume": "same --out", "evalaute": "'evaluate'", "runs/x.safetensors": "vit inspect",
    "finetune photos": "--dataset photos", "finetune run": "--ckpt run", "finetune oxford_pets": "--dataset",
    "predict run photos": "--ckpt run photos", "evaluate --ckpt demo": "--dataset (", "evaluate": "--ckpt (",
    "finetune --datset x": "did you mean '--dataset'?", "finetune --imgsz 64": "did you mean '--res'?",
    "finetune --weight-decay 0.1": "--set optimizer.weight_decay=VALUE", "finetune --resume": "same --out",
    "finetune --precision FB16": "did you mean 'fp16'?", "evaluate --precision fp8": "auto, fp32, bf16, fp16",
    "finetune --epochs 2 --steps 3": "--epochs", "finetune --device gpu": "did you mean 'cuda'?",
    "finetune --device 1": "did you mean 'cuda:1'?", "finetune --steps few": "--steps must be a whole number",
    "finetune --device cuda:0 --num-processes 2": "2 processes need a GPU each",
    "finetune --lora 8": "--set model.lora_rank=VALUE", "finetune --opt adamw": "--set optimizer.name=VALUE",
    "finetune --sched cosine": "--set schedule.decay=VALUE", "finetune --num-classes 9": "leave it out",
    "finetune --gradient_accumulation_steps 2": "did you mean '--per-device-batch'?",
    "finetune --no-cuda": "--device cpu", "finetune --model_name x": "did you mean '--ckpt'?",
    "finetune --warmup-epochs 5": "--set schedule.warmup=VALUE", "finetune --wandb": "--track wandb",
    "finetune --early-stopping": "--set train.patience=VALUE",
    "finetune -b 8": "did you mean '--batch-size'?", "average runs --set a.b=1": "takes no recipe keys",
    "finetune --set optimizer.name=adamw": "adam, which is AdamW here",
    "finetune --set optimizer.wd=0.1": "wd is written optimizer.weight_decay",
}  # fmt: skip


@pytest.mark.parametrize("words", FIRST_TRIES)
def test_a_first_try_is_answered_with_what_to_type(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").touch()

    check_error(run(*words.split()), 5 if "--num-p" in words else 2, FIRST_TRIES[words])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("evaluate --ckpt runs", "runs is not a run folder: it has no model.safetensors and no"),
        (
            "evaluate --ckpt runs",
            "it holds photos\n  where: --ckpt\n  fix:   name one of its runs: --ckpt runs/",
        ),
        ("evaluate --ckpt photos.onnx", "photos.onnx is an exported graph"),
        ("evaluate --ckpt photos.pte", "photos.pte is an exported graph"),
        ("evaluate --ckpt demo", "no data set is named"),
        ("evaluate --ckpt runs/photo", "did you mean 'runs/photos'?"),
        ("evaluate --ckpt dmeo --dataset demo", "did you mean 'demo'?"),
        ("evaluate --ckpt demo --dataset My\xa0Photo", "did you mean 'My Photos'?"),
        ("evaluate --ckpt demo --dataset My Photos", "quote the name, as it has spaces: 'My Photos'"),
        ("predict --ckpt runs/photos nowhere/", "nowhere/ does not exist\n"),
    ],
)
def test_a_mistyped_path_is_answered_with_those_beside_it(words, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/photos").mkdir(parents=True)
    (tmp_path / "My Photos").mkdir()
    for name in ("runs/photos/model.safetensors", "photos.onnx", "photos.pte"):
        (tmp_path / name).touch()

    outcome = run(*(word.replace("\xa0", " ") for word in words.split(" ")))

    assert says in outcome.err and len(outcome.err.splitlines()) == 3 and outcome.code


@pytest.mark.parametrize(
    ("mistyped", "known", "meant"),
    [
        ("nothere", "other_test", None),
        ("oxfordpets", "oxford_pets", "oxford_pets"),
        ("tset", "test", "test"),
        ("zhs", "zsh", "zsh"),
        ("photso", "photos", "photos"),
        ("flowers", "demo_flowers_dev", None),
    ],
)
def test_a_name_is_proposed_where_a_typo_or_two_explain_it(mistyped, known, meant, tmp_path):
    (tmp_path / known).mkdir()

    assert nearest(mistyped, ["x", known]) == (f", did you mean {meant!r}?" if meant else "")
    assert bool(nearest_path(str(tmp_path / mistyped))) == bool(meant)


def test_a_package_is_installed_for_the_python_that_runs_by_its_shortest_name(monkeypatch, tmp_path):
    beside = tmp_path / "of a project" / "bin"
    beside.mkdir(parents=True)
    (beside / "python").touch(mode=0o755)
    install = "-m pip install 'vitcli[export]'"
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert pip_install("vitcli[export]") == f"'{beside}/python' {install}"

    monkeypatch.chdir(tmp_path)
    assert pip_install("vitcli[export]") == f"'of a project/bin/python' {install}"
    monkeypatch.chdir(beside)
    assert pip_install("vitcli[export]") == f"./python {install}"  # the shell does not look here by itself

    monkeypatch.setenv("PATH", str(beside))
    assert pip_install("vitcli[export]") == f"python {install}"
    monkeypatch.setattr(sys, "executable", "")
    assert pip_install("wandb") == "python3 -m pip install wandb"


def test_help_and_version_go_by_the_names_of_other_tools():
    assert run("help", "finetune").out == run("finetune", "--help").out
    assert run("version").out == run("-V").out == run("--version").out


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


# Command lines that are answered before torch is loaded, and their exit codes.
ANSWERED_AT_ONCE = {
    "recipes list": 0, "recipes check": 0, "recipes show finetune/demo": 0,
    "finetune --ckpt none.safetensors --dataset demo": 4, "evaluate --ckpt runs/none --dataset demo": 4,
    "predict --ckpt ./none x.jpg": 4, "predict --ckpt demo none.jpg": 3, "fewshot --ckpt none.npz": 4,
    "embed --ckpt none.pth --dataset demo --out x.safetensors": 4, "inspect none.npz": 4,
    "inspect --ckpt demo --compare /none --images x": 4, "export none.npz x.onnx": 4,
    "interpolate-posemb none.npz x.npz --res 64": 4, "reproduce table5/b16-in21k/cifar10 --ckpt none.npz": 4,
    "finetune --dataset ./none": 3, "finetune --dataset oxford_pet": 3,
    "evaluate --ckpt demo --dataset none": 3,
    "pretrain --dataset /none --recipe pretrain/demo": 3, "finetune --recipe none.toml": 2,
    "evaluate --ckpt demo --dataset demo --recipe none": 2, "evaluate --dataset demo": 2,
    "predict .": 2, "finetune --dataset .": 2, 
    "embed --dataset demo --out x.safetensors": 2, "compare a b": 2,
    "finetune --precision fp8": 2, "finetune --device tpu": 2, "finetune --lr fast": 2,
}  # fmt: skip


def test_what_is_not_there_is_refused_before_torch_is_loaded(tmp_path):
    code = (
        "import sys\n"
        "from vitcli.cli import main\n"
        f"for words, code in {ANSWERED_AT_ONCE!r}.items():\n"
        "    try:\n"
        "        main(words.split())\n"
        "    except SystemExit as ended:\n"
        "        assert (ended.code or 0) == code, (words, ended.code)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-c", code]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)

    assert ended.returncode == 0, ended.stderr[-2000:]


def test_the_version_is_the_packages():
    from vitcli import __version__

    assert run("--version").out == f"vit {__version__}\n"


@pytest.mark.parametrize("words", [[], ["recipes"], ["reproduce"]])
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
    assert set(outcome.json["error"]) == {"message", "where", "fix", "code", "command"}
    assert (outcome.json["error"]["code"], outcome.json["error"]["command"]) == (2, "finetune")
    assert run("predict", "none.jpg", "--ckpt", "demo", "--json").json["error"]["command"] == "predict"
    assert run("recipes", "show", "none", "--json").json["error"]["command"] == "recipes show"
    commands = typer.main.get_command(app.app).commands
    groups = [name for name, command in commands.items() if hasattr(command, "commands")]
    assert sorted(groups) == sorted(hints.GROUPS)


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
    "an empty folder as data set": ("{bare} --dataset {tmp}", 3, "no image vit can read"),
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
    keys = document["$defs"]["Optimizer"]["properties"]
    assert [branch["type"] for branch in keys["lr"]["anyOf"]] == ["number", "array"]
    assert [branch["type"] for branch in keys["betas"]["anyOf"]] == ["array", "null"]


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


def test_a_bug_has_exit_code_1_and_a_file_and_no_escape_of_a_name_reaches_the_terminal(tmp_path, monkeypatch):
    def fail(*_, **__) -> None:
        raise ZeroDivisionError("in \x1b[31mred.png")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(app, "app", fail)
    outcome = run("models")
    (report,) = tmp_path.iterdir()

    check_error(outcome, 1, "a bug in vit: ZeroDivisionError", str(report))
    assert "\x1b" not in outcome.err and "ZeroDivisionError" in report.read_text()


GIVEN = {"data.dataset": "./photos", "model.ckpt": "demo"}


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", text)]


def test_the_defaults_in_the_help_are_those_of_the_recipes_that_a_folder_gets():
    few, some, many = (recipe.load(f"modern/finetune-{size}", (), GIVEN) for size in ("few", "some", "many"))
    told = {"steps": [few.schedule.steps, some.schedule.steps, many.schedule.epochs]}
    told |= {"batch-size": [few.train.batch_size, auto.SOME, many.train.batch_size]}
    told |= {"lr": [some.optimizer.lr, auto.SOME, many.optimizer.lr], "seed": [0], "runs": [1]}
    page = " ".join(run("finetune", "--help").out.split())

    assert (few.train.batch_size, few.optimizer.lr) == (some.train.batch_size, some.optimizer.lr)
    assert {(each.train.seed, each.train.runs) for each in (few, some, many)} == {(0, 1)}
    for name, values in told.items():
        default = re.search(rf"--{name} [A-Z]+ .*?\(default: ([^)]*)\)", page)[1]
        assert numbers(default) == values, (name, default)


@pytest.mark.parametrize(("words", "fraction"), [((), 0.005), (("--max-drop", 2), 0.02)])
def test_the_points_that_a_gate_allows_to_be_lost_are_hundredths_of_the_images(
    monkeypatch, tmp_path, words, fraction
):
    from vitcli.conversion import export as exports

    asked = []
    monkeypatch.setattr(
        exports, "export", lambda ckpt, out, options, **_: asked.append(options.max_drop) or {}
    )
    monkeypatch.setattr(exports, "as_text", lambda result: "")
    run("export", "demo", tmp_path / "x.onnx", "--gate", "photos", *words)

    assert asked == [pytest.approx(fraction)]


@pytest.mark.parametrize("words", [("--split", "test"), ("--max-drop", 2)])
def test_what_belongs_to_a_gate_is_refused_without_one(tmp_path, words):
    check_error(run("export", "demo", tmp_path / "x.onnx", *words), 2, "it belongs to --gate DATA")


def test_a_report_of_a_bug_is_written_through_no_link(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    (tmp_path / f"vit-crash-{os.getpid()}.txt").symlink_to(outside)
    bug = ZeroDivisionError("division by zero")
    bug.run_dir = tmp_path

    error = end_of_command._internal_error(bug)
    assert outside.read_text() == "mine" and error.exit_code == 1
    assert "nowhere: " in error.where and "ZeroDivisionError: division by zero" in error.message


def test_an_error_of_all_processes_is_printed_by_the_first_and_one_of_a_single_process_by_that_one(
    monkeypatch, capsys
):
    def printed(local_rank: str, **told: object) -> bool:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        error = VitError("a mistake", where="here", fix="correct it")
        vars(error).update(told)
        assert end_of_command._print_error(error, ["finetune"]) == 2
        return "a mistake" in capsys.readouterr().err

    assert printed("0") and not printed("1") and printed("1", rank=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["finetune", "--num-processes", 0], "--num-processes must be greater than or equal to 1"),
        (["datasets", "check", "x", "--distance", -1], "--distance must be greater than or equal to 0"),
        (["datasets", "check", "x", "--distance", 99], "--distance must be less than or equal to 32"),
    ],
)
def test_a_number_out_of_its_range_is_answered_with_the_bound(words, message):
    outcome = run(*words)

    assert outcome.code == 2 and outcome.err.splitlines()[0] == f"error: {message}"


def test_an_option_of_other_programs_is_answered_with_ours_if_the_command_has_it():
    def answer(name: str, *options: str) -> str:
        return hints.unknown_option(name, "vit x", options).message

    assert (
        answer("--batch", "--batch-size", "--lr")
        == "there is no option --batch, did you mean '--batch-size'?"
    )
    assert answer("--batch_size", "--batch-size").endswith("did you mean '--batch-size'?")
    assert answer("--weights", "--ckpt").endswith("did you mean '--ckpt'?")
    assert answer("--weights", "--quiet") == "there is no option --weights"  # no checkpoint is asked for
