"""A run that begins with small images: the size of each step's images, a function of the step alone.

Fewer patches make the first steps cheaper (progressive resizing, as in arXiv 2104.00298).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import nn

from vitcli.data.transforms import TrainTransform
from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.build import check_image_size
from vitcli.models.image_sizes import take_other_sizes
from vitcli.recipe.toml import toml_value


def side_at_step(step: int, sides: Sequence[int], *, total_steps: int) -> int:
    """Return the side in pixels of the images of update number `step`, counted from 0.

    Each of `sides` has an equal part of the run, to the nearest step.
    """
    return sides[step * len(sides) // total_steps]


def parts_of(sides: Sequence[int], *, first_step: int, total_steps: int) -> Iterator[tuple[int, range]]:
    """Yield the side of the images and the steps of each part of the run from `first_step` on."""
    start = first_step
    while start < total_steps:
        side, stop = side_at_step(start, sides, total_steps=total_steps), start + 1
        while stop < total_steps and side_at_step(stop, sides, total_steps=total_steps) == side:
            stop += 1
        yield side, range(start, stop)
        start = stop


def at_side(transform: TrainTransform, side: int) -> TrainTransform:
    """Return the augmentation for smaller square images: the same fraction of each, with fewer pixels."""
    own, _ = transform.image_size
    resize = transform.resize and max(side, round(transform.resize * side / own))
    return replace(transform, image_size=(side, side), resize=resize)


def prepare(model: nn.Module, arch: Architecture, sides: Sequence[int], *, method: str) -> None:
    """Let the network take images of all sides of a run, in place.

    Args:
        method: of resampling position embeddings, see `pos_embed.resample_posemb`.

    Raises:
        VitError: the sides fall, do not end at the network's own, or do not divide into its patches.
    """
    height, width = arch.image_size
    where, text = "recipe key schedule.image_sizes", toml_value(list(sides))
    if height != width:
        fix = "leave the key out, or take a square data.image_size"
        raise VitError(f"images of {height}x{width} have no side that could rise", where=where, fix=fix)
    if sides[-1] != height or list(sides) != sorted(sides):
        problem = f"image sizes {text} do not rise to data.image_size, {height}"
        raise VitError(problem, where=where, fix=f"list rising sizes, the last of them {height}")
    for side in sides:
        try:
            check_image_size(replace(arch, image_size=(side, side)))
        except VitError as error:
            raise VitError(error.message, where=f"{where}, {text}", fix=error.fix) from error
    take_other_sizes(model, arch, method=method)


def check_steps(sides: Sequence[int], total_steps: int) -> None:
    """Refuse a run that is too short to have images of each size."""
    if len(sides) > total_steps:
        raise VitError(
            f"a run of {total_steps} steps is too short for {len(sides)} image sizes",
            where="recipe keys schedule.image_sizes, schedule.steps or schedule.epochs",
            fix="train longer, or list fewer sizes",
        )
