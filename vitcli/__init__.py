"""`vit`: the command-line toolkit for Vision Transformers."""

__version__ = "0.1.0"
