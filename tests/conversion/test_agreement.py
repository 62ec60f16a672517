"""How far the outputs of an exported file are from those of the network, by hand."""

from collections.abc import Iterator

import pytest
import torch

from vitcli.conversion import comparison
from vitcli.conversion.comparison import compare
from vitcli.data.dataset import DataSet
from vitcli.data.transforms import Preprocessing
from vitcli.errors import DataError
from vitcli.output.progress import Progress


def test_the_largest_difference_counts_in_either_direction_and_is_relative_to_the_largest_output():
    outputs_NK = torch.tensor([[1.0, -4.0], [2.0, 3.0]])
    exported_NK = torch.tensor([[1.5, -6.0], [2.0, 1.0]])

    agreement = compare(outputs_NK, exported_NK, are_logits=True)

    assert (agreement.max_difference, agreement.max_output) == (2.0, 4.0)
    assert agreement.max_rel_difference == 0.5
    assert (agreement.num_same, agreement.top1, agreement.num_images) == (1, 0.5, 2)
    assert compare(outputs_NK, exported_NK, are_logits=False).top1 is None


@pytest.mark.parametrize(("exported", "difference"), [(0.0, 0.0), (1e-9, float("inf"))])
def test_outputs_of_zero_agree_with_zero_alone(exported, difference):
    agreement = compare(torch.zeros(2, 3), torch.full((2, 3), exported), are_logits=True)

    assert agreement.max_rel_difference == difference


def test_images_are_decoded_whole_as_for_a_file(monkeypatch):
    """A file cannot shrink a JPEG while it is decoded."""
    asked = []

    def no_batches(split: object, preprocessing: Preprocessing, **how: object) -> Iterator:
        asked.append((preprocessing.decode, how["on_bad_image"]))
        return iter(())

    monkeypatch.setattr(comparison.loader, "eval_batches", no_batches)
    pixels = Preprocessing((8, 8), "square", 1.0, "bilinear", True, (0.5,) * 3, (0.5,) * 3, decode="fast")
    model, quiet = torch.nn.Flatten(), Progress(quiet=True)
    with pytest.raises(DataError, match="no image can be decoded"):
        comparison.outputs_of_all(
            [model, model], DataSet("demo").open("test"), pixels, quiet, title="", on_bad_image="skip"
        )
    assert asked == [("exact", "skip")]
