"""What `accelerate launch` hands over: its saved settings, as environment variables that Accelerator obeys.

They would change a run without a word: divide its loss, compile or shard its network. Here a recipe and the
options decide: a setting that they cannot honour is refused, all others are taken out of the environment
before an Accelerator is built. Loads no torch.
"""

import os

from vitcli.errors import VitError

PREFIX = "ACCELERATE_"
CPU = "ACCELERATE_USE_CPU"
# Settings that change where and how a run computes, with what does that here.
REFUSED = {
    "ACCELERATE_USE_FSDP": ("FSDP", "--shard is vit's own FSDP"),
    "ACCELERATE_USE_DEEPSPEED": (
        "DeepSpeed",
        "--shard divides model, gradients and optimizer as ZeRO-3 does",
    ),
    "ACCELERATE_USE_MEGATRON_LM": ("Megatron-LM", "--shard is for models past one device"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("a parallelism config", "--shard is for models past one device"),
    "ACCELERATE_USE_SAGEMAKER": ("SageMaker's own launcher", "torchrun works on SageMaker"),
}
DEVICE = "ACCELERATE_TORCH_DEVICE"
PRECISION = "ACCELERATE_MIXED_PRECISION"
# Settings that the run has options of its own for, with their neutral values and that option.
NOTED = {
    "ACCELERATE_DYNAMO_BACKEND": (("no",), "--compile compiles the network"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": (("1", "auto"), "--per-device-batch divides a step"),
    "ACCELERATE_GRADIENT_CLIPPING": (("none", "auto"), "optimizer.clip of the recipe clips"),
    PRECISION: (("no",), "--precision sets the precision"),
}
# These change no number: checks of collectives, the cores of a process, messages.
HARMLESS = {"ACCELERATE_DEBUG_MODE", "ACCELERATE_CPU_AFFINITY", "ACCELERATE_LOG_LEVEL"}


def check(device: str | None = None) -> None:
    """Refuse settings that a run cannot honour, naming the variable and what works instead.

    Raises:
        VitError: there is one.
    """
    for name, (noun, instead) in REFUSED.items():
        if _is_on(name):
            raise _refused(f"accelerate launch is set up for {noun}, which vit does not use", name, instead)
    if _value(PRECISION) == "fp8":
        problem = "accelerate launch is set up for fp8, in which vit does not train"
        raise _refused(problem, PRECISION, "--precision bf16 is the lowest but fp16")
    if _value(DEVICE):
        problem = f"Accelerate is to compute on {os.environ[DEVICE]}, and vit chooses the device itself"
        raise VitError(problem, where=_where(DEVICE), fix="unset the variable; --device names a device")
    if wants_cpu() and device not in (None, "cpu"):
        problem = f"accelerate launch is set up for the CPU, and --device asks for {device}"
        raise VitError(problem, where=_where(CPU), fix="drop --device, or start without accelerate's --cpu")


def wants_cpu() -> bool:
    """Return True under `accelerate launch --cpu`, which is honoured as --device cpu."""
    return _is_on(CPU)


def take_out(precision: str) -> list[str]:
    """Remove the settings that Accelerator would obey from the environment; return notes on those lost.

    Args:
        precision: of the run, "fp32", "bf16" or "fp16".

    Raises:
        VitError: see `check`.
    """
    check()
    notes = [
        f"note: the setting {_where(name)} of accelerate launch is not used; {instead}"
        for name, (neutral, instead) in NOTED.items()
        if _value(name) not in ("", precision, *neutral)
    ]
    for name in list(os.environ):
        if name.startswith(PREFIX) and name not in HARMLESS:
            del os.environ[name]
    return notes


def _refused(problem: str, name: str, instead: str) -> VitError:
    fix = f"start the processes with torchrun or --num-processes, which save no settings; {instead}"
    return VitError(problem, where=_where(name), fix=fix)


def _where(name: str) -> str:
    return f"{name}={os.environ[name]}"


def _value(name: str) -> str:
    return os.environ.get(name, "").lower()


def _is_on(name: str) -> bool:
    return _value(name) in ("true", "1", "yes", "y", "t", "on")  # as Accelerate's own `str_to_bool`
