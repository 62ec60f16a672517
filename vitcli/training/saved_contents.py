"""What a checkpoint must hold to continue a run; its hashes only say that it is as it was written."""

import math
from typing import Any

import torch
from torch import Tensor

from vitcli.errors import WeightsError
from vitcli.output.text import first_few
from vitcli.training import checkpoint
from vitcli.training.checkpoint import Checkpoint

SLOTS = {torch.optim.SGD: {"momentum_buffer"}, torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}}
# Keys of state.json and whether a value is one that is written; the others have been added since.
STATE = {
    "fingerprint": lambda value: isinstance(value, dict) and {"train_data", "eval_data"} <= value.keys(),
    "metrics_bytes": lambda value: type(value) is int and value >= 0,
    "elapsed_s": lambda value: type(value) in (int, float) and math.isfinite(value) and value >= 0,
    "skipped": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "scaler": lambda value: isinstance(value, dict),
}
FLAGS = ("fused", "evaluation_due")


def check_contents(
    saved: Checkpoint,
    model_tensors: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    step: int,
    total_steps: int,
    is_averaged: bool,
    may_have_skipped: bool,
) -> None:
    """Refuse a checkpoint that this run cannot have written.

    Args:
        step: of its name.
        may_have_skipped: all updates so far may have been left out, as those of fp16 that overflow.

    Raises:
        WeightsError: a value or a tensor is missing, of another type or shape, or not finite.
    """
    problem = (
        _wrong_state(saved.state, saved.step, step, total_steps)
        or _wrong_weights("model", saved.tensors, model_tensors)
        or (_wrong_weights("average", saved.tensors, model_tensors) if is_averaged else None)
        or _wrong_optimizer(saved.tensors.get("optimizer", {}), model_tensors, optimizer, may_have_skipped)
    )
    if not problem and (names := checkpoint.find_non_finite(saved.tensors)):
        problem = f"{first_few(names)} is not finite"
    if problem:
        raise WeightsError(
            f"the checkpoint is not one of this run: {problem}",
            where=f"step_{step:07d}",
            fix="move it out of checkpoints/, or start again with --overwrite",
        )


def _wrong_state(state: dict[str, Any], stored_step: object, step: int, total_steps: int) -> str | None:
    if type(stored_step) is not int or stored_step != step or not 0 < step <= total_steps:
        return f"it is of step {stored_step!r} of {total_steps}"[:80]
    for key, is_right in STATE.items():
        if key not in state or not is_right(state[key]):
            return f"{key} in state.json is missing or wrong"
    wrong = [key for key in FLAGS if type(state.get(key, False)) is not bool]
    return f"{wrong[0]} in state.json is no truth value" if wrong else None


def _wrong_weights(kind: str, tensors: checkpoint.Tensors, expected: dict[str, Tensor]) -> str | None:
    found = tensors.get(kind, {})
    if different := sorted(found.keys() ^ expected.keys()):
        return f"{kind} lacks or has too many of {first_few(different)}"
    wrong = [
        name
        for name, value in expected.items()
        if (found[name].shape, found[name].dtype) != (value.shape, value.dtype)
    ]
    return f"{kind}/{wrong[0]} has another shape or type" if wrong else None


def _wrong_optimizer(
    found: dict[str, Tensor],
    weights: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    may_have_skipped: bool,
) -> str | None:
    (slots,) = (slots for kind, slots in SLOTS.items() if isinstance(optimizer, kind))
    has_state = not isinstance(optimizer, torch.optim.SGD) or optimizer.param_groups[0]["momentum"] > 0
    if has_state and not found and not may_have_skipped:
        return "the optimizer's state is empty"
    slots_of: dict[str, set[str]] = {}
    for key, value in found.items():
        name, _, slot = key.rpartition("/")
        slots_of.setdefault(name, set()).add(slot)
        if name not in weights or slot not in slots:
            return f"optimizer/{key} belongs to no parameter"
        if slot != "step" and (value.shape, value.dtype) != (weights[name].shape, weights[name].dtype):
            return f"optimizer/{key} has another shape or type"
        if slot == "step" and value.numel() != 1:
            return f"optimizer/{key} is no number"
    wrong = [name for name, there in slots_of.items() if there != slots]
    return f"the optimizer's state of {wrong[0]} is not whole" if wrong else None
