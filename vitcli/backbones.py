"""Registers our hybrids and BiT ResNets with timm; model cards tell users to import it by this name."""

import vitcli.models.resnet  # noqa: F401
