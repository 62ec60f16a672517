"""recipe: a closed schema, every mistake in one report, and what the command line may change."""

import tomllib

import pytest
from pydantic import ValidationError

from vitcli import recipe
from vitcli.errors import VitError
from vitcli.recipe import sweep

CIFAR = "finetune/cifar10"


def refusal(*overrides: str, name: str = CIFAR, shorthands=None, **options) -> VitError:
    with pytest.raises(VitError) as caught:
        recipe.load(name, overrides, shorthands or {}, **options)
    return caught.value


@pytest.fixture
def write(tmp_path):
    """Writes a recipe file and gives its path."""

    def write(text: str, name: str = "mine.toml") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


# what is refused, and how it is said


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("optimizer.lrr=0.1", "optimizer.lrr is not a key of a recipe, did you mean 'lr'?", "the keys of"),
        ("optimiser.lr=0.1", "did you mean 'optimizer'?", "lr is written optimizer.lr"),
        ("lr=0.1", "lr is not a section", "lr is written optimizer.lr"),
        ("train.warmup=5", "train.warmup is not a key", "warmup is written schedule.warmup"),
        ("optimizer.lr", "'optimizer.lr' sets nothing", "write section.key=value"),
        (
            "optimizer.lr='1e-3'",
            'optimizer.lr is "1e-3", which is not a number',
            "write 0.001, without quotes",
        ),
        ("optimizer.lr=fast", 'optimizer.lr is "fast"', "write a number"),
        ("optimizer.lr=true", "optimizer.lr is true, which is not a number", "write a number"),
        ("optimizer.lr=0", "optimizer.lr is 0, out of its range", "greater than 0"),
        ("optimizer.lr=nan", "optimizer.lr is nan, out of its range", "finite"),
        ("optimizer.lr=[0.1, -1]", "optimizer.lr, item 2 is -1, out of its range", "greater than 0"),
        ("optimizer.lr=[]", "optimizer.lr is [], out of its range", "at least 1 item"),
        ("optimizer.lr=[0.1, 0.1]", "optimizer.lr names a value twice", "once"),
        ("train.batch_size=64.0", "train.batch_size is 64.0, which is not a whole number", "write 64"),
        ("train.batch_size='64'", "which is not a whole number", "write 64, without quotes"),
        ("train.batch_size=0", "train.batch_size is 0, out of its range", "greater than 0"),
        ("data.flip=False", 'data.flip is "False", which is not true or false', "write false"),
        ("data.flip=1", "data.flip is 1, which is not true or false", "write true or false"),
        (
            "objective.loss=softmx",
            "did you mean 'softmax'?",
            "it must be 'softmax', 'sigmoid', 'masked_patch' or",
        ),
        ("model.dropout=1.0", "model.dropout is 1.0, out of its range", "less than 1"),
        ("schedule.warmup=101%", 'schedule.warmup is "101%"', 'such as "10%"'),
        ("schedule.warmup=half", 'schedule.warmup is "half"', 'such as "10%"'),
        ("schedule.warmup=5.5", "schedule.warmup is 5.5, which is not a whole number", ""),
        ("data.image_size=[384]", "data.image_size, item 2 is missing", ""),
        ("data.image_size=96,128", 'data.image_size is "96,128"', "[height, width]"),  # two sizes, or one
        ("data.image_size=0x384", "data.image_size, item 1 is 0, out of its range", "greater than 0"),
        ("data.mean=[0.5, 0.5]", "data.mean, item 3 is missing", ""),
        ("data.std=[0.5, 0.0, 0.5]", "data.std is [0.5, 0.0, 0.5]", "above 0"),
        ("data.crop_area=[1.0, 0.05]", "data.crop_area is [1.0, 0.05]", "[least, largest]"),
        ("data.crop_area=none", "data.crop_area is missing", "data.train_crop = 'inception' needs it"),
        ("data.resize=448", "is for data.train_crop = 'random', which is 'inception'", "leave it out"),
        ("data.dev_fraction=0", "without a dev split", "data.dev_fraction above 0"),
        ("optimizer.momentum=none", "optimizer.momentum is missing", "optimizer.name = 'sgd' needs it"),
        ("optimizer.eps=1e-8", "optimizer.eps is for optimizer.name = 'adam'", "leave it out"),
        ("schedule.steps=none", "the duration is missing", "exactly one of schedule.steps"),
        ("data.sampling=balancd", "did you mean 'balanced'?", "'uniform', 'sqrt' or 'balanced'"),
        ("objective.class_weights=full", 'objective.class_weights is "full"', "'none', 'sqrt' or 'balanced'"),
        ("objective.cutmix=-1", "objective.cutmix is -1, out of its range", "greater than or equal to 0"),
        ("data.random_erasing=25", "data.random_erasing is 25, out of its range", "less than or equal to 1"),
        ("data.trivialaugment=yes", 'data.trivialaugment is "yes", which is not true or false', ""),
    ],
)
def test_a_single_mistake_is_said_plainly(override, what, fix):
    error = refusal(override)

    assert what in error.message
    assert fix in error.fix
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("overrides", "what", "fix"),
    [
        (("data.trivialaugment=true", "data.randaugment=[2, 9]"), "are both given", "one of the two"),
        (("objective.loss=sigmoid", "objective.class_weights=sqrt"), "'softmax', which is 'sigmoid'", "none"),
        (("data.sampling=sqrt", "data.streaming=true"), "read in their own order", "streaming to false"),
        (("data.sampling=sqrt", "objective.class_weights=balanced"), "count twice", "sqrt for both"),
        (("data.sampling=balanced", "objective.class_weights=balanced"), "count twice", "one of the two"),
    ],
)
def test_two_keys_that_do_not_go_together_are_refused(overrides, what, fix):
    error = refusal(*overrides)

    assert what in error.message and fix in error.fix


