"""The commands as functions: each gives what its command line gives, bit for bit."""

import inspect
import json
import threading
from pathlib import Path

import pytest
import typer
from PIL import Image

import vitcli
from tests.conftest import ONE_LAYER, run
from vitcli import commands
from vitcli.cli import app
from vitcli.errors import DataError, VitError

FUNCTIONS = ("finetune", "evaluate", "predict", "fewshot", "embed", "export", "inspect")
# Of a process, its printing, and workers elsewhere, which type a command line; `measure` and `check` are
# questions that return no result of the command.
OF_THE_SHELL = {"num_processes", "arms_parallel", "as_json", "jsonl", "debug", "verbose", "measure", "shard",
                "submit", "submit_workers", "submit_set"}  # fmt: skip
# Python's own assert; no conversion; `ckpt`.
ELSEWHERE = {"assert_", "check_file", "runtime", "checkpoint"}
CHANGING = {"elapsed_s", "images_per_s", "peak_memory_gib", "speed"}
SMALL = {"model": "ViT-demo/8", "set": {"model.layers": 1}, "res": (16, 24)}


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(commands, name)).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_options_of_its_command_with_their_defaults(name):
    command = typer.main.get_command(app.app).commands[name]
    options = {option.name: option for option in command.params}
    required = {"set_": "set"}

    offered = {required.get(name, name) for name in options.keys() - OF_THE_SHELL - ELSEWHERE}
    assert parameters_of(name).keys() == offered - {"help"}
    for parameter in parameters_of(name).values():
        default = options.get(parameter.name, options.get(f"{parameter.name}_")).default
        if parameter.default is not inspect.Parameter.empty and isinstance(default, str | bool):
            assert parameter.default == default, parameter.name


def without_times(result: object) -> object:
    if isinstance(result, dict):
        return {key: without_times(value) for key, value in result.items() if key not in CHANGING}
    return [without_times(value) for value in result] if isinstance(result, list) else result


def same(result: vitcli.Result, *words: object) -> bool:
    """Compare with the object that a command line prints; tuples are lists in JSON."""
    outcome = run(*words, "--json", "-q")
    assert outcome.code == 0, outcome.err
    values = json.loads(json.dumps(result.values, default=str))
    assert without_times(values) == without_times(outcome.json)
    return True


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory) -> vitcli.Result:
    folder = tmp_path_factory.mktemp("python") / "run"
    few = {"steps": 2, "batch_size": 8, "lr": 0.01, "quiet": True, "recipe": "finetune/default"}
    return vitcli.finetune("random", photos, out=folder, **few, **SMALL)


def test_finetune_writes_the_weights_and_the_summary_of_the_command(trained, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = f"{ONE_LAYER} --res 16x24 --steps 2 --batch-size 8 --lr 0.01 --recipe finetune/default".split()
    outcome = run("finetune", *words, "--dataset", photos, "--out", "typed", "-q", "--json")

    weights = trained.run_dir / "model.safetensors"
    assert weights.read_bytes() == (tmp_path / "typed" / "model.safetensors").read_bytes()
    assert trained.top1 == trained["top1"] == outcome.json["top1"] and trained["loss"] == outcome.json["loss"]
    assert trained.values.keys() == outcome.json.keys() and trained.figures.keys() >= {"loss", "accuracy"}
    environment = json.loads((trained.run_dir / "environment.json").read_text())
    assert environment["command_line"][:2] == ["vit", "finetune"]
    assert "top-1" in str(trained) and trained._repr_html_().count("<img") == len(trained.figures)


def test_evaluate_fewshot_and_inspect_give_the_object_of_the_command(trained, photos, tmp_path):
    run_dir, few = trained.run_dir, {"shots": [1, 2], "seeds": 2, "quiet": True}

    assert same(vitcli.evaluate(run_dir, quiet=True), "evaluate", "--ckpt", run_dir)
    several = vitcli.evaluate([run_dir, run_dir], [photos], split="train", out=tmp_path / "e", quiet=True)
    assert several["evaluations"] and several.top1 is None and "confusion" in several.figures
    scored = vitcli.fewshot(run_dir, photos, out=tmp_path / "f", overwrite=True, **few)
    words = ("--shots", "1,2", "--seeds", 2, "--out", tmp_path / "f", "--overwrite")
    outcome = run("fewshot", "--ckpt", run_dir, "--dataset", photos, *words, "--json", "-q")
    assert scored["shots"] == outcome.json["shots"]
    looked = vitcli.inspect(run_dir, images=[photos / "test"], out=tmp_path / "i", quiet=True)
    assert {"filters", "attention_distance"} <= looked.figures.keys() and (tmp_path / "i").is_dir()
    assert same(vitcli.inspect(run_dir, summary=True), "inspect", run_dir, "--summary")


def test_predict_gives_the_answers_of_the_command_and_those_beside_a_broken_image(trained, photos, tmp_path):
    asked = {"ckpt": trained.run_dir, "quiet": True}
    predicted = vitcli.predict(photos / "test" / "red", **asked)

    assert same(predicted, "predict", photos / "test" / "red", "--ckpt", trained.run_dir)
    assert len(predicted.predictions) == 5 and predicted._repr_html_().count("data:image/jpeg") == 5
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError) as caught:
        vitcli.predict([photos / "test" / "red" / "00.png", broken], **asked)
    assert len(caught.value.result.predictions) == 1
    Image.new("RGB", (8, 8)).save(tmp_path / "-odd.png")
    assert vitcli.predict(tmp_path / "-odd.png", **asked).predictions  # a name is not an option


def test_embed_and_export_write_the_bytes_of_the_command(trained, photos, tmp_path):
    names = [
        str(tmp_path / name) for name in ("a.safetensors", "b.safetensors", "c.safetensors", "d.safetensors")
    ]
    embedded = vitcli.embed(trained.run_dir, photos, out=names[0], logits=False, quiet=True)
    words = ("--ckpt", trained.run_dir, "--dataset", photos, "--no-logits", "-q")
    assert run("embed", *words, "--out", names[1]).code == 0
    exported = vitcli.export(trained.run_dir, names[2], quiet=True)
    assert run("export", trained.run_dir, names[3], "-q").code == 0

    contents = [Path(name).read_bytes() for name in names]
    assert contents[0] == contents[1] and contents[2] == contents[3] and exported.path == Path(names[2])
    assert embedded.load()["features"].shape == (10, embedded["feature_dim"])


def test_a_mistake_is_the_error_of_the_command_and_a_thread_may_train(trained, photos, tmp_path):
    before = vitcli.evaluate(trained.run_dir, quiet=True, device="cpu")
    for call, words in (
        (lambda: vitcli.finetune(steps="x"), "--steps must be a whole number"),
        (lambda: vitcli.finetune(set={"train.sed": 1}), "train.sed"),
        (lambda: vitcli.predict([], ckpt=trained.run_dir), "IMAGES"),
        (lambda: vitcli.evaluate(trained.run_dir, res="1:2"), "range of sizes"),
    ):
        with pytest.raises(VitError, match=words):
            call()
    results = []
    again = {"steps": 1, "batch_size": 8, "quiet": True, "recipe": "finetune/default", "lr": [0.01, 0.02]}
    thread = threading.Thread(
        target=lambda: results.append(vitcli.finetune("random", photos, out=tmp_path / "t", **again, **SMALL))
    )
    thread.start()
    thread.join()
    assert results[0]["chosen"] and before.values.keys() == vitcli.evaluate(trained.run_dir).values.keys()
