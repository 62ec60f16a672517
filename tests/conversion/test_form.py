"""What an exported file gives follows from the metadata of the weights; what int8 is calibrated on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from vitcli.conversion.export import ExportOptions, _program_form, preprocessing_of
from vitcli.conversion.images import images_for_scales
from vitcli.data.image_files import find_images
from vitcli.errors import DataError, WeightsError
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.evaluation.calibration.stored import Calibration
from vitcli.weights.io import read_weights

STORED = Calibration(
    Scaling(1.75), {90: 0.2, 95: 0.1, 99: None}, (), num_images=50, chosen_on="left out"
).as_metadata()
AGE = {"target": {"name": "age", "mean": 40.0, "std": 12.5}}


@pytest.fixture(scope="module")
def weights():
    return read_weights("demo")


def form_of(weights, **options):
    preprocessing, _ = preprocessing_of(weights, None)
    return _program_form(weights, preprocessing, ExportOptions(**options))


@pytest.mark.parametrize(
    ("num_classes", "metadata", "expected"),
    [
        (24, {}, ("classes", None, 0.0, 1.0)),
        (24, STORED, ("classes", 4.0, 0.0, 1.0)),
        (24, {"several_labels": {"thresholds": [0.5] * 24}}, ("multilabel", None, 0.0, 1.0)),
        (1, AGE, ("number", None, 40.0, 12.5)),
        (0, STORED, ("features", None, 0.0, 1.0)),
    ],
    ids=["classes", "temperature", "several labels", "number", "features"],
)
def test_the_form_follows_from_what_is_stored_with_the_weights(weights, num_classes, metadata, expected):
    architecture = replace(weights.architecture, num_classes=num_classes)
    form = form_of(replace(weights, architecture=architecture, metadata=metadata))

    assert (form.kind, form.scaled and form.scaled(7.0), form.mean, form.std) == expected
    assert form.preprocessing.as_dict() == weights.preprocessing
    assert (form.input, form.precision) == ("images", "fp32")
    other = form_of(weights, input="pixels", precision="fp16")
    assert (other.input, other.precision) == ("pixels", "fp16")


def test_a_stored_temperature_that_is_none_is_refused(weights):
    metadata = {"belief": STORED["belief"] | {"temperature": 0}}
    with pytest.raises(WeightsError, match="damaged"):
        form_of(replace(weights, metadata=metadata))


def test_int8_is_calibrated_on_what_the_file_takes_and_never_on_nothing(weights, tmp_path):
    rng = np.random.default_rng(0)
    pixels_HWC = rng.integers(0, 256, (90, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels_HWC).save(tmp_path / "good.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    form = form_of(weights)
    images = find_images([str(tmp_path)], where="--calibrate")

    (image_1HWC,) = images_for_scales(images, form)
    assert torch.equal(image_1HWC[0], torch.from_numpy(pixels_HWC))
    (image_1HWC,) = images_for_scales(images, replace(form, input="pixels"))
    assert np.array_equal(image_1HWC[0], form.preprocessing(pixels_HWC))

    (tmp_path / "good.png").unlink()
    with pytest.raises(DataError, match="none can be decoded"):
        list(images_for_scales(find_images([str(tmp_path)], where="--calibrate"), form))
