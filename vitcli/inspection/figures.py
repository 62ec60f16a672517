"""Figures of the inside of a network (paper, sections 4.5, D.7 and D.8), in the style of `output.plots`.

M shown images, H x W patches or pixels, N = H*W patches, K components, L layers, A heads.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from vitcli.output.plots import BLUE, COLORS, ORANGE, STYLE, printable

WIDTH = 5.0  # inches, one column of text
WIDE, TALLEST = 7.0, 8.0
TINY, CAPTION, LETTERS = 7, 0.16, 21  # points, inches of a line, and its letters to the inch
SMALL = 8  # points, of the labels of rows and columns
FILTERS_PER_ROW = 7  # as in the paper's Figure 7
MOST_TILES = 16  # along a side of the similarity; in a larger grid only every second, ... patch has one
TILE, LARGEST_TILE = 0.53, 1.1  # inches, of an image in a row
LEAST_LABELLED = 0.6  # inches, of an image with a label above it
MAP_COLOURS = "viridis"  # perceptually uniform, also in grey and for colour-blind readers
IMAGE = 1.3  # inches, of the long side of an image beside tiles
BAR_WIDTH = 0.72  # inches, of the colour bar with its labels
GAP = 0.08  # of a tile


@dataclass(frozen=True)
class ColourBar:
    """The key of the colours of tiles: what they show, and the text at some of the values."""

    name: str
    ticks: Mapping[float, str]


SIMILARITY = ColourBar("cosine similarity", {-1: "-1", 0: "0", 1: "1"})
ATTENTION = ColourBar("attention", {0: "0", 1: "max"})  # each map has its own maximum


def filters(components_KCPQ: np.ndarray) -> Figure:
    """Draw principal components of filters; zero is grey, and each is scaled to the full range of colours."""
    largest_K111 = np.abs(components_KCPQ).max(axis=(1, 2, 3), keepdims=True)
    tiles = (0.5 + 0.5 * components_KCPQ / largest_K111).transpose(0, 2, 3, 1)
    return _tiles(_in_rows(list(tiles), FILTERS_PER_ROW), Labels(), width=WIDTH)


def position_similarity(similarity_HWHW: np.ndarray) -> Figure:
    """Draw a tile for each patch: the similarity of its position embedding with that of every patch."""
    rows, columns = (list(range(0, side, step_of_tiles(side))) for side in similarity_HWHW.shape[:2])
    tiles = [[_coloured(similarity_HWHW[row, column], -1, 1) for column in columns] for row in rows]
    labels = Labels(_from_one(columns), _from_one(rows), "input patch column", "input patch row")
    return _tiles(tiles, labels, width=WIDTH, bar=SIMILARITY)


def step_of_tiles(side: int) -> int:
    """Return the step from one patch with a tile to the next: 1 for all, 2 for every second."""
    return -(-side // MOST_TILES)


def attention_distance(mean_LA: np.ndarray, std_LA: np.ndarray | None, *, uniform: float) -> Figure:
    """Draw the attention distance of each head by layer; bars are one standard deviation over images."""
    num_layers, num_heads = mean_LA.shape
    # The heads of a layer are side by side.
    offsets_A = np.linspace(-0.28, 0.28, num_heads) if num_heads > 1 else np.zeros(1)
    x_LA = np.arange(1, num_layers + 1)[:, None] + offsets_A
    x, mean = x_LA.ravel(), mean_LA.ravel()
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes()
        if std_LA is not None:
            axes.errorbar(x, mean, std_LA.ravel(), fmt="none", ecolor=BLUE, elinewidth=0.7, alpha=0.45)
        axes.plot(x, mean, "o", color=BLUE, markersize=3.2, label="head")
        line = dict(color=ORANGE, linewidth=1.4, label="mean over heads")
        axes.plot(x_LA.mean(axis=1), mean_LA.mean(axis=1), **line)
        _draw_uniform(axes, uniform)
        axes.set(xlabel="layer", ylabel="mean attention distance (pixels)", xlim=(0.5, num_layers + 0.5))
        _legend(figure, axes, ncols=3)
    return figure


def distances_compared(curves: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """Draw the mean attention distance by layer of several networks, relative to uniform attention.

    Args:
        curves: name, at most 50 characters, and (L, A) distances divided by that of uniform attention.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(height=3.6)
        for number, ((_, relative_LA), colour) in enumerate(zip(curves, COLORS, strict=False), start=1):
            layers, lowest, highest = np.arange(len(relative_LA)) + 1, relative_LA.min(1), relative_LA.max(1)
            axes.fill_between(layers, lowest, highest, color=colour, alpha=0.15, linewidth=0)
            line = {"color": colour, "marker": "o", "markersize": 3.2, "label": str(number)}
            axes.plot(layers, relative_LA.mean(axis=1), **line)
        _draw_uniform(axes, 1.0)
        axes.set(xlabel="layer", ylabel="distance / uniform attention")
        legend = _legend(figure, axes, ncols=1)
        # Names are set afterwards: as a label, an underscore would hide one and a dollar start a formula.
        for text, (name, _) in zip(legend.get_texts(), curves, strict=False):
            text.set_text(name)
            text.set_parse_math(False)
    return figure


