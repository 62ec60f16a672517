"""`vit export --gate`: the interval of a loss of accuracy, and ten files that are wrong in ten ways."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conversion.test_export import network, vit
from vitcli.conversion import export as exports
from vitcli.conversion.comparison import NotFinite, Verdict, Z, highest_drop, judge, outputs_of_all, refuse
from vitcli.conversion.export import Export, ExportOptions
from vitcli.conversion.images import Images
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, DataError, WeightsError
from vitcli.output.progress import Progress
from vitcli.weights.production.program import ProgramForm


def score_by_search(lost: int, gained: int, n: int, drop: float) -> float:
    """Return the score statistic of a drop, its nuisance parameter found by search instead of by formula."""
    low, high = max(0.0, -drop), (1 - drop) / 2
    fractions_R = np.linspace(low, high, 200_001)[1:-1]  # gained; lost is this and the drop
    with np.errstate(divide="ignore", invalid="ignore"):
        log_likelihood_R = (n - lost - gained) * np.log(1 - drop - 2 * fractions_R)
        log_likelihood_R += lost * np.log(fractions_R + drop) if lost else 0
        log_likelihood_R += gained * np.log(fractions_R) if gained else 0
    fraction = fractions_R[np.nanargmax(log_likelihood_R)]
    return (lost - gained - n * drop) / math.sqrt(n * (2 * fraction + drop - drop**2))


@pytest.mark.parametrize(
    ("lost", "gained", "n"), [(12, 2, 44), (5, 5, 100), (1, 0, 227), (30, 9, 1000), (0, 4, 60), (0, 0, 500)]
)
def test_the_interval_ends_where_the_score_test_turns(lost, gained, n):
    end = highest_drop(lost, gained, n)

    assert (lost - gained) / n < end < 1
    assert score_by_search(lost, gained, n, end) == pytest.approx(-Z, abs=2e-3)
    assert highest_drop(0, 0, n) == pytest.approx(Z**2 / (n + Z**2), abs=1e-9)  # by hand


def test_the_interval_covers_the_true_drop_nineteen_times_in_twenty():
    rng = np.random.default_rng(0)
    for lost, gained, n in [(0.04, 0.02, 300), (0.02, 0.005, 1000), (0.1, 0.1, 150)]:
        draws = rng.multinomial(n, [lost, gained, 1 - lost - gained], size=2_000)
        covered = [highest_drop(b, c, n) >= lost - gained for b, c, _ in draws.tolist()]
        assert 0.93 < np.mean(covered) < 0.98


def test_a_verdict_counts_what_one_has_right_and_the_other_wrong():
    labels_N = torch.tensor([0, 1, 2, 0])
    right_NK = torch.eye(3)[labels_N]
    exported_NK = right_NK.clone()
    exported_NK[0] = torch.tensor([0.0, 2.0, 0.0])
    right_NK[3] = torch.tensor([0.0, 0.0, 2.0])

    verdict = judge(right_NK, exported_NK, labels_N, max_drop=0.5)

    assert (verdict.num_images, verdict.num_right, verdict.lost, verdict.gained) == (4, 3, 1, 1)
    assert verdict.as_json()["top1_exported"] == 0.75 and verdict.drop == 0
    few = refuse(Verdict(num_images=227, num_right=200, lost=0, gained=0, max_drop=0.005))
    assert "no right answer is lost, but 227 images are too few" in few.message
    assert "539 images without a change would show it" in few.fix and "--max-drop 1.2 " in few.fix
    assert highest_drop(0, 0, 539) <= 0.005 < highest_drop(0, 0, 538)
    assert Verdict(227, 200, 0, 0, 0.012).is_accepted and not Verdict(227, 200, 0, 0, 0.0117).is_accepted


def test_the_advice_of_a_search_is_of_its_own_options_and_level():
    refused = Verdict(300, 290, 0, 0, 0.01, z=1.96)
    error = refuse(refused, option="--fastest")

    assert highest_drop(0, 0, 381, z=1.96) <= 0.01 < highest_drop(0, 0, 380, z=1.96)
    assert "381 images without a change would show it" in error.fix
    assert error.where == "--fastest, --max-drop 1"
    loses = replace(refused, lost=9)
    assert "--precision" in refuse(loses).fix and "--precision" not in refuse(loses, option="--fastest").fix
    assert [each.as_json()["confidence"] for each in (refused, replace(refused, z=Z))] == [0.975002, 0.95]


def test_outputs_that_are_not_finite_are_those_of_the_checkpoint_or_of_the_file(of_int8):
    broken, quiet = scaled(of_int8.model, math.nan), Progress(quiet=True)
    arguments = (of_int8.images.split, of_int8.preprocessing, quiet)
    with pytest.raises(WeightsError, match="not finite"):
        outputs_of_all([broken, of_int8.model], *arguments, title="")
    with pytest.raises(NotFinite):
        outputs_of_all([of_int8.model, broken], *arguments, title="")


def test_a_drop_that_is_just_allowed_is_accepted():
    bound = Verdict(300, 280, lost=3, gained=1, max_drop=0.0).highest_drop

    assert Verdict(300, 280, lost=3, gained=1, max_drop=bound).is_accepted
    assert not Verdict(300, 280, lost=3, gained=1, max_drop=bound - 1e-12).is_accepted


@pytest.fixture(scope="module")
def of_int8():
    """An export in int8 with 40 images, of which the network has all but the last four right."""
    rng, arch = np.random.default_rng(0), vit()
    pixels = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    pixels[:, 8:16] = rng.integers(0, 256, (40, 1, 1, 3))
    preprocessing = Preprocessing((32, 32), "square", 1.0, "bilinear", True, (0.5,) * 3, (0.5,) * 3)
    labels = np.zeros(40, np.int64)
    split = Split(
        "pets", 40, None, 5, lambda row: (pixels[row], int(labels[row])), lambda: labels, "row {}".format
    )
    model, form = network(arch), ProgramForm(preprocessing, "classes", precision="int8")
    options = ExportOptions(precision="int8", gate="pets", max_drop=0.1)
    images, weights = Images(split, are_held_out=True), SimpleNamespace(architecture=arch)
    export = Export("onnx", model, weights, preprocessing, form, images, split, options)
    outputs_NK, _ = outputs_of_all([model], split, preprocessing, Progress(quiet=True), title="")
    labels[:] = outputs_NK.argmax(1)
    labels[36:] = (labels[36:] + 1) % 5
    assert len(set(labels[:36].tolist())) > 1
    return export


def scaled(model: torch.nn.Module, factor: float, *, class_to_prefer: int | None = None) -> torch.nn.Module:
    """The network with larger outputs, of which one class may be always the largest."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head.weight *= factor
        other.head.bias *= factor
        if class_to_prefer is not None:
            other.head.bias[class_to_prefer] += 100
    return other


