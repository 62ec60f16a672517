"""Figures are saved whole or not at all, and the same figure always as the same bytes."""

import pytest
from matplotlib.figure import Figure

from tests.figures import drawn_figures
from vitcli.errors import MachineError
from vitcli.output import plots


def line() -> Figure:
    figure = Figure()
    figure.add_subplot().plot([1, 2], [3, 4])
    return figure


@pytest.mark.parametrize("ending", plots.ENDINGS)
def test_the_same_figure_is_saved_as_the_same_bytes(tmp_path, ending):
    with drawn_figures():
        for name in ("a", "b"):
            plots.save(tmp_path / name / f"loss.{ending}", line())

    content = (tmp_path / f"a/loss.{ending}").read_bytes()
    assert content == (tmp_path / f"b/loss.{ending}").read_bytes()


def test_a_figure_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    (tmp_path / "loss.png").write_bytes(b"earlier")

    def fill_disk(self, file, **_):
        file.write_bytes(b"\x89PN")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fill_disk)
    with pytest.raises(MachineError, match="No space left"):
        plots.save(tmp_path / "loss.png", line())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("loss.png", b"earlier")]


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([50], (44.5, 55.5)),  # ten points at the least, and a twentieth of them on each side
        ([20, 80], (17, 83)),
        ([99, 100], (89.5, 100.5)),  # within 0 to 100
        ([0, 2], (-0.5, 10.5)),
    ],
)
def test_an_axis_of_accuracies_shows_ten_points_and_none_that_cannot_be(values, limits):
    assert plots.percent_limits(values) == pytest.approx(limits)