def beside(
    images_MHWC: np.ndarray,
    others_MHWC: np.ndarray,
    *,
    name: str,
    width: float,
    captions: Sequence[str] = (),
) -> Figure:
    """Draw each image with another one of the same size to its right.

    Args:
        name: of the others.
        captions: a line below each pair, which is left out where the images are drawn too small for it.
    """
    pairs = [tile for pair in zip(images_MHWC, others_MHWC, strict=True) for tile in pair]
    num_images, image_height, image_width = images_MHWC.shape[:3]
    # Many images are drawn small, as the paper's 128 in Figure 14.
    per_row = 4 if width > WIDTH else 2
    while (
        per_row < 16
        and -(-num_images // per_row) * width / (2 * per_row) * image_height / image_width > TALLEST
    ):
        per_row *= 2
    per_row = min(per_row, num_images)
    is_labelled = width / (2 * per_row) >= LEAST_LABELLED
    once = Labels(x=f"each input, with its {name} to the right")
    labels = Labels(["input", name] * per_row) if is_labelled else once
    captions = [printable(caption, int(width / per_row * LETTERS)) for caption in captions if is_labelled]
    return _tiles(_in_rows(pairs, 2 * per_row), labels, width=width, captions=_in_rows(captions, per_row))


def attention_by_head(image_HWC: np.ndarray, maps_LAHW: np.ndarray) -> Figure:
    """Draw an image and the output's attention in it by layer and head, each map at full range.

    Layers are rows; of a network of few heads they are columns, so that the tiles are not much taller than
    the image beside them.
    """
    names = ["layer", "head"]
    if maps_LAHW.shape[0] >= 2 * maps_LAHW.shape[1]:
        maps_LAHW, names = maps_LAHW.swapaxes(0, 1), names[::-1]
    num_rows, num_columns = maps_LAHW.shape[:2]
    tiles = [[_at_full_range(map_HW) for map_HW in row] for row in maps_LAHW]
    labels = Labels(_from_one(range(num_columns)), _from_one(range(num_rows)), names[1], names[0])
    width = min(WIDE, 1.8 + BAR_WIDTH + max(0.45 * num_columns, 1.35))
    return _tiles(tiles, labels, width=width, image=image_HWC, bar=ATTENTION)


def attention_by_layer(images_MHWC: np.ndarray, maps_MLHW: np.ndarray, *, width: float) -> Figure:
    """Draw images and the output's attention in each by layer, mean over the heads."""
    num_layers, most = maps_MLHW.shape[1], int(width / TILE) - 1
    shown = np.unique(np.linspace(0, num_layers - 1, min(num_layers, most)).round().astype(int))
    tiles = [
        [image, *(_enlarged(_at_full_range(maps[n]), image.shape) for n in shown)]
        for image, maps in zip(images_MHWC, maps_MLHW, strict=True)
    ]
    labels = Labels(["input", *_from_one(shown)], x="layer")
    width = min(width, BAR_WIDTH + LARGEST_TILE * len(labels.columns))
    return _tiles(tiles, labels, width=width, bar=ATTENTION)


def feature_maps(images_MHWC: np.ndarray, colours_MHWC: np.ndarray, *, width: float) -> Figure:
    """Draw each image beside the colours of its patches, each patch a square of one colour."""
    enlarged = [_enlarged(colours, images_MHWC.shape[1:]) for colours in colours_MHWC]
    return beside(images_MHWC, np.stack(enlarged), name="features", width=width)


def _axes(height: float = 3.2) -> tuple[Figure, Any]:
    """Make axes with room for a legend below."""
    figure = Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(left=0.13, right=0.98, bottom=(height - 2.43) / height, top=0.97)
    return figure, figure.add_subplot()


def _draw_uniform(axes, distance: float) -> None:
    axes.axhline(distance, color="#888888", linestyle="--", linewidth=1.0, label="uniform attention")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, steps=[1, 2, 5, 10]))


def _legend(figure: Figure, axes: Any, *, ncols: int) -> Legend:
    handles = axes.get_legend_handles_labels()
    return figure.legend(*handles, loc="lower center", ncols=ncols, fontsize=SMALL, handlelength=1.4)


def _in_rows(tiles: list[Any], per_row: int) -> list[list[Any]]:
    return [tiles[first : first + per_row] for first in range(0, len(tiles), per_row)]


def _from_one(indices: Iterable[int]) -> list[str]:
    return [str(index + 1) for index in indices]


