"""The printed Python for ONNX files: the pixels of vit without vit, and what `vit predict` answers."""

import contextlib
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import run
from tests.evaluation.test_regression import REGRESSION, ages  # noqa: F401, a fixture
from tests.evaluation.test_several_labels import SEVERAL, shapes  # noqa: F401, a fixture
from vitcli.data.decoding import decode
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.export.snippet import onnx_snippet


@pytest.fixture
def photo(tmp_path):
    """A JPEG of no round size, turned by its EXIF tag, with edges, ramps and noise."""
    rng = np.random.default_rng(0)
    pixels = np.stack(np.meshgrid(np.linspace(0, 255, 233), np.linspace(255, 0, 171)), axis=-1)
    pixels = np.concatenate([pixels, rng.integers(0, 256, (171, 233, 1))], axis=-1)
    pixels[40:80, 60:160] = (255, 0, 0)
    image, exif = Image.fromarray(pixels.astype(np.uint8)), Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "image.jpg", exif=exif, quality=90)
    return tmp_path / "image.jpg"


class Session:
    """Stands in for onnxruntime's: keeps the images it gets."""

    def __init__(self, path):
        self.path = path

    def run(self, names, inputs):
        Session.images = inputs["images"]
        return [np.zeros((1, 3), np.float32)]


@pytest.mark.parametrize("image_size", [(64, 64), (48, 80)], ids=["square", "wide"])
@pytest.mark.parametrize("resize", ["short_side", "square", "none"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_code_makes_the_pixels_of_vit_bit_for_bit(
    photo, monkeypatch, interpolation, antialias, resize, image_size
):
    onnxruntime = pytest.importorskip("onnxruntime")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    preprocessing = Preprocessing(image_size, resize, 0.9, interpolation, antialias, mean, std)
    pixels_HWC = preprocessing(decode(photo.read_bytes(), where=str, row=0))
    expected = to_model_range(torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1)[None], mean=mean, std=std)
    monkeypatch.chdir(photo.parent)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    code = onnx_snippet("a 'b'.onnx", preprocessing, has_classes=False, has_names=False)

    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, variables := {})

    assert Session.images.dtype == np.float32 and variables["session"].path == "a 'b'.onnx"
    # One level of a pixel is 0.017; float32 rounds the rest.
    np.testing.assert_allclose(Session.images, expected.numpy(), atol=2e-6)


@pytest.mark.slow
def test_the_printed_code_gives_the_probability_of_vit_predict(photo, photos, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    words = "finetune --ckpt random --model ViT-demo/8 --res 32 --steps 3 --batch-size 8 --lr 0.05 -q"
    assert run(*words.split(), "--dataset", photos, "--out", tmp_path / "run").code == 0
    exported = run("export", tmp_path / "run", tmp_path / "photos.onnx", "-q")
    top = run("predict", "--ckpt", tmp_path / "run", photo, "--json", "-q").json["predictions"][0]["top"][0]
    monkeypatch.chdir(tmp_path)

    _, _, code = exported.out.partition("in Python (pip install onnxruntime pillow):\n")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})

    name, probability = printed.getvalue().split()
    assert name == top["class"] and float(probability) == pytest.approx(top["probability"], abs=1e-5)


def test_an_exported_graph_is_no_checkpoint(photo, tmp_path):
    (tmp_path / "photos.onnx").write_bytes(b"graph")

    refused = run("predict", "--ckpt", tmp_path / "photos.onnx", photo)

    assert refused.code == 4 and "exported graph" in refused.err and "run folder" in refused.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fixture", "more"), [("several", "shapes", SEVERAL), ("number", "ages", REGRESSION)]
)
def test_an_exported_graph_of_several_labels_or_a_number_says_what_vit_predict_says(
    request, tmp_path, monkeypatch, kind, fixture, more
):
    """On images of each kind: outputs, stored thresholds or scale, and the printed code."""
    pytest.importorskip("onnxruntime")
    folder = request.getfixturevalue(fixture)
    given = ("finetune", "--recipe", "finetune/default", "--ckpt", "random", "--model", "ViT-demo/8", *more)
    how = ("--res", 16, "--steps", 20, "--batch-size", 8, "--lr", 0.05, "-q", "--dataset", folder)
    trained = run(*given, *how, "--out", tmp_path / "run")
    assert trained.code == 0, trained.err
    exported = run("export", tmp_path / "run", tmp_path / "net.onnx", "-q")
    assert exported.code == 0, exported.err
    images = sorted(folder.rglob("*.png"))
    expected = run("predict", "--ckpt", tmp_path / "run", *images, "--json", "-q").json["predictions"]
    monkeypatch.chdir(tmp_path)
    _, _, code = exported.out.partition("in Python (pip install onnxruntime pillow):\n")

    answers = set()
    for entry in expected:
        Image.open(entry["file"]).save("image.png")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code.replace("image.jpg", "image.png"), variables := {})
        lines = printed.getvalue().splitlines()
        if kind == "number":
            name, value = lines[0].split()
            assert name == "age" and float(value) == pytest.approx(entry["value"], rel=1e-5)
        else:
            assert sorted(lines) == sorted(entry["labels"]), entry
            by_class = {each["class"]: each["probability"] for each in entry["top"]}
            for output, name in zip(variables["outputs"], ("bright", "red"), strict=True):
                assert 1 / (1 + np.exp(-output)) == pytest.approx(by_class[name], abs=1e-5)
        answers.add(tuple(lines))
    assert len(answers) > 2 and len(expected) == len(images)
    stored = json.loads((tmp_path / "run/config.json").read_text())["vit"]["metadata"]
    in_graph = variables["session"].get_modelmeta().custom_metadata_map
    key = "several_labels" if kind == "several" else "target"
    assert json.loads(in_graph[key]) == stored[key]
    # Without its head there is neither.
    for out in ("features.onnx", "features.safetensors"):
        outcome = run("export", tmp_path / "run", tmp_path / out, "--no-head", "-q")
        assert outcome.code == 0, outcome.err
