"""OpenVINO as a second reader of ONNX files, and what its arithmetic in float32 asks of them."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.conftest import REPOSITORY, run
from tests.conversion.test_export import to_export, vit  # noqa: F401  # a fixture
from tests.weights.production.test_program import RULES, images_to_resize, preprocessing_of
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed
from vitcli.weights.production import program, session


@pytest.mark.parametrize("resize", ["short_side", "none"])
@pytest.mark.parametrize("crop_fraction", [0.875, 0.9, 0.95, 1.0])
def test_the_size_before_the_crop_is_computed_in_whole_numbers(resize, crop_fraction, monkeypatch):
    """As `Preprocessing` does; in float32 227 x 248/227 is 247.99998, and would lose a row."""
    monkeypatch.setattr(torch, "float64", torch.float32)
    rng = np.random.default_rng(0)
    for size in ((224, 224), (160, 224)):
        preprocessing = Preprocessing(size, resize, crop_fraction, "bicubic", True, (0.5,) * 3, (0.5,) * 3)
        sides = [(227, 227), (1, 1), (1, 5000), *rng.integers(1, 6000, (200, 2)).tolist()]
        computed = [program._size_before_crop(*each, preprocessing) for each in sides]
        assert computed == [preprocessing._size_in_shape(*each) for each in sides]


def test_without_float64_images_are_resized_to_the_same_bytes(monkeypatch):
    """All but a few; of distances that are no whole numbers 300 of these bytes would differ."""
    monkeypatch.setattr(torch, "float64", torch.float32)
    num_bytes = num_other = 0
    for rule in RULES:
        for image_HWC in images_to_resize(num_others=2):
            resized_1HWC = program.resized(torch.from_numpy(image_HWC[None].copy()), preprocessing_of(rule))
            num_other += int((resized_1HWC[0].numpy() != preprocessing_of(rule)(image_HWC)).sum())
            num_bytes += resized_1HWC.numel()
    assert num_bytes > 1_000_000 and num_other < 60


@pytest.mark.parametrize("input", ["images", "pixels"])
def test_openvino_gives_the_answers_of_onnxruntime(to_export, tmp_path, input):  # noqa: F811
    pytest.importorskip("openvino")
    to_export(vit(), "out.onnx", input=input)
    path = tmp_path / "out.onnx"
    ours, theirs = (session.SESSIONS[name](path, num_threads=1) for name in session.RUNTIMES[".onnx"])

    assert theirs.answer_name == ours.answer_name == "probabilities"
    assert [type(side) for side in theirs.input_shape] == [type(side) for side in ours.input_shape]
    size = (50, 39) if input == "images" else (32, 32)
    images = np.random.default_rng(0).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    for name in (ours.output_name, ours.answer_name):
        expected = ours.run(name, images)
        assert np.abs(theirs.run(name, images) - expected).max() < 1e-2 * np.abs(expected).max()
    checked = run("export", "--check", path, "--runtime", "openvino")
    assert checked.code == 0 and "on 10 images, by openvino" in checked.out, checked.err
    allowed = "0.05" if input == "images" else "0.0001"
    assert checked.out.rstrip().endswith(f"allowed {allowed}")


def test_openvino_refuses_what_is_not_a_network(tmp_path):
    pytest.importorskip("openvino")
    (tmp_path / "x.onnx").write_bytes(b"no network")

    with pytest.raises(CheckFailed, match=r"OpenVINO .* does not accept the file"):
        session.OpenVinoSession(tmp_path / "x.onnx", num_threads=1)


def test_the_telemetry_of_openvino_is_never_loaded(tmp_path):
    (tmp_path / "openvino.py").write_text("try: import openvino_telemetry\nexcept ImportError: pass")
    (tmp_path / "openvino_telemetry.py").write_text("print('loaded')")
    code = "from vitcli.weights.production.session import load_runtime; load_runtime('openvino')"
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    command = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True)

    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_a_runtime_that_is_not_installed_is_named(to_export, tmp_path, monkeypatch):  # noqa: F811
    to_export(vit(), "out.onnx", input="pixels")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(Exception, match="ONNX files need openvino") as error:
        session.OpenVinoSession(tmp_path / "out.onnx", num_threads=1)
    assert "vitcli[openvino]" in error.value.fix
    assert run("export", "demo", tmp_path / "x.onnx", "--runtime", "openvino").code == 2
