"""`vit export`: timm, onnxruntime and timm's reader of .npz files give the logits of our checkpoint."""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from timm.models.vision_transformer import VisionTransformer

from tests.conftest import run
from vitcli.conversion import comparison, golden
from vitcli.conversion.export import ExportOptions, as_text, export
from vitcli.errors import CheckFailed, MachineError, VitError, WeightsError
from vitcli.models.architecture import GAP, Architecture
from vitcli.models.build import build
from vitcli.models.features import outputs
from vitcli.models.variants import vit_args
from vitcli.weights import formats, onnx
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import read_weights, write_weights
from vitcli.weights.load import load

NAMES = tuple("abcde")
SIZE = vit_args(layers=1, hidden=48, mlp=96, heads=3, patch_size=8)
HYBRID = vit_args(layers=1, hidden=48, mlp=96, heads=3, patch_size=1) | {
    "resnet_blocks": [1],
    "resnet_width": 1,
}


def vit(image_size=(32, 32), *, gelu="tanh", pre_logits=False, args=SIZE, **options) -> Architecture:
    return Architecture("small", "vit_tiny_patch16_224", image_size, 5, gelu, pre_logits, args, **options)


def hybrid() -> Architecture:
    return Architecture("small hybrid", "vitcli_hybrid", (32, 32), 5, "tanh", False, HYBRID)


def bit() -> Architecture:
    return Architecture(
        "small BiT", "vitcli_bit", (32, 32), 5, "none", False, {"layers": [1], "width_factor": 1}
    )


def network(arch: Architecture) -> torch.nn.Module:
    torch.manual_seed(0)
    model = build(arch, dropout=0.0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


@pytest.fixture
def to_export(tmp_path, photos):
    """A function: a network becomes a checkpoint, is exported as OUT, and comes back with the result."""

    def go(arch: Architecture, out: str, **changes) -> tuple[dict, torch.nn.Module]:
        model, folder = network(arch), tmp_path / "ckpt"
        preprocessing = {
            "image_size": list(arch.image_size), "resize": "square", "crop_fraction": 1.0, "antialias": True,
            "interpolation": "bilinear", "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7], "decoder": "any",
        }  # fmt: skip
        about = dict(preprocessing=preprocessing, class_names=NAMES, metadata={"dev_cut": None})
        write_weights(folder, model.state_dict(), WeightsInfo(arch, **about))
        return exported(folder, tmp_path / out, **({"images": [str(photos / "test")]} | changes)), model

    return go


def exported(ckpt: Path, out: Path, **changes) -> dict:
    return export(str(ckpt), str(out), ExportOptions(**changes), quiet=True)


def images(height=32, width=32) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 3, height, width)


def pixels(height=32, width=32, *, count=3) -> np.ndarray:
    """Return images as ONNX files take them, of the size of the network."""
    return np.random.default_rng(1).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def normalised(pixels_BHWC: np.ndarray) -> torch.Tensor:
    """By the mean and standard deviation of `to_export`."""
    values = (pixels_BHWC / 255 - [0.5, 0.4, 0.3]) / [0.5, 0.6, 0.7]
    return torch.from_numpy(values.astype(np.float32)).permute(0, 3, 1, 2)


def distance(found, expected) -> float:
    """max|a - b| / max|b|."""
    found, expected = torch.as_tensor(found).detach(), torch.as_tensor(expected).detach()
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


def read_by_timm(folder: Path) -> torch.nn.Module:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def session(path: Path):
    return pytest.importorskip("onnxruntime").InferenceSession(str(path))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("args", [SIZE, SIZE | GAP], ids=["token", "gap"])
def test_timm_gives_our_logits_from_the_folder(to_export, tmp_path, args):
    result, model = to_export(vit((16, 48), args=args), "out")

    assert torch.equal(read_by_timm(tmp_path / "out")(images(16, 48)), model(images(16, 48)))
    assert (result["format"], result["max_abs_difference"], result["top1_agreement"]) == ("timm", 0.0, 1.0)
    assert list(result["files"]) == names_in(tmp_path / "out") == ["config.json", "model.safetensors"]
    assert (result["num_images"], result["resolution"]) == (10, [16, 48])
    assert names_in(tmp_path) == ["ckpt", "out"]


