"""The saved settings of `accelerate launch`: a real Accelerator is built under each of them."""

import os
import subprocess
import sys

import pytest
import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, DynamoBackend
from accelerate.utils.environment import str_to_bool

from tests.conftest import run
from tests.training.test_finetune import SMALL, fingerprint
from vitcli.distributed import accelerate_settings, runtime
from vitcli.errors import VitError

USUAL = {  # of `accelerate launch` without a configuration
    "ACCELERATE_USE_CPU": "False",
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
}
REFUSED = {
    "ACCELERATE_USE_FSDP": "true",
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_USE_MEGATRON_LM": "True",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
    "ACCELERATE_USE_SAGEMAKER": "1",
    "ACCELERATE_MIXED_PRECISION": "fp8",
    "ACCELERATE_TORCH_DEVICE": "cuda:3",
}
# Not used, with the option that is.
NOTED = {
    "ACCELERATE_DYNAMO_BACKEND": ("INDUCTOR", "--compile"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("4", "--per-device-batch"),
    "ACCELERATE_GRADIENT_CLIPPING": ("1.0", "optimizer.clip"),
    "ACCELERATE_MIXED_PRECISION": ("bf16", "--precision"),
}
SILENT = {
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",
    "ACCELERATE_DEBUG_MODE": "true",
    "ACCELERATE_CPU_AFFINITY": "0",
    "ACCELERATE_FP8_BACKEND": "TE",
    "ACCELERATE_A_SETTING_TO_COME": "x",
    "ACCELERATE_USE_FSDP": "false",
    "FSDP_VERSION": "2",
}

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def started(monkeypatch, **settings: str) -> runtime.Runtime:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return runtime.start("fp32")


def gradient(joined: runtime.Runtime) -> float:
    model = torch.nn.Linear(1, 1, bias=False)
    prepared, _ = joined.accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert type(prepared) is torch.nn.Linear  # neither compiled nor wrapped
    joined.accelerator.backward(prepared(torch.tensor([[3.0]])).sum())
    return float(model.weight.grad)


@pytest.mark.parametrize(
    ("settings", "noted"),
    [
        ({}, None),
        (USUAL, None),
        *(({name: value}, option) for name, (value, option) in NOTED.items()),
        *(({name: value}, None) for name, value in SILENT.items()),
    ],
    ids=lambda value: next(iter(value), "none") if isinstance(value, dict) else "",
)
def test_a_setting_changes_nothing_and_says_so_if_it_is_lost(settings, noted, monkeypatch):
    joined = started(monkeypatch, **settings)

    assert gradient(joined) == 3.0
    state, accelerator = joined.accelerator.state, joined.accelerator
    assert state.dynamo_plugin.backend is DynamoBackend.NO and state.mixed_precision == "no"
    assert accelerator.gradient_accumulation_steps == 1
    assert accelerator.distributed_type is DistributedType.NO
    if noted:
        ((name, value),) = settings.items()
        (note,) = joined.notes
        assert f"{name}={value}" in note and noted in note
    else:
        assert not joined.notes
    assert not runtime.start("fp32").notes  # of the next run in this process


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_a_setting_that_cannot_be_honoured_is_refused_before_anything_is_built(name, value, monkeypatch):
    with pytest.raises(VitError) as caught:
        started(monkeypatch, **{name: value})

    assert caught.value.where == f"{name}={value}" and not AcceleratorState._shared_state
    assert ("torchrun" in caught.value.fix) or ("--device" in caught.value.fix)
    ended = run("evaluate", "--ckpt", "demo", "--dataset", "demo")  # at once: before the checkpoint is missed
    assert ended.code == 2 and f"{name}={value}" in ended.err and len(ended.err.splitlines()) == 3


def test_the_cpu_of_accelerate_is_that_of_the_device_option(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("VIT_SELECTED_DEVICE", "")
    joined = started(monkeypatch, ACCELERATE_USE_CPU="True")
    assert joined.device.type == "cpu" and (os.environ["CUDA_VISIBLE_DEVICES"], joined.notes) == ("", ())

    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    accelerate_settings.check("cpu")
    with pytest.raises(VitError, match="--device asks for cuda"):
        accelerate_settings.check("cuda")


def test_the_precision_of_the_run_is_no_loss(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")

    assert accelerate_settings.take_out("bf16") == []


@pytest.mark.parametrize(
    ("name", "value", "is_noted"),
    [
        ("ACCELERATE_DYNAMO_BACKEND", "no", False),
        ("ACCELERATE_DYNAMO_BACKEND", "eager", True),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "auto", False),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1", False),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2", True),
        ("ACCELERATE_GRADIENT_CLIPPING", "none", False),
        ("ACCELERATE_GRADIENT_CLIPPING", "auto", False),
        ("ACCELERATE_GRADIENT_CLIPPING", "1.0", True),
        ("ACCELERATE_MIXED_PRECISION", "no", False),
        ("ACCELERATE_MIXED_PRECISION", "fp16", False),  # that of the run
        ("ACCELERATE_MIXED_PRECISION", "bf16", True),
    ],
)
def test_what_asks_for_nothing_else_is_taken_out_without_a_word(monkeypatch, name, value, is_noted):
    monkeypatch.setenv(name, value)

    notes = accelerate_settings.take_out("fp16")

    assert len(notes) == is_noted and name not in os.environ
    assert all(note.startswith(f"note: the setting {name}={value} of accelerate launch") for note in notes)


@pytest.mark.parametrize("word", ["true", "True", "1", "yes", "y", "T", "on"])
def test_a_switch_is_on_by_the_words_of_accelerate(monkeypatch, word):
    monkeypatch.setenv("ACCELERATE_USE_CPU", word)
    assert accelerate_settings.wants_cpu() and str_to_bool(word)

    for off in ("", "false", "0", "no", "n", "f", "off"):
        monkeypatch.setenv("ACCELERATE_USE_CPU", off)
        assert not accelerate_settings.wants_cpu()


def test_what_changes_no_number_stays_and_all_other_settings_are_taken_out(monkeypatch):
    kept = {"ACCELERATE_DEBUG_MODE": "1", "ACCELERATE_CPU_AFFINITY": "1", "ACCELERATE_LOG_LEVEL": "info"}
    for name, value in (kept | USUAL | {"ACCELERATE_NEW": "1", "FSDP_VERSION": "2"}).items():
        monkeypatch.setenv(name, value)

    assert accelerate_settings.take_out("fp32") == []

    assert {k: v for k, v in os.environ.items() if k.startswith("ACCELERATE_")} == kept
    assert os.environ["FSDP_VERSION"] == "2"


@pytest.mark.slow
def test_accelerate_launch_with_a_saved_configuration_makes_the_same_run(photos, tmp_path):
    configuration = tmp_path / "config.yaml"
    saved = "compute_environment: LOCAL_MACHINE\ndistributed_type: {}\nnum_processes: 1\nuse_cpu: true\n{}"
    words = (*SMALL, "--dataset", photos, "--batch-size", 8, "--steps", 3, "--precision", "fp32")

    def launched(out, kind: str, more: str) -> subprocess.CompletedProcess:
        configuration.write_text(saved.format(kind, more))
        launcher = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(configuration))
        command = [*launcher, "-m", "vitcli", *map(str, words), "--out", str(out)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    dynamo = "mixed_precision: bf16\ndynamo_config:\n  dynamo_backend: INDUCTOR\n"
    ended = launched(tmp_path / "launched", "'NO'", dynamo)
    assert ended.returncode == 0, ended.stderr
    assert run(*words, "--out", tmp_path / "here").code == 0
    assert fingerprint(tmp_path / "launched") == fingerprint(tmp_path / "here")

    refused = launched(tmp_path / "refused", "FSDP", "fsdp_config:\n  fsdp_version: 2\n")
    assert refused.returncode and "ACCELERATE_USE_FSDP=true" in refused.stdout + refused.stderr
