"""`vit`: the command-line toolkit for Vision Transformers; its commands are functions here, too."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitcli.api import LoadedModel, ModelInfo, Transform, load_model
    from vitcli.commands import embed, evaluate, export, fewshot, finetune, inspect, predict
    from vitcli.errors import VitError
    from vitcli.results import Result, load_features

__version__ = "1.0.0"
_HOMES = {
    "api": ("LoadedModel", "ModelInfo", "Transform", "load_model"),
    "commands": ("embed", "evaluate", "export", "fewshot", "finetune", "inspect", "predict"),
    "errors": ("VitError",),
    "results": ("Result", "load_features"),
}
__all__ = [
    "LoadedModel", "ModelInfo", "Result", "Transform", "VitError", "__version__",
    "embed", "evaluate", "export", "fewshot", "finetune", "inspect", "load_features", "load_model",
    "predict",
]  # fmt: skip


def __getattr__(name: str):
    """Load the Python interface on first use, so that `vit --help` does not wait for torch."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'vitcli' has no attribute {name!r}")
    from importlib import import_module

    from vitcli.distributed import startup

    startup.load()
    return getattr(import_module(f"vitcli.{home}"), name)