def test_randaugment_takes_the_place_of_a_recipe_s_trivialaugment():
    data = recipe.load("modern/finetune-few", ["data.randaugment=[2, 9]"]).data
    assert (data.randaugment, data.trivialaugment) == ((2, 9), False)
    assert recipe.load("modern/finetune-few", ["data.randaugment=none"]).data.trivialaugment


def test_a_crop_after_the_resize_goes_with_a_square_too_and_not_without_a_resize():
    evaluator = recipe.load("fewshot/default", training=False).data
    squashed = recipe.load("fewshot/default", ["data.eval_resize=square"], training=False).data
    by_side = recipe.load("fewshot/default", ["data.eval_resize=short_side"], training=False).data

    assert (evaluator.eval_resize, evaluator.eval_crop_fraction) == ("square", 0.875)
    assert squashed.eval_crop_fraction is None  # a square as the command line says it is the whole picture
    assert by_side.eval_crop_fraction == 0.875
    with pytest.raises(VitError, match="eval_crop_fraction is for"):
        overrides = ["data.eval_resize=none", "data.eval_crop_fraction=0.9"]
        recipe.load("fewshot/default", overrides, training=False)


def test_a_mistake_names_the_option_or_the_file_that_it_is_in(write):
    path = write(f'extends = "{CIFAR[:8]}/table4"\n[optimizer]\nlr = 0\n[schedule]\nsteps = 9\nwarmup = 1\n')

    assert refusal("train.runs=0").where == "option --set train.runs=0"
    assert refusal(shorthands={"train.seed": -1}).where == "option --seed"
    assert refusal(name=path).where == path


def test_all_mistakes_of_files_and_options_come_in_one_report(write):
    path = write(
        'extends = "finetune/table4"\n[optimizer]\nlrr = 0.1\nlr = "1e-3"\n[sheduler]\nsteps = 5\n'
        '[schedule]\nsteps = 0\nepochs = 3\nwarmup = 1\n[data]\ntrain_crop = "randm"\n'
    )
    error = refusal("train.seed=-1", "train.seed=2", "evl.every=3", name=path)

    assert error.message.startswith(f"8 mistakes in recipe {path}\n")
    for what in (
        "lrr is not",
        "optimizer.lr is",
        "sheduler is not",
        "steps is 0",
        "both given",
        "randm",
        "evl.every",
    ):
        assert what in error.message
    assert "train.seed is set twice" in error.message
    assert "where: option --set train.seed=-1 and option --set train.seed=2" in error.message


def test_what_is_missing_is_listed_key_by_key(write):
    path = write("[data]\nimage_size = 224\n[optimizer]\nname = 'adam'\n")
    message = refusal(name=path).message

    for what in ("data.flip", "optimizer.lr", "optimizer.decay_on", "section [eval]", "section [schedule]"):
        assert f"{what} is missing" in message
    assert "data.image_size" not in message


