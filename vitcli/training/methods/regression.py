"""Regression: the scale of the numbers of a training split, and the squared error of standardised ones."""

import math

import torch
from torch import Tensor, nn

from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.evaluation.regression import RegressionTarget

UNIT = RegressionTarget("number", 0.0, 1.0)  # where no image is read


def target_of_split(train: Split) -> RegressionTarget:
    """Return mean and standard deviation of the numbers of a training split.

    Raises:
        DataError: all numbers are equal, so that there is nothing to predict.
    """
    numbers = train.read_labels().tolist()
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    (name,) = train.class_names
    if not std > 1e-9 * abs(mean):
        raise DataError(
            f"all {len(numbers)} numbers to predict are {numbers[0]:g}",
            where=f"{train.name}, column {name}",
            fix="name a column whose numbers differ: --set data.label_column=NAME",
        )
    return RegressionTarget(name, mean, std)


def squared_error(
    model: nn.Module, images_BCHW: Tensor, numbers_B: Tensor, *, target: RegressionTarget
) -> Tensor:
    """Return the mean squared error of the standardised numbers: 1 for always the mean."""
    outputs_B = model(images_BCHW)[:, 0].float()
    return torch.mean((outputs_B - target.standardised(numbers_B).float()) ** 2)
