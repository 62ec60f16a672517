"""The recipe "auto": which of its three a data set gets, and what a line says of it."""

import pytest

from tests.conftest import run
from vitcli import recipe as recipes
from vitcli.errors import VitError
from vitcli.recipe import auto

GIVEN = {"data.dataset": "./photos", "model.ckpt": "demo"}


@pytest.mark.parametrize(
    ("counts", "size", "line"),
    [
        ([5] * 17, "few", "5 images per class;"),
        ([10, 10, 10], "few", "10 images per class;"),
        ([11, 10, 12], "some", "10 to 12 images per class;"),
        ([37, 10, 5, 2, 0], "few", "2 to 37 images per class, unevenly;"),
        ([15, 8, 5], "few", "5 to 15 images per class;"),  # three times as many
        ([5, 4, 300], "few", "4 to 300 images per class, unevenly;"),
        ([500] * 10, "some", "500 images per class;"),
        ([501] * 10, "many", "501 images per class;"),
        ([1300] * 900 + [732] * 100, "many", "732 to 1,300 images per class;"),
        ([1, 1], "few", "1 image per class;"),
        ([], "few", "0 images per class;"),
    ],
)
def test_the_images_of_a_class_choose(counts, size, line):
    loaded = recipes.load("auto", (), GIVEN)

    chosen = auto.choose(loaded, counts)

    head = {} if max(counts, default=0) > 1 else {"model.head": "zero"}
    assert recipes.flat(chosen) == recipes.flat(recipes.load(f"modern/finetune-{size}", (), GIVEN)) | head
    assert chosen.notes[-1].startswith(f"recipe modern/finetune-{size}: {line}")
    assert not chosen.by_size


def test_options_hold_for_each_and_their_mistakes_are_reported_first():
    loaded = recipes.load("auto", ["optimizer.lr=3e-5"], GIVEN | {"schedule.epochs": 2.0})

    assert {r.optimizer.lr for r in loaded.by_size.values()} == {3e-5}
    assert {r.schedule.epochs for r in loaded.by_size.values()} == {2.0}
    with pytest.raises(VitError, match="lrr"):
        recipes.load("auto", ["optimizer.lrr=1"], GIVEN)


@pytest.mark.parametrize(
    ("counts", "several", "head"), [([1, 1], False, "zero"), ([2, 1], False, "refit"), ([9, 9], True, "zero")]
)
def test_without_a_closed_form_the_head_starts_at_zero(counts, several, head):
    loaded = recipes.load("auto", (), GIVEN)

    assert auto.choose(loaded, counts, is_multilabel=several).model.head == head


def test_classes_that_are_not_counted_have_no_weights():
    loaded = recipes.load("auto", (), GIVEN)

    assert auto.choose(loaded, [9, 3]).objective.class_weights == "sqrt"
    assert auto.choose(loaded, [9], is_large=True).objective.class_weights == "none"


def test_what_an_option_sets_is_not_changed_but_refused_where_it_cannot_hold():
    overrides = ["model.head=probe", "objective.class_weights=balanced"]
    chosen = auto.choose(recipes.load("auto", overrides, GIVEN), [9], is_multilabel=True, is_large=True)

    assert (chosen.model.head, chosen.objective.class_weights) == ("probe", "balanced")


def test_one_balance_of_classes_replaces_that_of_a_file():
    drawn = recipes.load("modern/finetune-some", ["data.sampling=balanced"], GIVEN)
    both = recipes.load("modern/finetune-some", ["data.sampling=sqrt"], GIVEN)

    assert (drawn.data.sampling, drawn.objective.class_weights) == ("balanced", "none")
    assert (both.data.sampling, both.objective.class_weights) == ("sqrt", "sqrt")


def test_what_a_loss_has_no_use_for_falls_away():
    numbers = recipes.load("auto", ["objective.loss=regression"], GIVEN)
    several = recipes.load("auto", ["objective.loss=sigmoid"], GIVEN)

    assert {r.model.head for r in numbers.by_size.values()} == {"zero"}
    assert {r.objective.class_weights for r in several.by_size.values()} == {"none"}


def test_data_of_no_known_name_get_it_and_those_of_the_paper_do_not():
    assert recipes.default_for_dataset("finetune", "./photos") == "auto"
    assert recipes.default_for_dataset("finetune", "cifar10") == "finetune/cifar10"
    assert recipes.default_for_dataset("finetune", "vtab/dtd") == "finetune/vtab"
    assert recipes.default_for_dataset("pretrain", "./photos") == "pretrain/default"
    assert not recipes.load("finetune/default", (), GIVEN).by_size


def test_a_run_says_which_it_took_and_resumes_with_it(photos, tmp_path):
    words = (
        "finetune",
        "--ckpt",
        "demo",
        "--dataset",
        photos,
        "--steps",
        "1",
        "--json",
        "--out",
        tmp_path / "run",
    )

    first, again = run(*words), run(*words)

    assert ", by modern/finetune-some, into " in first.err
    assert again.code == 0 and first.json == again.json
