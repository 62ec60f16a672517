"""Which images choose thresholds and calibrate: of the same classes, and none of the test split."""

from dataclasses import dataclass
from types import SimpleNamespace

from vitcli.evaluation.calibration.prediction_sets import LEAST
from vitcli.training.splits import calibration_split, choosing_split

RECIPE = SimpleNamespace(objective=SimpleNamespace(loss="sigmoid"), data=SimpleNamespace(eval_split="dev"))


@dataclass
class Part:
    """Images of a split, of which only what is told about them is looked at."""

    name: str
    class_names: tuple[str, ...] = ("cat", "dog")
    length: int = 400
    is_multilabel: bool = False
    is_large: bool = False
    has_numbers: bool = False

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def __len__(self) -> int:
        return self.length


TRAIN = Part("pets, split train")


def calibrated_on(scored: Part, choice: Part | None = None) -> Part | None:
    return calibration_split(RECIPE, TRAIN, scored, choice, None)


def test_images_of_other_classes_or_in_another_order_or_too_many_calibrate_nothing():
    assert calibrated_on(dev := Part("pets, split dev")) is dev
    assert calibrated_on(Part("pets, split dev", ("dog", "cat"))) is None
    assert calibrated_on(Part("pets, split dev", ("cat", "dog", "emu"))) is None
    assert calibrated_on(Part("pets, split dev", is_large=True)) is None
    few = Part("pets, to choose by", length=LEAST - 1)
    assert calibrated_on(Part("pets, split dev", ("dog", "cat")), few) is few


def test_enough_images_to_choose_by_come_first():
    enough, few = (Part("pets, to choose by", length=length) for length in (LEAST, LEAST - 1))

    assert calibrated_on(dev := Part("pets, split dev"), few) is dev
    assert calibrated_on(dev, enough) is enough


def test_thresholds_of_several_labels_are_chosen_on_the_scored_images_if_there_are_any():
    several = Part("scenes, split train", is_multilabel=True)

    assert choosing_split(RECIPE, several, dev := Part("scenes, split dev"), None) is dev
    assert choosing_split(RECIPE, several, Part("scenes, split dev", length=0), None) is None
    assert choosing_split(RECIPE, TRAIN, dev, None) is None  # one class an image
