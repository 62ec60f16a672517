"""What several runs come to, by hand."""

import pytest

from vitcli.training import sweep_results
from vitcli.training.sweep_results import Trial


def arm(lr: float, top1: float | None, loss: float = 1.0) -> Trial:
    summary = None if top1 is None else {"runs": [{"seed": 0, "top1": top1, "loss": loss}]}
    return Trial({"optimizer.lr": lr}, summary, f"arms/lr-{lr}")


@pytest.mark.parametrize(
    ("arms", "lr"),
    [
        ([arm(0.1, 0.8), arm(0.2, 0.9), arm(0.3, 0.7)], 0.2),
        ([arm(0.1, 0.9, 0.5), arm(0.2, 0.9, 0.4)], 0.2),  # of equal shares the smaller loss
        ([arm(0.1, 0.9, 0.5), arm(0.2, 0.9, 0.5)], 0.1),  # of equal ones the first
        ([arm(0.1, None), arm(0.2, 0.0, 9.0)], 0.2),
    ],
)
def test_the_best_trial_has_the_highest_accuracy_then_the_smaller_loss_then_comes_first(arms, lr):
    assert sweep_results.best(arms) == {"optimizer.lr": lr}


def test_masked_patches_are_ranked_by_the_fraction_of_correct_colours_else_by_the_loss():
    def masked(right, loss):
        run = {"seed": 0, "patch_accuracy": right, "most_frequent_color": right, "loss": loss}
        return Trial({"model.dropout": loss}, {"runs": [run]}, "")

    assert sweep_results.best([masked(0.3, 1.0), masked(0.2, 0.5)]) == {"model.dropout": 1.0}
    assert sweep_results.best([masked(None, 1.0), masked(None, 0.5)]) == {"model.dropout": 0.5}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"optimizer.lr": 0.003}, "lr-0.003"),
        ({"optimizer.lr": 1e-05, "data.flip": True}, "lr-1e-05_flip-true"),
        ({"schedule.warmup": "10%"}, "warmup-10%"),
        ({"data.crop_area": [0.05, 1.0]}, "crop_area--0.05-1.0"),
        ({"model.ckpt": "runs/a b/"}, "ckpt-runs-a-b"),
    ],
)
def test_an_arm_is_named_by_its_values(choice, name):
    assert sweep_results.name_of(choice) == name
