"""The printed Python for ONNX files: what `vit predict` answers, without vit."""

import contextlib
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.conftest import REPOSITORY, run
from tests.evaluation.test_regression import REGRESSION, ages  # noqa: F401, a fixture
from tests.evaluation.test_several_labels import SEVERAL, shapes  # noqa: F401, a fixture


def example(*words: object) -> list[str]:
    """What examples/predict.py prints."""
    words = (sys.executable, REPOSITORY / "examples/predict.py", *words)
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()


def by_class_of(entry: dict) -> dict[str, float]:
    return {each["class"]: each["probability"] for each in entry["top"]}


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
            for probability, name in zip(variables["answers"], ("bright", "red"), strict=True):
                assert probability == pytest.approx(by_class_of(entry)[name], abs=1e-5)
        answers.add(tuple(lines))
    assert len(answers) > 2 and len(expected) == len(images)
    # The Python example answers the same.
    shown = example(tmp_path / "net.onnx", *images)
    for entry, line in zip(expected, shown, strict=True):
        several = [f"{name} {by_class_of(entry)[name]:.1%}" for name in entry.get("labels", ())]
        number = [f"age {entry['value']:.4g}"] if kind == "number" else []
        assert line == f"{entry['file']}: {', '.join(several + number)}"
    stored = json.loads((tmp_path / "run/config.json").read_text())["vit"]["metadata"]
    in_graph = variables["session"].get_modelmeta().custom_metadata_map
    key = "several_labels" if kind == "several" else "target"
    assert json.loads(in_graph[key]) == stored[key]
    # Without its head there is neither.
    for out in ("features.onnx", "features.safetensors"):
        outcome = run("export", tmp_path / "run", tmp_path / out, "--no-head", "-q")
        assert outcome.code == 0, outcome.err
    (line,) = example(tmp_path / "features.onnx", images[0])
    assert line.count(", ") == 95
