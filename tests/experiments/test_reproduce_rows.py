"""The paper's tables 2 and 5, typed in once more; the rows made of them; when one is reproduced."""

from math import sqrt

import pytest

from vitcli import recipe
from vitcli.errors import VitError
from vitcli.experiments import reproduce_rows
from vitcli.experiments.reproduce import resolve
from vitcli.experiments.reproduce_rows import failure, find_row, judge, read_rows, rows_of

# Table 2: mean and deviation of ImageNet, ReaL, CIFAR-10, CIFAR-100, Pets, Flowers, VTAB.
TABLE_2 = {
    "h14-jft": "88.55±0.04 90.72±0.05 99.50±0.06 94.55±0.04 97.56±0.03 99.68±0.02 77.63±0.23",
    "l16-jft": "87.76±0.03 90.54±0.03 99.42±0.03 93.90±0.05 97.32±0.11 99.74±0.00 76.28±0.46",
    "l16-in21k": "85.30±0.02 88.62±0.05 99.15±0.03 93.25±0.05 94.67±0.15 99.61±0.02 72.72±0.21",
    "bit-l": "87.54±0.02 90.54 99.37±0.06 93.51±0.08 96.62±0.23 99.63±0.03 76.29±1.70",
    "noisy-student": "88.4 90.55",
}
TASKS_2 = ("imagenet", "imagenet-real", "cifar10", "cifar100", "pets", "flowers102", "vtab")
# Table 5: B/16, B/32, L/16, L/32, H/14 by pre-training set and task.
NETWORKS = ("b16", "b32", "l16", "l32", "h14")
TABLE_5 = {
    "imagenet": {
        "cifar10": "98.13 97.77 97.86 97.94",
        "cifar100": "87.13 86.31 86.35 87.07",
        "imagenet": "77.91 73.38 76.53 71.16",
        "imagenet-real": "83.57 79.56 82.19 77.83",
        "flowers102": "89.49 85.43 89.66 86.36",
        "pets": "93.81 92.04 93.64 91.35",
    },
    "in21k": {
        "cifar10": "98.95 98.79 99.16 99.13 99.27",
        "cifar100": "91.67 91.97 93.44 93.04 93.82",
        "imagenet": "83.97 81.28 85.15 80.99 85.13",
        "imagenet-real": "88.35 86.63 88.40 85.65 88.70",
        "flowers102": "99.38 99.11 99.61 99.19 99.51",
        "pets": "94.43 93.02 94.73 93.09 94.82",
    },
    "jft": {
        "cifar10": "99.00 98.61 99.38 99.19 99.50",
        "cifar100": "91.87 90.49 94.04 92.52 94.55",
        "imagenet": "84.15 80.73 87.12 84.37 88.04",
        "imagenet-real": "88.85 86.27 89.99 88.28 90.33",
        "flowers102": "99.56 99.27 99.56 99.45 99.68",
        "pets": "95.80 93.40 97.11 95.83 97.56",
    },
}
# paper.md, 3.1 and 5.1, and the task_adaptation repository.
TEST_SETS = {
    "imagenet": 50_000,
    "imagenet-real": 46_837,
    "cifar10": 10_000,
    "cifar100": 10_000,
    "pets": 3_669,
    "flowers102": 6_149,
}
ROWS = read_rows(None)
KNOWN = rows_of(ROWS)
PUBLIC = [name for name, row in KNOWN.items() if not row.unreleased]


def published() -> dict[str, tuple[float, float | None]]:
    """Percent by row, as typed above."""
    found = {}
    for column, text in TABLE_2.items():
        for task, number in zip(TASKS_2, text.split(), strict=False):
            mean, _, std = number.partition("±")
            found[f"table2/{column}/{task}"] = (float(mean), float(std) if std else None)
    for data, tasks in TABLE_5.items():
        for task, text in tasks.items():
            for network, number in zip(NETWORKS, text.split(), strict=False):
                found[f"table5/{network}-{data}/{task}"] = (float(number), None)
    for task in ("imagenet", "cifar10", "cifar100", "pets", "flowers102"):
        found[f"table4/{task}"] = found[f"table5/b16-in21k/{task}"]
    return found


def test_every_value_of_both_tables_is_the_papers():
    ours = {
        name: (round(100 * row.published, 6), None if row.published_std is None else 100 * row.published_std)
        for name, row in KNOWN.items()
    }

    assert ours == {name: (mean, pytest.approx(std)) for name, (mean, std) in published().items()}
    assert len(ours) == 7 * 4 + 2 + 6 * 14 + 5


