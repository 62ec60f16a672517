"""Pictures of what is inside a network: each number at its place, and legible to everybody."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from vitcli.inspection import figures as drawn
from vitcli.output.plots import COLORS, STYLE, save

SMALLEST = 7.0  # points of the smallest text, in a figure no wider than a page of paper
RNG = np.random.default_rng(0)


def pixels(count: int, height: int = 32, width: int = 48) -> np.ndarray:
    return RNG.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def every_figure() -> dict[str, Figure]:
    images = pixels(5)
    shares = RNG.random((3, 4))
    return {
        "filters": drawn.filters(RNG.standard_normal((28, 3, 4, 4))),
        "positions": drawn.position_similarity(RNG.uniform(-1, 1, (2, 3, 2, 3))),
        "many positions": drawn.position_similarity(RNG.uniform(-1, 1, (20, 37, 20, 37))),
        "distance": drawn.attention_distance(90 * shares, 9 * shares, uniform=60.0),
        "distance of one picture": drawn.attention_distance(90 * shares, None, uniform=60.0),
        "compared": drawn.distances_compared([("before", shares), ("after" * 10, shares[:2])]),
        "rollout": drawn.beside(images, images, name="attention", width=drawn.WIDE),
        "rollout of many": drawn.beside(pixels(128), pixels(128), name="attention", width=drawn.WIDE),
        "rollout of one": drawn.beside(images[:1], images[:1], name="attention", width=drawn.WIDTH),
        "rollout with predictions": drawn.beside(
            images,
            images,
            name="attention",
            width=drawn.WIDE,
            captions=["lily $ of the valley " * 4] * len(images),
        ),
        "heads": drawn.attention_by_head(images[0], RNG.random((24, 16, 2, 3))),
        "one head": drawn.attention_by_head(images[0], RNG.random((1, 1, 2, 3))),
        "layers": drawn.attention_by_layer(images, RNG.random((5, 24, 2, 3)), width=drawn.WIDE),
        "features": drawn.feature_maps(images, RNG.random((5, 2, 3, 3)), width=drawn.WIDTH),
    }


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return every_figure()


def texts(figure: Figure) -> list[Text]:
    """All that is drawn: not the names of ticks beyond the ends of an axis."""
    unseen = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        beyond = (tick for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high)
        unseen |= {label for tick in beyond for label in (tick.label1, tick.label2)}
    found = set(figure.findobj(Text)) - unseen
    return [text for text in found if text.get_text().strip() and text.get_visible()]


def test_every_text_can_be_read_and_none_leaves_its_figure(figures):
    for name, figure in figures.items():
        figure.draw_without_rendering()
        width, height = figure.get_size_inches() * figure.dpi
        assert figure.get_figwidth() <= drawn.WIDE, name
        for text in texts(figure):
            box = text.get_window_extent()
            assert text.get_fontsize() >= SMALLEST, (name, text.get_text())
            assert box.x0 >= -1 and box.y0 >= -1, (name, text.get_text())
            assert box.x1 <= width + 1 and box.y1 <= height + 1, (name, text.get_text())


def test_no_names_of_columns_run_into_each_other(figures):
    for name, figure in figures.items():
        figure.draw_without_rendering()
        for axes in figure.axes:
            inside = axes.get_window_extent()
            named = (tick for tick in axes.get_xticklabels() if tick.get_text())
            boxes = [
                box
                for box in map(Text.get_window_extent, named)
                if inside.x0 < box.x1 < inside.x1 + box.width
            ]
            for one, other in pairwise(sorted(boxes, key=lambda box: box.x0)):
                assert one.x1 <= other.x0, name


def test_figures_have_no_titles_and_curves_name_their_axes_with_units(figures):
    for name, figure in figures.items():
        assert not any(axes.get_title() for axes in figure.axes), name
    axes = figures["distance"].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("layer", "mean attention distance (pixels)")
    assert STYLE["font.size"] >= SMALLEST


def test_curves_take_colours_that_everybody_tells_apart(figures):
    for name in ("distance", "compared"):
        used = {line.get_color() for line in figures[name].axes[0].lines}
        assert used <= set(COLORS), name


def tile(figure: Figure, row: int, column: int, rows: int, columns: int) -> np.ndarray:
    """The colours of one tile, by its place in the whole."""
    (image,) = figure.axes[0].images
    canvas = np.asarray(image.get_array())
    height, width = ((side + 1) / count for side, count in zip(canvas.shape, (rows, columns), strict=False))
    part = canvas[
        round(row * height) : round((row + 1) * height), round(column * width) : round((column + 1) * width)
    ]
    return part[part[..., 3] == 1].reshape(-1, 4)[:, :3]


def test_zero_in_a_filter_is_grey_and_its_largest_entry_at_full_range():
    components = np.zeros((2, 3, 2, 2))
    components[0, 0, 1, 1] = -0.5
    components[1, 2, 0, 1] = 0.01

    figure = drawn.filters(components)

    colours = [np.unique(tile(figure, 0, column, 1, 2), axis=0).tolist() for column in (0, 1)]
    assert colours == [[[0, 0.5, 0.5], [0.5, 0.5, 0.5]], [[0.5, 0.5, 0.5], [0.5, 0.5, 1]]]


def test_the_tile_of_a_patch_is_at_its_row_and_column():
    """On 2 rows of 3, only the tile of row 2 and column 3 is at full similarity, the others at none."""
    similarity = np.full((2, 3, 2, 3), -1.0)
    similarity[1, 2] = 1.0

    figure = drawn.position_similarity(similarity)

    dark, yellow = drawn._coloured(np.array([[-1.0, 1.0]]), -1, 1)[0]
    for row, column in np.ndindex(2, 3):
        found = np.unique(tile(figure, row, column, 2, 3), axis=0)
        np.testing.assert_allclose(found, [yellow if (row, column) == (1, 2) else dark])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["1", "2", "3"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["1", "2"]


def test_of_a_large_grid_every_second_or_third_patch_has_a_tile():
    figure = drawn.position_similarity(np.zeros((20, 37, 20, 37)))

    names = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert names == [str(n) for n in range(1, 38, 3)]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [str(n) for n in range(1, 21, 2)]


def test_each_head_is_at_its_distance_and_each_layer_at_its_mean():
    mean = np.array([[10.0, 30.0], [20.0, 60.0], [50.0, 90.0]])

    axes = drawn.attention_distance(mean, np.ones((3, 2)), uniform=77.0).axes[0]

    heads, means, uniform = axes.lines[-3:]
    assert heads.get_ydata().tolist() == [10, 30, 20, 60, 50, 90]
    assert heads.get_xdata().round().tolist() == [1, 1, 2, 2, 3, 3]
    assert (means.get_xdata().tolist(), means.get_ydata().tolist()) == ([1, 2, 3], [20, 40, 70])
    assert set(uniform.get_ydata()) == {77.0}
    (bars,) = axes.collections
    assert [segment[:, 1].tolist() for segment in bars.get_segments()][:2] == [[9, 11], [29, 31]]


def test_a_picture_and_what_belongs_to_it_stand_side_by_side():
    images, others = np.zeros((2, 8, 8, 3), np.uint8), np.full((2, 8, 8, 3), 255, np.uint8)
    others[1] = 128

    figure = drawn.beside(images, others, name="attention", width=drawn.WIDE)

    values = [tile(figure, 0, column, 1, 4)[0, 0] for column in range(4)]
    assert values == pytest.approx([0, 1, 0, 128 / 255])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["input", "attention"] * 2


@pytest.mark.parametrize("grid", [(24, 8), (40, 3)])
def test_tall_ones_are_no_taller_than_a_page_of_paper(grid):
    image = pixels(1, 8 * grid[0], 8 * grid[1])[0]
    tall = drawn.attention_by_head(image, RNG.random((12, 3, *grid)))

    assert tall.get_figheight() <= drawn.TALLEST + 0.5
    assert drawn.position_similarity(np.zeros(grid * 2)).get_figheight() <= drawn.TALLEST + 0.5


def test_a_picture_beside_few_tiles_is_whole():
    figure = drawn.attention_by_head(pixels(1, 32, 32)[0], RNG.random((2, 4, 2, 2)))

    box = figure.axes[2].get_position()
    height, width = box.height * figure.get_figheight(), box.width * figure.get_figwidth()
    assert height == pytest.approx(width)
    assert height == pytest.approx(drawn.IMAGE)
    assert box.y0 >= 0 and box.y1 <= 1


@pytest.mark.parametrize("width", [drawn.WIDE, drawn.WIDTH])
def test_as_many_pictures_as_the_papers_figure_14_shows_fit_on_a_page(width):
    figure = drawn.beside(pixels(128, 32, 32), pixels(128, 32, 32), name="attention", width=width)

    assert figure.get_figwidth() == pytest.approx(width, rel=0.15)
    assert figure.get_figheight() <= drawn.TALLEST + 0.5


def test_of_many_layers_some_are_shown_from_the_first_to_the_last():
    figure = drawn.attention_by_layer(pixels(1), RNG.random((1, 24, 2, 3)), width=drawn.WIDE)

    names = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert names[:2] == ["input", "1"] and names[-1] == "24"
    assert len(names) == 13


def test_attention_of_zero_everywhere_is_dark_and_no_error():
    figure = drawn.attention_by_head(pixels(1)[0], np.zeros((1, 1, 2, 2)))

    np.testing.assert_allclose(tile(figure, 0, 0, 1, 1)[0], drawn._coloured(np.zeros((1, 1)), 0, 1)[0, 0])


def test_each_patch_is_a_square_of_one_colour():
    colours = np.array([[[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]]])

    figure = drawn.feature_maps(np.zeros((1, 2, 6, 3), np.uint8), colours, width=drawn.WIDTH)

    found = tile(figure, 0, 1, 1, 2).reshape(-1, 6 * 12, 3)[0, ::12]  # enlarged 12 times to be seen
    assert found.tolist() == [[1, 0, 0]] * 2 + [[0, 1, 0]] * 2 + [[0, 0, 1]] * 2


def hot(*shape: int) -> np.ndarray:
    """Maps of 2x3 patches, each with all its attention on the patch that its number leads to."""
    maps = np.zeros((*shape, 6))
    for number, place in enumerate(np.ndindex(*shape)):
        maps[(*place, number % 6)] = 1.0
    return maps.reshape(*shape, 2, 3)


def hottest(figure: Figure, row: int, column: int, rows: int, columns: int) -> int:
    """Which of the 2x3 patches of a tile is yellow."""
    colours = tile(figure, row, column, rows, columns)
    side = round((len(colours) / 6) ** 0.5)
    patches = colours.reshape(2, side, 3, side, 3)[:, side // 2, :, side // 2]
    yellow = drawn._coloured(np.ones((1, 1)), 0, 1)[0, 0]
    (found,) = np.flatnonzero(np.abs(patches.reshape(6, 3) - yellow).sum(axis=1) < 0.01)
    return int(found)


def test_each_layer_is_a_row_and_each_head_a_column():
    figure = drawn.attention_by_head(np.zeros((32, 48, 3), np.uint8), hot(3, 4))

    for layer, head in np.ndindex(3, 4):
        assert hottest(figure, layer, head, 3, 4) == (4 * layer + head) % 6


def test_of_few_heads_the_layers_are_columns_and_little_is_empty_beside_the_image():
    figure = drawn.attention_by_head(np.zeros((32, 48, 3), np.uint8), hot(12, 3))

    for layer, head in np.ndindex(12, 3):
        assert hottest(figure, head, layer, 3, 12) == (3 * layer + head) % 6
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("layer", "head")
    assert figure.get_figheight() < 1.5 * drawn.IMAGE


def test_maps_of_attention_have_the_key_of_their_colours():
    by_head = drawn.attention_by_head(pixels(1)[0], hot(3, 4))
    by_layer = drawn.attention_by_layer(pixels(1), hot(1, 3), width=drawn.WIDE)

    for figure in (by_head, by_layer):
        bar = figure.axes[1]
        assert bar.get_ylabel() == "attention"
        assert [text.get_text() for text in bar.get_yticklabels()] == ["0", "max"]


def test_each_picture_is_a_row_and_each_layer_a_column():
    images = np.zeros((2, 32, 48, 3), np.uint8)

    figure = drawn.attention_by_layer(images, hot(2, 3), width=drawn.WIDE)

    for picture, layer in np.ndindex(2, 3):
        assert hottest(figure, picture, 1 + layer, 2, 4) == 3 * picture + layer


def test_a_map_is_dark_at_no_attention_and_not_at_its_least():
    maps = np.array([[[[0.5, 1.0]]]])

    found = tile(drawn.attention_by_head(pixels(1)[0], maps), 0, 0, 1, 1)

    half = drawn._coloured(np.array([[0.5]]), 0, 1)[0, 0]
    np.testing.assert_allclose(found[0], half)


@pytest.mark.parametrize("name", ["a$\\frac$b", "_under", "한국어.npz", "<b>bold</b>", "x" * 50])
def test_any_name_of_a_file_stands_in_the_legend(name, tmp_path, recwarn):
    figure = drawn.distances_compared([(name, RNG.random((3, 2))), ("other", RNG.random((3, 2)))])

    for ending in ("png", "svg"):
        save(tmp_path / f"out.{ending}", figure)

    first, second, uniform = (text.get_text() for text in figure.legends[0].get_texts())
    assert (first, second, uniform) == (name, "other", "uniform attention")
    assert not recwarn.list
