"""Which results share a cell of a report, and what columns and rows are called."""

import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from vitcli.output.document import Cell, fraction_cell, mark_best
from vitcli.output.text import natural, short_names
from vitcli.report.figures import MAX_POINTS, thinned
from vitcli.report.grouping import Entry, arrange, best_of_their_images, pooled, word

RECIPE = {"optimizer.lr": 0.03, "schedule.steps": 500, "train.seed": 0, "optimizer.momentum": 0.9}


def entry(
    folder: str, mean: float | None = 0.9, row=("pets", "test"), model="ViT-B/16", ckpt="b16", **changed
):
    recipe = RECIPE | {key.replace("__", "."): value for key, value in changed.items()}
    values = () if mean is None else (mean,)
    return Entry(
        row, model, ckpt, recipe, Path(folder), (recipe["train.seed"],), values, mean, resolution=384
    )


def columns(*entries: Entry) -> list[tuple[str, str]]:
    return [(column.name, column.detail) for column in arrange(entries)]


def test_runs_that_differ_in_the_seed_alone_are_one_cell_with_mean_and_sample_deviation():
    shares = [0.91, 0.93, 0.95]
    (column,) = arrange([entry(str(at), one, train__seed=at) for at, one in enumerate(shares)])
    mean, std, count = pooled(column.cells["pets", "test"])

    assert (mean, count) == (pytest.approx(0.93), 3)
    assert std == pytest.approx(statistics.stdev(shares)) == pytest.approx(0.02)  # ddof 1, and not 0.0163


def test_a_run_says_its_own_mean_and_deviation():
    own = Entry(("pets", "test"), "ViT-B/16", "b16", RECIPE, Path("a"), (0, 1), (0.5, 0.6), 0.55, 0.0707)

    assert pooled([own]) == (0.55, 0.0707, 2)


def test_runs_of_one_seed_twice_are_not_repeated_runs():
    assert columns(entry("runs/a"), entry("runs/b")) == [
        ("ViT-B/16", "384 px, in a"),
        ("ViT-B/16", "384 px, in b"),
    ]


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"optimizer__lr": 0.003}, "lr 0.003"),
        ({"schedule__steps": 100}, "100 steps"),
        ({"optimizer__momentum": 0.5}, "momentum 0.5"),
        ({"optimizer__lr": 0.003, "optimizer__momentum": 0.5}, "lr 0.003"),  # no more than is needed
        ({"optimizer__lr": [0.001, 0.003]}, "lr 0.001/0.003"),
        ({"train__seed": 1, "optimizer__lr": 0.003}, "lr 0.003"),
    ],
)
def test_different_recipes_stand_in_columns_of_their_own_named_by_what_differs(changed, name):
    found = columns(entry("a"), entry("b", **changed))

    assert len(found) == 2 and ("ViT-B/16", f"384 px, {name}") in found


def test_a_number_of_runs_reads_well_if_it_is_one():
    assert [word("train.runs", count) for count in ("1", "3")] == ["runs 1", "runs 3"]


def test_a_forecast_changes_no_accuracy_and_divides_no_column():
    runs = [entry(str(seed), train__seed=seed, fewshot__forecast=seed > 0) for seed in (0, 1)]

    assert columns(*runs) == [("ViT-B/16", "384 px")]


def test_recipes_that_never_meet_in_a_cell_share_a_column():
    assert columns(entry("a"), entry("b", row=("cifar10", "test"), optimizer__lr=0.01)) == [
        ("ViT-B/16", "384 px")
    ]


def test_one_model_from_two_checkpoints_is_two_columns_even_on_other_data():
    found = columns(entry("a", ckpt="x/jft.npz"), entry("b", row=("cifar10", "test"), ckpt="x/i21k.npz"))

    assert found == [("ViT-B/16", "from i21k.npz, 384 px"), ("ViT-B/16", "from jft.npz, 384 px")]


def test_a_size_is_that_of_the_pixels_and_a_key_that_is_not_set_has_no_name():
    """Both recipes take the size of their weights, and only one has a momentum."""
    of_weights = [replace(entry(name, data__image_size="weights"), resolution=side)
                  for name, side in (("a", 384), ("b", 224))]  # fmt: skip
    assert sorted(columns(*of_weights)) == [("ViT-B/16", "224 px"), ("ViT-B/16", "384 px")]

    without = entry("b")
    without = replace(without, recipe={k: v for k, v in without.recipe.items() if k != "optimizer.momentum"})
    assert sorted(columns(entry("a"), without)) == [
        ("ViT-B/16", "384 px"),
        ("ViT-B/16", "384 px, momentum 0.9"),
    ]


def test_a_network_that_starts_from_nothing_says_so_beside_one_that_does_not():
    found = columns(entry("a"), entry("b", ckpt=None))

    assert sorted(found) == [("ViT-B/16", "from b16, 384 px"), ("ViT-B/16", "from fresh weights, 384 px")]


def test_a_run_that_goes_on_divides_no_column_and_is_not_counted():
    (column,) = arrange([entry("a", 0.9), entry("b", None, optimizer__lr=0.001)])

    assert pooled(column.cells["pets", "test"]) == (0.9, None, 1)