def test_test_sets_have_the_papers_sizes():
    sizes = {name.rpartition("/")[2]: row.test_examples for name, row in KNOWN.items()}

    assert sizes == {**TEST_SETS, "vtab": None}


@pytest.mark.parametrize(
    "name", [name for name in KNOWN if name.endswith(("imagenet", "in21k/vtab", "/pets"))]
)
def test_rows_have_the_protocol_of_the_paper(name):
    row = KNOWN[name]
    if row.protocol == "evaluate":
        assert resolve(row, precision=None) == {}
        return
    recipes = resolve(row, precision=None)
    side = 378 if "h14" in name else 384  # 27 patches of 14
    if name.startswith("table2/h14") and name.endswith("imagenet"):
        side = 518
    elif name.startswith("table2/l16") and name.endswith("imagenet"):
        side = 512
    averaged = name.startswith(("table2/h14", "table2/l16")) and name.endswith("imagenet")
    dropout = 0.1 if "h14" in name or "l16" in name else 0.0  # the authors' configs/models.py

    assert len(recipes) == (19 if name.endswith("vtab") else 1)
    for one in recipes.values():
        assert one.data.image_size == side and one.train.runs == 3
        assert one.optimizer.average == (0.9999 if averaged else 0.0)
        assert one.model.dropout == dropout and one.model.ckpt == row.ckpt
        rates = one.choices.get("optimizer.lr", (one.optimizer.lr,))
        lowest = (0.003, 0.01, 0.03, 0.06) if name.endswith("imagenet") else (0.001, 0.003, 0.01, 0.03)
        assert rates == ((0.01,) if name.endswith("vtab") else lowest)


def test_both_numbers_of_imagenet_come_from_one_training():
    for name in ("table5/b16-in21k", "table2/l16-in21k"):
        plain, real = KNOWN[f"{name}/imagenet"], KNOWN[f"{name}/imagenet-real"]

        assert plain.training == real.training == f"{name}/imagenet"
        assert resolve(plain, precision=None) == resolve(real, precision=None)
        assert (plain.labels, real.labels) == ("own", "real")


def test_every_public_row_has_weights_that_timm_knows_and_a_data_set_with_a_name():
    import timm

    known = set(timm.list_pretrained())
    for row in (KNOWN[name] for name in PUBLIC):
        assert row.ckpt.removeprefix("timm/") in known, row.name
        assert row.dataset == "vtab" or row.dataset in recipe.dataset_aliases()
    assert {KNOWN[name].ckpt for name in PUBLIC if "noisy" not in name} == {
        f"timm/vit_{network}_224.orig_in21k"
        for network in ("base_patch16", "base_patch32", "large_patch16", "large_patch32", "huge_patch14")
    }


def test_names_are_found_in_any_case():
    assert find_row(ROWS, "Table5/B16-IN21k/Pets", scale=None, ckpt=None).name == "table5/b16-in21k/pets"


def test_unreleased_rows_name_a_public_one_of_the_same_task():
    for name, row in KNOWN.items():
        assert ("jft" in name or "-imagenet/" in name or "bit-l" in name) == bool(row.unreleased), name
        if row.unreleased:
            with pytest.raises(VitError, match=r"never released|released no weights") as refused:
                find_row(ROWS, name, scale=None, ckpt=None)
            assert row.instead in PUBLIC and row.instead in refused.value.fix
            assert row.instead.rpartition("/")[2] == name.rpartition("/")[2]
            assert find_row(ROWS, name, scale=None, ckpt="mine.npz").ckpt == "mine.npz"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("table5/b16-in21k/cifar11", "cifar10"),
        ("table5/b16-in21/cifar10", "in21k"),
        ("TABLE5/b16-in21k/pet", "b16-in21k/pets"),
        ("tabel4/pets", "table4"),
        ("table2/l16-in21k/imagenet-rael", "imagenet-real"),
    ],
)
def test_a_mistyped_row_is_answered_with_the_nearest(name, meant):
    with pytest.raises(VitError, match="did you mean") as refused:
        find_row(ROWS, name, scale=None, ckpt=None)

    assert meant in refused.value.message


