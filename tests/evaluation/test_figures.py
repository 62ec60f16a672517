"""Figures of an evaluation keep their shape, and their labels on the paper, whatever the counts."""

import numpy as np
import pytest

from tests.figures import assert_labels_fit
from vitcli.evaluation import figures
from vitcli.evaluation.statistics import reliability


@pytest.mark.parametrize(("count", "confidence"), [(60, 0.2), (60, 0.97), (3000, 0.2)])
def test_a_reliability_diagram_keeps_its_shape_however_few_examples_a_bin_has(count, confidence):
    rng = np.random.default_rng(0)
    confidences = rng.uniform(confidence, 1, count)

    figure = figures.reliability_diagram(reliability(confidences, rng.uniform(size=count) < 0.5), title="t")

    upper, lower = assert_labels_fit(figure)
    assert upper.height > 0.45 and 3.5 > upper.height / lower.height > 2.5
    assert upper.y0 - lower.y1 < 0.1  # no white gap between the two


def test_of_few_examples_there_is_no_reliability_diagram():
    bins = reliability(np.full(49, 0.5), np.ones(49, dtype=bool))

    assert figures.reliability_diagram(bins, title="t") is None


def test_accuracies_by_resolution_have_intervals_on_an_axis_of_a_sensible_span():
    accuracies = {"top1": [0.975, 0.9785, 1.0], "top5": [1.0, 1.0, 1.0]}

    figure = figures.resolution_curve([64, 96, 128], **accuracies, trained_side=96, num_examples=600)

    (axes,) = figure.axes
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

    figure = figures.mistakes_grid([np.zeros((32, 48, 3), np.uint8)] * 2, mistakes)

    first, second = ([text.get_text() for text in axes.texts] for axes in figure.axes[:2])
    assert first == ["…" + "x" * 20 + "_0001.jpg"] and second == ["row 7 of flowers $x^$?"]
    assert_labels_fit(figure)
