"""What --assert takes, what it refuses before any work, and what does not hold."""

import re

import pytest

from vitcli.data.task import Task
from vitcli.errors import CheckFailed, VitError
from vitcli.evaluation import assertions

KEYS = ("top1", "top5", "loss", "num_eval_examples")
RESULT = {"top1": 0.92, "top5": 0.99, "loss": 0.3, "num_eval_examples": 100, "real_top1": None}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("top1>=0.92", True),
        ("top1>0.92", False),
        ("top1<=0.92", True),
        ("top1<0.92", False),
        (" top1 == 0.92 ", True),
        ("num_eval_examples==100", True),
        ("num_eval_examples==99", False),
        ("loss<1e-1", False),
        ("top5>.98", True),
    ],
)
def test_each_relation_means_what_it_says(text, holds):
    assertion = assertions.parse(text, keys=KEYS)

    assert assertion.holds(RESULT) is holds


@pytest.mark.parametrize(
    "text", ["", "top1", "top1=0.9", "top1>=", ">=0.9", "top1=>0.9", "0.9<=top1<=1", "top1!=1"]
)
def test_what_is_no_assertion_is_refused_with_the_form(text):
    with pytest.raises(VitError, match="is not an assertion") as told:
        assertions.parse(text, keys=KEYS)

    assert told.value.exit_code == 2 and "top1>=0.92" in told.value.fix


@pytest.mark.parametrize("text", ["top1>=high", "top1>=nan", "top1>=inf", "top1>=9x%"])
def test_a_bound_that_is_no_number_is_refused(text):
    with pytest.raises(VitError, match="is not a finite number"):
        assertions.parse(text, keys=KEYS)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("top1>=90", "top1>=0.9?"),
        ("top5<97.5", "top5<0.975?"),
        ("top1>=1.01", "top1>=0.0101?"),
        ("top1>=920", "top1>=0.9?"),
        ("top1>=-1", "top1>=0.9?"),
        ("top1>=92%", "top1>=0.92?"),
    ],
)
def test_a_bound_in_percent_is_refused_at_once(text, meant):
    with pytest.raises(VitError, match=f"top. is a fraction: {re.escape(meant)}"):
        assertions.parse(text, keys=KEYS)


def test_bounds_of_other_numbers_may_be_above_one():
    for text in ("top1<=1", "top1>=0", "loss<90", "num_eval_examples>90"):
        assertions.parse(text, keys=KEYS)


def test_a_mistyped_key_is_refused_with_the_nearest():
    with pytest.raises(VitError, match="did you mean 'top1'"):
        assertions.parse("top_1>=0.9", keys=KEYS)


@pytest.mark.parametrize(
    ("task", "key", "says"),
    [
        (
            Task.ONE_CLASS,
            "mean_ap",
            "each image has one label, the name of a class, so the result has no mean_ap",
        ),
        (Task.MULTILABEL, "f1_macro", "these images have several labels each, so the result has no f1_macro"),
        (Task.NUMBER, "top1", "these weights predict a number and no classes, so the result has no top1"),
    ],
)
def test_a_key_of_other_labels_is_refused_before_the_pass(task, key, says):
    other, mine = (assertions.parse(f"{key}>=0.9", keys=(key,)) for key in (key, "num_eval_examples"))
    assertions.check_apply([mine], task)

    with pytest.raises(VitError) as refused:
        assertions.check_apply([mine, other], task)
    assert (refused.value.message, refused.value.exit_code) == (says, 2)
    assert key not in re.findall(r"\w+", refused.value.fix)


def test_keys_of_some_labels_alone_are_offered_with_that():
    with pytest.raises(VitError) as told:
        assertions.parse("acc>=0.9", keys=assertions.NUMBERS + assertions.OF_NUMBERS)

    first, *others = told.value.fix.split("; ")
    assert first.startswith("one of top1, top5") and "mean_ap" not in first and "mae" not in first
    assert others[:2] == [
        "multilabel also mean_ap, f1_at_thresholds",
        "of numbers mae, rmse, r2, mae_of_mean",
    ]


def test_real_top1_is_only_known_where_real_labels_are():
    with pytest.raises(VitError) as told:
        assertions.parse("real_top1>=0.9", keys=KEYS)

    assert "--real" in told.value.fix


def test_no_assertion_about_a_missing_number_holds():
    assertion = assertions.parse("real_top1<1", keys=("real_top1",))

    assert not assertion.holds(RESULT)
    assert "null" in assertions.failed([assertion], [("x", RESULT)]).message


def test_the_error_names_the_value_the_bound_and_which_result():
    several = [assertions.parse(text, keys=KEYS) for text in ("top1>=0.9", "loss<0.1")]
    worse = RESULT | {"top1": 0.5, "loss": 0.05}

    error = assertions.failed(several, [("A on data", RESULT), ("B on data", worse)])

    assert isinstance(error, CheckFailed) and error.exit_code == 8
    assert error.message == "top1 is 0.5, so top1>=0.9 does not hold; 1 more do not hold"
    assert "B on data" in error.where
    assert len(str(error).splitlines()) == 3


def test_no_error_where_all_holds():
    assert assertions.failed([assertions.parse("top1>0", keys=KEYS)], [("A", RESULT)]) is None


def test_too_few_images_are_not_the_fault_of_the_weights():
    few = assertions.parse("num_eval_examples>=50", keys=KEYS)

    fix = assertions.failed([few], [("A", RESULT | {"num_eval_examples": 5})]).fix
    assert "score other images" in fix and "weights" not in fix
