"""`vit`: the command-line toolkit for Vision Transformers. From Python: `from vitcli import load_model`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitcli.api import LoadedModel, ModelInfo, Transform, load_model

__version__ = "0.1.0"
__all__ = ["LoadedModel", "ModelInfo", "Transform", "__version__", "load_model"]


def __getattr__(name: str):
    """Load the Python interface on first use, so that `vit --help` does not wait for torch."""
    if name in __all__:
        from vitcli.distributed import startup

        startup.load()
        from vitcli import api

        return getattr(api, name)
    raise AttributeError(f"module 'vitcli' has no attribute {name!r}")
