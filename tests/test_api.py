"""`from vitcli import load_model`: the promised interface, from every kind of source."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import vitcli
from tests.conftest import run
from vitcli import load_model
from vitcli.errors import DataError, VitError, WeightsError
from vitcli.models.build import architecture, build
from vitcli.weights.io import read_weights


@pytest.fixture(scope="module")
def demo():
    return load_model("demo")


def picture(tmp_path, name: str = "a.png") -> str:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / name)
    return str(tmp_path / name)


def test_importing_the_package_loads_nothing_heavy():
    code = "import vitcli, sys; print(sorted({'torch', 'timm', 'numpy'} & set(sys.modules)))"

    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    assert {"finetune", "load_model", "__version__"} < set(vitcli.__all__)
    assert all(getattr(vitcli, name) for name in vitcli.__all__)
    with pytest.raises(AttributeError, match="load_modle"):
        _ = vitcli.load_modle


def test_a_checkpoint_comes_with_its_head_its_pixels_and_its_names(demo):
    model, transform, info = demo

    assert not model.training
    assert (info.name, info.format, len(info.class_names)) == ("ViT-demo/8", "demo", 24)
    assert info.preprocessing == transform.preprocessing
    assert info.metadata["trained_by"] == "pretrain"
    assert any("tensors loaded" in note for note in info.notes)


def test_a_image_gives_what_the_command_says(demo, tmp_path):
    model, transform, info = demo
    file = picture(tmp_path)
    with torch.no_grad():
        shares = torch.softmax(model(transform(file)[None]), dim=-1)[0]
    (prediction,) = run("predict", "--ckpt", "demo", file, "--json").json["predictions"]

    assert prediction["top"][0]["class"] == info.class_names[int(shares.argmax())]
    assert prediction["top"][0]["probability"] == pytest.approx(float(shares.max()), rel=1e-5)


def test_paths_bytes_arrays_and_pil_images_are_the_same_image(demo, tmp_path):
    file = picture(tmp_path)
    with open(file, "rb") as opened:
        data = opened.read()
    expected = demo.transform(file)

    assert expected.dtype == torch.float32 and expected.shape == (3, 64, 64)
    for same in (data, Image.open(file), np.asarray(Image.open(file)), tmp_path / "a.png"):
        assert torch.equal(demo.transform(same), expected)
    see_through = np.dstack([np.asarray(Image.open(file)), np.full((50, 70), 128, np.uint8)])
    Image.fromarray(see_through).save(tmp_path / "rgba.png")
    assert torch.equal(
        demo.transform(Image.open(tmp_path / "rgba.png")), demo.transform(tmp_path / "rgba.png")
    )
    with pytest.raises(DataError):
        demo.transform(b"no picture")
    with pytest.raises(DataError, match=r"^error: the file does not exist\n.*a.pn\n.*did you mean '.*a.png'"):
        demo.transform(tmp_path / "a.pn")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        demo.transform(tmp_path)
    with pytest.raises(DataError, match="without a known range"):
        demo.transform(Image.new("F", (4, 4)))
    with pytest.raises(DataError, match="float64"):
        demo.transform(np.zeros((8, 8, 3)))


def test_another_size_resamples_and_another_head_is_zero():
    model, transform, info = load_model("demo", image_size=(64, 96), num_classes=7)
    images = torch.randn(2, 3, 64, 96)

    assert transform.preprocessing.image_size == info.architecture.image_size == (64, 96)
    assert model(images).shape == (2, 7) and not model(images).any()
    assert info.class_names is None and "resampled: pos_embed" in info.notes
    assert load_model("demo", num_classes=0).model(torch.randn(2, 3, 64, 64)).shape == (2, 96)


@pytest.mark.parametrize("name", ["vit_ti16", pytest.param("R+Ti/16", marks=pytest.mark.slow), "resnet18"])
def test_a_bare_name_is_a_fresh_network(name):
    torch.manual_seed(3)
    model, _, info = load_model(name, image_size=64, num_classes=4)
    torch.manual_seed(3)
    again = build(architecture(name, image_size=(64, 64), num_classes=4), dropout=0.0)

    assert info.format == "fresh weights" and model(torch.zeros(1, 3, 64, 64)).shape == (1, 4)
    assert all(torch.equal(t, again.state_dict()[key]) for key, t in model.state_dict().items())


def test_errors_have_three_parts(tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    for source, kind in (
        ("ViT-B/17", VitError),
        (tmp_path / "text.npz", WeightsError),
        ("x.pth", WeightsError),
    ):
        with pytest.raises(kind) as refusal:
            load_model(source, num_classes=2)
        assert refusal.value.message and refusal.value.where and refusal.value.fix
    # They name what was called, and no option of the command line.
    for arguments, where in ((("nope",), "load_model('nope')"), (("./x.npz",), "load_model('./x.npz')"),
                             (("demo", 60), "load_model(image_size=...)")):  # fmt: skip
        with pytest.raises(VitError) as refusal:
            load_model(*arguments)
        assert refusal.value.where == where and "--ckpt" not in str(refusal.value)
    with pytest.raises(VitError, match="number of classes is missing"):
        load_model("ViT-B/16")
    with pytest.raises(VitError, match="patches of 8"):
        load_model("demo", image_size=60)
    with pytest.raises(VitError, match="no file, folder or known weights called 'runs/petz'"):
        load_model("runs/petz")
    for size in ((32,), 2.5, "32", 0):
        with pytest.raises(VitError, match="not a size in pixels"):
            load_model("demo", image_size=size)
    with pytest.raises(VitError, match="num_classes is -1"):
        load_model("demo", num_classes=-1)


def test_weights_read_by_hand_are_those_of_the_model(demo):
    state = read_weights("demo").state

    assert all(torch.equal(t, state[name]) for name, t in demo.model.state_dict().items())
