"""The pixels that an exported file makes within itself are those of vit, bit for bit; so are its answers."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.evaluation.calibration.scaling import Scaling
from vitcli.weights.onnx import write_onnx
from vitcli.weights.production.program import FromImages, ProgramForm, ProgramNetwork
from vitcli.weights.production.torch_export import Pt2Network, write_pt2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = [(171, 233), (233, 171), (64, 64), (1, 1), (3, 400), (31, 30), (400, 500)]
RULES = list(itertools.product(["short_side", "square", "none"], ["bilinear", "bicubic"], [True, False]))


def images_to_resize(num_others: int = 0) -> list[np.ndarray]:
    """Noise, which shows every rounding, with a ramp and an edge, of these sizes and others."""
    rng, made = np.random.default_rng(0), []
    for height, width in [*SIZES, *rng.integers(1, 700, (num_others, 2)).tolist()]:
        image_HWC = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image_HWC[..., 1] = np.linspace(0, 255, width)
        image_HWC[height // 2 :, :, 2] = 255
        made.append(image_HWC)
    return made


def preprocessing_of(rule, image_size=(48, 80)) -> Preprocessing:
    resize, interpolation, antialias = rule
    return Preprocessing(image_size, resize, 0.9, interpolation, antialias, MEAN, STD)


def as_vit_predict(preprocessing, image_HWC):
    pixels_BHWC = torch.from_numpy(preprocessing(image_HWC)[None].copy())
    return to_model_range(pixels_BHWC.permute(0, 3, 1, 2), mean=MEAN, std=STD)


@pytest.mark.parametrize("image_size", [(64, 64), (48, 80)], ids=["square", "wide"])
def test_the_pixels_are_those_of_vit_bit_for_bit_by_every_rule(image_size):
    for rule in RULES:
        preprocessing = preprocessing_of(rule, image_size)
        program = FromImages(nn.Identity(), ProgramForm(preprocessing, "features"))
        for image_HWC in images_to_resize():
            (pixels_BCHW,) = program(torch.from_numpy(image_HWC[None].copy()))
            assert torch.equal(pixels_BCHW, as_vit_predict(preprocessing, image_HWC)), (rule, image_HWC.shape)


def check_pixels(network, preprocessing):
    """Numbers of 32 bits within the program would show in one image of ten."""
    for image_HWC in images_to_resize(num_others=25):
        expected = as_vit_predict(preprocessing, image_HWC).expand(3, -1, -1, -1)
        pixels_BCHW = network(torch.from_numpy(image_HWC)[None].repeat(3, 1, 1, 1))
        assert torch.equal(pixels_BCHW, expected), image_HWC.shape


@pytest.mark.parametrize(
    "rule", [RULES[0], *(pytest.param(rule, marks=pytest.mark.slow) for rule in RULES[1:])], ids=str
)
def test_a_pt2_file_makes_the_same_pixels_of_images_of_every_size(rule, tmp_path):
    form = ProgramForm(preprocessing_of(rule), "features")
    write_pt2(tmp_path / "net.pt2", nn.Identity(), form, {"model": "no layer"})

    check_pixels(Pt2Network(tmp_path / "net.pt2", form), form.preprocessing)
    extra = {"vit.json": ""}
    torch.export.load(tmp_path / "net.pt2", extra_files=extra)
    assert extra["vit.json"] == '{"model": "no layer"}'


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_an_onnx_file_makes_the_same_pixels_of_images_of_every_size(rule, tmp_path):
    pytest.importorskip("onnxscript")
    form = ProgramForm(preprocessing_of(rule), "features")
    write_onnx(tmp_path / "net.onnx", nn.Identity(), form, {})

    check_pixels(ProgramNetwork(tmp_path / "net.onnx"), form.preprocessing)


GIVEN = torch.tensor([[1.0, -2.0, 0.5], [50.0, 49.0, -50.0]])
PLAIN = Preprocessing((8, 8), "square", 1.0, "bilinear", True, MEAN, STD)
ANSWERS = [
    (
        ProgramForm(PLAIN, "classes", scaled=Scaling(2.5).scaled),
        ("logits", "probabilities"),
        (GIVEN / 2.5).softmax(1),
    ),
    (ProgramForm(PLAIN, "multilabel"), ("logits", "probabilities"), 1 / (1 + torch.exp(-GIVEN))),
    (ProgramForm(PLAIN, "number", mean=3.0, std=0.5), ("logits", "number"), GIVEN * 0.5 + 3),
    (ProgramForm(PLAIN, "features"), ("features",), GIVEN),
]


class Given(nn.Module):
    """A network that always gives the same outputs."""

    def forward(self, images_BCHW):
        return GIVEN.to(images_BCHW.dtype) + 0 * images_BCHW.sum(dim=(1, 2, 3))[:, None]


@pytest.mark.parametrize(("form", "names", "expected"), ANSWERS, ids=[form.kind for form, _, _ in ANSWERS])
def test_outputs_follow_from_the_logits_as_the_kind_says(form, names, expected):
    answers = FromImages(Given(), form)(torch.zeros(2, 9, 7, 3, dtype=torch.uint8))

    assert form.output_names == names and len(answers) == len(names)
    assert torch.equal(answers[0], GIVEN)
    torch.testing.assert_close(answers[-1], expected)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "names", "expected"), ANSWERS, ids=[form.kind for form, _, _ in ANSWERS])
def test_a_file_has_the_outputs_under_their_names(form, names, expected, tmp_path):
    pytest.importorskip("onnxscript")
    write_onnx(tmp_path / "net.onnx", Given(), form, {})
    network = ProgramNetwork(tmp_path / "net.onnx")

    images_BHWC = torch.zeros(2, 9, 7, 3, dtype=torch.uint8)
    assert tuple(each.name for each in network.opened.session.get_outputs()) == names
    assert torch.equal(network(images_BHWC), GIVEN)
    torch.testing.assert_close(network.answers(images_BHWC), expected)


def test_fp16_is_a_copy_and_its_outputs_are_float32():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    images_BHWC = torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8)
    forms = [ProgramForm(PLAIN, "features", input="pixels", precision=each) for each in ("fp32", "fp16")]
    exact, rounded = (FromImages(network, form)(images_BHWC)[0] for form in forms)

    assert network[1].weight.dtype == exact.dtype == rounded.dtype == torch.float32
    assert 1e-6 < (exact - rounded).abs().max() < 1e-2