def compared(export: Export, exported: torch.nn.Module) -> dict:
    return exports._compared(export, exported, Progress(quiet=True))


def test_images_judge_another_precision_and_no_difference_of_outputs(of_int8):
    """Three times the outputs are as many right answers; only a file in fp32 has to have equal ones."""
    larger = scaled(of_int8.model, 3)
    result = compared(of_int8, larger)
    assert result["max_rel_difference"] == pytest.approx(2, abs=0.01) and result["notes"] == []
    assert (result["gate"]["num_images"], result["gate"]["top1_exported"]) == (40, 0.9)
    with pytest.raises(CheckFailed, match=r"relative 2; the tolerance is 0\.0001"):
        compared(replace(of_int8, options=replace(of_int8.options, precision="fp32")), larger)


def test_damaged_images_that_a_run_held_out_are_left_out(of_int8):
    def read_row(row):
        if row in damaged:
            raise DataError("damaged", where="", fix="")
        return of_int8.images.split.read_row(row)

    damaged, split = {3, *range(16, 32)}, replace(of_int8.images.split, read_row=read_row)
    assert compared(replace(of_int8, images=Images(split, are_held_out=True)), scaled(of_int8.model, 1)) == (
        compared(of_int8, scaled(of_int8.model, 1)) | {"num_images": 23}
    )
    with pytest.raises(DataError, match="damaged"):
        compared(replace(of_int8, images=Images(split)), scaled(of_int8.model, 1))
    damaged |= {*range(40)}
    with pytest.raises(DataError, match="no image can be decoded"):
        compared(replace(of_int8, images=Images(split, are_held_out=True)), scaled(of_int8.model, 1))


def test_a_gate_names_the_accuracy_that_a_file_in_another_precision_loses(of_int8):
    constant = scaled(of_int8.model, 1, class_to_prefer=0)
    labels = of_int8.gate_split.read_labels()
    drop = 0.9 - float(np.mean(labels == 0))
    with pytest.raises(CheckFailed, match=f"of 40 images the file loses .* a drop of {drop:.2%}:"):
        compared(of_int8, constant)


def test_without_a_gate_a_note_says_what_another_precision_changes(of_int8):
    """On images of the run with their labels, on others without, and of outputs that are no classes."""
    labels = of_int8.gate_split.read_labels()
    export = replace(of_int8, gate_split=None, options=replace(of_int8.options, gate=None))
    constant = scaled(of_int8.model, 1, class_to_prefer=0)
    predicted = labels.copy()
    predicted[36:] = (predicted[36:] - 1) % 5
    num_same = int((predicted == 0).sum())
    same = f"int8: {num_same} of 40 images of pets have the class of the checkpoint ({num_same / 40:.2%})"
    right = f"{np.mean(labels == 0):.2%} are right, by the checkpoint 90.00%"
    assert compared(export, constant)["notes"] == [
        f"{same}; {right}; --gate DATA --max-drop POINTS refuses what loses more"
    ]
    drawn = replace(export, images=Images(of_int8.gate_split))
    assert compared(drawn, constant)["notes"] == [
        f"{same}; --gate DATA, or --images, measures it on images of yours"
    ]
    of_numbers = replace(export, form=replace(export.form, kind="number"))
    assert compared(of_numbers, scaled(of_int8.model, 3))["notes"] == [
        "int8 is not judged: outputs differ by up to 2 of the largest on 40 images of pets"
    ]
    equal = replace(export, options=replace(export.options, precision="fp32"))
    assert compared(equal, scaled(export.model, 1))["notes"] == []


def test_a_drop_of_just_the_allowed_size_is_accepted_and_any_more_is_not():
    highest = highest_drop(5, 2, 200)

    verdicts = [Verdict(200, 150, 5, 2, highest + more) for more in (0.0, -1e-12)]
    assert [verdict.is_accepted for verdict in verdicts] == [True, False]
