"""A study's words and arithmetic: the schema's refusals, the grid, points over seeds, the Pareto front."""

import subprocess
import sys
from itertools import pairwise

import pytest

from vitcli import recipe as recipes
from vitcli.errors import VitError
from vitcli.experiments import study as command
from vitcli.experiments import study_grid, study_schema, study_text
from vitcli.experiments.study_schema import folder_name
from vitcli.recipe import catalog

SMALL = """
command = "pretrain"
recipe = "pretrain/demo"
set.model.layers = 2
[grid]
models = ["vit-demo/8", "Ti/16"]
num_examples = [24, "all"]
steps = [10]
seeds = [3, 4]
[score]
by = "fewshot"
dataset = "demo"
shots = 5
"""
TINY = 'command = "pretrain"\nrecipe = "pretrain/demo"\n{}\n[score]\nby = "eval"\n'


def load(tmp_path, text, *overrides):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    return study_schema.load(str(file), overrides)[0]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("num_examples =", "num_example =", "num_example is not a key of a study, did you mean 'num_exa"),
        ("recipe =", "recipes =", "recipes is not a key of a study, did you mean 'recipe'?"),
        ("model.layers", "model.layer", "model.layer is not a key of a recipe, did you mean 'layers'?"),
        ('"pretrain"', '"pretrian"', "command is \"pretrian\", did you mean 'pretrain'?"),
        ('"pretrain/demo"', '"pretrain/dmo"', "no recipe 'pretrain/dmo', did you mean 'pretrain/demo'?"),
        ("[24,", "[0,", "grid.num_examples, item 1 is 0, out of its range"),
        ("[24,", '["some",', "grid.num_examples, item 1 is \"some\""),
        ("[24,", "[24, 24,", "num_examples names a value twice: [24, 24, 'all']"),
        ("[24,", '["24",', "grid.num_examples, item 1 is \"24\""),
        ("steps = [10]", "steps = [10]\nepochs = [1]", "epochs and steps are both given"),
        ("steps = [10]", "steps = 10", "grid.steps is 10, which is not a list"),
        ("steps = [10]", "steps = []", "grid.steps is [], out of its range"),
        ("set.model.layers = 2", "set.train.seed = 1", "train.seed is set here and by the grid's seeds"),
        ("set.model.layers = 2", "set.schedule.epochs = 1", "schedule.epochs is set here and by the grid's"),
        ("set.model.layers = 2", 'set.model.name = "B/16"', "model.name is set here and by the grid's"),
        ("set.model.layers = 2", "set = 3", "set is a table of keys"),
        ("set.model.layers = 2", "set.model = 3", "model is a section of a recipe"),
        ("[score]", "[variants]\nname = 'x'\n[score]", "variants is a list of tables"),
        ("[score]", "[[variants]]\nnam = 'x'\n[score]", "variants, item 1: nam is not a key of a study"),
        ('"vit-demo/8"', '"ti/16"', "'Ti/16' and 'ti/16' would use the same folder"),
        ('models = ["vit-demo/8", "Ti/16"]', "", "the study names no network"),
        ("shots = 5", "", "score.shots is missing"),
        ('dataset = "demo"', "", "score.dataset is missing"),
        ("shots = 5", "shots = 5\nset.model.ckpt = 'demo'", "model.ckpt is set by the study for each run"),
        ('"fewshot"', '"eval"', "score.by = 'eval' does not use score.dataset"),
        ('by = "fewshot"', "", "score.by is missing"),
        ("[score]", "[scores]", "scores is not a key of a study, did you mean 'score'?"),
        ('recipe = "pretrain/demo"', "", "the study has no recipe"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_key_and_its_file(tmp_path, old, new, told):
    assert old in SMALL

    with pytest.raises(VitError) as refused:
        load(tmp_path, SMALL.replace(old, new, 1))

    assert told in refused.value.message
    assert "mine.toml" in refused.value.where + refused.value.message


def test_a_study_without_a_recipe_is_told_one_of_its_command(tmp_path):
    text = SMALL.replace('recipe = "pretrain/demo"', "").replace(
        'command = "pretrain"', 'command = "finetune"'
    )

    with pytest.raises(VitError) as refused:
        load(tmp_path, text)
    assert "finetune/default" in str(refused.value) and "pretrain/demo" not in str(refused.value)


def test_all_mistakes_come_in_one_report(tmp_path):
    text = SMALL.replace("[24,", "[-1,").replace("seeds", "seed").replace("shots = 5", "shots = 0")

    with pytest.raises(VitError) as refused:
        load(tmp_path, text, "data.flop=true", "nothing")

    assert refused.value.message.startswith("5 mistakes in study ")
    for word in ("num_examples", "grid.seed", "score.shots", "data.flop", "'nothing' sets nothing"):
        assert word in refused.value.message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("demp", "there is no study 'demp', did you mean 'demo'?"),
        ("gone.toml", "there is no study 'gone.toml'"),
    ],
)
def test_a_study_that_is_not_there_is_asked_for_by_its_nearest_name(name, told):
    with pytest.raises(VitError) as refused:
        study_schema.load(name)

    assert refused.value.message == told


