"""The pixels that an ONNX file makes within itself are those of vit, bit for bit; so are its answers."""

import itertools

import numpy as np
import pytest
import torch

from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.weights.onnx import ProgramForm
from vitcli.weights.production.program import FromImages, Pt2Network, write_pt2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = [(171, 233), (233, 171), (64, 64), (1, 1), (3, 400), (31, 30), (400, 500)]
RULES = list(itertools.product(["short_side", "square", "none"], ["bilinear", "bicubic"], [True, False]))


def session_of(proto):
    return pytest.importorskip("onnxruntime").InferenceSession(proto.SerializeToString())


def pictures() -> list[np.ndarray]:
    """Noise, which shows every rounding, with a ramp and an edge."""
    rng, made = np.random.default_rng(0), []
    for height, width in SIZES:
        image_HWC = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image_HWC[..., 1] = np.linspace(0, 255, width)
        image_HWC[height // 2 :, :, 2] = 255
        made.append(image_HWC)
    return made


@pytest.mark.parametrize("image_size", [(64, 64), (48, 80)], ids=["square", "wide"])
def test_the_graph_makes_the_pixels_of_vit_bit_for_bit_by_every_rule(image_size):
    pytest.importorskip("onnxscript")
    from vitcli.weights.production.pixels import pixels_graph

    # The program of .pt2 files, too
    for resize, interpolation, antialias in RULES:
        preprocessing = Preprocessing(image_size, resize, 0.9, interpolation, antialias, MEAN, STD)
        of_any_size = session_of(pixels_graph(preprocessing, of_any_size=True))
        for image_HWC in pictures():
            pixels_BHWC = preprocessing(image_HWC)[None].copy()
            expected = to_model_range(torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2), mean=MEAN, std=STD)
            (found,) = of_any_size.run(None, {"images": image_HWC[None]})
            assert np.array_equal(found, expected.numpy()), (
                resize,
                interpolation,
                antialias,
                image_HWC.shape,
            )
            in_torch = FromImages(torch.nn.Identity(), ProgramForm(preprocessing, "features"))
            assert torch.equal(in_torch(torch.from_numpy(image_HWC[None].copy()))[0], expected)
    as_they_are = session_of(pixels_graph(preprocessing, of_any_size=False))
    (found,) = as_they_are.run(None, {"images": pixels_BHWC.repeat(2, 0)})
    assert np.array_equal(found, expected.numpy().repeat(2, 0))


def test_an_exported_program_takes_images_of_every_size(tmp_path):
    preprocessing = Preprocessing((16, 24), "short_side", 0.9, "bicubic", True, MEAN, STD)
    form, network = ProgramForm(preprocessing, "classes", temperature=2.0), torch.nn.Sequential()
    network.append(torch.nn.Flatten()).append(torch.nn.Linear(3 * 16 * 24, 5))
    write_pt2(tmp_path / "net.pt2", network.eval(), form, {"model": "a layer"})
    exported = Pt2Network(tmp_path / "net.pt2", form)

    for image_HWC in pictures():
        pixels_BHWC = torch.from_numpy(preprocessing(image_HWC)[None].copy())
        logits = network(to_model_range(pixels_BHWC.permute(0, 3, 1, 2), mean=MEAN, std=STD))
        found, probabilities = exported.program(torch.from_numpy(image_HWC)[None].expand(3, -1, -1, -1))
        torch.testing.assert_close(found, logits.expand(3, -1))
        torch.testing.assert_close(probabilities, (logits / 2).softmax(1).expand(3, -1))
    files = {"vit.json": ""}
    torch.export.load(tmp_path / "net.pt2", extra_files=files)
    assert files["vit.json"] == '{"model": "a layer"}'


def test_outputs_follow_from_the_logits_as_the_kind_says():
    pytest.importorskip("onnxscript")
    from vitcli.weights.production.pixels import outputs_graph

    given = np.float32([[1.0, -2.0, 0.5], [50.0, 49.0, -50.0]])
    preprocessing = Preprocessing((8, 8), "square", 1.0, "bilinear", True, MEAN, STD)
    calibrated = np.exp(given / 2.5 - (given / 2.5).max(1, keepdims=True))
    for form, names, expected in [
        (ProgramForm(preprocessing, "classes", temperature=2.5), ["logits", "probabilities"],
         calibrated / calibrated.sum(1, keepdims=True)),
        (ProgramForm(preprocessing, "several"), ["logits", "probabilities"], 1 / (1 + np.exp(-given))),
        (ProgramForm(preprocessing, "number", mean=3.0, std=0.5), ["logits", "number"], given * 0.5 + 3),
        (ProgramForm(preprocessing, "features"), ["features"], given),
    ]:  # fmt: skip
        graph = session_of(outputs_graph(form))
        assert [output.name for output in graph.get_outputs()] == names
        found = graph.run(None, {"outputs_of_network": given})
        np.testing.assert_allclose(found[-1], expected, rtol=1e-6, atol=1e-20)
        assert np.array_equal(found[0], given)
