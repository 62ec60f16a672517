"""Weights in, weights out: timm's logits from our files, ours from timm's, and no silent part."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models import beit, vision_transformer

from tests.conftest import run
from vitcli.data.transforms import Preprocessing
from vitcli.errors import MachineError, NotFiniteError, VitError, WeightsError
from vitcli.models.architecture import Architecture
from vitcli.models.build import TransformerOptions, architecture, build, expected_tensors
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import Weights, read_weights, write_weights, write_weights_file
from vitcli.weights.load import keep_head, load, load_into

PREPROCESSING = {
    "image_size": [32, 48],
    "resize": "short_side",
    "crop_fraction": 0.9,
    "interpolation": "bilinear",
    "antialias": True,
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "decoder": "any",
}


def network(arch, *, seed: int = 0) -> torch.nn.Module:
    """A network in which nothing is zero, so that nothing can hide."""
    torch.manual_seed(seed)
    model = build(arch, dropout=0.0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def loaded(weights) -> torch.nn.Module:
    model = build(weights.architecture, dropout=0.0).eval()
    load_into(model, weights.architecture, weights, new_head=False)
    return model


def demo(*, image_size=(32, 48), num_classes=5, **options):
    return architecture(
        "ViT-demo/8", image_size=image_size, num_classes=num_classes, options=TransformerOptions(**options)
    )


def write(folder: Path, arch, state=None, **changes) -> dict[str, torch.Tensor]:
    state = network(arch).state_dict() if state is None else state
    stored = {"preprocessing": PREPROCESSING, "class_names": None, "metadata": {"step": 7}} | changes
    write_weights(folder, state, WeightsInfo(arch, **stored))
    return state


@pytest.mark.parametrize(
    "arch",
    [
        demo(),
        demo(gelu="erf"),
        demo(gelu="timm"),
        pytest.param(
            architecture("vit_tiny_patch16_224", image_size=(64, 32), num_classes=3), marks=pytest.mark.slow
        ),
        architecture("resnet10t", image_size=(32, 32), num_classes=3),
    ],
    ids=lambda arch: f"{arch.name}-{arch.gelu}",
)
def test_timm_reads_our_folder_and_gives_our_logits(tmp_path, arch):
    model = network(arch)
    write(tmp_path, arch, model.state_dict())
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(2, 3, *arch.image_size)

    assert torch.equal(theirs(images), model(images))
    assert torch.equal(loaded(read_weights(str(tmp_path)))(images), model(images))


def test_timm_finds_our_preprocessing_in_our_folder(tmp_path):
    write(tmp_path, demo(), class_names=tuple("abcde"))
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    config = timm.data.resolve_data_config(model=model)

    assert tuple(config["input_size"]) == (3, 32, 48) and config["mean"] == [0.5, 0.5, 0.5]
    assert (config["crop_pct"], config["crop_mode"], config["interpolation"]) == (0.9, "center", "bilinear")
    assert list(model.pretrained_cfg["label_names"]) == list("abcde")


@pytest.mark.parametrize("resize", ["short_side", "square"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_timm_makes_our_pixels_of_a_photograph_from_our_folder(tmp_path, resize, interpolation):
    arch = demo(image_size=(32, 32))
    ours = PREPROCESSING | {"image_size": [32, 32], "resize": resize, "interpolation": interpolation}
    write(tmp_path, arch, preprocessing=ours)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)).resize((91, 60))

    theirs = transform(image).numpy().transpose(1, 2, 0) * 0.5 + 0.5
    pixels = Preprocessing.from_dict(ours)(np.array(image))
    assert np.abs(theirs * 255 - pixels).max() < 2.5  # levels: Pillow rounds after each direction


def test_timm_refuses_a_representation_layer_rather_than_to_drop_it(tmp_path):
    write(tmp_path, demo(pre_logits=True))

    with pytest.raises(RuntimeError, match=r"head\.weight"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)


@pytest.mark.parametrize("alone", [False, True])
def test_weights_of_another_format_are_refused_by_its_number(tmp_path, monkeypatch, alone):
    with monkeypatch.context() as later:
        later.setattr("vitcli.weights.describe.FORMAT", 2)
        write(tmp_path, demo())
    if alone:
        (tmp_path / "config.json").unlink()

    with pytest.raises(WeightsError, match="the weights have the format 2, this version reads 1"):
        read_weights(str(tmp_path / "model.safetensors" if alone else tmp_path))


@pytest.mark.parametrize("alone", [False, True])
def test_all_that_was_written_comes_back_also_from_the_file_alone(tmp_path, alone):
    arch = demo(pre_logits=True)
    state = write(tmp_path, arch, class_names=tuple("abcde"))
    if alone:
        (tmp_path / "config.json").unlink()
        (tmp_path / "model.safetensors").rename(tmp_path / "alone.safetensors")
    weights = read_weights(str(tmp_path / "alone.safetensors" if alone else tmp_path))

    assert weights.architecture == arch
    assert weights.preprocessing == PREPROCESSING
    assert (weights.class_names, weights.metadata) == (tuple("abcde"), {"step": 7})
    assert weights.format == ("safetensors" if alone else "run folder")
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.state.items())


def test_half_precision_comes_back_as_float32(tmp_path):
    for dtype in (torch.float16, torch.bfloat16):
        state = {name: tensor.to(dtype) for name, tensor in network(demo()).state_dict().items()}
        write(tmp_path, demo(), state)
        weights = read_weights(str(tmp_path))

        assert all(torch.equal(weights.state[name], state[name].float()) for name in state)


def test_a_folder_of_timms_own_is_read_as_timm_means_it(tmp_path):
    # What makes it another network than its name says travels by hand: timm stores it by itself since 1.0.31.
    changed = {"img_size": 64, "depth": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=4, **changed).eval()
    timm.models.save_for_hf(model, tmp_path, model_args=changed, safe_serialization=True)
    weights = read_weights(str(tmp_path))
    images = torch.randn(1, 3, 64, 64)

    assert (weights.format, weights.architecture.gelu) == ("timm folder", "timm")
    assert weights.preprocessing["image_size"] == [64, 64]
    assert torch.equal(loaded(weights)(images), model(images))


def test_a_bare_file_of_another_timm_model_is_read_once_it_is_named(tmp_path):
    save_file(timm.create_model("resnet18", num_classes=3).state_dict(), tmp_path / "r.safetensors")

    with pytest.raises(WeightsError) as refusal:
        read_weights(str(tmp_path / "r.safetensors"))
    named = read_weights(str(tmp_path / "r.safetensors"), model_name="resnet18")

    assert "--model" in refusal.value.fix
    assert (named.architecture.num_classes, named.numerics.split(",")[0]) == (3, "GELU of timm")


def test_a_bare_paper_model_named_as_timm_does_gets_timms_gelu(tmp_path):
    arch = architecture("Ti/16", image_size=(64, 64), num_classes=2)
    save_file(network(arch).state_dict(), tmp_path / "vit.safetensors")
    asked = {name: read_weights(str(tmp_path / "vit.safetensors"), model_name=name).architecture.gelu
             for name in (None, "ti16", "vit_tiny_patch16_224")}  # fmt: skip

    assert asked == {None: "tanh", "ti16": "tanh", "vit_tiny_patch16_224": "timm"}


def test_the_name_must_agree_with_the_file(tmp_path):
    write(tmp_path, demo())

    assert read_weights(str(tmp_path), model_name="vit_demo8").architecture == demo()
    with pytest.raises(WeightsError, match="weights of ViT-demo/8, not of B/16"):
        read_weights(str(tmp_path), model_name="B/16")
    with pytest.raises(VitError, match="no model") as refusal:
        read_weights(str(tmp_path), model_name="B/17")
    assert refusal.value.exit_code == 2


def test_a_new_head_leaves_the_files_head_out_and_says_so(tmp_path):
    write(tmp_path, demo(pre_logits=True))
    weights, arch = read_weights(str(tmp_path)), demo(image_size=(64, 64), num_classes=9)
    model = build(arch, dropout=0.0)
    report = load_into(model, arch, weights, new_head=True)

    assert not model.head.weight.any() and model.head.out_features == 9
    assert report.resampled == ("pos_embed",) and report.missing == ()
    assert sorted(report.replaced) == [
        f"head.{part}.{kind}" for part in ("head", "pre_logits") for kind in ("bias", "weight")
    ]
    assert report.loaded == len(weights.state) - 4
    assert [line.split(":")[0] for line in report.lines()][1:] == ["resampled", "replaced by a fresh head"]


def test_a_file_without_a_head_leaves_the_new_one_as_it_is(tmp_path):
    write(tmp_path, demo(num_classes=0))
    report = load_into(build(demo(), dropout=0.0), demo(), read_weights(str(tmp_path)), new_head=True)

    assert report.missing == ("head.weight", "head.bias") and report.replaced == ()


@pytest.mark.parametrize(
    ("arch", "named"),
    [
        (demo(num_classes=6), r"head\.weight \(5, 96\) for \(6, 96\)"),
        (demo(pre_logits=True), r"missing: head\.pre_logits"),
        (architecture("Ti/16", image_size=(32, 48), num_classes=5), "missing: blocks"),
    ],
    ids=["classes", "pre-logits", "size"],
)
def test_a_load_that_would_leave_anything_out_is_refused_with_the_names(tmp_path, arch, named):
    write(tmp_path, demo())

    with pytest.raises(WeightsError, match=named) as refusal:
        load_into(build(arch, dropout=0.0), arch, read_weights(str(tmp_path)), new_head=False)
    assert str(tmp_path) in refusal.value.where


def test_grids_of_the_same_number_of_patches_are_distinguished(tmp_path):
    write(tmp_path, demo(image_size=(16, 64)))
    weights, square = read_weights(str(tmp_path)), demo(image_size=(32, 32))
    model = build(square, dropout=0.0)
    report = load_into(model, square, weights, new_head=False)

    assert report.resampled == ("pos_embed",)
    assert not torch.equal(model.pos_embed, weights.state["pos_embed"])


def test_numbers_that_are_not_finite_are_never_written(tmp_path):
    before = write(tmp_path, demo())
    broken = {name: tensor.clone() for name, tensor in before.items()}
    broken["blocks.3.mlp.fc1.bias"][5] = torch.inf

    with pytest.raises(NotFiniteError, match=r"blocks\.3\.mlp\.fc1\.bias"):
        write(tmp_path, demo(), broken)
    assert all(torch.equal(t, before[n]) for n, t in load_file(tmp_path / "model.safetensors").items())


def test_a_write_that_fails_leaves_no_debris_and_the_other_file_as_it_was(tmp_path):
    write(tmp_path, demo())
    before = (tmp_path / "config.json").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").mkdir()

    with pytest.raises(MachineError, match=r"model\.safetensors"):
        write(tmp_path, demo(num_classes=6))
    assert (tmp_path / "config.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_an_official_file_keeps_its_heads_whatever_it_is_called(tmp_path):
    from vitcli.weights.authors_npz import to_official
    from vitcli.weights.files import write_npz

    arch = architecture("Ti/16", image_size=(32, 32), num_classes=2)
    args = arch.model_args | {"num_heads": 6}
    six = replace(arch, model_args=args, name="ViT (12 layers, 192 wide)/16")
    state = network(six).state_dict()
    write_npz(tmp_path / "six.npz", to_official(state, heads=6, spelling="published"))

    assert read_weights(str(tmp_path / "six.npz")).architecture.model_args["num_heads"] == 6
    with pytest.raises(WeightsError, match="not of vit_tiny_patch16_224"):
        read_weights(str(tmp_path / "six.npz"), model_name="vit_tiny_patch16_224")


def test_a_copy_of_timms_repository_keeps_its_tags_arithmetic(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=32)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 3,
              "pretrained_cfg": {"tag": "augreg_in21k_ft_in1k", "input_size": [3, 32, 32]}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))

    weights = read_weights(str(tmp_path))
    assert weights.architecture.gelu == "tanh"
    assert weights.numerics == "tanh GELU, as weights tagged augreg_in21k_ft_in1k have it"
    config["pretrained_cfg"]["tag"] = "dino"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_weights(str(tmp_path)).architecture.gelu == "timm"


def test_a_config_beside_another_file_is_not_that_files(tmp_path):
    write(tmp_path, demo(image_size=(32, 32)))
    (tmp_path / "model.safetensors").rename(tmp_path / "kept.safetensors")
    tiny = timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=32)
    save_file(tiny.state_dict(), tmp_path / "tiny.safetensors")

    assert read_weights(str(tmp_path / "tiny.safetensors")).architecture.name == "ViT-Ti/16"


def test_whole_numbers_are_no_weights(tmp_path):
    state = network(demo()).state_dict()
    state["head.weight"] = (state["head.weight"] * 100).to(torch.int8)
    arch = {"vit": json.dumps({"architecture": demo().as_dict()})}
    save_file({name: t.contiguous() for name, t in state.items()}, tmp_path / "w.safetensors", metadata=arch)

    with pytest.raises(WeightsError, match=r"1 not floating point: head.weight \(torch.int8\)"):
        read_weights(str(tmp_path / "w.safetensors"))
    summary = run("inspect", "--ckpt", tmp_path / "w.safetensors", "--summary", "--json").json
    assert summary["not_floating_point"] == ["head.weight (torch.int8)"]
    assert not [key for key in summary if not key.isidentifier()]
    text = run("inspect", "--ckpt", tmp_path / "w.safetensors", "--summary").out
    assert re.search(r"no floats +1: head.weight", text), text


def test_a_network_whose_grid_is_not_known_is_not_taken_to_another_size(tmp_path):
    arch = Architecture("cait_xxs24_224", "cait_xxs24_224", (224, 224), 2, "timm", False, TINY)
    weights = Weights(build(arch, dropout=0.0).state_dict(), arch, None, None, "w", "pth", "", {})

    assert load(weights)[1] == arch
    with pytest.raises(WeightsError, match="patch grid of cait_xxs24_224 is unknown"):
        load(weights, image_size=(112, 448))  # as many patches


def kept(tmp_path, names, data_names, *, arch=None, count=3):
    """The network of weights for classes called `names`, its head kept for data with `data_names`."""
    arch = arch or demo(image_size=(32, 32), num_classes=len(names or range(3)))
    model = network(arch)
    write(tmp_path, arch, model.state_dict(), class_names=names)
    weights = read_weights(str(tmp_path))
    kept_model, kept_arch, report = load(weights, image_size=(32, 32))
    how = keep_head(kept_model, weights, data_names, num_classes=count, data_name="photos")
    images = torch.randn(2, 3, 32, 32)
    return model(images), kept_model.eval()(images), replace(report, kept_head=how), kept_arch


def test_a_kept_head_gives_the_logits_of_each_class_where_the_data_have_it(tmp_path):
    before, after, report, arch = kept(tmp_path, ("cat", "ant", "bee"), ("ant", "bee", "cat"))

    assert torch.equal(after, before[:, [1, 2, 0]]) and arch.num_classes == 3
    assert report.lines()[-1].endswith("its 3 classes are those of the data, by name")
    assert report.replaced == report.missing == ()
    # In the same order nothing moves; without names on one side it is that order
    before, after, _, _ = kept(tmp_path, ("ant", "bee", "cat"), ("ant", "bee", "cat"))
    assert torch.equal(after, before)
    before, after, report, _ = kept(tmp_path, None, ("ant", "bee", "cat"))
    assert torch.equal(after, before) and "by number, as names are missing" in report.lines()[-1]


@pytest.mark.parametrize(
    "arch",
    [
        demo(image_size=(32, 32), num_classes=3, pre_logits=True),
        Architecture(
            "small BiT", "vitcli_bit", (32, 32), 3, "none", False, {"layers": [1], "width_factor": 1}
        ),
        Architecture(
            "d", "deit_tiny_distilled_patch16_224", (32, 32), 3, "timm", False,
            {"embed_dim": 32, "depth": 1, "num_heads": 2},
        ),
    ],
    ids=["pre-logits", "convolution", "two-heads"],
)  # fmt: skip
def test_heads_of_every_kind_are_kept_in_the_order_of_the_data(tmp_path, arch):
    before, after, _, kept_arch = kept(tmp_path, ("cat", "ant", "bee"), ("ant", "bee", "cat"), arch=arch)

    assert torch.allclose(after, before[:, [1, 2, 0]], atol=1e-6) and kept_arch == arch


@pytest.mark.parametrize(
    ("names", "data_names", "message"),
    [
        (("ant", "bee", "cat"), ("ant", "bee", "dog"), "only in the data: dog; only in the weights: cat"),
        (("ant", "bee", "cat"), ("ant", "bee"), "only in the data: none; only in the weights: cat"),
        (None, ("ant", "bee"), "for 3 classes, photos has 2"),
        (("ant", "bee", "cat"), None, "for 3 classes, photos has 2"),
    ],
)
def test_a_head_for_other_classes_is_not_kept(tmp_path, names, data_names, message):
    with pytest.raises(WeightsError, match=message) as refusal:
        kept(tmp_path, names, data_names, count=2)
    assert "leave --keep-head out" in refusal.value.fix
    with pytest.raises(WeightsError, match="no head to keep"):
        kept(tmp_path, None, None, arch=demo(image_size=(32, 32), num_classes=0))


TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2}


def timms(name: str, side: int, args: dict, *, num_classes: int = 3) -> Weights:
    """Weights of a small network of timm's, as if from its folder."""
    arch = Architecture(name, name, (side, side), num_classes, "timm", False, args)
    return Weights(network(arch).state_dict(), arch, None, None, "w", "pth", "", {})


