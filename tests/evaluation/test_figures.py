"""Figures of an evaluation keep their shape, and their labels on the paper, whatever the counts."""

import numpy as np
import pytest

from tests.figures import assert_labels_fit, points_of
from vitcli.evaluation import figures
from vitcli.evaluation.predictions import Reliability, reliability


@pytest.mark.parametrize(("count", "confidence"), [(60, 0.2), (60, 0.97), (3000, 0.2)])
def test_a_reliability_diagram_keeps_its_shape_however_few_examples_a_bin_has(count, confidence):
    rng = np.random.default_rng(0)
    confidences = rng.uniform(confidence, 1, count)

    figure = figures.reliability_diagram(reliability(confidences, rng.uniform(size=count) < 0.5), title="t")

    upper, lower = assert_labels_fit(figure)
    assert upper.height > 0.45 and 3.5 > upper.height / lower.height > 2.5
    assert upper.y0 - lower.y1 < 0.1  # no white gap between the two


def test_bars_are_accuracies_points_are_at_mean_confidences_and_counts_stand_below():
    edges = np.array([0, 0.25, 0.5, 0.75, 1])
    bins = Reliability(
        edges, np.array([0, 20, 4, 40]), np.array([0, 0.4, 0.7, 0.9]), np.array([0, 0.3, 1, 0.8])
    )
    calibrated = Reliability(
        edges, np.array([0, 30, 0, 34]), np.array([0, 0.3, 0, 0.8]), np.array([0, 0.2, 0, 1])
    )

    figure = figures.reliability_diagram(bins, title="t", calibrated=calibrated)

    upper, lower = figure.axes
    many, few = (
        [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in bars] for bars in upper.containers
    )
    assert many == [pytest.approx((37.5, 30)), pytest.approx((87.5, 80))] and few == [
        pytest.approx((62.5, 100))
    ]
    assert points_of(figure, 0) == [pytest.approx((40, 30)), pytest.approx((90, 80))]
    assert points_of(figure, 1) == [pytest.approx((30, 20)), pytest.approx((80, 100))]
    assert points_of(figure, 2) == [(0, 0), (100, 100)]
    assert [bar.get_height() for bar in lower.patches] == [0, 20, 4, 40]


def test_predicted_numbers_stand_above_the_true_ones():
    figure = figures.predicted_numbers(np.array([1.0, 5.0, 2.0]), np.array([3.0, 4.0, 0.0]), name="age")

    assert points_of(figure, 1) == [(1, 3), (5, 4), (2, 0)]
    (low, _), (high, _) = points_of(figure, 0)
    assert low < 0 and high > 5 and figure.axes[0].get_ylabel() == "age, predicted"


def test_a_confusion_matrix_has_labels_in_rows_in_percent_of_their_examples():
    labels_P, predicted_P, counts_P = np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([3, 1, 5])

    figure = figures.confusion_matrix(labels_P, predicted_P, counts_P, ("a", "b"))

    (image,) = figure.axes[0].images
    assert image.get_array().tolist() == [[75, 25], [100, 0]]
    written = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert written == {(0, 0): "75", (1, 0): "25", (0, 1): "100"}


def test_of_few_examples_there_is_no_reliability_diagram():
    bins = reliability(np.full(49, 0.5), np.ones(49, dtype=bool))

    assert figures.reliability_diagram(bins, title="t") is None


def test_accuracies_by_resolution_have_intervals_on_an_axis_of_a_sensible_span():
    accuracies = {"top1": [0.975, 0.9785, 1.0], "top5": [1.0, 1.0, 1.0]}

    figure = figures.resolution_curve([64, 96, 128], **accuracies, trained_side=96, num_examples=600)

    (axes,) = figure.axes
    assert points_of(figure, 1) == [(64, 97.5), (96, pytest.approx(97.85)), (128, 100)]
    assert {x for x, _ in points_of(figure, 2)} == {96}
    low, high = axes.get_ylim()
    assert 9.9 < high - low < 12 and high > 100
    bars = [segment for one in axes.collections for segment in one.get_segments()]
    assert len(bars) == 6 and all(bar[0][1] <= bar[1][1] <= 100 for bar in bars)
    assert bars[3][0][1] == pytest.approx(96.2, abs=0.2)  # of 585 right of 600
    assert_labels_fit(figure)

    # Of five classes or fewer top-5 says nothing: there is no line of it.
    (axes,) = figures.resolution_curve([64, 96], [0.5, 0.6], None, trained_side=96, num_examples=600).axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["training resolution", "top-1"]


def test_class_names_stand_in_a_confusion_matrix_as_they_do_in_tables():
    names = ("Löwenzahn_é", "a_$x_1$", "n01440764_tench")

    figure = figures.confusion_matrix(np.array([0, 1]), np.array([0, 2]), np.array([3, 1]), names)

    for labels in (figure.axes[0].get_xticklabels(), figure.axes[0].get_yticklabels()):
        assert [label.get_text() for label in labels] == ["Löwenzahn_é", "a_$x_1$", "tench"]
        assert not any(label.get_parse_math() for label in labels)


def test_a_mistake_has_the_end_of_its_file_name_and_strange_letters_do_no_harm():
    mistakes = [
        {
            "place": "my photos/a/" + "x" * 40 + "_0001.jpg",
            "predicted": "$a",
            "label": "b",
            "probability": 0.9,
        },
        {"place": "row 7 of flowers $x^$\x1b", "predicted": "a", "label": "b", "probability": 0.8},
    ]

    images = [np.full((32, 48, 3), grey, np.uint8) for grey in (7, 9)]
    figure = figures.mistakes_grid(images, mistakes)

    assert [axes.images[0].get_array().flat[0] for axes in figure.axes[:2]] == [7, 9]
    titles = [axes.get_title(loc="left") for axes in figure.axes[:2]]
    assert titles == ["predicted: $a, 90%\nlabel: b", "predicted: a, 80%\nlabel: b"]
    first, second = ([text.get_text() for text in axes.texts] for axes in figure.axes[:2])
    assert first == ["…" + "x" * 20 + "_0001.jpg"] and second == ["row 7 of flowers $x^$?"]
    assert_labels_fit(figure)
