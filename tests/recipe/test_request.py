"""Recipe requests: values given on a command line, the recipe they load, what it must name."""

import pytest

from vitcli.errors import VitError
from vitcli.recipe.request import RecipeRequest


def test_given_are_the_named_recipe_and_the_values_of_options_but_not_the_batch_size():
    request = RecipeRequest(
        "evaluate/default",
        [" data.dataset = demo "],
        {"model.ckpt": "demo", "data.image_size": None, "eval.batch_size": 8},
    )

    assert request.given == {"--recipe": "evaluate/default", "model.ckpt": "demo", "data.dataset": "demo"}
    assert RecipeRequest().given == {}


def test_without_a_name_the_default_is_loaded_with_overrides_and_shorthands():
    request = RecipeRequest(None, ["eval.batch_size=7"], {"model.ckpt": "runs/pets"})

    recipe = request.load()

    assert (recipe.eval.batch_size, recipe.model.ckpt) == (7, "runs/pets")
    assert RecipeRequest().load("fewshot/default").fewshot is not None


@pytest.mark.parametrize(
    ("keys", "missing"), [({}, "checkpoint"), ({"model.ckpt": "a"}, "data set")], ids=["neither", "ckpt"]
)
def test_a_command_that_runs_a_checkpoint_on_data_needs_both(keys, missing):
    with pytest.raises(VitError, match=f"no {missing} is named") as refused:
        RecipeRequest(shorthands=keys).load(command="embed")

    assert "vit embed --ckpt RUN --dataset DATA" in refused.value.fix
