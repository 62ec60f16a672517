"""Curves of a run: the plan at every step, points where nothing is known between, axes that do not lie."""

import pytest

from tests.figures import assert_labels_fit, points_of
from vitcli.output.plots import percent_limits
from vitcli.training import figures
from vitcli.training.figures import training_curves

RECORDS = [
    {"step": 1, "loss": 1.6, "lr": 0.0},
    {"step": 10, "loss": 0.9, "lr": 0.0003},
    {"step": 10, "eval": {"top1": 0.975, "top5": 1.0, "loss": 0.4, "num_examples": 600}},
]


def test_curves_have_the_values_of_the_records_at_their_steps():
    losses, held_out = {1: 1.6, 3: 0.9, 4: 1.1, 9: 0.2}, {4: 0.7, 8: 0.6, 9: 0.8}
    scores = {4: (0.5, 0.75), 8: (0.25, 0.5), 9: (0.75, 1.0)}
    records = [{"step": step, "loss": loss} for step, loss in losses.items()]
    for step, (top1, top5) in scores.items():
        scored = {"top1": top1, "top5": top5, "loss": held_out[step], "num_examples": 8}
        records.append({"step": step, "eval": scored})

    drawn = training_curves(records, num_steps=9, num_classes=10, lr_at=float)

    assert points_of(drawn["loss"], 0) == list(losses.items())
    assert points_of(drawn["loss"], 1) == list(held_out.items())
    names = [text.get_text() for text in drawn["loss"].axes[0].get_legend().get_texts()]
    assert names == ["training", "held out"]
    lines = [line for line in drawn["accuracy"].axes[0].lines if len(line.get_xdata()) == 3]
    assert [line.get_ydata().tolist() for line in lines] == [[50, 25, 75], [75, 50, 100]]
    assert all(line.get_xdata().tolist() == [4, 8, 9] for line in lines)


def test_the_learning_rate_is_the_plan_at_every_step_and_its_label_is_whole():
    drawn = training_curves(
        RECORDS, num_steps=10, num_classes=10, lr_at=lambda update: 0.0001 * update + 1e-7
    )

    (axes,) = drawn["learning_rate"].axes
    assert list(axes.lines[0].get_xdata()) == list(range(1, 11))
    planned = [0.0001 * (step - 1) + 1e-7 for step in range(1, 11)]
    assert list(axes.lines[0].get_ydata()) == pytest.approx(planned)
    for figure in drawn.values():
        assert_labels_fit(figure)


def test_a_long_plan_is_drawn_from_its_first_to_its_last_step_with_few_points():
    (axes,) = training_curves(RECORDS, num_steps=123_457, num_classes=10, lr_at=float)["learning_rate"].axes

    steps = axes.lines[0].get_xdata()
    assert (steps[0], steps[-1]) == (1, 123_457) and len(steps) < 1_100


def test_one_evaluation_is_a_point_with_its_interval_on_an_axis_of_all_steps():
    (axes,) = training_curves(RECORDS, num_steps=10, num_classes=10, lr_at=float)["accuracy"].axes

    assert {line.get_linestyle() for line in axes.lines if len(line.get_xdata()) == 1} <= {"None"}
    low, high = axes.get_ylim()
    assert low < 96 and high >= 100 and high - low >= 10  # the interval of 585 of 600 is 96.2 to 98.7
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 10
    bars = [segment for one in axes.collections for segment in one.get_segments()]
    assert [round(bars[0][end][1], 1) for end in (0, 1)] == pytest.approx([96.2, 98.7], abs=0.21)


def test_of_five_classes_or_fewer_there_is_no_top_5():
    def names(num_classes):
        drawn = training_curves(RECORDS, num_steps=10, num_classes=num_classes, lr_at=float)
        return [text.get_text() for text in drawn["accuracy"].axes[0].get_legend().get_texts()]

    assert names(5) == ["top-1"] and names(6) == ["top-1", "top-5"]


def test_two_values_are_points_and_three_a_curve():
    three = [{**RECORDS[0], "step": step} for step in (1, 2, 3)]

    def style(records):
        return (
            training_curves(records, num_steps=3, num_classes=10, lr_at=float)["loss"]
            .axes[0]
            .lines[0]
            .get_linestyle()
        )

    assert (style(three[:2]), style(three)) == ("None", "-")


def test_a_selection_shows_the_interval_of_each_trial_if_it_is_known():
    choices = [
        {"optimizer.lr": lr, "dev_top1": 0.6, "dev_interval": [0.2, 1.0]} for lr in (0.003, 0.01, 0.03)
    ]

    for trials, span in ((choices, 80), ([{**one, "dev_interval": None} for one in choices], 10)):
        figure = figures.selection_curve(trials, chosen={"optimizer.lr": 0.01})
        low, high = figure.axes[0].get_ylim()
        assert span <= high - low <= 1.2 * span
        assert_labels_fit(figure)


def test_a_selection_shows_every_trial_at_its_value_and_marks_the_chosen_one():
    choices = [
        {"optimizer.lr": lr, "dev_top1": top1} for lr, top1 in ((0.03, 0.5), (0.001, 0.25), (0.01, 0.75))
    ]

    figure = figures.selection_curve(choices, chosen={"optimizer.lr": 0.01})

    assert points_of(figure, 0) == [(0.001, 25), (0.01, 75), (0.03, 50)]
    assert points_of(figure, 1) == [(0.01, 75)] and figure.axes[0].get_xscale() == "log"


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ([97.5, 97.85], (92.675, 102.675)),
        ([50.0], (45.0, 55.0)),
        ([100.0], (90.0, 100.0)),
        ([0.0, 1.0], (0.0, 10.0)),
        ([0.0, 100.0], (0.0, 100.0)),
    ],
)
def test_an_axis_of_accuracies_spans_ten_points_and_stays_between_0_and_100(values, limits):
    low, high = percent_limits(values)
    if limits[1] > 100:
        limits = (limits[0] - limits[1] + 100, 100.0)
    margin = 0.05 * (limits[1] - limits[0])

    assert (low, high) == pytest.approx((limits[0] - margin, limits[1] + margin))