def _coloured(values_HW: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the colours (H, W, 3) of values, from 0 to 1."""
    fractions_HW = (values_HW - low) / (high - low) if high > low else np.zeros_like(values_HW)
    return matplotlib.colormaps[MAP_COLOURS](fractions_HW)[..., :3]


def _at_full_range(values_HW: np.ndarray) -> np.ndarray:
    return _coloured(values_HW, 0.0, float(values_HW.max()))


def _enlarged(tile_hwC: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Enlarge a tile by repeating its pixels (nearest neighbour)."""
    (height, width), (old_height, old_width) = shape[:2], tile_hwC.shape[:2]
    rows, columns = np.arange(height) * old_height // height, np.arange(width) * old_width // width
    return tile_hwC[rows][:, columns]


@dataclass(frozen=True)
class Labels:
    """Labels of a grid of tiles: of its columns and rows, and of the axes `x` and `y` they are on."""

    columns: Sequence[str] = ()
    rows: Sequence[str] = ()
    x: str = ""
    y: str = ""


def _tiles(
    tiles: Sequence[Sequence[np.ndarray]],
    labels: Labels,
    *,
    width: float,
    bar: ColourBar | None = None,
    image: np.ndarray | None = None,
    captions: Sequence[Sequence[str]] = (),
) -> Figure:
    """Draw tiles of one size in rows and columns.

    Args:
        width: of the figure in inches; its height follows. Of tall ones the height is bounded, and the width
            follows.
        bar: drawn to the right of the tiles.
        image: drawn to the left of the tiles.
        captions: by row, of two tiles each; there is room for a line below each row of tiles then.
    """
    canvas, size, pitch = _joined(tiles, below=CAPTION * max(map(len, tiles)) / width if captions else 0.0)
    # Margins for labels, colour bar and image, in inches; the tiles get the rest.
    left = (0.14 if labels.y else 0) + (0.26 if labels.rows else 0.04)
    left += 0.0 if image is None else IMAGE + 0.2
    right, bottom = (BAR_WIDTH, 0.09) if bar else (0.04, 0.04)
    top = (0.2 if labels.columns else 0.04) + (0.16 if labels.x else 0)
    shape = canvas.shape[1] / canvas.shape[0]
    inner_width = min(width - left - right, TALLEST * shape)
    inner_height, width = inner_width / shape, inner_width + left + right
    image_height = 0.0 if image is None else IMAGE * image.shape[0] / max(image.shape[:2])
    height = max(inner_height, image_height) + top + bottom

    def place(x: float, box_width: float, box_height: float) -> tuple[float, float, float, float]:
        """Return a box below the top margin, in fractions of the figure."""
        return x / width, (height - top - box_height) / height, box_width / width, box_height / height

    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes(place(left, inner_width, inner_height))
        axes.imshow(canvas, aspect="auto")
        _label_tiles(axes, labels, size, pitch)
        for row, texts in enumerate(captions):
            for number, text in enumerate(texts):
                at = (2 * number * pitch[1], row * pitch[0] + size[0])
                axes.text(*at, text, fontsize=TINY, va="top", parse_math=False)
        if bar:
            ticks = list(bar.ticks)
            bar_axes = figure.add_axes(place(width - right + 0.1, 0.11, inner_height))
            scale = matplotlib.cm.ScalarMappable(
                matplotlib.colors.Normalize(ticks[0], ticks[-1]), MAP_COLOURS
            )
            figure.colorbar(scale, cax=bar_axes).set_ticks(ticks, labels=list(bar.ticks.values()))
            bar_axes.tick_params(labelsize=SMALL, length=2)
            bar_axes.set_ylabel(bar.name, fontsize=SMALL, labelpad=1)
        if image is not None:
            image_width = image_height * image.shape[1] / image.shape[0]
            image_axes = figure.add_axes(place(0.04, image_width, image_height))
            image_axes.imshow(image)
            image_axes.set_axis_off()
    return figure


def _joined(
    tiles: Sequence[Sequence[np.ndarray]], *, below: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Join tiles to one image on a transparent canvas.

    Args:
        below: room below each row, in widths of a tile.

    Returns:
        The canvas; height and width of a tile, and from one tile to the next, in its pixels.
    """
    size = np.array(tiles[0][0].shape[:2])
    # Small tiles are enlarged, so that a gap of whole pixels is not too wide.
    scale = max(1, -(-24 // int(size.min())))
    size = size * scale
    gap = max(1, round(GAP * size.min()))
    room = round(below * size[1])
    pitch = size + np.array([gap + room, gap])
    num_columns = max(map(len, tiles))
    canvas = np.zeros((*(pitch * (len(tiles), num_columns) - gap), 4))
    for row, row_tiles in enumerate(tiles):
        for column, tile in enumerate(row_tiles):
            first = pitch * (row, column)
            place = tuple(slice(start, start + side) for start, side in zip(first, size, strict=True))
            values = tile / 255 if tile.dtype == np.uint8 else tile
            canvas[place] = np.dstack([values.repeat(scale, 0).repeat(scale, 1), np.ones(size)])
    return canvas, size, pitch


def _label_tiles(axes: Any, labels: Labels, size: np.ndarray, pitch: np.ndarray) -> None:
    for names, axis, at in ((labels.rows, axes.yaxis, 0), (labels.columns, axes.xaxis, 1)):
        axis.set_ticks(np.arange(len(names)) * pitch[at] + size[at] / 2 - 0.5, names, fontsize=SMALL)
    axes.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(labels.x, fontsize=SMALL, labelpad=2)
    axes.set_ylabel(labels.y, fontsize=SMALL, labelpad=2)
    axes.spines[:].set_visible(False)
