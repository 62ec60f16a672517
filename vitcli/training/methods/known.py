"""The methods of training that meet a run at moments of their own: one file each, named here alone."""

from vitcli.recipe import Recipe
from vitcli.training.methods.calibrate import CalibratedWeights
from vitcli.training.methods.distillation import Distillation
from vitcli.training.methods.early_stopping import EarlyStopping
from vitcli.training.methods.method import Method
from vitcli.training.methods.refit import RefittedHead
from vitcli.training.methods.thresholds import TunedThresholds
from vitcli.training.methods.wise_ft import WiseFineTuning
from vitcli.training.splits import RunSplits

METHODS: tuple[type[Method], ...] = (
    Distillation,
    EarlyStopping,
    TunedThresholds,
    CalibratedWeights,
    RefittedHead,
    WiseFineTuning,
)


def methods_of(command: str, recipe: Recipe, splits: RunSplits) -> tuple[Method, ...]:
    """Return the methods of a run, in the order in which they have their moments."""
    return tuple(method(recipe) for method in METHODS if method.is_asked_for(command, recipe, splits))
