"""Rising image sizes: the size of a step, the pixels, the positions, and a resume inside each part."""

from collections import Counter
from random import Random

import numpy as np
import pytest
import timm
import torch
from torch import nn

from tests.conftest import run
from tests.training.methods.conftest import (
    ADAM,
    PREPROCESSING,
    SAVED,
    fine_tune,
    only_with_checkpoint,
    refusal,
    tiny,
)
from tests.training.test_finetune import fingerprint
from vitcli.data.transforms import TrainTransform
from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.image_sizes import take_other_sizes
from vitcli.training.methods.resolutions import at_side, parts_of, prepare, side_at_step
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import read_weights, write_weights
from vitcli.weights.load import load

TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}


@pytest.mark.parametrize(("num_sides", "total"), [(1, 1), (1, 7), (2, 7), (3, 3), (3, 7), (4, 100), (7, 50)])
def test_each_size_has_an_equal_part_and_the_last_step_the_last(num_sides, total):
    sides = [16 * (i + 1) for i in range(num_sides)]
    of_steps = [side_at_step(step, sides, total_steps=total) for step in range(total)]

    assert of_steps == sorted(of_steps) and of_steps[-1] == sides[-1]
    counts = Counter(of_steps)
    assert counts.keys() == set(sides) and max(counts.values()) - min(counts.values()) <= 1
    for first in range(total):
        parts = list(parts_of(sides, first_step=first, total_steps=total))
        assert [side for side, steps in parts for _ in steps] == of_steps[first:]
        assert [step for _, steps in parts for step in steps] == list(range(first, total))


def augmentation(crop: str, resize: int | None) -> TrainTransform:
    return TrainTransform(
        image_size=(64, 64), crop=crop, crop_area=(0.3, 1.0), crop_aspect=(0.75, 1.33), resize=resize,
        flip=True, interpolation="bilinear", antialias=True, randaugment=None,
    )  # fmt: skip


