"""Which average is delivered: the greedy soup and the paired test, by tables of right and wrong answers."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binomtest

from vitcli.errors import DataError, VitError
from vitcli.evaluation.intervals import paired_interval
from vitcli.training.many_runs import average, average_inputs
from vitcli.training.many_runs.average import (
    Candidate,
    DevScore,
    best_candidate,
    best_run,
    greedy_members,
    paired_test,
)


def score_of(num_right: int, loss: float = 1.0, num_examples: int = 100, first: int = 0) -> DevScore:
    is_right_N = np.zeros(num_examples, bool)
    is_right_N[first : first + num_right] = True
    return DevScore(is_right_N, loss)


def test_the_best_run_has_the_highest_accuracy_then_the_smaller_loss():
    assert best_run([score_of(80), score_of(90, 1.0), score_of(90, 0.5), score_of(90, 0.5)]) == 2


def test_the_greedy_soup_adds_a_run_if_the_accuracy_does_not_fall():
    """Runs of 70, 90, 80 right; the soup of the best two is better, with the third it is worse."""
    soups = {(1, 2): score_of(91), (0, 1, 2): score_of(85), (0, 1): score_of(99)}
    asked = []

    def of_mean(members):
        asked.append(members)
        return soups[members]

    members, score = greedy_members([score_of(70), score_of(90), score_of(80)], of_mean)

    assert (members, score.num_right) == ((1, 2), 91)
    assert asked == [(1, 2), (0, 1, 2)]
    equal, _ = greedy_members([score_of(70), score_of(90)], lambda members: score_of(90))
    alone, _ = greedy_members([score_of(70), score_of(90)], lambda members: score_of(89))
    assert (equal, alone) == ((0, 1), (1,))


def test_an_average_below_the_mean_of_its_runs_is_not_accepted():
    runs = [score_of(80), score_of(81)]

    assert not paired_test(score_of(80), runs)["accepted"]
    assert paired_test(score_of(81), runs)["accepted"]


def test_an_average_that_is_clearly_worse_than_the_best_run_is_not_accepted():
    runs = [score_of(90), score_of(10), score_of(10)]
    worse, close = paired_test(score_of(80), runs), paired_test(score_of(86), runs)

    assert not worse["accepted"] and close["accepted"]
    for test, lost in ((worse, 10), (close, 4)):
        assert test["mcnemar_p"] == pytest.approx(binomtest(0, lost).pvalue)
        assert test["difference_to_best"] == -lost / 100
        assert test["interval"] == list(paired_interval(lost, 0, 100)) and test["interval"][1] <= 0
    # Of six tosses of a coin all on one side have a p of 0.03, of five of 0.06.
    assert [paired_test(score_of(90 - lost), runs)["accepted"] for lost in (5, 6)] == [True, False]
    better = paired_test(score_of(100, first=0), runs)
    assert better["accepted"] and better["difference_to_best"] == 0.1


def test_of_several_averages_the_best_on_the_dev_part_is_taken():
    candidates = [
        Candidate("uniform", (0, 1), score_of(90, 0.5)),
        Candidate("greedy", (0,), score_of(90, 0.4)),
        Candidate("uniform", (0, 1), score_of(89, 0.1)),
    ]

    assert best_candidate(candidates).method == "greedy"
    assert best_candidate([Candidate("uniform", (0, 1))]).score is None
    assert [[candidate.weight(number) for number in (0, 1)] for candidate in candidates[:2]] == [
        [0.5, 0.5],
        [1.0, 0.0],
    ]


@pytest.mark.parametrize("inner", ["", "runs"])
def test_runs_come_in_the_order_of_their_seeds(tmp_path, inner):
    for seed in (10, 9, 100):
        (tmp_path / inner / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / inner / f"seed-{seed}" / "recipe.toml").touch()

    assert [path.name for path in average_inputs._runs_at(tmp_path)] == ["seed-9", "seed-10", "seed-100"]


def test_an_average_was_trained_on_what_any_of_its_runs_was():
    parts = [np.array(digests, dtype=np.uint64) for digests in ([5, 2], [2, 9], [7])]
    runs = [SimpleNamespace(seen=SimpleNamespace(trained_on=part)) for part in parts]

    assert average_inputs.trained_on(runs).tolist() == [2, 5, 7, 9]
    unknown = SimpleNamespace(seen=SimpleNamespace(trained_on=None))
    assert average_inputs.trained_on([*runs, unknown]) is None


def test_images_that_runs_report_on_choose_no_average():
    runs = [SimpleNamespace(summary={"eval_fingerprint": name}) for name in ("abc", "def")]
    dev = SimpleNamespace(name="dev", fingerprint="def")

    with pytest.raises(DataError, match="the runs report on these images"):
        average_inputs.usable_dev(dev, runs, is_held_out=False)


def test_a_folder_of_another_request_is_no_average_of_this_one(tmp_path):
    (tmp_path / "average.json").write_text('{"asked": {"method": "uniform", "runs": ["a", "b"]}}')

    with pytest.raises(VitError, match="another average"):
        average.finished(tmp_path, {"method": "greedy", "runs": ["a", "b"]})
    assert average.finished(tmp_path, {"method": "uniform", "runs": ["a", "b"]}) is None  # not finished
    assert average.finished(tmp_path, {"method": "greedy"}, overwrite=True) is None