def test_the_same_key_twice_is_refused_wherever_it_is_said():
    assert "train.seed is set twice" in refusal("train.seed=1", "train.seed=1").message
    assert "train.seed is set twice" in refusal("train.seed=1", shorthands={"train.seed": 1}).message
    assert "both given" in refusal("schedule.epochs=1", shorthands={"schedule.steps": 1}).message


def test_a_file_that_is_not_toml_is_refused_with_its_line(write):
    assert "line 2" in refusal(name=write("[train]\nseed = = 1\n")).message
    assert "not TOML" in refusal(name=write("train = {\n")).message


def test_a_section_must_be_a_table(write):
    assert "train is a section" in refusal(name=write("train = 3\n")).message


def test_an_unknown_recipe_is_answered_with_the_nearest_one(tmp_path):
    assert "did you mean 'finetune/cifar10'?" in refusal(name="finetune/cifr10").message
    assert "no recipe file" in refusal(name=str(tmp_path / "none.toml")).message


def test_a_part_of_a_name_is_answered_with_the_recipes_that_have_it():
    error = refusal(name="masked")

    assert error.fix.startswith("modern/cifar10-masked-patch or pretrain/b16-masked-patch; vit recipes list")
    assert "did you mean" not in error.message


# what the command line may say


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("optimizer.lr=1e-3", 1e-3),
        ("optimizer.lr=1", 1.0),
        ("optimizer.lr=[0.1, 1]", (0.1, 1.0)),
        ("optimizer.lr=0.1,1", (0.1, 1.0)),
        ("data.image_size=384x512", (384, 512)),
        ("data.image_size=[384, 512]", (384, 512)),
        ("data.image_size=224x224", 224),
        ("data.train_split=train[:98%]", "train[:98%]"),
        ("data.dataset=2012", "2012"),
        ("data.dataset = 'a b'", "a b"),
        ("data.dataset=none", None),
        ("data.dataset=x=y", "x=y"),
        ("schedule.warmup=10%", "10%"),
        ("schedule.warmup=0", 0),
        ("data.flip=false", False),
    ],
)
def test_a_value_is_read_as_toml_and_bare_words_as_text(override, value):
    changed = recipe.flat(recipe.load(CIFAR, [override]))[override.partition("=")[0].strip()]

    assert changed == value
    assert type(changed) is type(value)


def test_an_override_cannot_smuggle_in_further_keys():
    changed = recipe.load(CIFAR, ['data.dataset="a"\n[train]\nseed = 7'])

    assert changed.train.seed == 0


def test_an_option_that_was_not_given_changes_nothing():
    assert recipe.load(CIFAR, (), {"optimizer.lr": None}) == recipe.load(CIFAR)


def test_an_option_sets_its_key_as_typed_or_parsed():
    typed = recipe.load(CIFAR, (), {"data.image_size": "384x512", "optimizer.lr": "0.1,0.2"})
    parsed = recipe.load(CIFAR, (), {"data.image_size": (384, 512), "optimizer.lr": [0.1, 0.2]})

    assert typed == parsed
    assert typed.data.image_hw == (384, 512)
    assert recipe.load(CIFAR).data.image_hw == (384, 384)


def test_epochs_replace_inherited_steps_and_steps_replace_inherited_epochs():
    epochs = recipe.load(CIFAR, ["schedule.epochs=3"]).schedule
    steps = recipe.load("pretrain/demo", (), {"schedule.steps": 10}).schedule

    assert (epochs.steps, epochs.epochs) == (None, 3.0)
    assert (steps.steps, steps.epochs) == (10, None)


def test_another_optimizer_drops_the_inherited_keys_of_the_first():
    adam = ["optimizer.name=adam", "optimizer.betas=[0.9, 0.99]", "optimizer.eps=1e-8"]

    assert recipe.load(CIFAR, adam).optimizer.momentum is None
    assert "is for optimizer.name = 'sgd'" in refusal(*adam, "optimizer.momentum=0.9").message


def test_another_crop_drops_the_inherited_keys_of_the_first():
    bit = recipe.load(CIFAR, ["data.train_crop=random", "data.resize=448"]).data

    assert (bit.crop_area, bit.crop_aspect, bit.resize) == (None, None, 448)
    assert "smaller than data.image_size" in refusal("data.train_crop=random", "data.resize=383").message
    assert "data.resize is missing" in refusal("data.train_crop=random").message


