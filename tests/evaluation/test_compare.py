"""`vit compare` on files made by hand: counts, interval, p-value, classes, and refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import run
from tests.evaluation.test_predictions import of_logits
from vitcli.evaluation.compare import compare
from vitcli.evaluation.intervals import mcnemar
from vitcli.evaluation.predictions import write_predictions

NAMES = ["cat", "dog", "owl"]


def saved(
    folder, name: str, labels: list[int], guesses: list[int], *, names=NAMES, rows=None, places=None, **more
) -> str:
    path = str(folder / f"{name}.parquet")
    found = of_logits(torch.eye(3)[guesses], torch.tensor(labels))
    rows = np.arange(len(labels)) if rows is None else rows
    about = {"ckpt": name, "class_names": names, "eval_split": "test", **more}
    write_predictions(path, found, rows, places or [""] * len(labels), about)
    return path


@pytest.fixture
def pair(tmp_path) -> tuple[str, str]:
    """Of 12 pictures A has 6 right, B 8: 5 both, A alone 1, B alone 3, neither 3."""
    labels = [0] * 4 + [1] * 4 + [2] * 4
    a = saved(tmp_path, "a", labels, [0, 0, 0, 1, 1, 1, 0, 0, 2, 0, 0, 0])
    b = saved(tmp_path, "b", labels, [0, 0, 0, 1, 1, 0, 1, 1, 2, 2, 0, 0])
    return a, b


def test_the_counts_are_those_of_the_images(pair):
    result = run("compare", *pair, "--json").json

    assert result["counts"] == {"both": 5, "only_a": 1, "only_b": 3, "neither": 3}
    assert (result["a"]["top1"], result["b"]["top1"]) == (6 / 12, 8 / 12)
    assert result["difference"] == pytest.approx(2 / 12)
    assert result["interval"][0] < 2 / 12 < result["interval"][1]
    assert result["mcnemar_p"] == mcnemar(1, 3) == pytest.approx(2 * 5 / 16)
    assert result["num_examples"] == 12


def test_the_classes_that_changed_most_come_first(pair):
    changes = run("compare", *pair, "--json").json["per_class"]

    assert [(one["class"], one["difference"]) for one in changes] == [("dog", 0.25), ("owl", 0.25)]


def test_losses_and_gains_are_sorted_by_size_and_equal_ones_by_the_images_of_the_class(tmp_path):
    """Of cat all four are lost, of dog and owl a half is gained and lost; bat has no image."""
    labels = [0] * 4 + [1] * 2 + [2] * 4
    names = ["cat", "dog", "owl", "bat"]
    a = saved(tmp_path, "a", labels, [0] * 4 + [1, 0] + [2, 2, 1, 1], names=names)
    b = saved(tmp_path, "b", labels, [1] * 4 + [1, 1] + [1] * 4, names=names)

    changes = compare(a, b)["per_class"]

    assert [tuple(change.values()) for change in changes] == [
        ("cat", 4, 1.0, 0.0, -1.0),
        ("owl", 4, 0.5, 0.0, -0.5),
        ("dog", 2, 0.5, 1.0, 0.5),
    ]


def test_swapping_the_files_swaps_the_sign_alone(pair):
    there, back = run("compare", *pair, "--json").json, run("compare", *pair[::-1], "--json").json

    assert back["difference"] == -there["difference"] and back["mcnemar_p"] == there["mcnemar_p"]


def test_a_network_does_not_differ_from_itself(pair):
    result = run("compare", pair[0], pair[0], "--json").json

    assert (result["difference"], result["interval"], result["mcnemar_p"]) == (0, [0, 0], 1)
    assert result["per_class"] == []


def test_the_text_says_whether_the_difference_is_significant(pair, tmp_path):
    text = run("compare", *pair).out
    labels = [0] * 40
    better = [saved(tmp_path, name, labels, guesses) for name, guesses in (("c", [1] * 40), ("d", [0] * 40))]

    assert "no significant difference" in text and "+16.67 points" in text and "dog" in text
    assert "B is significantly better" in run("compare", *better).out


def test_files_about_other_rows_labels_or_classes_are_refused(pair, tmp_path):
    labels = [0] * 4 + [1] * 4 + [2] * 4
    others = {
        "different rows: 2 are only in the first": saved(tmp_path, "rows", labels[:10], labels[:10]),
        "different labels in 1 rows, first in row 11": saved(tmp_path, "labels", [*labels[:11], 0], labels),
        "different classes": saved(tmp_path, "names", labels, labels, names=["a", "b", "c"]),
    }

    for match, other in others.items():
        outcome = run("compare", pair[0], other)
        assert outcome.code == 3 and match in outcome.err, match
        assert len(outcome.err.splitlines()) == 3


def test_different_data_sets_are_named_whatever_their_cuts(pair, tmp_path):
    labels, cut = [0, 1, 2], {"dataset": "data/cats", "dev_cut": {"split": "train"}}
    cats = saved(tmp_path, "cats", labels, labels, **cut)
    dogs = saved(tmp_path, "dogs", [*labels, 0], [*labels, 0], **cut | {"dataset": "data/dogs"})
    moved = saved(tmp_path, "moved", [*labels, 0], [*labels, 0], **cut | {"dataset": "elsewhere/cats"})

    assert "of different data sets, data/cats and data/dogs" in run("compare", cats, dogs).err
    assert "--split train scores all" in run("compare", cats, moved).err


def test_a_score_on_test_and_one_on_a_dev_part_of_train_are_compared_on_test(tmp_path):
    dev = saved(tmp_path, "dev", [0, 1, 2], [0, 1, 2], dev_cut={"split": "train"})
    test = saved(tmp_path, "test", [0, 1], [0, 1], eval_split="pets, split test", dev_cut=None)

    assert (
        "images that neither run was trained on: vit evaluate --ckpt A --ckpt B --out BOTH --split test; "
        "then vit compare BOTH/1 BOTH/2" in run("compare", test, dev).err
    )


def test_advice_about_scores_of_folds_can_be_typed(tmp_path):
    dev = saved(tmp_path, "dev", [0, 1], [0, 1], dev_cut={"split": "train"})
    folds = saved(
        tmp_path, "folds", [0, 1, 2], [0, 1, 2], eval_split="pets, split train, 5 folds", dev_cut=None
    )

    advice = run("compare", folds, dev).err
    assert "--split train scores all of the data set with both" in advice and "5 folds" not in advice


def test_slices_of_one_split_are_other_images_though_their_rows_and_labels_agree(pair, tmp_path):
    labels = [0] * 4 + [1] * 4 + [2] * 4
    first, second = (
        saved(tmp_path, name, labels, labels, places=[f"/{name}/pets, split test, row {row}" for row in rows])
        for name, rows in (("here", range(12)), ("moved", range(12, 24)))
    )
    moved = saved(
        tmp_path, "m", labels, labels, places=[f"/m/pets, split test, row {row}" for row in range(12)]
    )

    refused = run("compare", first, second)
    assert refused.code == 3 and "different images in 12 of 12 rows" in refused.err
    assert len(refused.err.splitlines()) == 3
    assert run("compare", first, moved).code == 0


def test_two_scores_of_other_resamplings_have_the_interval_of_their_pairs(pair):
    from vitcli.evaluation.intervals import paired_interval

    assert tuple(run("compare", *pair, "--json").json["interval"]) == paired_interval(1, 3, 12)


def test_the_folder_of_an_evaluation_or_a_run_stands_for_the_file_in_it(pair, tmp_path):
    for name, file in zip("ab", pair, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "predictions.parquet").write_bytes(Path(file).read_bytes())
    (tmp_path / "empty").mkdir()

    by_folder = run("compare", tmp_path / "a", f"{tmp_path / 'b'}/", "--json").json
    refused = run("compare", tmp_path / "a", tmp_path / "empty")

    assert by_folder["counts"] == run("compare", *pair, "--json").json["counts"]
    assert refused.code == 3 and f"{tmp_path / 'empty'} has no predictions" in refused.err
    assert "evaluate with --out" in refused.err


def test_no_difference_at_all_is_said_so(pair):
    assert "p = 1, both are right on the same images" in run("compare", pair[0], pair[0]).out
