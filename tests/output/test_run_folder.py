"""The run folder: one writer, no partial files, no secrets, and no foreign file is touched."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from vitcli import recipe as recipes
from vitcli.errors import DataError, MachineError, VitError
from vitcli.output import run_folder
from vitcli.output.atomic import read_jsonl
from vitcli.output.run_folder import RunFolder, open_run


def test_a_second_writer_is_refused_with_the_owner_of_the_lock(tmp_path):
    first = RunFolder(tmp_path / "run")

    with pytest.raises(MachineError, match=f"pid {os.getpid()} on ") as refusal:
        RunFolder(tmp_path / "run")
    assert refusal.value.exit_code == 5
    first.log({"step": 1})


def test_the_lock_of_a_killed_process_does_not_block(tmp_path):
    code = "import os; from vitcli.output.run_folder import RunFolder; from pathlib import Path; "
    code += f"RunFolder(Path({str(tmp_path / 'run')!r})); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)

    RunFolder(tmp_path / "run")


def test_a_folder_with_other_files_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "thesis.tex").write_text("words")

    for overwrite in (False, True):
        with pytest.raises(VitError, match=r"other files \(thesis.tex\)"):
            RunFolder(tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_without_our_lock_file_is_no_run_whatever_its_files_are_called(tmp_path):
    for name in ("metrics.jsonl", "recipe.toml"):
        (tmp_path / name).write_text("theirs")

    with pytest.raises(VitError, match="other files"):
        RunFolder(tmp_path, overwrite=True)
    assert (tmp_path / "metrics.jsonl").read_text() == "theirs"


def test_overwrite_deletes_an_earlier_run_and_nothing_else(tmp_path):
    earlier = RunFolder(tmp_path / "run")
    earlier.write_text("recipe.toml", "a = 1")
    earlier.log({"step": 1})
    earlier.close()
    (tmp_path / "run/notes.txt").write_text("mine")

    RunFolder(tmp_path / "run", overwrite=True)

    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        ".vit.lock",
        "metrics.jsonl",
        "notes.txt",
        "timing.jsonl",
    ]
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == b""


def test_metrics_are_rewound_to_what_a_checkpoint_knew(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.log({"step": 1})
    known = folder.metrics_bytes()
    folder.log({"step": 2})

    folder.rewind_metrics(known)
    folder.log({"step": 2, "again": True})

    assert read_jsonl(tmp_path / "run/metrics.jsonl") == [{"step": 1}, {"step": 2, "again": True}]


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.log({"step": 1})
    with open(tmp_path / "run/metrics.jsonl", "a") as file:
        file.write('{"step": 2, "lo')

    assert read_jsonl(tmp_path / "run/metrics.jsonl") == [{"step": 1}]


def test_a_folder_that_cannot_be_written_is_an_error_of_the_machine(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(MachineError, match="nothing can be written"):
        RunFolder(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "each", "merged", "arm"),
    [
        ("ViT-B/16", "ViT-B-16", "ViT-B-16", "ViT-B-16"),
        ("my ckpt (1).npz", "my-ckpt--1-.npz", "my-ckpt-1-.npz", "my-ckpt-1-.npz"),
        ("lr-1e+05, 10%", "lr-1e-05--10-", "lr-1e-05-10-", "lr-1e+05-10%"),
        ("a--b_c", "a--b_c", "a-b_c", "a--b_c"),
        ("B/16 größer²", "B-16-größer²", "B-16-größer²", "B-16-größer²"),
    ],
)
def test_the_names_of_folders_stay_those_that_runs_were_started_with(text, each, merged, arm):
    before = "".join(char if char.isalnum() or char in "._" else "-" for char in text)

    assert run_folder.slug(text, merge=False) == each == before
    assert run_folder.slug(text) == merged == re.sub(r"[^\w.]+", "-", text)
    assert run_folder.slug(text, keep=".%+-") == arm == re.sub(r"[^\w.%+-]+", "-", text)


def test_no_secret_reaches_the_environment_file(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_canaryCANARYcanary")
    words = [
        "finetune",
        "--dataset",
        "https://me:canary@host/x?token=canary",
        "--set",
        "hf_canaryCANARYcanary",
    ]

    assert "canary" not in json.dumps(run_folder.environment(words)).lower()


def test_a_summary_is_written_whole_or_not_at_all(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert run_folder.finished_summary(tmp_path / "run") is None

    folder.write_json("summary.json", {"top1": 0.5})

    assert run_folder.finished_summary(tmp_path / "run") == {"top1": 0.5}
    assert not list((tmp_path / "run").glob(".tmp*"))


def test_an_unfinished_run_of_the_same_recipe_is_found_by_the_default_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {"model.ckpt": "random", "model.name": "Ti/16", "data.dataset": "demo"}
    recipe, other = (
        recipes.load("finetune/default", (), changes | {"optimizer.lr": lr}) for lr in (0.1, 0.2)
    )

    def unfinished():
        return run_folder.unfinished_run("finetune", "ViT-Ti/16", recipe)

    folder = run_folder.new_folder("finetune", "demo", "ViT-Ti/16")
    for written in (recipe, other):
        assert unfinished() is None  # nothing, or a run without a checkpoint
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.toml").write_text(recipes.to_toml(written))
    (folder / "checkpoints" / "step_4").mkdir(parents=True)
    assert unfinished() is None  # of another learning rate

    (folder / "recipe.toml").write_text(recipes.to_toml(recipe))
    assert unfinished() == folder
    (folder / "summary.json").write_text('{"top1": 1.0}')
    assert unfinished() is None


NAMES_OF_FOLDERS = ("checkpoints", "figures", "arms", "arms/lr=0.1", "runs", "runs/seed-0")


@pytest.mark.parametrize("name", [".vit.lock", "metrics.jsonl", "timing.jsonl", *NAMES_OF_FOLDERS])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_nothing_is_written_through_a_link_or_into_a_pipe(tmp_path, name, kind):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    RunFolder(folder).close()
    with suppress(FileNotFoundError):
        (folder / name).unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    if name in NAMES_OF_FOLDERS:
        elsewhere.mkdir()
        (elsewhere / "kept").write_text("kept")
    elif kind == "link":
        elsewhere.write_text("kept")
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    for overwrite in (False, True):
        with pytest.raises(VitError) as refused:
            RunFolder(folder, overwrite=overwrite)
        assert str(refused.value).count("\n") == 2

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert os.path.lexists(folder / name)


@pytest.mark.parametrize("name", [".vit.lock", "metrics.jsonl", "timing.jsonl"])
def test_a_file_of_another_place_is_not_written_through_a_hard_link(tmp_path, name):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    RunFolder(folder).close()
    elsewhere.write_text("kept")
    (folder / name).unlink(missing_ok=True)
    os.link(elsewhere, folder / name)
    for overwrite in (False, True):
        with pytest.raises(MachineError, match=f"(?s){name} is a hard link.*cp -r"):
            RunFolder(folder, overwrite=overwrite)
    assert elsewhere.read_text() == "kept"
    subprocess.run(["cp", "-r", folder, tmp_path / "copy"], check=True)
    RunFolder(tmp_path / "copy").close()
    assert elsewhere.read_text() == "kept"


def test_a_dangling_link_in_the_place_of_an_unfinished_file_is_removed(tmp_path):
    folder = tmp_path / "run"
    RunFolder(folder).close()
    (folder / ".tmp-shared").symlink_to(tmp_path / "elsewhere")
    RunFolder(folder).close()
    assert not (folder / ".tmp-shared").is_symlink()


def test_a_run_is_resumed_from_another_folder_and_with_other_keys_of_no_result(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    (tmp_path / "net.safetensors").touch()
    (tmp_path / "elsewhere").mkdir()

    def asked(photos: str, ckpt: str, **keys: object) -> recipes.Recipe:
        overrides = {"data.dataset": photos, "model.ckpt": ckpt, "schedule.steps": 10, **keys}
        return recipes.load("finetune/default", (), overrides)

    def resume(recipe: recipes.Recipe) -> None:
        open_run(tmp_path / "run", recipe, [], overwrite=False).close()

    monkeypatch.chdir(tmp_path)
    resume(asked("photos", "net.safetensors"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume(asked("../photos", str(tmp_path / "net.safetensors")))
    train = {
        "log_every": 7,
        "save_every": 3,
        "save_minutes": 9.0,
        "keep_checkpoints": 4,
        "milestone_every": 50,
        "stall_minutes": 0.5,
    }
    other = {f"train.{name}": value for name, value in train.items()}
    other |= {"eval.batch_size": 3, "data.cache": "off"}
    resume(asked("../photos", "../net.safetensors", **other))

    assert recipes.load(str(tmp_path / "run" / "recipe.toml")).train.log_every == 7
    for key, value in {"train.batch_size": 3, "optimizer.lr": 0.5, "eval.every": 2, "train.seed": 9}.items():
        with pytest.raises(VitError, match=key):
            resume(asked("../photos", "../net.safetensors", **{key: value}))
    with pytest.raises(VitError, match=r"data\.dataset"):
        resume(asked("photos", "../net.safetensors"))


@pytest.mark.parametrize("text", ["{}", '{"top1": {"a": 1}}', '{"command": 5}'])
def test_the_damaged_summary_of_a_finished_run_is_told_and_not_shown(tmp_path, text):
    recipe = recipes.load("finetune/default", (), {"data.dataset": "photos", "model.ckpt": "random"})
    open_run(tmp_path, recipe, [], overwrite=False).close()
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "summary.json").write_text(text)

    with pytest.raises(DataError, match=r"summary\.json is damaged or another program's"):
        run_folder.earlier_summary(tmp_path, recipe)
