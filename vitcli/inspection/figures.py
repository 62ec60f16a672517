"""What is seen inside a network as pictures, in the look of `figures` (paper, sections 4.5, D.7 and D.8).

M shown images, H x W patches or pixels, N = H*W patches, K components, L layers, A heads.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from vitcli.output.plots import BLUE, COLORS, ORANGE, STYLE

WIDTH = 5.0  # inches, that of one column of text
WIDE, TALLEST = 7.0, 8.0
SMALL = 8  # points, of the names of rows and columns
FILTERS_A_ROW = 7  # as in the paper's figure 7
MOST_TILES = 16  # a side, of the similarity: in a larger grid only every second, third, ... patch has one
TILE, LARGEST_TILE = 0.53, 1.1  # inches, of a picture in a row of them
NAMED = 0.6  # inches at the least, of a picture with a name above it
MAP_COLOURS = "viridis"  # even steps for every eye, and in grey
PICTURE = 1.3  # inches, of the long side of one that stands beside tiles
GAP = 0.08  # of a tile


def filters(components_KCPQ: np.ndarray) -> Figure:
    """Principal components of the filters; zero is grey, and each has the full range of colours."""
    largest_K111 = np.abs(components_KCPQ).max(axis=(1, 2, 3), keepdims=True)
    tiles = (0.5 + 0.5 * components_KCPQ / largest_K111).transpose(0, 2, 3, 1)
    return _tiles(_in_rows(list(tiles), FILTERS_A_ROW), width=WIDTH)


def position_similarity(similarity_HWHW: np.ndarray) -> Figure:
    """A tile for each patch: how alike its position embedding is to that of each patch of the image."""
    rows, columns = (list(range(0, side, step_of_tiles(side))) for side in similarity_HWHW.shape[:2])
    tiles = [[_coloured(similarity_HWHW[row, column], -1, 1) for column in columns] for row in rows]
    names = {"across": [str(n + 1) for n in columns], "down": [str(n + 1) for n in rows]}
    return _tiles(
        tiles, width=WIDTH, **names, x="column of the patch", y="row of the patch", bar=("cosine", -1, 1)
    )


def step_of_tiles(side: int) -> int:
    """Which patches of a row or column have a tile: 1 for all, 2 for every second."""
    return -(-side // MOST_TILES)


def attention_distance(mean_LA: np.ndarray, std_LA: np.ndarray | None, *, uniform: float) -> Figure:
    """How far each head of each layer looks, in pixels; bars are one standard deviation over images."""
    num_layers, num_heads = mean_LA.shape
    at_LA = np.arange(1, num_layers + 1)[:, None] + _spread(num_heads)
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes()
        if std_LA is not None:
            axes.errorbar(
                at_LA.ravel(),
                mean_LA.ravel(),
                std_LA.ravel(),
                fmt="none",
                ecolor=BLUE,
                elinewidth=0.7,
                alpha=0.45,
            )
        axes.plot(at_LA.ravel(), mean_LA.ravel(), "o", color=BLUE, markersize=3.2, label="a head")
        axes.plot(
            at_LA.mean(axis=1), mean_LA.mean(axis=1), color=ORANGE, linewidth=1.4, label="mean of the heads"
        )
        _uniform(axes, uniform)
        axes.set(xlabel="layer", ylabel="mean attention distance in pixels", xlim=(0.5, num_layers + 0.5))
        _legend(figure, axes, ncols=3)
    return figure


def distances_compared(curves: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """Mean distance of each layer's heads, in parts of that of uniform attention, whatever the resolution.

    Args:
        curves: name of 50 characters at most, and (L, A) distances divided by that of uniform attention.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = _axes(height=3.6)
        for number, ((_, shares_LA), colour) in enumerate(zip(curves, COLORS, strict=False), start=1):
            layers = np.arange(1, len(shares_LA) + 1)
            axes.fill_between(
                layers, shares_LA.min(axis=1), shares_LA.max(axis=1), color=colour, alpha=0.15, linewidth=0
            )
            line = {"color": colour, "marker": "o", "markersize": 3.2, "label": str(number)}
            axes.plot(layers, shares_LA.mean(axis=1), **line)
        _uniform(axes, 1.0)
        axes.set(xlabel="layer", ylabel="distance / that of uniform attention")
        legend = _legend(figure, axes, ncols=1)
        for text, (name, _) in zip(legend.get_texts(), curves, strict=False):
            text.set_text(name)  # as it is: a label would be hidden by an underscore, and set by a dollar
            text.set_parse_math(False)
    return figure