@pytest.mark.parametrize(
    ("arch", "note"),
    [
        (hybrid(), "timm knows vitcli_hybrid only once vitcli.backbones is imported"),
        (bit(), "timm knows vitcli_bit only once vitcli.backbones is imported"),
        (vit(norm_eps=9e-7), "layer norms add 9e-07 here and 1e-06 in timm"),
    ],
    ids=["hybrid", "bit", "epsilon"],
)
def test_timm_gives_our_logits_but_for_its_epsilons_and_the_result_says_how_nearly(
    to_export, tmp_path, arch, note
):
    result, model = to_export(arch, "out")

    assert 0 < distance(read_by_timm(tmp_path / "out")(images()), model(images())) < 1e-4
    assert 0 < result["max_rel_difference"] < 1e-4
    assert note in result["notes"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch",
    [
        vit((16, 32), pre_logits=True, posemb="relative"),
        vit((16, 32), args=SIZE | GAP, posemb="2d", posemb_at="every_layer"),
        hybrid(),
        bit(),
    ],
    ids=["pre-logits-relative", "gap-2d", "hybrid", "bit"],
)
def test_onnxruntime_gives_our_logits_in_batches_of_any_size(to_export, tmp_path, arch, capfd):
    pytest.importorskip("onnxruntime")
    result, model = to_export(arch, "out.onnx")
    told, opened = capfd.readouterr(), session(tmp_path / "out.onnx")

    for batch in (pixels(*arch.image_size), pixels(*arch.image_size, count=1)):
        logits, probabilities = opened.run(["logits", "probabilities"], {"images": batch})
        expected = model(normalised(batch))
        assert distance(logits, expected) < 1e-5 and distance(probabilities, expected.softmax(1)) < 1e-5
    assert result["max_rel_difference"] < 1e-5
    assert names_in(tmp_path) == ["ckpt", "out.golden.json", "out.onnx"] == ["ckpt", *result["files"]]
    assert told.out == told.err == ""
    check_says_what_it_is(tmp_path / "out.onnx", arch)


def check_says_what_it_is(path: Path, arch: Architecture) -> None:
    """And nothing of the machine that made it."""
    told = session(path).get_modelmeta().custom_metadata_map

    assert json.loads(told["class_names"]) == list(NAMES)
    rules = json.loads(told["preprocessing"])
    assert rules["mean"] == [0.5, 0.4, 0.3] and rules["resize_to"] == list(arch.image_size)
    assert rules.keys() >= {"image_size", "resize", "interpolation", "antialias", "std", "crop"}
    assert Architecture.from_dict(json.loads(told["architecture"])) == arch
    assert b".py" not in path.read_bytes() and str(path.parent).encode() not in path.read_bytes()