# files that extend others


def test_a_file_changes_single_keys_of_its_base(write):
    path = write(f'extends = "{CIFAR}"\n', "twice.toml")
    assert "extends another recipe itself" in refusal(name=path).message

    path = write('extends = "finetune/table4"\n[optimizer]\nlr = 0.5\n[schedule]\nepochs = 2\nwarmup = 0\n')
    mine = recipe.load(path)
    assert (mine.optimizer.lr, mine.optimizer.momentum, mine.schedule.epochs) == (0.5, 0.9, 2.0)


def test_a_base_may_lie_beside_the_file(write):
    write(recipe.to_toml(recipe.load(CIFAR)), "base.toml")
    path = write('extends = "base.toml"\n[schedule]\nepochs = 2\n')

    assert recipe.load(path).schedule.steps is None
    assert recipe.load(path).train.batch_size == 512


def test_a_base_in_a_folder_beside_the_file_is_looked_up_from_there_and_not_from_where_vit_is_started(
    write, tmp_path, monkeypatch
):
    (tmp_path / "bases").mkdir()
    write(recipe.to_toml(recipe.load(CIFAR, ["train.batch_size=64"])), "bases/small.toml")
    path = write('extends = "bases/small.toml"\n')
    monkeypatch.chdir(tmp_path / "bases")

    assert recipe.load(path).train.batch_size == 64


def test_every_value_knows_where_it_comes_from(write):
    path = write('extends = "finetune/table4"\n[optimizer]\nlr = 0.5\n[schedule]\nsteps = 2\nwarmup = 0\n')
    origins = recipe.origins(path, ["train.runs=3"], {"train.seed": 1})

    assert origins["optimizer.lr"] == path
    assert origins["optimizer.momentum"] == "recipes/finetune/table4.toml"
    assert origins["train.runs"] == "option --set train.runs=3"
    assert origins["train.seed"] == "option --seed"
    assert origins["model.gelu"] == "schema default"


# a recipe as a value


def test_a_recipe_never_changes():
    loaded = recipe.load(CIFAR)

    with pytest.raises(ValidationError):
        loaded.train.seed = 1
    assert isinstance(loaded.choices["optimizer.lr"], tuple)


@pytest.mark.parametrize("name", [CIFAR, "pretrain/demo", "finetune/default", "evaluate/default"])
def test_a_recipe_survives_being_written_and_read(name, write):
    ours = recipe.load(name, ['data.dataset="a \\"b\\" \\u007f é"', "data.image_size=64x96"], training=False)
    path = write(recipe.to_toml(ours))

    assert recipe.load(path, training=False) == ours.with_name(path)
    assert recipe.differences(recipe.load(path, training=False), ours) == []


def test_a_choice_alone_is_enough():
    adam = recipe.load(CIFAR, ["optimizer.name=adam"]).optimizer
    sgd = recipe.load("pretrain/demo", ["optimizer.name=sgd"])
    crop = recipe.load(CIFAR, ["data.train_crop=inception"]).data

    assert (adam.betas, adam.eps, adam.momentum) == ((0.9, 0.999), 1e-8, None)  # paper, section 4.1
    assert (sgd.optimizer.momentum, sgd.optimizer.betas) == (0.9, None)  # paper, table 4
    assert (crop.crop_area, crop.resize) == ((0.05, 1.0), None)
    assert recipe.load(CIFAR, ["optimizer.name=adam", "optimizer.eps=1e-6"]).optimizer.eps == 1e-6


def test_small_numbers_survive_being_written_and_read(write):
    adam = ["optimizer.name=adam", "optimizer.eps=1e-16"]
    ours = recipe.load("pretrain/demo", [*adam, "optimizer.lr=3e-05"])

    assert tomllib.loads(recipe.to_toml(ours))["optimizer"]["eps"] == 1e-16
    assert recipe.flat(recipe.load(write(recipe.to_toml(ours)))) == recipe.flat(ours)


def test_differences_name_the_keys_and_both_values():
    left = recipe.load(CIFAR, ["optimizer.lr=0.01"])
    right = recipe.load(CIFAR, ["optimizer.lr=0.03", "schedule.epochs=2"])

    assert recipe.differences(left, right) == [
        "optimizer.lr: 0.01 against 0.03",
        "schedule.steps: 10000 against none",
        "schedule.epochs: none against 2.0",
    ]


