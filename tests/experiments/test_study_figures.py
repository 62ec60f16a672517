"""The figures of a study show what they are given: numbers, names, error bars, the front."""

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


def named(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


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
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "accuracy (%)")
    assert "pre-training images" in axes.get_xlabel() and "5-shot accuracy on x" in axes.get_title()
    assert figure.get_supxlabel() == "a note" and named(figure) == ["L/16", "R50"]  # from the highest down


def test_the_legend_is_beside_the_axes_and_inside_the_figure():
    points = [point(f"network {k}", k / 50, exaflops=k, family=f"family {k % 3}") for k in range(1, 40)]

    figure = draw_compute(points, [0])
    figure.draw_without_rendering()

    legend, (axes,) = figure.legends[0].get_window_extent(), figure.axes
    assert len(named(figure)) == 39 + 3 + 1
    assert axes.bbox.width > figure.bbox.width / 2 and axes.bbox.x1 <= legend.x0
    assert legend.x1 <= figure.bbox.x1 and legend.y0 >= 0 and legend.y1 <= figure.bbox.y1


def draw_compute(points: list[dict], front: list[int], **more) -> Figure:
    panel = Panel({p["name"]: p["mean"] for p in points}, {p["name"]: p["std"] for p in points},
                  [points[k]["name"] for k in front])  # fmt: skip
    return compute_figure(
        points, {"top-1": panel}, **{"cost": "compute", "note": "", "joined_by": "model"} | more
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
    assert named(figure) == ["ViT", "ResNet", "Pareto front", "B/32", "R50", "L/16"]
    assert axes.get_xscale() == "log" and "compute (exaFLOPs" in axes.get_xlabel()


def test_a_point_of_several_families_is_on_the_line_of_each():
    points = [
        point("base", 0.5, family=("depth", "width"), exaflops=2.0),
        point("deep", 0.7, family="depth", exaflops=4.0),
        point("thin", 0.3, family="width", exaflops=1.0),
    ]

    figure = draw_compute(points, [2, 0, 1], joined_by="families")

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

    names = ["Pareto front", "L/16, 7 epochs", "L/16, 14 epochs", "B/16"]
    assert named(draw_compute(points, [2, 0, 1])) == names
    assert list(labels_of([points[0], points[2]]).values()) == ["L/16", "B/16"]


def test_no_two_looks_of_six_networks_are_alike_and_names_are_plain_text():
    points = [point(f"a${k}\n", 0.1 * k, num_examples=size) for k in range(1, 7) for size in (10, 100)]

    figure = data_size_figure(points, images="images", score="top-1", note="")

    lines = [line for line in figure.axes[0].lines if line.get_label().startswith("a")]
    assert (
        len({to_hex(line.get_color()) for line in lines}) == len({line.get_marker() for line in lines}) == 6
    )
    assert named(figure)[-1] == r"a\$1?"


def test_networks_of_a_family_share_its_colour_and_differ_in_marker():
    points = [point(f"{family} {k}", 0.1, family=family) for family in ("ViT", "ResNet") for k in range(11)]

    handles = draw_compute(points, [0]).legends[0].legend_handles[3:]

    looks = [(to_hex(handle.get_color()), handle.get_marker()) for handle in handles]
    assert len(set(looks)) == 22 and len({colour for colour, _ in looks[:11]}) == 1


@pytest.mark.parametrize(
    ("count", "told"),
    [(7, "7"), (999, "999"), (1_000, "1k"), (48_000, "48k"), (9_000_000, "9M"), (2.5e9, "2.5B")],
)
def test_counts_are_short(count, told):
    assert short_count(count) == told


def test_the_compute_of_a_laptop_is_in_gflops():
    points = [point(f"network {k}", 0.5, exaflops=k * 9e-8) for k in (1, 2)]

    (axes,) = draw_compute(points, [0]).axes

    assert "compute (GFLOPs" in axes.get_xlabel()
    assert sorted({round(x) for line in axes.lines for x in line.get_xdata()}) == [90, 180]
