"""What `data.group_column` may be: the syntax of the ways to tell which images belong together."""

import re
from dataclasses import dataclass

NEAR_DUPLICATES = "near_duplicates"
# Of the pairs of CIFAR-10's test and train that were inspected, all 72 up to 6 bits are copies, half of those
# of 8 and few of those of 10. A JPEG of quality 30, half the size or 30 grey levels more change at most 6 of
# them in 99 % of its images (docs/evidence/accuracy.md).
NEAR_DISTANCE = 6  # bits of 64 in which the perceptual hashes of near duplicates differ at the most
FOLDER, NAME = "folder:", "name:"
HIGHEST_LEVEL = 20


@dataclass(frozen=True)
class GroupRule:
    """How the group of an image is found; exactly one attribute is set, none for near duplicates.

    Attributes:
        column: a column of the data set.
        level: which folder above the file: 1 for the one that it lies in.
        pattern: of the file name; its only group is the name of the image's group.
    """

    column: str | None = None
    level: int | None = None
    pattern: re.Pattern[str] | None = None


def group_rule(text: str) -> GroupRule:
    """Read a value of `data.group_column`.

    Raises:
        ValueError: it is not of the syntax; the message says why and how to write it.
    """
    if text == NEAR_DUPLICATES:
        return GroupRule()
    if text.startswith(FOLDER):
        level = text.removeprefix(FOLDER)
        if not (level.isascii() and level.isdigit() and 1 <= int(level) <= HIGHEST_LEVEL):
            raise ValueError(
                f"{FOLDER}N counts folders upwards from the image, {FOLDER}1 up to {FOLDER}{HIGHEST_LEVEL}"
            )
        return GroupRule(level=int(level))
    if text.startswith(NAME):
        try:
            pattern = re.compile(text.removeprefix(NAME))
        except re.error as error:
            raise ValueError(f"its regular expression is none: {error}") from error
        if pattern.groups != 1:
            raise ValueError(
                f"its regular expression has {pattern.groups} groups in parentheses; write one, around what "
                rf"the images of a group have in common, such as {NAME}^(\d+)_"
            )
        return GroupRule(pattern=pattern)
    if not text.strip():
        raise ValueError(f"write a column, {FOLDER}N, {NAME}REGEX or {NEAR_DUPLICATES}")
    return GroupRule(column=text)