@pytest.mark.parametrize(
    ("name", "old", "new", "by_hand"),
    [
        ("beit_base_patch16_224", 64, (96, 32), beit.checkpoint_filter_fn),
        (
            "flexivit_small",
            48,
            (64, 96),
            partial(vision_transformer.checkpoint_filter_fn, interpolation="bilinear", antialias=False),
        ),
    ],
)
def test_what_a_network_of_timm_stores_for_one_size_is_resampled_as_timm_does(name, old, new, by_hand):
    weights = timms(name, old, TINY)
    model, arch, report = load(weights, image_size=new)

    twin = timm.create_model(name, img_size=new, num_classes=3, **TINY).eval()
    twin.load_state_dict(by_hand(dict(weights.state), twin))
    images = torch.randn(2, 3, *new)
    assert torch.equal(model.eval()(images), twin(images)) and arch.image_size == new
    assert report.resampled and set(report.resampled) <= {
        "pos_embed", *(f"blocks.{block}.attn.relative_position_bias_table" for block in range(2))
    }  # fmt: skip


def test_a_new_head_on_another_size_keeps_what_timm_resampled():
    model, _, report = load(timms("beit_base_patch16_224", 64, TINY), image_size=(32, 32), num_classes=7)

    assert model.head.out_features == 7 and not model.head.weight.any()
    assert report.replaced == ("head.weight", "head.bias") and len(report.resampled) == 2