def test_the_grid_is_every_combination_with_the_first_seed_first(tmp_path):
    cells = study_grid.expand(load(tmp_path, SMALL))

    assert [cell.name for cell in cells] == [
        f"{model}-{size}-images-10-steps-seed-{seed}"
        for seed in (3, 4)
        for model in ("ViT-demo-8", "ViT-Ti-16")
        for size in (24, "all")
    ]
    assert [cell.model for cell in cells[:4:2]] == ["ViT-demo/8", "ViT-Ti/16"]
    assert cells[1].keys == {
        "model.layers": 2,
        "model.name": "vit-demo/8",
        "data.num_examples": None,
        "schedule.steps": 10,
        "train.seed": 3,
    }
    assert cells[1].sources["model.layers"] == "set" and cells[1].sources["train.seed"] == "grid.seeds"


def test_a_variant_has_keys_sizes_and_durations_of_its_own(tmp_path):
    text = TINY.format(
        "set.optimizer.lr = 0.1\n[grid]\nsteps = [5]\nnum_examples = [24, 48]\n"
        '[[variants]]\nname = "a"\nepochs = [7, 14]\nset.optimizer.lr = 0.2\n'
        '[[variants]]\nname = "b"\nrecipe = "finetune/demo"\nnum_examples = ["all"]\nfamily = "x"'
    )

    cells = study_grid.expand(load(tmp_path, text))

    assert [cell.name for cell in cells] == [
        "a-24-images-7-epochs", "a-24-images-14-epochs", "a-48-images-7-epochs", "a-48-images-14-epochs",
        "b-all-images-5-steps",
    ]  # fmt: skip
    assert cells[0].keys == {"optimizer.lr": 0.2, "data.num_examples": 24, "schedule.epochs": 7.0}
    assert (cells[4].recipe, cells[4].families, cells[4].keys["optimizer.lr"]) == (
        "finetune/demo",
        ("x",),
        0.1,
    )


def test_options_lie_over_the_studys_own_keys(tmp_path):
    read = load(tmp_path, SMALL, "model.layers=3", "data.dataset=2012")

    assert read.set == {"model.layers": 3, "data.dataset": "2012"}


@pytest.mark.parametrize("name", [*catalog.studies(), SMALL])
def test_a_study_survives_being_written_and_read(tmp_path, name):
    read = load(tmp_path, name) if name == SMALL else study_schema.load(name)[0]

    again = load(tmp_path, recipes.to_toml(read))

    assert again == read and recipes.differences(read, again) == []


def test_differences_name_the_keys(tmp_path):
    before = load(tmp_path, SMALL)
    after = load(tmp_path, SMALL.replace("[3, 4]", "[3]").replace("layers = 2", "hidden = 32"))

    assert recipes.differences(before, after) == [
        "set.model.layers: 2 against none",
        "grid.seeds: [3, 4] against [3]",
        "set.model.hidden: none against 32",
    ]


@pytest.mark.parametrize(
    ("model", "family"),
    [("L/16", "ViT"), ("ViT-demo/8", "ViT"), ("R50+ViT-B/16", "hybrid"), ("R152x2", "ResNet"),
     ("vgg11", "other"), (None, "other"), ("EfficientNet-L2", "other")],
)  # fmt: skip
def test_the_family_of_a_network(model, family):
    assert study_grid.family_of(model) == family


def cell(point: str, score: float | None, exaflops: float = 1.0) -> dict:
    row = dict.fromkeys(
        ("num_examples", "epochs", "steps", "params", "images_seen", "asked_epochs", "asked_steps")
    )
    scores = None if score is None else {"demo": score}
    return row | {"point": point, "model": "m", "families": ["ViT"], "exaflops": exaflops, "score": score,
                  "scores": scores}  # fmt: skip


def test_points_have_mean_and_standard_deviation_of_their_finished_runs():
    cells = [cell("a", 0.2), cell("b", 0.5), cell("a", 0.4), cell("c", None), cell("a", 0.9), cell("b", None)]

    a, b, c = study_grid.points(cells)

    # (0.2 + 0.4 + 0.9) / 3, and the root of (0.09 + 0.01 + 0.16) / 2
    assert (a["name"], a["n"]) == ("a", 3)
    assert a["mean"] == pytest.approx(0.5) and a["std"] == pytest.approx(0.13**0.5)
    assert (b["mean"], b["std"], b["n"]) == (0.5, None, 1)
    assert (c["mean"], c["std"], c["n"]) == (None, None, 0)
    assert a["means"] == {"demo": pytest.approx(0.5)} and c["means"] == {}