def test_columns_come_in_the_order_of_the_papers_models():
    found = columns(*(entry(name, model=name) for name in ("ViT-H/14", "ViT-B/16", "mine", "ViT-L/16")))

    assert [name for name, _ in found] == ["ViT-B/16", "ViT-L/16", "ViT-H/14", "mine"]


def test_networks_of_no_known_size_come_in_the_order_that_a_person_counts_in():
    found = columns(*(entry(name, model=name) for name in ("mine 10", "Mine 9", "mine 1")))

    assert [name for name, _ in found] == ["mine 1", "Mine 9", "mine 10"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["/data/pets", "/data/cars"], ["pets", "cars"]),
        (["/a/pets", "/b/pets", "demo"], ["a/pets", "b/pets", "demo"]),
        (["owner/pets"], ["pets"]),
        (["vtab/dtd", "/x/dtd"], ["vtab/dtd", "x/dtd"]),
        (["/x/scored/1", "/x/scored/2"], ["scored/1", "scored/2"]),
        (["/x/runs/cats/evaluation", "/x/runs/cats"], ["cats/evaluation", "cats"]),
        (["/x/cats/evaluation/1", "evaluation"], ["cats/evaluation/1", "evaluation"]),
        (["pets", "/x/pets"], ["pets", "x/pets"]),
        (["/"], ["/"]),
        ([""], ["."]),
    ],
)
def test_names_are_as_short_as_is_unique(names, short):
    assert list(short_names(names).values()) == short


def test_numbers_in_names_are_ordered_as_numbers():
    assert sorted(["L/16", "l/9", "B/32"], key=partial(natural, ignore_case=True)) == ["B/32", "l/9", "L/16"]


def test_a_key_without_a_word_of_its_own_is_shown_by_its_last_part():
    assert [word("optimizer.lr", "0.1"), word("data.flip", "False")] == ["lr 0.1", "flip False"]


@pytest.mark.parametrize(
    ("means", "best"),
    [
        ((0.9, 0.95, None), (False, True, False)),
        ((0.9,), (False,)),  # nothing to compare with
        ((0.95001, 0.95004, 0.9), (True, True, False)),  # 95.00 and 95.00: a reader sees no difference
        ((0.0999, 0.1), (False, True)),  # as numbers: "9.99" comes after "10.00" as text
        ((None, None), (False, False)),
    ],
)
def test_the_best_is_the_highest_mean_of_its_row(means, best):
    cells = mark_best([fraction_cell(mean, 0.5 if mean == 0.9 else None) for mean in means])

    assert tuple(cell.is_best for cell in cells) == best


def test_a_fraction_is_shown_in_percent_and_kept_as_it_is():
    assert fraction_cell(0.95374, 0.00161, count=3) == Cell("95.37 ± 0.16", 0.95374, 0.00161, 3)


@pytest.mark.parametrize("spike_at", [1, 1234, 9_998])
def test_a_long_curve_keeps_its_ends_and_every_spike_among_few_points(spike_at):
    points = tuple((step, 9.0 if step == spike_at else 1.0) for step in range(10_000))

    kept = thinned(points)

    assert len(kept) <= MAX_POINTS and kept[0] == points[0] and kept[-1] == points[-1]
    assert points[spike_at] in kept and list(kept) == sorted(kept)
    assert thinned(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_every_run_of_pooled_cells_counts_once():
    of_two = Entry(("pets", "test"), "ViT-B/16", "b16", RECIPE, Path("a"), (0, 1), (0.8, 0.9), 0.85, 0.07)
    of_one = Entry(("pets", "test"), "ViT-B/16", "b16", RECIPE, Path("b"), (2,), (), 0.7)

    mean, std, count = pooled([of_two, of_one])
    assert (mean, std, count) == (pytest.approx(0.8), pytest.approx(0.1), 3)


def test_the_smallest_error_is_that_of_a_run_whose_start_had_not_seen_the_images():
    def best(*errors: tuple) -> set[int]:
        """The places of the best of errors, images seen before, numbers and splits."""
        records = []
        for number, (mae, num_seen, *more) in enumerate(errors):
            target, split = [*more, *("age", "test")[len(more) :]]
            summary = SimpleNamespace(target=target, split=split, num_held_out_seen=num_seen, mae=mae)
            records.append(SimpleNamespace(path=number, summary=summary, dataset="faces", images="the same"))
        return best_of_their_images(records, SimpleNamespace(data=str), "mae")

    assert best((3.0, 0), (1.0, 7), (2.0, 0)) == {2}
    assert best((3.0, 0), (1.0, 7)) == set()
    # Only errors of one number on the same images are compared, as they are shown.
    others = [(30.0, 0, "weight"), (40.0, 0, "weight"), (0.1, 0, "age", "dev")]
    assert best((3.0, 0), (2.0, 0), *others) == {1, 2}
    assert best((2.00001, 0), (2.0, 0), (2.1, 0)) == {0, 1}
