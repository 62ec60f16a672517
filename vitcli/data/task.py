"""What an image is labelled with, which is what a network predicts of it; and what is not for every kind."""

from enum import Enum

from vitcli.errors import DataError, VitError


class Task(Enum):
    """The kind of label of an image, in words."""

    ONE_CLASS = "one class per image"
    MULTILABEL = "several labels per image"
    NUMBER = "a number per image"


# By option or command that needs them, the kinds of label that it is for.
FEATURES = {
    "--classes": (Task.ONE_CLASS,),
    "--real": (Task.ONE_CLASS, Task.MULTILABEL),
    "--threshold": (Task.ONE_CLASS, Task.MULTILABEL),
    "--sort-into": (Task.ONE_CLASS, Task.MULTILABEL),
    "--why": (Task.ONE_CLASS,),
    "--gate": (Task.ONE_CLASS,),
    "--fastest": (Task.ONE_CLASS,),
    "vit fewshot": (Task.ONE_CLASS,),
    "vit teach": (Task.ONE_CLASS,),
    "--labels": (Task.ONE_CLASS,),
}


def check_supports(
    feature: str, task: Task, *, name: str, fix: str = "leave it out", kind: type[VitError] = DataError
) -> None:
    """Raise an error where a feature of FEATURES is not for such labels.

    Args:
        name: of the images or the weights that have them.
        kind: of the error.
    """
    if task not in FEATURES[feature]:
        kinds = " or ".join(each.value for each in FEATURES[feature])
        raise kind(f"{feature} is for {kinds}, and {name} has {task.value}", where=feature, fix=fix)
