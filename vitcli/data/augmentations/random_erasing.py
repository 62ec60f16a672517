"""Random Erasing (arXiv 1708.04896): a rectangle of an image is painted over.

Rectangles are drawn as by timm's `RandomErasing` in its mode "const", here on bytes: the mean colour of the
recipe, which is 0 once the network's input is normalised.

H x W pixels, C = 3 channels.
"""

import math
from random import Random

import numpy as np

AREA = (0.02, 1 / 3)  # of the image
LOG_ASPECT = (math.log(0.3), math.log(1 / 0.3))  # of height / width
TRIES = 10  # of a rectangle that fits, before the image stays whole


def erase(
    image_HWC: np.ndarray, *, probability: float, mean: tuple[float, float, float], rng: Random
) -> None:
    """Paint a rectangle of an image over, in place, with a probability.

    Args:
        image_HWC: uint8, RGB.
        mean: the colour, per channel, in [0, 1].
    """
    if rng.random() > probability:
        return
    height, width, _ = image_HWC.shape
    for _ in range(TRIES):
        area = rng.uniform(*AREA) * height * width
        aspect = math.exp(rng.uniform(*LOG_ASPECT))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if rows < height and columns < width:
            top, left = rng.randint(0, height - rows), rng.randint(0, width - columns)
            colour_C = np.array([round(255 * level) for level in mean], dtype=np.float64).clip(0, 255)
            image_HWC[top : top + rows, left : left + columns] = colour_C.astype(np.uint8)
            return
