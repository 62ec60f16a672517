"""Checks of a run before its first step."""

import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.conftest import run
from tests.training.test_finetune import SMALL, of_layers
from vitcli import recipe as recipes
from vitcli.errors import MachineError
from vitcli.training import setup, state
from vitcli.training.run import check_shared
from vitcli.weights.io import read_weights

SPOKEN = [word for word in SMALL if word not in ("--quiet", "--json")]


class SecondProcess:
    """The second of two processes; the first one writes into `first`."""

    is_main = False

    def on_main(self, action):
        return "the first one's token" if action.__name__ == "<lambda>" else None

    def any(self, mine):
        return mine


@pytest.mark.parametrize("token", [None, "of another run"])
def test_a_run_folder_that_a_process_does_not_see_is_refused(tmp_path, token):
    if token:
        (tmp_path / ".tmp-shared").write_text(token)

    with pytest.raises(MachineError, match="not every process"):
        check_shared(SecondProcess(), tmp_path)
    (tmp_path / ".tmp-shared").write_text("the first one's token")
    check_shared(SecondProcess(), tmp_path)


def test_a_probe_that_cannot_be_opened_is_an_error_before_the_run_folder_exists(photos, tmp_path):
    words = (*SMALL, "--dataset", photos, "--steps", 2, "--out", tmp_path / "run")
    ended = run(*words, "--set", "eval.probe=/nowhere/pictures", "--set", "eval.probe_shots=1")

    assert ended.code == 3 and "/nowhere/pictures" in ended.out
    assert not (tmp_path / "run").exists()


def test_unreadable_images_are_found_before_the_run_folder_exists(photos, tmp_path, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(photos, data)
    (data / "train" / "red" / "00.png").write_bytes(b"no image")
    words = (*SMALL, "--dataset", data, "--batch-size", 8, "--steps", 1, "--out", out)

    def not_yet(*_):
        raise AssertionError("a network is built before the images are checked")

    with monkeypatch.context() as patched:
        patched.setattr(setup, "check_network", not_yet)
        ended = run(*words)
    assert ended.code == 3 and "1 of 24 images of" in ended.out
    assert not out.exists()
    assert run(*words, "--set", "data.on_bad_image=skip").code == 0


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    """A run of four steps with checkpoints at 2, of averaged weights, and at 4."""
    out = tmp_path_factory.mktemp("finished") / "run"
    known = of_layers(SPOKEN, None)  # whose tensors say without metadata which network it is
    words = (*known, "--dataset", photos, "--batch-size", 8, "--steps", 4, "--set", "train.save_every=2")
    words += ("--set", "optimizer.average=0.5", "--set", "train.log_every=1")
    ended = run(*words, "--out", out)
    assert ended.code == 0, ended.err
    return words, out


def stopped_after(finished, copy, *, step: int):
    """The folder of the run as it was when it was killed, with the checkpoints up to `step`."""
    words, out = finished
    shutil.copytree(out, copy)
    for name in ("summary.json", "model.safetensors"):
        (copy / name).unlink()
    for folder in (copy / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step_")) > step:
            shutil.rmtree(folder)
    return (*words, "--out", copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "line"),
    [
        (0, r"nothing was saved yet: starting from step 0"),
        (2, r"resuming from step 2 of 4, about [\d.]+ s left"),
    ],
)
def test_a_run_that_goes_on_says_where_and_how_long_it_will_take(step, line, finished, tmp_path):
    _, out = finished
    words = stopped_after(finished, tmp_path / "copy", step=step)
    ended = run(*words)

    assert ended.code == 0 and re.search(f"^{line}$", ended.err, re.MULTILINE), ended.err
    assert "nothing was saved" not in run(*words[:-1], tmp_path / "new", "--set", "train.save_every=4").err
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "copy" / name).read_bytes() == (out / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("save_every", "saved"), [(100, [1, 3]), (0, [3])])
def test_the_first_checkpoint_comes_after_a_minute_and_changes_no_result(
    save_every, saved, photos, tmp_path, monkeypatch
):
    words = (
        *SMALL,
        "--dataset",
        photos,
        "--batch-size",
        8,
        "--steps",
        3,
        "--set",
        f"train.save_every={save_every}",
    )
    weights = []
    for name, seconds in (("usual", 60.0), ("long", 0.0)):
        monkeypatch.setattr(state, "FIRST_SAVE_S", seconds)
        assert run(*words, "--out", tmp_path / name).code == 0
        weights.append((tmp_path / name / "model.safetensors").read_bytes())

    assert weights[0] == weights[1]
    folders = (tmp_path / "long" / "checkpoints").iterdir()
    assert sorted(int(folder.name.removeprefix("step_")) for folder in folders) == saved


