"""Low-rank adapters among the weights of an unfinished run, added to the weights that they adapt.

A layer W of a network that is trained with adapters (LoRA, arXiv 2106.09685) is stored in checkpoints as
`base_layer`, the factors `lora_A.default` (R, I) and `lora_B.default` (O, R), and `lora_scale`:

    W = base_layer + lora_scale * lora_B lora_A

I inputs, O outputs, R rank.
"""

from torch import Tensor

BASE, SCALE = ".base_layer.", ".lora_scale"
FACTORS = (".lora_A.default.weight", ".lora_B.default.weight")


def merged(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights in timm's names, adapters added; those of a network without adapters as they are.

    Raises:
        KeyError, RuntimeError: an adapter is not whole, or its shapes do not fit.
    """
    adapted = [name.removesuffix(SCALE) for name in state if name.endswith(SCALE)]
    if not adapted:
        return state
    of_adapters = {f"{name}{part}" for name in adapted for part in (SCALE, *FACTORS)}
    weights = {name.replace(BASE, "."): value for name, value in state.items() if name not in of_adapters}
    for name in adapted:
        a_RI, b_OR = (state[f"{name}{factor}"] for factor in FACTORS)
        weights[f"{name}.weight"] = merged_weight(
            weights[f"{name}.weight"], a_RI, b_OR, state[f"{name}{SCALE}"]
        )
    return weights


def merged_weight(base_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: Tensor) -> Tensor:
    """Return the weight (O, I) of a layer with its adapter."""
    return base_OI + scale * (b_OR @ a_RI)