@pytest.mark.parametrize(
    ("name", "told"),
    [("table5", "vit reproduce --list 'table5/*'"), ("Figure5", "vit study compute figure5-jft")],
)
def test_a_whole_table_and_a_figure_are_answered_with_what_to_type(name, told):
    with pytest.raises(VitError) as refused:
        find_row(ROWS, name, scale=None, ckpt=None)

    assert told in refused.value.fix and "did you mean" not in refused.value.message


def test_the_demo_scale_is_one_run_whatever_the_row():
    all_of_them = [find_row(ROWS, name, scale="demo", ckpt=None) for name in PUBLIC]
    recipes = [resolve(row, precision=None) for row in all_of_them]

    assert all(one == recipes[0] for one in recipes)
    assert all((row.labels, row.protocol) == ("own", "finetune") for row in all_of_them)
    (one,) = recipes[0].values()
    table4 = recipe.load("finetune/cifar10")
    kept = ("optimizer.name", "optimizer.momentum", "optimizer.clip", "schedule.decay", "data.train_crop")
    assert {key: recipe.flat(one)[key] for key in kept} == {key: recipe.flat(table4)[key] for key in kept}
    assert len(one.choices["optimizer.lr"]) == 4 and one.data.dev_fraction > 0 and one.train.runs == 3


def test_the_error_has_three_parts_by_hand():
    told = judge([0.98, 0.99, 1.00], 0.97, 0.003, scored=[(0.99, 9_900)], expected=None)

    assert told["ours"] == {"mean": pytest.approx(0.99), "std": pytest.approx(0.01), "n": 3}
    assert told["standard_error_parts"] == {
        "ours": pytest.approx(0.01 / sqrt(3)),
        "published": pytest.approx(0.003 / sqrt(3)),
        "test_set": pytest.approx(0.001),  # sqrt(0.99 * 0.01 / 9,900)
    }
    # (1e-4 + 9e-6) / 3 + 1e-6 = 3.7333e-5
    assert told["standard_error"] == pytest.approx(sqrt(3.7333333e-5))
    assert told["z"] == pytest.approx(0.02 / 0.00611010, rel=1e-5)
    assert told["verdict"] == "not reproduced"  # 3.27


def test_deviations_that_nobody_knows_are_the_largest_and_printed_zeros_are_not_zero():
    single = judge([0.9], 0.9, None, scored=[(0.9, 1)], expected=None)["standard_error_parts"]
    exact = judge([1.0, 1.0, 1.0], 1.0, 0.0, scored=[(1.0, 100)], expected=None)

    assert (single["ours"], single["published"]) == (0.0015, 0.0015)
    assert exact["standard_error"] == pytest.approx(0.0001 * sqrt(2 / 3))
    assert (exact["z"], exact["verdict"]) == (0.0, "reproduced")


def test_the_error_of_a_mean_over_test_sets_is_that_of_independent_ones():
    told = judge([0.5], 0.5, None, scored=[(0.5, 100), (0.9, 900)], expected=None)

    # sqrt(0.25 / 100 + 0.09 / 900) / 2
    assert told["standard_error_parts"]["test_set"] == pytest.approx(sqrt(0.0026) / 2)
    assert told["num_test_examples"] == 1000


@pytest.mark.parametrize("shift", [0.1, -0.1])
def test_ten_points_are_never_reproduced_either_way(shift):
    """Not even of the least certain row: VTAB, and runs as far apart as BiT-L's were (1.70 points)."""
    runs = [0.70, 0.717, 0.734]
    told = judge(runs, 0.717 + shift, 0.017, scored=[(0.717, 711)] * 19, expected=None)

    assert told["verdict"] == "not reproduced" and told["z"] * shift < 0


# google-research/vision_transformer, README: the authors' released code, one run each, against Table 5.
RELEASED_CODE = [
    ("b16", "cifar10", 99.02, True),
    ("b16", "cifar100", 92.06, True),
    ("b16", "imagenet", 84.53, True),
    ("b32", "imagenet", 81.66, True),
    ("l16", "imagenet", 84.47, True),
    ("l16", "imagenet", 85.05, True),
    ("l32", "imagenet", 81.89, False),  # 0.90 points better than the table
]


@pytest.mark.parametrize(("network", "task", "percent", "holds"), RELEASED_CODE)
def test_the_rule_tried_on_the_authors_own_released_code(network, task, percent, holds):
    row = KNOWN[f"table5/{network}-in21k/{task}"]
    scored = [(percent / 100, row.test_examples)]
    told = judge([percent / 100], row.published, None, scored=scored, expected=row.test_examples)

    assert (told["verdict"] == "reproduced") is holds, told["z"]