def test_a_size_that_timm_cannot_resample_to_either_is_refused():
    with pytest.raises(WeightsError, match="timm cannot resample cait_xxs24_224 to 48x48 pixels"):
        load(timms("cait_xxs24_224", 32, TINY), image_size=(48, 48))


def test_one_tensor_in_two_wrappers_is_refused(tmp_path):
    state = network(demo(image_size=(32, 32))).state_dict()
    torch.save(state | {"module.head.weight": state["head.weight"] * 7}, tmp_path / "two.pth")
    torch.save({f"_orig_mod.module.{name}": t for name, t in state.items()}, tmp_path / "wrapped.pth")

    with pytest.raises(WeightsError, match="twice"):
        read_weights(str(tmp_path / "two.pth"), model_name="ViT-demo/8")
    assert read_weights(str(tmp_path / "wrapped.pth"), model_name="ViT-demo/8").architecture.num_classes == 5


def test_weights_of_another_network_than_the_one_named_have_their_own_name(tmp_path):
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "tiny.pth")

    with pytest.raises(WeightsError, match="these are weights of ViT-Ti/16, not of ViT-B16"):
        read_weights(str(tmp_path / "tiny.pth"), model_name="ViT-B16")


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "npz"])
def test_memory_that_runs_out_is_not_the_fault_of_the_file(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"w.{suffix}"
    description = WeightsInfo(demo(), preprocessing=None, class_names=None, metadata={})
    write_weights_file(tmp_path / "w.safetensors", network(demo()).state_dict(), description)
    torch.save(network(demo()).state_dict(), tmp_path / "w.pth")
    np.savez(tmp_path / "w.npz", a=np.zeros(3))

    def none_left(*_, **__):
        raise MemoryError("Unable to allocate 9 TiB")

    for place in ("vitcli.weights.files.safe_open", "torch.load", "numpy.load"):
        monkeypatch.setattr(place, none_left)
    check_is_of_the_machine(path)


def test_memory_that_runs_out_while_a_network_is_built_is_not_the_fault_of_its_description(monkeypatch):
    def none_left(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")

    monkeypatch.setattr("timm.create_model", none_left)
    monkeypatch.setattr("vitcli.weights.diagnose.expected_tensors", expected_tensors)  # not a kept one
    check_is_of_the_machine("demo")


def check_is_of_the_machine(ckpt: object) -> None:
    ended = run("inspect", "--ckpt", ckpt, "--summary", "--json")
    assert ended.code == 5 and ended.json["error"]["message"] == "out of memory", ended.out
