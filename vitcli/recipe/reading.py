"""How a data set is read, as later commands take it over from a run, or name it on their command line."""

from collections.abc import Mapping
from typing import Any

from vitcli.recipe.schema import Data
from vitcli.recipe.toml import toml_value

WHICH_DATA = ("dataset", "eval_split")  # and which images are scored
HOW_TO_READ = (
    "image_column", "label_column", "num_classes", "one_class", "streaming", "group_column", "on_bad_image",
)  # fmt: skip
TRAINED_ON = ("train_split", "num_examples")  # which images a run was trained on
HELD_OUT = ("dev_fraction", "dev_stratified")  # and which of these were left out
TO_TRAIN_ON = (*HOW_TO_READ, "flip")  # and what their mirror images are, for a run that trains on


def reading_keys(data: Data, keys: tuple[str, ...] = HOW_TO_READ) -> dict[str, Any]:
    """Return those of the keys of a recipe's [data], dotted, whose values are not the default."""
    values = {key: getattr(data, key) for key in keys}
    return {f"data.{key}": value for key, value in values.items() if value != Data.model_fields[key].default}


def data_words(data: Data) -> list[str]:
    """Return the words of a command line by which a command reads the data of a recipe in the same way."""
    return ["--dataset", str(data.dataset), *reading_words(data)]


def size_words(given: Mapping[str, Any]) -> list[str]:
    """Return the words for the size of images that a request names, by recipe key."""
    size = given.get("data.image_size")
    return [] if size is None else ["--res", str(size)]


def reading_words(data: Data) -> list[str]:
    """Return those words without the data set."""
    keys, words = reading_keys(data), []
    words += ["--skip-bad"] if keys.pop("data.on_bad_image", None) == "skip" else []
    for key, value in keys.items():
        words += ["--set", f"{key}={value if isinstance(value, str) else toml_value(value)}"]
    return words