def beside(images_MHWC: np.ndarray, others_MHWC: np.ndarray, *, name: str, width: float) -> Figure:
    """Each picture, and to its right another of the same size; `name` says what these are."""
    pairs = [tile for pair in zip(images_MHWC, others_MHWC, strict=True) for tile in pair]
    count, height, long = images_MHWC.shape[:3]
    a_row = 4 if width > WIDTH else 2
    while a_row < 16 and -(-count // a_row) * width / (2 * a_row) * height / long > TALLEST:
        a_row *= 2  # many pictures are small, as the paper's 128 in figure 14 are
    a_row = min(a_row, count)
    if width / (2 * a_row) < NAMED:
        return _tiles(_in_rows(pairs, 2 * a_row), width=width, x=f"each input, and {name} to its right")
    return _tiles(_in_rows(pairs, 2 * a_row), width=width, across=["input", name] * a_row)


def attention_by_head(image_HWC: np.ndarray, maps_LAHW: np.ndarray) -> Figure:
    """A picture, and what the output's token attends to: layers down, heads across, each at full range."""
    num_layers, num_heads = maps_LAHW.shape[:2]
    tiles = [[_at_full_range(one) for one in of_layer] for of_layer in maps_LAHW]
    return _tiles(
        tiles,
        width=min(WIDE, 1.8 + max(0.45 * num_heads, 1.35)),
        across=[str(n + 1) for n in range(num_heads)],
        down=[str(n + 1) for n in range(num_layers)],
        x="head",
        y="layer",
        picture=image_HWC,
    )


def attention_by_layer(images_MHWC: np.ndarray, maps_MLHW: np.ndarray, *, width: float) -> Figure:
    """For each picture, what the output's token attends to in each layer, mean of the heads."""
    num_layers, most = maps_MLHW.shape[1], int(width / TILE) - 1
    shown = np.unique(np.linspace(0, num_layers - 1, min(num_layers, most)).round().astype(int))
    tiles = [
        [image, *(_enlarged(_at_full_range(maps[n]), image.shape) for n in shown)]
        for image, maps in zip(images_MHWC, maps_MLHW, strict=True)
    ]
    names = ["input", *(str(n + 1) for n in shown)]
    return _tiles(tiles, width=min(width, LARGEST_TILE * len(names)), across=names, x="layer")


def feature_maps(images_MHWC: np.ndarray, colours_MHWC: np.ndarray, *, width: float) -> Figure:
    """Each picture beside the colours of its patches, each patch a square of one colour."""
    sized = [_enlarged(colours, images_MHWC.shape[1:]) for colours in colours_MHWC]
    return beside(images_MHWC, np.stack(sized), name="features", width=width)


def _axes(height: float = 3.2) -> tuple[Figure, Any]:
    """With room for a legend below."""
    figure = Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(left=0.13, right=0.98, bottom=(height - 2.43) / height, top=0.97)
    return figure, figure.add_subplot()


def _uniform(axes, distance: float) -> None:
    axes.axhline(distance, color="#888888", linestyle="--", linewidth=1.0, label="uniform attention")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12, steps=[1, 2, 5, 10]))


def _legend(figure: Figure, axes: Any, *, ncols: int) -> Legend:
    handles, labels = axes.get_legend_handles_labels()
    place = dict(loc="lower center", ncols=ncols, fontsize=SMALL, handlelength=1.4)
    return figure.legend(handles, labels, **place)


def _spread(num_heads: int) -> np.ndarray:
    """Where the heads of one layer stand beside each other, around 0."""
    return np.linspace(-0.28, 0.28, num_heads) if num_heads > 1 else np.zeros(1)


def _in_rows(tiles: list[np.ndarray], across: int) -> list[list[np.ndarray]]:
    return [tiles[first : first + across] for first in range(0, len(tiles), across)]


def _coloured(values_HW: np.ndarray, low: float, high: float) -> np.ndarray:
    """(H, W, 3) from 0 to 1."""
    shares = (values_HW - low) / (high - low) if high > low else np.zeros_like(values_HW)
    return matplotlib.colormaps[MAP_COLOURS](shares)[..., :3]