def slope() -> np.ndarray:
    rows, columns = np.mgrid[0:90, 0:100]
    return np.stack([rows * 2, columns * 2, rows + columns], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("crop", ["inception", "none"])
def test_small_images_have_the_view_of_large_ones(crop):
    """The truth is the large image made smaller by averaging: the same crop, flip and all."""
    large, image_HWC = augmentation(crop, None), slope()
    for seed in range(8):
        pixels = at_side(large, 16)(image_HWC, Random(seed))
        averaged = large(image_HWC, Random(seed)).reshape(16, 4, 16, 4, 3).mean(axis=(1, 3))
        assert pixels.shape == (16, 16, 3) and pixels.dtype == np.uint8
        assert np.abs(pixels - averaged).max() <= 4


def test_a_random_window_is_the_same_fraction_of_the_image():
    large, image_HWC = augmentation("random", 80), slope()
    whole = at_side(augmentation("none", None), 20)(image_HWC, Random(0))
    views = [whole, whole[:, ::-1]]
    windows = {v[y : y + 16, x : x + 16].tobytes() for v in views for y in range(5) for x in range(5)}

    assert at_side(large, 16).resize == 20
    pixels = {at_side(large, 16)(image_HWC, Random(seed)).tobytes() for seed in range(8)}
    assert pixels <= windows and len(pixels) > 2


def loaded_at(model: nn.Module, arch: Architecture, side: int, folder, method: str) -> nn.Module:
    """The network with its weights written, read and resampled for images of another size."""
    described = dict(preprocessing=PREPROCESSING, class_names=None, metadata={})
    write_weights(folder, model.state_dict(), WeightsInfo(arch, **described))
    return load(read_weights(str(folder)), image_size=(side, side), posemb_method=method)[0].eval()


@pytest.mark.parametrize("method", ["paper", "timm"])
@pytest.mark.parametrize(
    ("posemb", "place"),
    [("1d", "stem"), ("1d", "every_layer"), ("2d", "stem"), ("2d", "every_layer_shared"),
     ("sincos2d", "stem"), ("none", "stem")],
)  # fmt: skip
def test_another_size_has_the_logits_of_weights_resampled_to_it(tmp_path, posemb, place, method):
    model, arch = tiny(posemb=posemb, posemb_at=place)
    images, small, large = (torch.randn(2, 3, side, side) for side in (32, 16, 48))
    own = model.eval()(images)
    if (posemb, method) == ("2d", "timm"):
        with pytest.raises(VitError, match="no position embeddings of rows and columns"):
            take_other_sizes(model, arch, method=method)
        return
    names = list(dict(model.named_parameters()))
    take_other_sizes(model, arch, method=method)

    assert torch.equal(model(images), own)
    for other in (small, large):
        expected = loaded_at(model, arch, other.shape[-1], tmp_path, method)(other)
        torch.testing.assert_close(model(other), expected, rtol=1e-5, atol=1e-5)
    # Its gradient goes to the grid that is stored, and the order of the parameters stays.
    model(small).sum().backward()
    assert list(dict(model.named_parameters())) == names and torch.equal(model(images), own)
    assert all(p.grad.any() for name, p in model.named_parameters() if "pos" in name)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_r_s16_p8_224", {}),  # a hybrid
        ("deit3_small_patch16_224", {}),  # positions without the class token
        ("vit_small_patch16_dinov3", {}),  # rotary
        ("vit_small_patch16_rope_ape_224", {}),  # rotary and learned
        # Rotary with learned frequencies
        pytest.param("vit_small_patch16_rope_mixed_224", {}, marks=pytest.mark.slow),
        ("vit_base_patch16_reg4_gap_256", {}),
        pytest.param("deit_tiny_distilled_patch16_224", {}, marks=pytest.mark.slow),  # two tokens
        ("beit_base_patch16_224", None),
        ("resnet10t", {}),  # any size anyway
    ],
)
def test_networks_of_timm_take_other_sizes_or_are_refused(tmp_path, name, options):
    is_vit = not name.startswith("resnet")
    args = TINY if is_vit else {"num_classes": 3}
    model = timm.create_model(name, **args, **({"img_size": 64} if is_vit else {})).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    stored = {key: value for key, value in args.items() if key != "num_classes"}
    arch = Architecture(name, name, (64, 64), 3, gelu="timm", pre_logits=False, model_args=stored)
    if options is None:
        with pytest.raises(VitError, match="is built for one image size"):
            take_other_sizes(model, arch, method="paper")
        return
    take_other_sizes(model, arch, method="paper")
    small = torch.randn(2, 3, 32, 32)
    own = model(torch.ones(1, 3, 64, 64))
    model(torch.ones(1, 3, 96, 96))  # a size in between leaves nothing behind
    logits, expected = model(small), loaded_at(model, arch, 32, tmp_path, "paper")(small)

    again = model(torch.ones(1, 3, 64, 64))
    assert torch.equal(*(x[0] if isinstance(x, tuple) else x for x in (own, again)))
    for ours, theirs in zip(*(x if isinstance(x, tuple) else (x,) for x in (logits, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_relative_positions_are_refused():
    model, arch = tiny(posemb="relative")
    with pytest.raises(VitError, match="relative position embeddings"):
        take_other_sizes(model, arch, method="paper")


SIZES = (
    *ADAM, *SAVED, "--set", "schedule.image_sizes=[8,16,32]", "--set", "model.dropout=0.1",
    "--set", "model.patch_dropout=0.3", "--set", "model.grad_checkpointing=true",
    "--set", "model.freeze=1", "--set", "model.lora_rank=2", "--set", "optimizer.average=0.9",
    "--set", "optimizer.layer_decay=0.8", "--set", "objective.mixup=0.2",
)  # fmt: skip


def test_a_run_sees_each_size_and_resumes_inside_each_part(ckpt, photos, tmp_path, monkeypatch):
    """With all methods that change the network together."""
    from vitcli.training import loop

    seen, to_range = [], loop.to_model_range

    def watch(images_BCHW, **how):
        seen.append(tuple(images_BCHW.shape[1:]))
        assert images_BCHW.dtype == torch.uint8
        return to_range(images_BCHW, **how)

    monkeypatch.setattr(loop, "to_model_range", watch)
    summary = fine_tune(*SIZES, out=tmp_path / "run", ckpt=ckpt, photos=photos, steps=6)
    assert seen == [(3, side, side) for side in (8, 8, 16, 16, 32, 32)]
    assert summary["resolution"] == 32
    for step in (1, 3, 4):
        resumed = only_with_checkpoint(tmp_path / "run", step, tmp_path / str(step))
        fine_tune(*SIZES, out=resumed, ckpt=ckpt, photos=photos, steps=6)
        assert fingerprint(resumed) == fingerprint(tmp_path / "run")
    evaluated = run("evaluate", "--ckpt", tmp_path / "run", "--dataset", photos, "--json").json
    assert (evaluated["top1"], evaluated["loss"]) == (summary["top1"], summary["loss"])


@pytest.mark.parametrize(
    "value", ["[]", "[0,32]", "[16.5,32]", "[true,32]", "32", "auto", "[[16,16],32]", "{}"]
)
def test_what_is_no_list_of_sides_is_refused(value):
    assert "schedule.image_sizes" in refusal(f"schedule.image_sizes={value}")


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        ([16, 24], "do not rise to data.image_size, 32"),
        ([32, 16], "do not rise"),
        ([48, 32], "do not rise"),
        ([24, 16, 32], "do not rise"),
        ([12, 32], "does not divide into patches of 8"),
    ],
)
def test_sides_that_do_not_rise_or_divide_are_refused(sides, words):
    with pytest.raises(VitError, match=words) as refused:
        prepare(*tiny(), sides, method="paper")
    assert "schedule.image_sizes" in refused.value.where


def test_a_run_shorter_than_its_sizes_is_refused(ckpt, photos, tmp_path):
    words = ("--ckpt", ckpt, "--dataset", photos, "--lr", 0.02, "--quiet", "--json", "--steps", 2)
    more = ("--out", tmp_path / "run", "--set", "schedule.image_sizes=[8,16,24,32]")
    outcome = run("finetune", *words, *more)

    message = "a run of 2 steps is too short for 4 image sizes"
    assert outcome.code == 2 and outcome.json["error"]["message"] == message
    assert not (tmp_path / "run").exists()


def test_oblong_images_have_no_rising_side():
    model, arch = tiny()
    oblong = Architecture(**{**vars(arch), "image_size": (32, 48)})
    with pytest.raises(VitError, match="have no side that could rise"):
        prepare(model, oblong, [16, 32], method="paper")