@pytest.mark.slow
def test_weights_too_large_for_one_onnx_file_are_written_beside_it(to_export, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(onnx, "MAX_BYTES_IN_ONE_FILE", 0)
    result, model = to_export(vit(), "out.onnx", head=False)
    (features,) = session(tmp_path / "out.onnx").run(None, {"images": pixels()})

    data = list(result["files"])[2]
    assert re.fullmatch(r"out\.onnx\.[0-9a-f]{16}\.data", data)
    assert names_in(tmp_path) == ["ckpt", *result["files"]] == ["ckpt", "out.golden.json", "out.onnx", data]
    expected = model.forward_head(model.forward_features(normalised(pixels())), pre_logits=True)
    assert distance(features, expected) < 1e-5
    (tmp_path / "out.onnx").unlink()
    (tmp_path / "out.golden.json").unlink()
    with pytest.raises(VitError, match=r"out\.onnx\.[0-9a-f]+\.data already exists"):
        to_export(vit(), "out.onnx")


@pytest.mark.slow
def test_8_bits_make_one_file_of_weights_too_large_for_one(to_export, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    num_bytes = 4 * sum(parameter.numel() for parameter in network(vit()).parameters())
    monkeypatch.setattr(onnx, "MAX_BYTES_IN_ONE_FILE", num_bytes // 2)
    result, _ = to_export(vit(), "out.onnx", precision="int8-weights")

    assert list(result["files"]) == ["out.golden.json", "out.onnx"]
    assert result["files"]["out.onnx"] < num_bytes and 0 < result["max_rel_difference"] < 0.05
    assert "fp32_layers" not in result
    monkeypatch.setattr(onnx, "MAX_BYTES_IN_ONE_FILE", num_bytes // 5)
    with pytest.raises(VitError, match="too large for int8-weights in ONNX"):
        to_export(vit(), "other.onnx", precision="int8-weights")


class Program:
    """What torch's exporter returns, of one number that its file names and its weights hold."""

    def __init__(self, number: float):
        self.number = number

    def save(self, path: Path, *, external_data: bool):
        library = pytest.importorskip("onnx")
        weight = library.numpy_helper.from_array(np.full(9, self.number, np.float32), "weight")
        graph = library.helper.make_graph([], str(self.number), [], [], [weight])
        proto, beside = library.helper.make_model(graph), {"location": f"{path.name}.data"}
        library.save(proto, path, save_as_external_data=external_data, size_threshold=0, **beside)


def numbers_in(path: Path) -> tuple[float, float]:
    """Return the number in an ONNX file and that in its weights."""
    library = pytest.importorskip("onnx")
    graph = library.load(path).graph
    return float(graph.name), float(library.numpy_helper.to_array(graph.initializer[0])[0])


@pytest.mark.parametrize("size", [0, 10**9])
@pytest.mark.parametrize("stop_at", range(4))
def test_the_weights_beside_an_onnx_file_are_always_its_own(to_export, tmp_path, monkeypatch, stop_at, size):
    """Killed before any rename or deletion over an earlier, large export; then it is repeated."""
    programs = [Program(1.0), Program(2.0), Program(2.0)]
    monkeypatch.setattr(onnx, "check_installed", lambda: None)
    monkeypatch.setattr(onnx, "_exported", lambda *_: programs.pop(0))
    monkeypatch.setattr(onnx, "MAX_BYTES_IN_ONE_FILE", 0)
    for module, name, stand_in in [
        (formats, "read_back", lambda *_: None),
        (comparison, "outputs_of_all", lambda *_, **__: (torch.ones(1, 5),) * 3),
        (comparison, "measured", lambda *_: None),
        (golden, "write_golden", lambda path, *_, **__: golden.golden_path(path).write_text("{}")),
    ]:
        monkeypatch.setattr(module, name, stand_in)
    to_export(vit(), "out.onnx")
    assert numbers_in(tmp_path / "out.onnx") == (1.0, 1.0)
    monkeypatch.setattr(onnx, "MAX_BYTES_IN_ONE_FILE", size)
    operations = []

    def counted(operation):
        def go(*args, **kwargs):
            operations.append(args)
            if len(operations) > stop_at:
                raise KeyboardInterrupt
            return operation(*args, **kwargs)

        return go

    with monkeypatch.context() as stopped, suppress(KeyboardInterrupt):
        stopped.setattr(os, "replace", counted(os.replace))
        stopped.setattr(Path, "unlink", counted(Path.unlink))
        exported(tmp_path / "ckpt", tmp_path / "out.onnx", overwrite=True)
    assert operations
    assert numbers_in(tmp_path / "out.onnx") in [(1.0, 1.0), (2.0, 2.0)]
    (tmp_path / "out.front.svg").touch()  # of the file of --fastest that was here
    result = exported(tmp_path / "ckpt", tmp_path / "out.onnx", overwrite=True)
    assert numbers_in(tmp_path / "out.onnx") == (2.0, 2.0)
    assert names_in(tmp_path) == ["ckpt", *result["files"]] and len(result["files"]) == (2 if size else 3)


def test_without_onnx_the_error_says_what_to_install(to_export, tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(onnx, "import_module", missing)

    with pytest.raises(MachineError) as refusal:
        to_export(vit(), "out.onnx")
    assert refusal.value.fix.endswith("python -m pip install 'vitcli[export]'")
    assert names_in(tmp_path) == ["ckpt"]


def test_timms_own_reader_of_npz_files_gives_our_logits(to_export, tmp_path):
    result, model = to_export(vit(), "out.npz")
    theirs = VisionTransformer(img_size=32, num_classes=5, act_layer="gelu_tanh", **SIZE).eval()
    theirs.load_pretrained(tmp_path / "out.npz")

    assert distance(theirs(images()), model(images())) < 1e-6
    assert (result["max_abs_difference"], result["files"].keys()) == (0.0, {"out.npz"})


@pytest.mark.parametrize(
    ("names", "size"), [("published", 0), ("published", 20), ("linen", 20), ("big_vision", 160)]
)
def test_an_npz_holds_a_representation_layer_of_any_width_in_every_spelling(to_export, tmp_path, names, size):
    _, model = to_export(vit(pre_logits=True, representation_size=size), "out.npz", names=names)
    arrays = np.load(tmp_path / "out.npz")
    again, arch, _ = load(read_weights(str(tmp_path / "out.npz")))

    assert ("Transformer/encoderblock_0/MlpBlock_3/Dense_0/bias" in arrays) == (names == "published")
    assert (arch.pre_logits, arch.representation_size) == (True, size)
    assert distance(again.eval()(images()), model(images())) < 1e-6
    # tanh(features W + b) W' + b', with the arrays themselves
    features = model.forward_head(model.forward_features(images()), pre_logits=True).detach().numpy()
    part = {name.removeprefix("params/"): arrays[name] for name in arrays.files}
    hidden = np.tanh(features @ part["pre_logits/kernel"] + part["pre_logits/bias"])
    by_hand = hidden @ part["head/kernel"] + part["head/bias"]
    assert hidden.shape[1] == (size or 48) and distance(by_hand, model(images())) < 1e-5


@pytest.mark.parametrize("out", ["out.safetensors", pytest.param("out.onnx", marks=pytest.mark.slow)])
def test_other_formats_hold_a_representation_layer_of_any_width_too(to_export, tmp_path, out):
    result, _ = to_export(vit(pre_logits=True, representation_size=20), out)

    assert result["top1_agreement"] == 1.0
    if out == "out.safetensors":
        weights = read_weights(str(tmp_path / out))
        assert weights.architecture == vit(pre_logits=True, representation_size=20)
        assert outputs(load(weights)[0].eval(), images(), layer="pre_logits", with_logits=False).shape == (
            3,
            20,
        )
        # Fine-tuning replaces both layers by one
        transferred, arch, _ = load(weights, num_classes=9, image_size=(48, 48))
        assert transferred.head.in_features == 48 and not arch.representation_size


@pytest.mark.parametrize("arch", [hybrid(), bit(), vit(args=SIZE | GAP)], ids=["hybrid", "bit", "gap"])
def test_what_an_npz_can_hold_comes_back_from_it(to_export, tmp_path, arch):
    result, model = to_export(arch, "out.npz")
    again, _, _ = load(read_weights(str(tmp_path / "out.npz")))

    assert distance(again.eval()(images()), model(images())) < 1e-6
    assert result["top1_agreement"] == 1.0


def test_the_safetensors_file_is_that_of_the_timm_folder(to_export, tmp_path):
    to_export(vit((16, 32), gelu="erf"), "out")
    to_export(vit((16, 32), gelu="erf"), "out.safetensors")
    weights = read_weights(str(tmp_path / "out.safetensors"))

    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()
    assert (weights.class_names, weights.architecture) == (NAMES, vit((16, 32), gelu="erf"))


@pytest.mark.parametrize("out", ["out", "out.npz", "out.safetensors"])
def test_without_the_head_there_are_features(to_export, tmp_path, out):
    result, model = to_export(vit(pre_logits=True, representation_size=20), out, head=False)
    again, arch, _ = load(read_weights(str(tmp_path / out)))
    cls_features = model.forward_features(images())[:, 0]

    assert (arch.num_classes, result["num_classes"], result["top1_agreement"]) == (0, 0, None)
    assert distance(again.eval()(images()), cls_features) < 1e-6
    assert "top-1" not in as_text(result) and "features only" in as_text(result)


def test_another_image_size_is_the_papers_resampling_and_is_stored(to_export, tmp_path):
    result, _ = to_export(vit(), "out", image_size=(48, 64))
    expected, _, _ = load(read_weights(str(tmp_path / "ckpt")), image_size=(48, 64))

    assert torch.equal(read_by_timm(tmp_path / "out")(images(48, 64)), expected.eval()(images(48, 64)))
    assert read_weights(str(tmp_path / "out")).preprocessing["image_size"] == [48, 64]
    assert result["notes"] == ["resampled: pos_embed"] and result["resolution"] == [48, 64]


@pytest.mark.parametrize(
    ("arch", "out", "reason", "advice"),
    [
        (vit(pre_logits=True), "out", "representation layer", "npz or safetensors, or without the head"),
        (vit(posemb="2d"), "out", "position embeddings '2d' at 'stem'", "to onnx or safetensors"),
        (vit(posemb="1d", posemb_at="every_layer"), "out.npz", "'1d' at 'every_layer'", "to onnx"),
        (vit(gelu="erf"), "out.npz", r"exact \(erf\) GELU", "to timm or onnx or safetensors"),
        (vit(gelu="erf", pre_logits=True), "out.npz", r"exact \(erf\) GELU", "to onnx or safetensors"),
        (vit(gelu="timm"), "out.npz", "as timm defines it", "to timm or onnx or safetensors"),
        (vit(norm_eps=1e-12), "out.npz", "epsilon of 1e-12", "to timm or onnx or safetensors"),
        (vit((16, 32)), "out.npz", "images of 16x32", "a square --res"),
    ],
    ids=["pre-logits", "2d", "every-layer", "erf", "erf-pre-logits", "timm", "epsilon", "oblong"],
)  # fmt: skip
def test_an_unsupported_feature_is_refused_by_name(to_export, tmp_path, arch, out, reason, advice):
    with pytest.raises(VitError, match=reason) as refusal:
        to_export(arch, out)
    assert advice in refusal.value.fix
    assert names_in(tmp_path) == ["ckpt"]


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("out.pth", {}, r"out\.pth has no suffix"),
        ("out.npz", {"to": "onnx"}, r"out\.npz is not a name for onnx"),
        ("out", {"to": "safetensors"}, "out is not a name for safetensors"),
        ("out.onnx", {"to": "timm"}, r"out\.onnx is not a name for timm"),
        ("out", {"to": "torch"}, "no format 'torch'"),
        ("out", {"names": "linen"}, "names in timm are timm's"),
        ("out", {"image_size": (30, 32)}, "does not divide into patches of 8"),
        ("out", {"images": ["nowhere/*.jpg"]}, "no image found"),
        ("ckpt", {}, "ckpt already exists"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(to_export, tmp_path, out, options, message):
    with pytest.raises(VitError, match=message):
        to_export(vit(), out, **options)
    assert names_in(tmp_path) in ([], ["ckpt"])


def test_an_unknown_spelling_of_the_array_names_is_refused(tmp_path):
    outcome = run("export", "demo", tmp_path / "out.npz", "--names", "flax")

    assert outcome.code == 2 and "one of published, linen, big_vision" in outcome.err
    assert not names_in(tmp_path)


def test_bit_has_one_spelling(to_export):
    with pytest.raises(WeightsError, match="no linen spelling"):
        to_export(bit(), "out.npz", names="linen")


@pytest.mark.slow
def test_a_folder_with_a_dot_in_its_name_is_a_timm_folder_with_the_option(to_export, tmp_path):
    result, _ = to_export(vit(), "vit.v2", to="timm")

    assert result["format"] == "timm" and names_in(tmp_path / "vit.v2") == [
        "config.json",
        "model.safetensors",
    ]


def test_text_that_is_called_npz_is_refused(tmp_path):
    (tmp_path / "text.npz").write_text("not an archive")

    with pytest.raises(WeightsError, match="cannot be read"):
        exported(tmp_path / "text.npz", tmp_path / "out")
    assert names_in(tmp_path) == ["text.npz"]


def with_every_array(change):
    """Stands for a writer with a mistake in it."""
    write_npz = formats.write_npz
    return lambda path, arrays: write_npz(path, {name: change(array) for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda array: array * np.float32(1.001), "differ by .* the tolerance is 0.0001"),
        (lambda array: array * np.float32(1e30), "are not finite numbers"),
        (lambda array: array.astype(np.int32), "cannot be read back"),
    ],
    ids=["other", "overflowing", "unreadable"],
)
def test_a_copy_that_is_not_the_same_is_not_kept(to_export, tmp_path, monkeypatch, change, message):
    monkeypatch.setattr(formats, "write_npz", with_every_array(change))

    with pytest.raises(CheckFailed, match=message) as failure:
        to_export(vit(), "out.npz")
    assert failure.value.exit_code == 8
    assert names_in(tmp_path) == ["ckpt"]


def test_a_network_that_is_another_in_timm_is_not_kept_and_the_reason_is_named(to_export, tmp_path):
    with pytest.raises(CheckFailed, match=r"differ by .* layer norms add 1e-05 here and 1e-06 in timm"):
        to_export(vit(norm_eps=1e-5), "out")
    assert names_in(tmp_path) == ["ckpt"]


@pytest.mark.parametrize("out", ["out", "out.npz"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_export_that_is_broken_off_leaves_what_was_there(to_export, tmp_path, monkeypatch, out, error):
    def break_off(*args, **kwargs):
        raise error

    to_export(vit(), out)
    path = tmp_path / out / "model.safetensors" if out == "out" else tmp_path / out
    before = path.read_bytes()
    monkeypatch.setattr(comparison, "compare", break_off)

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else MachineError):
        to_export(vit(), out, overwrite=True, image_size=(64, 64))
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["ckpt", out]


def test_an_earlier_folder_that_cannot_be_moved_back_is_kept_and_the_next_export_brings_it_back(
    to_export, tmp_path, monkeypatch
):
    to_export(vit(), "out")
    before, rename = (tmp_path / "out/model.safetensors").read_bytes(), os.rename

    def first_only(source, target):
        if "replaced" not in str(target):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", first_only)
    with pytest.raises(MachineError, match="was not written"):
        to_export(vit(), "out", overwrite=True, image_size=(64, 64))
    monkeypatch.undo()

    with pytest.raises(VitError, match="out already exists"):
        to_export(vit(), "out")
    assert (tmp_path / "out/model.safetensors").read_bytes() == before
    assert names_in(tmp_path) == ["ckpt", "out"]
    # Killed after both: what was replaced is deleted by the next export
    (tmp_path / "out").rename(tmp_path / ".tmp-out.replaced")
    to_export(vit(), "out.npz")
    (tmp_path / "out").mkdir()
    to_export(vit(), "out")
    assert names_in(tmp_path) == ["ckpt", "out", "out.npz"]


@pytest.mark.parametrize("out", ["out", "out.npz"])
def test_what_killed_exports_have_left_is_deleted_after_an_hour(to_export, tmp_path, out):
    left, young = tmp_path / f".tmp-{out}-gj2_anfv", tmp_path / f".tmp-{out}-12345678"
    for folder in (left, young):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
    os.utime(left, (1e9, 1e9))

    to_export(vit(), out)
    assert names_in(tmp_path) == [young.name, "ckpt", out]


@pytest.mark.parametrize("out", ["out", "out.npz"])
def test_an_existing_out_is_replaced_only_with_the_option(to_export, tmp_path, out):
    to_export(vit(), out)

    with pytest.raises(VitError, match=r"out(\.npz)? already exists"):
        to_export(vit(), out, image_size=(64, 64))
    to_export(vit(), out, image_size=(64, 64), overwrite=True)
    assert read_weights(str(tmp_path / out)).architecture.image_size == (64, 64)
    assert names_in(tmp_path) == ["ckpt", out]


def test_a_folder_that_holds_anything_else_is_never_deleted(to_export, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years")

    with pytest.raises(VitError, match=r"more than a timm folder does, such as thesis\.tex"):
        to_export(vit(), "out", overwrite=True)
    assert names_in(tmp_path / "out") == ["thesis.tex"]


@pytest.mark.parametrize("out", ["folder.npz", "file"])
def test_a_file_is_no_folder_and_a_folder_no_file(to_export, tmp_path, out):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(VitError, match="is a f"):
        to_export(vit(), out, overwrite=True)
    assert names_in(tmp_path) == ["ckpt", "file", "folder.npz"]


def test_an_empty_folder_and_folders_that_are_not_there_are_filled(to_export, tmp_path):
    (tmp_path / "out").mkdir()
    to_export(vit(), "out")
    to_export(vit(), "new/deep/out.npz")

    assert names_in(tmp_path / "out") == ["config.json", "model.safetensors"]
    assert names_in(tmp_path / "new/deep") == ["out.npz"]


def test_a_folder_that_may_not_be_written_to_is_named(to_export, tmp_path):
    with pytest.raises(MachineError, match="nothing can be written in /proc") as failure:
        to_export(vit(), "/proc/out.npz")  # where not even root may
    assert "OUT: /proc" in failure.value.where


def test_without_images_the_demos_are_compared(to_export):
    result, _ = to_export(vit(), "out.npz", images=[])

    assert (result["num_images"], result["images"]) == (32, "demo, split test[:32]")
    assert "32 images of demo, split test[:32]" in as_text(result)
    assert re.search(r"^written +npz: \S+out\.npz \([\d.]+ kB\)$", as_text(result), re.MULTILINE)
    assert "\nfiles " not in as_text(result)  # of a single file it would say the same


def test_the_images_that_a_run_held_out_are_compared_on(trained, photos, tmp_path):
    """Named ones come first, and those of the demo where the data set is gone."""
    result = exported(trained, tmp_path / "one")
    held_out = len(list((photos / "test").rglob("*.*")))
    assert (result["num_images"], result["images"]) == (held_out, f"{photos}, split test")
    named = exported(trained, tmp_path / "two", images=[str(photos / "train")])
    assert named["images"] == [str(photos / "train")]

    moved = shutil.copytree(trained, tmp_path / "moved")
    (moved / "environment.json").write_text("{}")
    for broken in (tmp_path / "gone", tmp_path):  # there is none; or no data set is in it
        recipe = (trained / "recipe.toml").read_text().replace(f'"{photos}"', f'"{broken}"')
        (moved / "recipe.toml").write_text(recipe)
        assert exported(moved, tmp_path / f"to {broken.name}")["images"] == "demo, split test[:32]"


def test_the_result_notes_that_a_head_of_zeros_proves_little(tmp_path):
    arch = vit()
    state = build(arch, dropout=0.0).state_dict()
    preprocessing = formats.read_weights("demo").preprocessing | {"image_size": [32, 32]}
    write_weights(
        tmp_path / "ckpt",
        state,
        WeightsInfo(arch, preprocessing=preprocessing, class_names=None, metadata={}),
    )
    result = exported(tmp_path / "ckpt", tmp_path / "out")

    assert (result["max_rel_difference"], len(result["notes"])) == (0.0, 1)


def test_the_differences_are_those_counted_by_hand():
    ours, theirs = torch.tensor([[1.0, 2.0], [-8.0, 3.0]]), torch.tensor([[1.0, 0.5], [-7.0, 3.0]])
    found = comparison.compare(ours, theirs, are_logits=True)

    assert (found.max_difference, found.max_rel_difference, found.top1) == (1.5, 1.5 / 8, 0.5)
    assert comparison.compare(ours, ours, are_logits=False).top1 is None
    assert comparison.compare(ours * 0, ours, are_logits=True).max_rel_difference == float("inf")


def test_the_weights_file_of_a_timm_folder_is_complete_on_its_own(to_export, tmp_path):
    to_export(vit(), "out")
    with safe_open(tmp_path / "out/model.safetensors", framework="pt") as file:
        stored = json.loads(file.metadata()["vit"])

    assert (stored["class_names"], stored["metadata"]) == (list(NAMES), {"dev_cut": None})