def _at_full_range(values_HW: np.ndarray) -> np.ndarray:
    return _coloured(values_HW, 0.0, float(values_HW.max()))


def _enlarged(tile_hwC: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The nearest of its pixels at each place of a larger one."""
    (height, width), (old_height, old_width) = shape[:2], tile_hwC.shape[:2]
    rows, columns = np.arange(height) * old_height // height, np.arange(width) * old_width // width
    return tile_hwC[rows][:, columns]


def _tiles(
    tiles: Sequence[Sequence[np.ndarray]],
    *,
    width: float,
    across: Sequence[str] = (),
    down: Sequence[str] = (),
    x: str = "",
    y: str = "",
    bar: tuple[str, float, float] | None = None,
    picture: np.ndarray | None = None,
) -> Figure:
    """Small pictures of one size in rows and columns, with the names of these.

    Args:
        width: of the figure in inches; its height follows. Of tall ones the height is bounded, and the width
            follows.
        across, down: names of columns and rows.
        x, y: what these names are.
        bar: what the colours mean, and the least and the largest value.
        picture: stands at the left of all.
    """
    canvas, size, pitch = _joined(tiles)
    left = (0.14 if y else 0) + (0.26 if down else 0.04) + (PICTURE + 0.2 if picture is not None else 0)
    right, bottom = (0.62, 0.09) if bar else (0.04, 0.04)
    top = (0.2 if across else 0.04) + (0.16 if x else 0)
    shape = canvas.shape[1] / canvas.shape[0]
    inner = min(width - left - right, TALLEST * shape)
    tall, width = inner / shape, inner + left + right
    side = 0.0 if picture is None else PICTURE * picture.shape[0] / max(picture.shape[:2])
    height = max(tall, side) + top + bottom
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(width, height))
        upper = height - top
        axes = figure.add_axes((left / width, (upper - tall) / height, inner / width, tall / height))
        axes.imshow(canvas, aspect="auto")
        _name_ticks(axes, across, down, size, pitch, x, y)
        if bar:
            _colour_bar(figure, axes, *bar, at=(width - right + 0.1) / width, wide=0.11 / width)
        if picture is not None:
            wide = side * picture.shape[1] / picture.shape[0]
            beside = figure.add_axes((0.04 / width, (upper - side) / height, wide / width, side / height))
            beside.imshow(picture)
            beside.set_axis_off()
    return figure


def _joined(tiles: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All tiles as one picture on nothing, the size of one, and how far the next one is, in its pixels."""
    size = np.array(tiles[0][0].shape[:2])
    scale = max(1, -(-24 // int(size.min())))  # so that a gap is a whole number of pixels and not too wide
    size = size * scale
    gap = max(1, round(GAP * size.min()))
    pitch = size + gap
    num_columns = max(map(len, tiles))
    canvas = np.zeros((*(pitch * (len(tiles), num_columns) - gap), 4))
    for row, of_row in enumerate(tiles):
        for column, tile in enumerate(of_row):
            first = pitch * (row, column)
            place = tuple(slice(start, start + side) for start, side in zip(first, size, strict=True))
            values = tile / 255 if tile.dtype == np.uint8 else tile
            canvas[place] = np.dstack([values.repeat(scale, 0).repeat(scale, 1), np.ones(size)])
    return canvas, size, pitch


def _name_ticks(
    axes: Any, across: Sequence[str], down: Sequence[str], size: np.ndarray, pitch: np.ndarray, x: str, y: str
) -> None:
    for names, axis, at in ((down, axes.yaxis, 0), (across, axes.xaxis, 1)):
        axis.set_ticks(np.arange(len(names)) * pitch[at] + size[at] / 2 - 0.5, names, fontsize=SMALL)
    axes.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(x, fontsize=SMALL, labelpad=2)
    axes.set_ylabel(y, fontsize=SMALL, labelpad=2)
    axes.spines[:].set_visible(False)


def _colour_bar(
    figure: Figure, axes: Any, name: str, low: float, high: float, *, at: float, wide: float
) -> None:
    box = axes.get_position()
    bar = figure.add_axes((at, box.y0, wide, box.height))
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(low, high), MAP_COLOURS)
    figure.colorbar(scale, cax=bar, ticks=[low, (low + high) / 2, high])
    bar.tick_params(labelsize=SMALL, length=2)
    bar.set_ylabel(name, fontsize=SMALL, labelpad=1)