def test_evaluation_needs_no_training_sections_and_training_does(tmp_path):
    (tmp_path / "half.toml").write_text('extends = "evaluate/default"\n[train]\nseed = 1\n')

    assert recipe.load("evaluate/default", training=False).optimizer is None
    assert "section [optimizer] is missing" in refusal(name="evaluate/default").message
    half = refusal(name=str(tmp_path / "half.toml"), training=False)
    assert "train.runs is missing" in half.message


def test_a_key_of_training_means_nothing_where_nothing_is_trained():
    with pytest.raises(VitError) as error:
        recipe.load("evaluate/default", ["optimizer.lr=1"], training=False)

    assert error.value.message == "optimizer.lr is a training option; this command does not train"
    assert (error.value.where, error.value.fix) == ("option --set optimizer.lr=1", "leave it out")
    assert recipe.load("finetune/default", ["optimizer.lr=1"], training=False).optimizer.lr == 1


def test_a_path_has_one_spelling_and_names_stay_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "cifar10", "demo", "my photos"):
        (tmp_path / name).mkdir()
    spelled = {
        "photos/": "photos", "./photos": "photos", "photos//": "photos", "./my photos/": "my photos",
        f"{tmp_path}/photos/": f"{tmp_path}/photos", "../gone/": "../gone/", "gone/": "gone/",
        "cifar10": "cifar10", "./cifar10/": "./cifar10", "cifar10/": "./cifar10", "demo/": "./demo",
        "owner/name": "owner/name", "https://photos/": "https://photos/", "photos/*.tar": "photos/*.tar",
    }  # fmt: skip

    for typed, name in spelled.items():
        loaded = recipe.load_for_inference(None, (), {"data.dataset": typed, "model.ckpt": typed})
        assert (loaded.data.dataset, loaded.model.ckpt) == (name, name)
        assert recipe.load_for_inference(None, (f"data.dataset={typed}",), {}).given["data.dataset"] == name


def test_eighty_thousand_choices_are_refused_before_each_is_looked_at(tmp_path):
    path = tmp_path / "many.toml"
    rates = ", ".join(f"{1 + n}e-9" for n in range(80_000))
    path.write_text(
        f'extends = "finetune/default"\n[data]\ndev_fraction = 0.1\n[optimizer]\nlr = [{rates}]\n'
    )

    assert "80000 combinations to choose from" in refusal(name=str(path)).message


@pytest.mark.parametrize(
    ("name", "steps", "warmup"),
    [
        ("finetune/cifar10", 100, "5%"),  # 500 of 10,000 steps
        ("finetune/vtab", 499, "20%"),  # 500 of 2,500
        ("finetune/vtab", 500, 500),  # it just fits
        ("finetune/cifar10", 20_000, 500),
    ],
)
def test_a_run_shorter_than_its_warmup_keeps_the_fraction_that_the_recipe_has(name, steps, warmup):
    values = recipe.merge(name, (), {"schedule.steps": steps}).values

    assert (values["schedule.steps"], values["schedule.warmup"]) == (steps, warmup)
    given = recipe.merge(name, (), {"schedule.steps": steps, "schedule.warmup": 501})
    assert given.values["schedule.warmup"] == 501 and given.notes == []  # refused later if it does not fit


def test_256_combinations_may_be_chosen_from_and_no_more():
    def too_many(count: int) -> bool:
        return sweep._too_many({"optimizer.lr": [0.1] * count}, {}, file="a.toml") is not None

    assert [too_many(count) for count in (1, 256, 257)] == [False, False, True]


def test_a_section_that_one_of_two_recipes_lacks_is_a_difference_either_way():
    whole = recipe.load(CIFAR, ["data.dataset=photos"])
    bare = recipe.load("evaluate/default", ["data.dataset=photos"], training=False)

    assert "train.batch_size: 512 against none" in recipe.differences(whole, bare)
    assert "train.batch_size: none against 512" in recipe.differences(bare, whole)


def test_a_value_of_a_section_that_a_recipe_lacks_comes_from_nowhere():
    sections = {key.partition(".")[0] for key in recipe.origins("evaluate/default")}

    assert {"data", "eval", "model"} <= sections and not {"fewshot", "inspect", "train"} & sections
