"""The pictures of a study show what they are given: numbers, names, error bars, the front."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from vitcli.experiments.study_figures import Panel, compute_figure, data_size_figure, labels_of, short_count


def point(model: str, mean: float, std: float | None = None, family: str | tuple = "ViT", **more) -> dict:
    families = [family] if isinstance(family, str) else list(family)
    start = {
        "name": f"{model} {more}",
        "model": model,
        "mean": mean,
        "std": std,
        "families": families,
        "n": 3,
    }
    return start | {"asked_epochs": None, "asked_steps": None, "num_examples": 100, "exaflops": 1.0} | more


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def segments(axes) -> list[np.ndarray]:
    """The error bars that are drawn, each from its lower to its upper end."""
    return [part for bars in axes.collections for part in bars.get_segments()]


def test_a_line_for_each_network_by_the_number_of_images_with_its_bars():
    sizes = {100: (0.2, 0.05), 48_000: (0.7, 0.01), 1_000: (0.4, None)}
    points = [point("L/16", *both, num_examples=size) for size, both in sizes.items()]
    points += [point("R50", 0.3, 0.0, family="ResNet", num_examples=size) for size in sizes]

    figure = data_size_figure(
        points, images="pre-training images", score="5-shot accuracy on x", note="a note"
    )

    (axes,) = figure.axes
    first, other = (line for line in axes.lines if line.get_label() in ("L/16", "R50"))
    assert first.get_xydata().tolist() == [[100, pytest.approx(20)], [1_000, 40], [48_000, pytest.approx(70)]]
    assert first.get_color() != other.get_color() and first.get_marker() != other.get_marker()
    assert first.get_linestyle() != other.get_linestyle()  # a ViT and a ResNet
    assert np.allclose(segments(axes)[0], [[100, 15], [100, 25]])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["100", "1k", "48k"]
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "accuracy in %")
    assert "pre-training images" in axes.get_xlabel() and "5-shot accuracy on x" in axes.get_title()
    assert figure.get_supxlabel() == "a note" and texts(figure) == ["R50", "L/16"]  # from the lowest up


def test_names_at_the_ends_of_lines_do_not_touch():
    points = [point(f"net {k}", 0.5 + k / 10_000, num_examples=size) for k in range(5) for size in (10, 100)]
    points += [point("far below", 0.1, num_examples=size) for size in (10, 100)]

    figure = data_size_figure(points, images="images", score="top-1", note="")

    boxes = sorted(text.get_window_extent().extents.tolist() for text in figure.axes[0].texts)
    low_to_high = sorted(boxes, key=lambda box: box[1])
    assert all(below[3] <= above[1] for below, above in pairwise(low_to_high))


def draw_compute(points: list[dict], front: list[int], **more) -> Figure:
    panel = Panel({p["name"]: p["mean"] for p in points}, {p["name"]: p["std"] for p in points},
                  [points[k]["name"] for k in front])  # fmt: skip
    return compute_figure(
        points, {"top-1": panel}, **{"cost": "compute", "note": "", "is_joined": False} | more
    )


def test_the_front_is_a_line_with_a_ring_around_each_of_its_points():
    points = [
        point("B/32", 0.80, exaflops=55.0),
        point("R50", 0.75, family="ResNet", exaflops=60.0),
        point("L/16", 0.87, exaflops=783.0),
    ]

    figure = draw_compute(points, [0, 2])

    (axes,) = figure.axes
    line, rings = (line for line in axes.lines if np.allclose(line.get_xydata(), [[55, 80], [783, 87]]))
    assert (line.get_linestyle(), rings.get_marker(), rings.get_markerfacecolor()) == (":", "o", "none")
    assert sorted(texts(figure)) == ["B/32", "L/16", "R50"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ViT", "ResNet", "Pareto front"]
    assert axes.get_xscale() == "log" and "compute in exaFLOPs" in axes.get_xlabel()


def test_a_point_of_several_families_is_on_the_line_of_each():
    points = [
        point("base", 0.5, family=("depth", "width"), exaflops=2.0),
        point("deep", 0.7, family="depth", exaflops=4.0),
        point("thin", 0.3, family="width", exaflops=1.0),
    ]

    figure = draw_compute(points, [2, 0, 1], is_joined=True)

    lines = [line.get_xydata().tolist() for line in figure.axes[0].lines]
    assert [[2, 50], [4, 70]] in lines and [[1, 30], [2, 50]] in lines
    stars = [line for line in figure.axes[0].lines if line.get_marker() == "*"]
    assert [star.get_xydata().tolist() for star in stars] == [[[2, 50]]]


def test_a_network_at_several_durations_is_one_line_whose_points_say_which():
    points = [
        point("L/16", 0.86, exaflops=783.0, asked_epochs=7.0),
        point("L/16", 0.87, exaflops=1567.0, asked_epochs=14.0),
        point("B/16", 0.84, exaflops=224.0, asked_epochs=7.0),
    ]

    assert sorted(texts(draw_compute(points, [2, 0, 1]))) == ["B/16", "L/16, 14 epochs", "L/16, 7 epochs"]
    assert list(labels_of([points[0], points[2]]).values()) == ["L/16", "B/16"]


def test_no_two_looks_of_six_networks_are_alike_and_names_are_plain_text():
    points = [point(f"a${k}\n", 0.1 * k, num_examples=size) for k in range(1, 7) for size in (10, 100)]

    figure = data_size_figure(points, images="images", score="top-1", note="")

    lines = [line for line in figure.axes[0].lines if line.get_label().startswith("a")]
    assert (
        len({to_hex(line.get_color()) for line in lines}) == len({line.get_marker() for line in lines}) == 6
    )
    assert texts(figure)[0] == r"a\$1?"


@pytest.mark.parametrize(
    ("count", "told"),
    [(7, "7"), (999, "999"), (1_000, "1k"), (48_000, "48k"), (9_000_000, "9M"), (2.5e9, "2.5B")],
)
def test_counts_are_short(count, told):
    assert short_count(count) == told
