"""Recipes of commands that do not train: values given on a command line, and what they must name."""

import pytest

from vitcli.errors import VitError
from vitcli.recipe import load_for_inference


def test_asked_are_the_named_recipe_and_the_values_of_options_but_not_the_batch_size():
    recipe = load_for_inference(
        "evaluate/default",
        [" data.dataset = demo "],
        {"model.ckpt": "demo", "data.image_size": None, "eval.batch_size": 8},
    )

    assert recipe.asked == {"--recipe": "evaluate/default", "model.ckpt": "demo", "data.dataset": "demo"}
    assert load_for_inference(None, (), {}).asked == {}


def test_without_a_name_the_default_is_loaded_with_overrides_and_shorthands():
    recipe = load_for_inference(None, ["eval.batch_size=7"], {"model.ckpt": "runs/pets"})

    assert (recipe.eval.batch_size, recipe.model.ckpt) == (7, "runs/pets")
    assert load_for_inference(None, (), {}, default="fewshot/default").fewshot is not None


@pytest.mark.parametrize(
    ("keys", "missing"), [({}, "checkpoint"), ({"model.ckpt": "a"}, "data set")], ids=["neither", "ckpt"]
)
def test_a_command_that_runs_a_checkpoint_on_data_needs_both(keys, missing):
    with pytest.raises(VitError, match=f"no {missing} is named") as refused:
        load_for_inference(None, (), keys, command="embed")

    assert "vit embed --ckpt RUN --dataset DATA" in refused.value.fix
