"""The charts of a report, before they become SVG."""

import pytest
from matplotlib.figure import Figure

from tests.figures import points_of
from vitcli.report import figures
from vitcli.report.figures import Line


def test_a_chart_has_the_points_bars_and_rings_of_its_lines(monkeypatch):
    charts: list[Figure] = []
    monkeypatch.setattr(figures, "to_svg", lambda figure, **_: charts.append(figure) or "")
    first = Line("a", (((1, 20.0), (3, 50.0), (4, 40.0)),), marked=((3, 50.0),), bars=((4, 35.0, 47.0),))
    second = Line("b", (((1, 30.0), (3, 10.0), (4, 60.0)), ((1, 25.0), (4, 15.0))))

    figures._chart(((first, "#112233"), (second, "#445566")), "label", x="step", y="top-1 in %")

    (chart,) = charts
    lines = [line for line in chart.axes[0].lines if line.get_marker() not in ("_", "|")]
    strands = [[tuple(point) for point in line.get_xydata().tolist()] for line in lines]
    assert strands == [*map(list, first.strands), [(3, 50)], *map(list, second.strands)]
    assert [line.get_color() for line in lines] == ["#112233"] * 2 + ["#445566"] * 2
    (bar,) = (part for bars in chart.axes[0].collections for part in bars.get_segments())
    assert bar.tolist() == [[4, pytest.approx(35)], [4, pytest.approx(47)]]
    assert points_of(chart) == list(first.strands[0])