def test_the_pareto_front_by_hand():
    rows = [("dear", 0.9, 9), ("cheap", 0.3, 1), ("beaten", 0.4, 5), ("middle", 0.6, 4),
            ("as good, dearer", 0.6, 5), ("as dear, worse", 0.2, 1), ("twin", 0.6, 4)]  # fmt: skip
    found = [{"name": name, "mean": mean, "exaflops": cost} for name, mean, cost in rows]
    found += [
        {"name": "unfinished", "mean": None, "exaflops": 0.1},
        {"name": "?", "mean": 1.0, "exaflops": None},
    ]

    assert study_grid.pareto(found) == ["cheap", "middle", "twin", "dear"]
    assert study_grid.pareto([]) == []


def test_a_front_rises_and_beats_every_other_point():
    from random import Random

    rng = Random(0)
    found = [{"name": str(k), "mean": rng.random(), "exaflops": rng.random()} for k in range(200)]

    front = [found[int(name)] for name in study_grid.pareto(found)]

    assert all(a["mean"] < b["mean"] and a["exaflops"] < b["exaflops"] for a, b in pairwise(front))
    for point in found:
        is_on_it = point in front
        beaten = any(one["mean"] > point["mean"] and one["exaflops"] < point["exaflops"] for one in front)
        assert is_on_it != beaten


def test_a_table_for_a_spreadsheet_keeps_all_digits():
    points = study_grid.points([cell("a", 0.2, 1.5), cell("a", 0.3, 1.5)])
    result = {"points": points, "pareto": ["a"], "score": {"datasets": ["demo"]}}

    header, row = study_text.as_csv(result).splitlines()

    told = dict(zip(header.split(","), row.split(","), strict=True))
    assert (told["name"], told["mean"], told["exaflops"], told["n"], told["on_front"]) == (
        "a", "0.25", "1.5", "2", "True",
    )  # fmt: skip


def test_a_study_is_read_without_torch():
    code = (
        "import sys; from vitcli.experiments import study; study.prepare('data-size', 'demo', ());"
        "sys.exit(bool({'torch', 'datasets', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_figure_5_has_the_rows_of_table_6():
    cells = study_grid.expand(study_schema.load("figure5-jft")[0])

    # Table 6: name and epochs
    rows = [("ViT-B/32", 7), ("ViT-B/16", 7), ("ViT-L/32", 7), ("ViT-L/16", 7), ("ViT-L/16", 14),
            ("ViT-H/14", 14), ("ResNet50x1", 7), ("ResNet50x2", 7), ("ResNet101x1", 7), ("ResNet152x1", 7),
            ("ResNet152x2", 7), ("ResNet152x2", 14), ("ResNet200x3", 14), ("R50x1+ViT-B/32", 7),
            ("R50x1+ViT-B/16", 7), ("R50x1+ViT-L/32", 7), ("R50x1+ViT-L/16", 7),
            ("R50x1+ViT-L/16", 14)]  # fmt: skip
    assert [(one.model, one.axes["epochs"]) for one in cells] == rows
    assert {one.recipe for one in cells} <= {name for name, _ in recipes.available()}


@pytest.mark.parametrize(
    ("name", "models", "sizes"),
    [
        ("figure4-jft", 6, {9_000_000, 30_000_000, 90_000_000, "all"}),
        ("figure5-jft", 15, {None}),
        ("figure8-jft", 15, {None}),
        ("demo", 1, {30, 100, 300, "all"}),
        ("demo-compute", 3, {None}),
    ],
)
def test_the_shipped_studies_hold_to_the_last_recipe(name, models, sizes):
    prepared = command.prepare("compute", name, ())

    assert len({one.model for one in prepared.cells}) == models
    assert {one.axes.get("num_examples") for one in prepared.cells} == sizes
    for one, recipe in zip(prepared.cells, prepared.recipes, strict=True):
        assert recipe.train.seed == one.axes.get("seeds", 0)
        assert recipe.schedule.steps == one.axes.get("steps") or recipe.schedule.epochs


def test_the_shipped_studies_are_no_recipes_and_say_what_they_are():
    assert not [name for name, _ in recipes.available() if "studies" in name]
    assert set(catalog.studies()) == {"demo", "demo-compute", "figure4-jft", "figure5-jft", "figure8-jft"}
    for path in catalog.studies().values():
        assert path.read_text().startswith(("# paper, ", "# the embedded demo: "))
        assert path.stem in (path.parents[2] / "docs/reproduce-and-study.md").read_text()


@pytest.mark.parametrize(
    ("name", "folder"),
    [("B/16 (JFT)", "B-16-JFT"), (".hidden.", "hidden"), ("a_b", "a_b"), ("/", "-")],
)
def test_the_folders_of_a_study_stay_those_that_it_was_started_with(name, folder):
    assert folder_name(name) == folder
