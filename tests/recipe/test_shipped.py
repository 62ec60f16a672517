"""The shipped recipes against the paper's tables, typed in once more, and against each other."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import once, run
from vitcli import recipe
from vitcli.errors import MachineError, VitError
from vitcli.recipe import listing
from vitcli.training.schedule import duration_steps, warmup_steps

NAMES = [name for name, _ in recipe.available()]
WHOLE = [name for name in NAMES if not recipe.catalog.is_base(name)]

CIFAR = "finetune/cifar10"

# Paper, Table 4 and appendix B.1.1; warm-up from the authors' code: steps, rates, dev share, warm-up.
TABLE_4 = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01, 500),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02, 500),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02, 500),
    "oxford_pets": (500, (0.001, 0.003, 0.01, 0.03), 0.1, 100),
    "oxford_flowers102": (500, (0.001, 0.003, 0.01, 0.03), 0.1, 100),
}
# Paper, Table 4's caption, sections 3.2 and 4.1; preprocessing of the authors' code.
TABLE_4_SHARED = {
    "model.dropout": 0.0,
    "model.pre_logits": False,
    "data.image_size": 384,
    "data.train_crop": "inception",
    "data.crop_area": (0.05, 1.0),
    "data.crop_aspect": (3 / 4, 4 / 3),
    "data.resize": None,
    "data.flip": True,
    "data.eval_resize": "square",
    "data.eval_crop_fraction": None,
    "data.interpolation": "bilinear",
    "data.antialias": False,
    "data.mean": (0.5, 0.5, 0.5),
    "data.std": (0.5, 0.5, 0.5),
    "data.num_examples": None,
    "objective.loss": "softmax",
    "objective.label_smoothing": 0.0,
    "objective.head_bias": 0.0,
    "optimizer.name": "sgd",
    "optimizer.momentum": 0.9,
    "optimizer.weight_decay": 0.0,
    "optimizer.clip": 1.0,
    "optimizer.average": 0.0,
    "schedule.epochs": None,
    "schedule.decay": "cosine",
    "schedule.end_lr": 0.0,
    "train.batch_size": 512,
}
# Paper, Table 3: model, epochs, rate, weight decay, dropout, decay; the last three as far as Table 6 goes on.
JFT, I21K, IN1K = "jft", "imagenet21k", "imagenet"
TABLE_3 = {
    "b16-jft": ("ViT-B/16", 7, 8e-4, 0.1, 0.0, "linear"),
    "b32-jft": ("ViT-B/32", 7, 8e-4, 0.1, 0.0, "linear"),
    "l32-jft": ("ViT-L/32", 7, 6e-4, 0.1, 0.0, "linear"),
    "l16-jft": ("ViT-L/16", 7, 4e-4, 0.1, 0.0, "linear"),
    "l16-jft-14ep": ("ViT-L/16", 14, 4e-4, 0.1, 0.0, "linear"),
    "h14-jft": ("ViT-H/14", 14, 3e-4, 0.1, 0.0, "linear"),
    "r50x1-jft": ("BiT-R50x1", 7, 1e-3, 0.1, 0.0, "linear"),
    "r50x2-jft": ("BiT-R50x2", 7, 1e-3, 0.1, 0.0, "linear"),
    "r101x1-jft": ("BiT-R101x1", 7, 8e-4, 0.1, 0.0, "linear"),
    "r152x1-jft": ("BiT-R152x1", 7, 6e-4, 0.1, 0.0, "linear"),
    "r152x2-jft": ("BiT-R152x2", 7, 6e-4, 0.1, 0.0, "linear"),
    "r50-b16-jft": ("R50+ViT-B/16", 7, 8e-4, 0.1, 0.0, "linear"),
    "r50-b32-jft": ("R50+ViT-B/32", 7, 8e-4, 0.1, 0.0, "linear"),
    "r50-l32-jft": ("R50+ViT-L/32", 7, 2e-4, 0.1, 0.0, "linear"),
    "r50-l16-jft": ("R50+ViT-L/16", 7, 4e-4, 0.1, 0.0, "linear"),
    "r50-l16-jft-14ep": ("R50+ViT-L/16", 14, 4e-4, 0.1, 0.0, "linear"),
    "b16-imagenet21k": ("ViT-B/16", 90, 1e-3, 0.03, 0.1, "linear"),
    "b32-imagenet21k": ("ViT-B/32", 90, 1e-3, 0.03, 0.1, "linear"),
    "l16-imagenet21k": ("ViT-L/16", 90, 1e-3, 0.03, 0.1, "linear"),
    "l16-imagenet21k-30ep": ("ViT-L/16", 30, 1e-3, 0.03, 0.1, "linear"),
    "l32-imagenet21k": ("ViT-L/32", 90, 1e-3, 0.03, 0.1, "linear"),
    "l32-imagenet21k-30ep": ("ViT-L/32", 30, 1e-3, 0.03, 0.1, "linear"),
    "b16-imagenet": ("ViT-B/16", 300, 3e-3, 0.3, 0.1, "cosine"),
    "b32-imagenet": ("ViT-B/32", 300, 3e-3, 0.3, 0.1, "cosine"),
    "l16-imagenet": ("ViT-L/16", 300, 3e-3, 0.3, 0.1, "cosine"),
    "l32-imagenet": ("ViT-L/32", 300, 3e-3, 0.3, 0.1, "cosine"),
    "r152x2-jft-14ep": ("BiT-R152x2", 14, 6e-4, 0.1, 0.0, "linear"),
    "r200x3-jft": ("BiT-R200x3", 14, 6e-4, 0.1, 0.0, "linear"),
    "h14-imagenet21k": ("ViT-H/14", 90, 1e-3, 0.03, 0.1, "linear"),
}
TABLE_3_SHARED = {  # the caption; section 4.1; the authors' code where both are silent
    "train.batch_size": 4096,
    "schedule.warmup": 10_000,
    "data.image_size": 224,
    "data.train_crop": "inception",
    "data.crop_area": (0.05, 1.0),
    "data.flip": True,
    "optimizer.name": "adam",
    "optimizer.betas": (0.9, 0.999),
    "optimizer.decay_on": "matrices",
    "optimizer.average": 0.0,
    "data.mean": (0.5, 0.5, 0.5),
}
STEPS = {
    (JFT, 7): 517_822,
    (JFT, 14): 1_035_645,
    (I21K, 90): 312_012,
    (I21K, 30): 104_004,
    (IN1K, 300): 93_835,
}

VTAB_CLASSES = {  # paper.md, 5.2, in the order of the paper's Table 9
    "caltech101": 102,
    "cifar100": 100,
    "dtd": 47,
    "flowers102": 102,
    "pets": 37,
    "sun397": 397,
    "svhn": 10,
    "camelyon": 2,
    "eurosat": 10,
    "resisc45": 45,
    "retinopathy": 5,
    "clevr_count": 8,
    "clevr_distance": 6,
    "dmlab": 6,
    "dsprites_location": 16,
    "dsprites_orientation": 16,
    "kitti_distance": 4,
    "smallnorb_azimuth": 18,
    "smallnorb_elevation": 9,
}
ALIAS_KEYS = {
    "pretrain",
    "hub",
    "image_column",
    "label_column",
    "train_split",
    "eval_split",
    "dev_train_split",
    "dev_eval_split",
    "classes",
    "train_examples",
    "about",
    "recipe",
    "vtab",
    "label_rules",
    "raw_splits",
    "image_rule",
}


def test_every_shipped_recipe_holds():
    for name in WHOLE:
        loaded = recipe.load(name, training=not name.startswith(("evaluate/", "fewshot/", "inspect/")))
        if loaded.schedule and loaded.schedule.steps:
            warmup = warmup_steps(loaded.schedule.warmup, loaded.schedule.steps)
            assert warmup < loaded.schedule.steps, name


# Splits of big_vision's and uncertainty-baselines' common_fewshot.py, as paper.md, section 4 gives them.
FEW_SHOT = {
    "caltech101": ("train", "test"),
    "cars196": ("train", "test"),
    "cifar100": ("train", "test"),
    "dtd": ("train", "test"),
    "oxford_pets": ("train", "test"),
    "uc_merced": ("train[:1000]", "train[1000:]"),
    "imagenet": ("train[:65000]", "validation"),
    "birds200": ("train", "test"),
    "colorectal_histology": ("train[:2000]", "train[2000:]"),
}


@pytest.mark.parametrize("dataset", FEW_SHOT)
def test_few_shot_recipes_are_the_evaluator_s(dataset):
    assert recipe.find_for_dataset("fewshot", dataset) == f"fewshot/{dataset}"
    loaded = recipe.load(f"fewshot/{dataset}", training=False)
    data, wanted = loaded.data, loaded.fewshot

    assert (data.train_split, data.eval_split) == FEW_SHOT[dataset]
    assert (data.image_size, data.eval_resize, data.interpolation) == (224, "square", "bilinear")
    assert data.image_size / data.eval_crop_fraction == 256
    assert (wanted.shots, wanted.seeds, wanted.l2) == ((1, 5, 10, 25), 3, 2.0**10)
    assert wanted.classifier == "least-squares"


def test_recipes_that_only_serve_as_a_base_are_those_that_name_no_data_set():
    bases = ["fewshot/default", "finetune/table4", "inspect/default"]
    bases += ["modern/finetune-some", "pretrain/table3"]

    assert [name for name in NAMES if name not in WHOLE] == bases
    assert "modern/cifar10-laptop" in WHOLE  # which modern/cifar10 extends


def test_the_check_of_all_recipes_finds_nothing_wrong():
    found = listing.check()

    assert [entry["name"] for entry in found["recipes"]] == NAMES
    assert found["ok"], listing.check_as_text(found)


def test_every_recipe_can_be_shown_and_says_where_it_comes_from():
    available = dict(recipe.available())
    for name in NAMES:
        assert listing.show(name)["toml"].startswith("["), name
        assert available[name], name
        assert recipe.find(name).read_text(encoding="utf-8").startswith("# "), name


def data_of(name: str) -> str:
    return name.removesuffix("-14ep").removesuffix("-30ep").rpartition("-")[2]


@pytest.mark.parametrize("name", TABLE_3)
def test_the_rows_of_table_3_are_the_papers(name):
    model, epochs, rate, weight_decay, dropout, decay = TABLE_3[name]
    row = recipe.flat(recipe.load(f"pretrain/{name}"))
    own = {
        "model.name": model,
        "model.dropout": dropout,
        "model.pre_logits": not model.startswith("BiT"),
        "optimizer.lr": rate,
        "optimizer.weight_decay": weight_decay,
        "optimizer.clip": 1.0 if data_of(name) == IN1K else 0.0,
        "schedule.epochs": epochs,
        "schedule.decay": decay,
        "schedule.end_lr": 1e-5 if decay == "linear" else 0.0,
        "objective.loss": "softmax" if data_of(name) == IN1K else "sigmoid",
        "objective.head_bias": 0.0 if data_of(name) == IN1K else -10.0,
        "objective.label_smoothing": 1e-4 if data_of(name) == I21K else 0.0,
    }

    assert {key: row[key] for key in own} == own
    assert {key: row[key] for key in TABLE_3_SHARED} == TABLE_3_SHARED


def test_every_shipped_row_of_table_3_is_checked():
    shipped = {name.removeprefix("pretrain/") for name in WHOLE if name.startswith("pretrain/")}

    assert shipped - {"demo", "default"} - {name for name in shipped if "masked" in name} == set(TABLE_3)


@pytest.mark.parametrize("name", TABLE_3)
def test_steps_follow_from_the_papers_numbers_of_images(name):
    alias = recipe.dataset_aliases()[{JFT: "jft300m", I21K: "imagenet21k", IN1K: "imagenet"}[data_of(name)]]
    loaded = recipe.load(f"pretrain/{name}")
    steps = duration_steps(
        steps=None,
        epochs=loaded.schedule.epochs,
        num_examples=alias["train_examples"],
        batch_size=loaded.train.batch_size,
    )

    assert steps == STEPS[data_of(name), TABLE_3[name][1]]


@pytest.mark.slow
def test_a_plan_needs_no_data_that_cannot_be_had():
    plan = run("pretrain", "--recipe", "pretrain/h14-jft", "--dry-run", "--json", "--quiet").json

    assert (plan["total_steps"], plan["warmup_steps"], plan["num_examples"]) == (
        1_035_645,
        10_000,
        303_000_000,
    )
    assert plan["exaflops"] == pytest.approx(4262, rel=0.002)


@pytest.mark.parametrize("dataset", TABLE_4)
def test_the_rows_of_table_4_are_the_papers(dataset):
    steps, rates, dev_fraction, warmup = TABLE_4[dataset]
    row = recipe.flat(recipe.load(f"finetune/{dataset}"))
    own = {
        "data.dataset": dataset,
        "data.dev_fraction": dev_fraction,
        "optimizer.lr": rates,
        "schedule.steps": steps,
        "schedule.warmup": warmup,
    }

    assert {key: row[key] for key in TABLE_4_SHARED | own} == TABLE_4_SHARED | own


def test_table_4_has_a_recipe_for_each_row_and_no_more():
    base = [
        name for name in WHOLE if recipe.origins(name).get("train.batch_size", "").endswith("table4.toml")
    ]

    vtab = {"vtab", "vtab-no-flip", "vtab-no-crop", "vtab-as-it-is"}  # tests/test_vtab_tables.py
    assert {name.removeprefix("finetune/") for name in base} == set(TABLE_4) | vtab


def test_evaluation_of_a_bare_checkpoint_prepares_images_as_timm_does():
    data = recipe.load("evaluate/default", training=False).data

    assert (data.eval_resize, data.image_size, data.interpolation, data.antialias) == (
        "short_side",
        224,
        "bicubic",
        True,
    )
    assert int(data.image_size / data.eval_crop_fraction) == 248
    assert data.mean == data.std == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("command", "dataset", "name"),
    [
        ("finetune", "cifar100", "finetune/cifar100"),
        ("finetune", "oxford_pets", "finetune/oxford_pets"),
        ("finetune", "vtab/dtd", "finetune/vtab"),
        ("finetune", "vtab/dsprites_location", "finetune/vtab-as-it-is"),
        ("finetune", "demo", "finetune/demo"),
        ("finetune", None, "finetune/demo"),
        ("finetune", "./photos", "finetune/default"),
        ("pretrain", "demo:pretrain", "pretrain/demo"),
        ("pretrain", "demo", "pretrain/demo"),
        ("pretrain", None, "pretrain/demo"),
        ("pretrain", "cifar10", "modern/cifar10-laptop"),
        ("pretrain", "oxford_pets", "pretrain/default"),
        ("pretrain", "./photos", "pretrain/default"),
        ("fewshot", "demo:pretrain", "fewshot/demo"),
        ("evaluate", "cifar10", "evaluate/default"),
        ("evaluate", None, "evaluate/default"),
    ],
)
def test_a_data_set_finds_its_recipe(command, dataset, name):
    assert recipe.find_for_dataset(command, dataset) == name


def test_the_other_recipes_of_a_data_set_are_named():
    chosen = recipe.load_for_dataset("pretrain", "cifar10", (), {})
    own = recipe.load_for_dataset("pretrain", "./photos", (), {"data.dataset": "./photos"})

    assert chosen.data.dataset == "cifar10" and own.notes == ()
    assert "others for cifar10, by --recipe: modern/cifar10, modern/cifar10-masked-patch" in chosen.notes[0]


def test_every_data_set_has_a_recipe_to_train_by(monkeypatch):
    monkeypatch.setattr(recipe, "merge", once(recipe.merge))
    datasets = [*recipe.dataset_aliases(), "demo", "demo:pretrain", "photos", None]
    asked = itertools.product(("finetune", "pretrain"), datasets)

    assert not [each for each in asked if recipe.find_for_dataset(*each) not in NAMES]


@pytest.mark.parametrize(
    ("typed", "warmup", "notes"),
    [
        ({"schedule.steps": 5}, "5%", 1),  # 500 of 10,000
        ({"schedule.steps": 500}, 500, 0),
        ({"schedule.steps": 5, "schedule.warmup": 6}, 6, 0),
        ({"schedule.epochs": 1.0}, 500, 0),
    ],
)
def test_steps_below_the_warm_up_of_a_recipe_keep_its_share(typed, warmup, notes):
    loaded = recipe.load("finetune/cifar10", (), typed)

    assert (loaded.schedule.warmup, len(loaded.notes)) == (warmup, notes)
    assert recipe.load("finetune/cifar10").schedule.warmup == 500


# vit recipes


@pytest.fixture
def write(tmp_path):
    """Writes a recipe file and gives its path."""

    def write(text: str) -> str:
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        return str(tmp_path / "mine.toml")

    return write


def test_a_copy_keeps_the_comments_and_overwrites_only_when_asked(tmp_path, monkeypatch):
    copied = listing.copy(CIFAR, tmp_path)["path"]

    assert recipe.load(copied) == recipe.load(CIFAR).with_name(copied)
    assert Path(copied).read_text(encoding="utf-8").startswith("# paper, Table 4")
    with pytest.raises(VitError, match="already exists"):
        listing.copy(CIFAR, Path(copied))
    replaced = listing.copy("finetune/cifar100", Path(copied), overwrite=True)["path"]
    assert replaced == copied
    assert recipe.load(copied) == recipe.load("finetune/cifar100").with_name(copied)
    monkeypatch.chdir(tmp_path)
    assert run("recipes", "copy", "finetune/default", "--json").json["path"] == "default.toml"
    assert recipe.load("default.toml") == recipe.load("finetune/default").with_name("default.toml")
    with pytest.raises(VitError, match=r"does not end in \.toml"):
        listing.copy(CIFAR, tmp_path / "mine")
    with pytest.raises(MachineError, match="cannot be written"):
        listing.copy(CIFAR, tmp_path / "no" / "mine.toml")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("cifar100", ["finetune/cifar100", "fewshot/cifar100"]),
        (
            "VTAB",
            ["finetune/vtab", "finetune/vtab-as-it-is", "finetune/vtab-no-crop", "finetune/vtab-no-flip"],
        ),
        ("inspect/*", ["inspect/default", "inspect/demo"]),
        ("masked patch", ["modern/cifar10-masked-patch", "pretrain/b16-masked-patch"]),
    ],
)
def test_recipes_are_listed_by_a_part_of_their_name_or_first_line(pattern, names):
    assert [entry["name"] for entry in listing.list_recipes(pattern)] == names


def test_recipes_are_listed_by_what_they_are_for():
    needs = [entry["need"] for entry in listing.list_recipes()]

    assert needs == sorted(needs, key=listing.NEEDS.index) and listing.OTHER not in needs
    assert {entry["name"] for entry in listing.list_recipes() if entry["need"] == "your own images"} >= {
        "finetune/default", "evaluate/default", "fewshot/default", "inspect/default"
    }  # fmt: skip
    with pytest.raises(VitError, match="did you mean 'finetune/cifar10'"):
        listing.list_recipes("finetune/cifar01")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[data]\nmean = 0,5\nflip = true\n", "line 2: mean = 0,5"),
        ("[data\n", "line 1: [data"),
        ('a = "x', ""),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_line(text, line, write):
    with pytest.raises(VitError, match="not TOML") as refused:
        recipe.load(write(text))
    assert refused.value.where.endswith(line)


def test_a_check_reports_good_and_bad_recipes_alike(write):
    bad = write("[train]\nseed = 1\n")
    found = listing.check([CIFAR, bad])

    assert found["ok"] is False
    assert [entry["error"] is None for entry in found["recipes"]] == [True, False]
    assert (
        "section [data] is missing" in str(listing.mistakes(found)) and listing.mistakes(found).exit_code == 2
    )
    both = listing.mistakes(listing.check([bad, bad]))
    assert both.message.startswith("2 of 2 recipes have mistakes\n") and both.message.count("[data]") == 2


def test_the_mistakes_of_a_recipe_are_an_error_on_standard_error_and_the_list_is_not_cut(write, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    bad = write('extends = "finetune/default"\n[optimizer]\nlrr = 1\nlr = "0,01"\n')
    outcome = run("recipes", "check", bad, CIFAR)

    assert outcome.code == 2 and outcome.out.splitlines() == [f"{bad}: invalid", f"{CIFAR}: ok"]
    assert outcome.err.startswith("error: 2 mistakes") and "write 0.01, with a point" in outcome.err
    assert outcome.err.count("where:") == 1
    assert "…" not in run("recipes", "list").out


def test_a_shown_recipe_is_a_recipe_with_its_origins_as_comments(write):
    text = listing.show(CIFAR, ["train.runs=3"])["toml"]

    assert recipe.flat(recipe.load(write(text))) == recipe.flat(recipe.load(CIFAR, ["train.runs=3"]))
    line = next(line for line in text.splitlines() if line.startswith("runs = 3"))
    assert line.endswith("# from option --set train.runs=3")
    assert len({line.rindex("# from") for line in text.splitlines() if "# from" in line}) == 1


def test_every_key_says_what_it_is():
    for section in listing.schema()["$defs"].values():
        assert all(field.get("description") for field in section["properties"].values())


# recipes/datasets.toml


def test_the_aliases_are_those_promised():
    vtab = {f"vtab/{task}" for task in VTAB_CLASSES}
    few_shot = {"caltech101", "cars196", "dtd", "uc_merced", "birds200", "colorectal_histology"}
    others = {"imagenet_real", "imagenet21k", "jft300m", "objectnet"}

    assert set(recipe.dataset_aliases()) == vtab | few_shot | others | set(TABLE_4)


def test_an_alias_has_only_known_keys_and_the_needed_ones():
    for alias, entry in recipe.dataset_aliases().items():
        assert set(entry) <= ALIAS_KEYS, alias
        assert {"image_column", "label_column", "classes", "about"} <= set(entry), alias
        assert {"train_split", "eval_split"} & set(entry), alias
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.get("hub", "owner/name")), alias


def test_the_classes_are_those_of_the_papers_tasks():
    aliases = recipe.dataset_aliases()
    found = {task: aliases[f"vtab/{task}"]["classes"] for task in VTAB_CLASSES}
    others = {"imagenet": 1000, "cifar10": 10, "cifar100": 100, "oxford_pets": 37, "oxford_flowers102": 102}

    assert found == VTAB_CLASSES
    assert {alias: aliases[alias]["classes"] for alias in others} == others


@pytest.mark.parametrize("dataset", TABLE_4)
def test_aliases_and_recipes_cut_the_same_dev_split(dataset):
    entry = recipe.dataset_aliases()[dataset]
    percent = round(100 * (1 - recipe.load(f"finetune/{dataset}").data.dev_fraction))

    assert entry["dev_train_split"] == f"train[:{percent}%]"
    assert entry["dev_eval_split"] == f"train[{percent}%:]"


def test_recipes_need_neither_torch_nor_rich():
    code = (
        "import sys; from vitcli.recipe import listing; listing.check(); listing.schema(); "
        "sys.exit(bool({'torch', 'rich', 'datasets', 'numpy'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