def test_weights_of_a_checkpoint_have_the_names_and_pixels_of_their_run(finished, photos, tmp_path):
    of_run = read_weights(str(finished[1]))
    copy = tmp_path / "copy"
    stopped_after(finished, copy, step=2)  # the run has not ended
    weights = read_weights(str(copy / "checkpoints" / "step_0000002"))

    assert (weights.class_names, weights.preprocessing) == (of_run.class_names, of_run.preprocessing)
    assert weights.architecture == of_run.architecture and weights.class_names == ("green", "red")
    assert weights.metadata["steps"] == 2 and "top1" not in weights.metadata
    averaged = load_file(copy / "checkpoints" / "step_0000002" / "average.safetensors")
    assert all(torch.equal(value, weights.state[name]) for name, value in averaged.items())
    predicted = run(
        "predict",
        "--ckpt",
        copy / "checkpoints" / "step_0000002",
        photos / "test" / "red" / "00.png",
        "--json",
    )
    assert predicted.json["predictions"][0]["top"][0]["class"] in ("green", "red")
    elsewhere = tmp_path / "step_0000002"
    shutil.copytree(copy / "checkpoints" / "step_0000002", elsewhere)
    assert read_weights(str(elsewhere)).class_names is None


@pytest.mark.parametrize(
    ("asked", "device", "exaflops", "expected"),
    [
        (None, "cuda", 0.1, True),  # 950,000 images of a ViT-B/16
        (None, "cuda", 0.099, False),
        (None, "cuda", None, False),  # nobody knows the cost of this network
        (None, "cpu", 10.0, False),
        (None, "mps", 10.0, False),
        (False, "cuda", 10.0, False),
        (True, "cpu", 0.0, True),
    ],
)
def test_long_runs_on_cuda_are_compiled_unless_their_images_grow(
    asked, device, exaflops, expected, monkeypatch
):
    recipe = recipes.load("finetune/default", [], {"data.dataset": "photos"})
    growing = recipe.model_copy(
        update={"schedule": recipe.schedule.model_copy(update={"image_sizes": [128, 224]})}
    )
    options, plan = SimpleNamespace(compile=asked), SimpleNamespace(exaflops=exaflops)

    for has_compiler in (True, False):
        monkeypatch.setattr(setup, "has_compiler", lambda answer=has_compiler: answer)
        found = [setup.is_compiled(each, options, plan, device) for each in (recipe, growing)]
        assert found == [expected and (has_compiler or bool(asked)), bool(asked)]


@pytest.mark.slow
def test_a_compiled_run_compiles_its_network_once_and_is_evaluated_as_by_vit_evaluate(
    photos, tmp_path, monkeypatch
):
    compiled, compile_module = [], nn.Module.compile

    def backend(graph, examples):
        compiled.append(examples)

        def call(*inputs):
            (output, *others) = graph.forward(*inputs)
            return (output * 1.5, *others)  # as no honest compiler would: it must not reach an evaluation

        return call

    monkeypatch.setattr(nn.Module, "compile", lambda model: compile_module(model, backend=backend))
    words = ("--dataset", photos, "--batch-size", 8, "--steps", 4, "--precision", "fp32", "--compile")
    ended = run(*SMALL, *words, "--set", "eval.every=2", "--out", tmp_path / "run")
    evaluated = run("evaluate", "--ckpt", tmp_path / "run", "--dataset", photos, "--json", "-q",
                    "--precision", "fp32")  # fmt: skip

    assert ended.code == evaluated.code == 0, ended.out + ended.err
    assert len(compiled) == 1
    (result,) = ended.json["runs"]
    assert (result["top1"], result["loss"]) == (evaluated.json["top1"], evaluated.json["loss"])
