"""What of a network a recipe trains: all of it, what is not frozen, or low-rank corrections."""

from torch import nn

from vitcli.errors import VitError
from vitcli.recipe.schema import Model
from vitcli.training.methods.freezing import freeze
from vitcli.training.methods.lora import add_adapters

KEYS = ("freeze", "lora_rank")  # of [model]; 0 trains all


def adapt(model: nn.Module, settings: Model) -> None:
    """Freeze what the recipe does not train, and add adapters where it asks for them, in place."""
    if settings.freeze:
        freeze(model, settings.freeze)
    if settings.lora_rank:
        add_adapters(model, rank=settings.lora_rank, alpha=settings.lora_alpha)


def refuse_for_fresh_weights(settings: Model) -> None:
    """Refuse to leave fresh weights as they are."""
    if given := [key for key in KEYS if getattr(settings, key)]:
        raise VitError(
            "fresh weights are worth nothing untrained",
            where=", ".join(f"recipe key model.{key}" for key in given),
            fix="leave it out, or fine-tune a checkpoint: vit finetune --ckpt",
        )