def test_another_number_of_pictures_is_another_test_set():
    told = judge([0.99], 0.9895, None, scored=[(0.99, 9_728)], expected=10_000)
    error = failure({**told, "row": "table5/b16-in21k/cifar10", "run_dir": "here"})

    assert told["verdict"] == "other test set"
    assert error.exit_code == 8 and "9,728" in error.message and "10,000" in error.message


SMALL = """
[tasks.shapes]
recipe = "finetune/default"
dataset = "demo"
[columns.mine]
about = "ours"
model = "ViT-demo/8"
ckpt = "demo"
published = { shapes = [90.0, 1.0] }
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('about = "ours"', 'abuot = "ours"', "did you mean 'about'"),
        ("[columns.mine]", "[colums.mine]", "did you mean 'columns'"),
        ("90.0, 1.0", "0.9, 0.01", "out of its range"),
        ("90.0, 1.0", "110.0, 1.0", "less than or equal to 100"),
        ("90.0, 1.0", '"90"', "not a number"),
        ("[90.0, 1.0]", "[90.0]", "columns.mine.published.shapes"),
        ("shapes = [", "shape = [", "did you mean 'shapes'"),
        ("finetune/default", "finetune/defualt", "did you mean 'finetune/default'"),
        ('recipe = "finetune/default"\n', "", "no recipe"),
        ('ckpt = "demo"', "", "neither"),
        ('ckpt = "demo"', 'ckpt = "demo"\nunreleased = "lost"', "both"),
        ('ckpt = "demo"', 'unreleased = "lost"', "'lost', which does not exist"),
        ('ckpt = "demo"', 'ckpt = "demo"\ninstead = "min"', "did you mean 'mine'"),
        ('ckpt = "demo"', 'ckpt = "demo"\nset = { "schedule.step" = 3 }', "did you mean 'steps'"),
        ('ckpt = "demo"', 'ckpt = "demo"\nset_of = { "finetune/demo" = {} }', "finetune/default"),
        ('ckpt = "demo"', 'ckpt = "demo"\nprotocol = "evalute"', "did you mean 'evaluate'"),
        (
            'ckpt = "demo"',
            'ckpt = "demo"\nprotocol = "evaluate"\nset = {"train.runs" = 3}',
            "without training",
        ),
        ("[tasks.shapes]", "[copies.also]\nof = 'mine'\ntasks = ['x']\n[tasks.shapes]", "copies.also.tasks"),
        ("[tasks.shapes]", "[tasks.shapes", "not TOML"),
    ],
)
def test_mistakes_of_a_file_of_rows_are_named(tmp_path, old, new, said):
    file = tmp_path / "rows.toml"
    assert old in SMALL
    file.write_text(SMALL.replace(old, new))

    with pytest.raises(VitError) as refused:
        read_rows(str(file))

    assert refused.value.exit_code == 2 and said in str(refused.value), refused.value
    assert "rows.toml" in refused.value.where


def test_all_mistakes_come_in_one_report(tmp_path):
    file = tmp_path / "rows.toml"
    file.write_text(SMALL.replace("about", "abuot").replace("[90.0, 1.0]", "900") + "colour = 3\n")

    with pytest.raises(VitError, match="4 mistakes") as refused:
        read_rows(str(file))

    for word in ("abuot", "colour", "about is missing", "900"):
        assert word in refused.value.message


def test_a_good_file_of_rows_is_read(tmp_path):
    (tmp_path / "rows.toml").write_text(SMALL)
    (row,) = rows_of(read_rows(str(tmp_path / "rows.toml"))).values()

    assert (row.name, row.published, row.published_std, row.ckpt) == ("mine/shapes", 0.9, 0.01, "demo")


def test_the_shipped_rows_are_no_recipe():
    assert not [name for name, _ in recipe.available() if "reproduce" in name]


@pytest.mark.parametrize("count", [9_999, 10_001])
def test_more_or_fewer_images_are_another_test_set(count):
    told = judge([0.99], 0.99, None, scored=[(0.99, count)], expected=10_000)

    assert told["verdict"] == "other test set" and told["num_test_examples"] == count


def test_a_published_percentage_is_the_fraction_with_the_same_digits():
    assert reproduce_rows._fractions((88.62, 0.07)) == (0.8862, 0.0007)
    assert reproduce_rows._fractions(14.07) == (0.1407, None)
