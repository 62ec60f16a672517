"""Masked patch prediction against hand values, loops over pixels, and the plain network."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from torch import nn

from vitcli.data import demo
from vitcli.data.transforms import to_model_range
from vitcli.errors import VitError
from vitcli.models import masked_patch
from vitcli.models.architecture import Architecture
from vitcli.models.build import TransformerOptions, architecture, build, expected_tensors
from vitcli.models.masked_patch import (
    TARGETS,
    Corruption,
    Counts,
    MaskedPatchModel,
    Prediction,
    backbone_state,
    patch_colors,
)
from vitcli.training import figures

HALF = (0.5, 0.5, 0.5)
TINY = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}


def tiny(*, image_size=(32, 48), **options) -> Architecture:
    arch = architecture(
        "ViT-demo/8", image_size=image_size, num_classes=0, options=TransformerOptions(**options)
    )
    return replace(arch, model_args=arch.model_args | TINY)


def tiny_of_two_by_two() -> Architecture:
    arch = tiny(image_size=(8, 8))
    return replace(arch, model_args=arch.model_args | {"patch_size": 4})


def tiny_with_a_norm_before_the_blocks() -> Architecture:
    arch = architecture("vit_base_patch16_clip_224", image_size=(32, 48), num_classes=0)
    return replace(arch, model_args=TINY)


def model_of(arch: Architecture | None = None, *, seed: int = 0, **choices) -> MaskedPatchModel:
    torch.manual_seed(seed)
    paper = dict(target="mean_color", corrupted=0.5, masked=0.8, replaced=0.1, mean=HALF, std=HALF)
    return MaskedPatchModel(build(arch or tiny(), dropout=0.0), **paper | choices)


def pixels(num_images: int = 3, height: int = 32, width: int = 48) -> torch.Tensor:
    shape = (num_images, 3, height, width)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(7))


def ranged(images: torch.Tensor) -> torch.Tensor:
    return to_model_range(images, mean=HALF, std=HALF)


def patch(image: torch.Tensor, place: int, columns: int, side: int) -> torch.Tensor:
    top, left = place // columns * side, place % columns * side
    return image[:, top : top + side, left : left + side]


def test_mean_colours_of_four_patches_are_those_counted_by_hand():
    image_CHW = torch.zeros(3, 8, 8, dtype=torch.uint8)
    image_CHW[0, :4, 4:] = 255  # upper right: red
    image_CHW[:, 4:, :4] = torch.tensor([32, 0, 64])[:, None, None]  # 8 v = 1.004, 0, 2.008
    image_CHW[:, 4:, 4:6] = 255  # lower right: half black, half white, 8 v = 4 exactly
    model = model_of(tiny_of_two_by_two(), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    images_BCHW = to_model_range(image_CHW[None], mean=model.mean, std=model.std)

    assert model.targets(images_BCHW).squeeze().tolist() == [0, 7, 1 + 2 * 64, 4 + 4 * 8 + 4 * 64]
    assert model.targets(ranged(image_CHW[None])).squeeze().tolist() != [0, 7, 129, 292]  # another range


@pytest.mark.parametrize(
    ("value", "level"), [(0, 0), (31, 0), (32, 1), (127, 3), (128, 4), (223, 6), (255, 7)]
)
def test_a_bin_begins_at_its_eighth_and_white_is_in_the_last(value, level):
    for channel, factor in enumerate((1, 8, 64)):
        levels_BCHW = torch.zeros(1, 3, 4, 4, dtype=torch.int32)
        levels_BCHW[:, channel] = value
        assert patch_colors(levels_BCHW, (1, 1), 1).item() == level * factor


def test_a_patch_made_smaller_has_sixteen_colours_row_by_row():
    levels_BCHW = torch.zeros(1, 3, 8, 16, dtype=torch.int32)
    levels_BCHW[0, 2, 2:4, 8 + 6 :] = 255  # of the right patch: second row, last column, blue

    colors_BNS = patch_colors(levels_BCHW, (1, 2), 4)

    assert colors_BNS.shape == (1, 2, 16)
    assert colors_BNS.nonzero().tolist() == [[0, 1, 7]] and colors_BNS[0, 1, 7] == 7 * 64


@pytest.mark.parametrize("side", [4, 6, 8, 14])
def test_cells_that_cut_through_pixels_take_them_by_area(side):
    levels_BCHW = pixels(2, 2 * side, 3 * side).int()
    colors_BNS = patch_colors(levels_BCHW, (2, 3), 4)

    for image, colors_NS in zip(levels_BCHW, colors_BNS, strict=True):
        for place, colors_S in enumerate(colors_NS):
            values_Chw = patch(image, place, 3, side).numpy()
            finer = values_Chw.repeat(4, axis=1).repeat(4, axis=2)  # each pixel as 4 x 4
            means = finer.reshape(3, 4, side, 4, side).mean(axis=(2, 4)) / 255
            red, green, blue = np.minimum(np.floor(8 * means), 7).astype(int)
            assert colors_S.tolist() == (red + 8 * green + 64 * blue).flatten().tolist()


def test_pixel_targets_are_the_patches_in_the_models_range():
    images_BCHW = ranged(pixels())
    targets_BNV = model_of(target="pixels").targets(images_BCHW)

    assert targets_BNV.shape == (3, 24, 8 * 8 * 3)
    for place in (0, 5, 6, 23):
        expected = patch(images_BCHW[1], place, 6, 8).permute(1, 2, 0)
        assert torch.equal(targets_BNV[1, place].view(8, 8, 3), expected)


@pytest.mark.parametrize(
    ("target", "asked"), [("mean_color", (1, 512)), ("downsized", (16, 512)), ("pixels", (192,))]
)
def test_only_the_corrupted_patches_are_asked_and_each_for_its_own_target(target, asked):
    model = model_of(target=target)
    images_BCHW = ranged(pixels())
    outputs, targets, corruption = model(images_BCHW)

    assert outputs.shape == (3, 12, *asked)
    for image in range(3):
        of_all = model.targets(images_BCHW)[image]
        assert torch.equal(targets[image], of_all[corruption.places_BM[image]])


@pytest.mark.parametrize(
    "arch",
    [
        tiny(),
        tiny(classifier="gap"),
        tiny(posemb="2d"),
        tiny(posemb="1d", posemb_at="every_layer_shared"),
        tiny(posemb="relative"),
        architecture("R+Ti/16", image_size=(64, 96), num_classes=0),
        architecture("vit_tiny_patch16_224", image_size=(32, 48), num_classes=0),
        tiny_with_a_norm_before_the_blocks(),
    ],
    ids=lambda arch: f"{arch.name}-{arch.posemb}-{arch.posemb_at}-{arch.classifier}",
)
@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_corruption_the_tokens_are_those_of_timms_forward_features(arch, checkpointing):
    torch.manual_seed(1)
    vit = build(arch, dropout=0.0).eval()
    for parameter in vit.parameters():  # class token, biases and norms too, which start at 0 and 1
        parameter.data += 0.2 * torch.randn_like(parameter)
    images_BCHW = ranged(pixels(2, *arch.image_size))
    plain = vit.forward_features(images_BCHW).detach()

    model = MaskedPatchModel(
        vit, target="pixels", corrupted=1.0, masked=0.0, replaced=0.0, mean=HALF, std=HALF
    )
    model.set_grad_checkpointing(checkpointing)
    torch.testing.assert_close(model.encode(images_BCHW, model.draw(2)), plain)

    model.counts = Counts(1, 1, 0)
    assert not torch.allclose(model.encode(images_BCHW, model.draw(2)), plain, atol=1e-3)


def test_checkpointing_computes_the_blocks_twice_and_the_same():
    grads, calls = [], []
    for is_on in (False, True):
        model = model_of()
        model.vit.set_grad_checkpointing(is_on)
        model.vit.blocks[0].register_forward_pre_hook(lambda *_, is_on=is_on: calls.append(is_on))
        torch.manual_seed(3)
        masked_patch.loss(model(ranged(pixels()))).backward()
        grads.append([parameter.grad for parameter in model.parameters()])

    assert calls == [False, True, True]
    assert all(map(torch.equal, *grads))


def into_the_blocks(model: MaskedPatchModel, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, Prediction]:
    seen = []
    handle = model.vit.blocks.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    prediction = model(images_BCHW)
    handle.remove()
    return seen[0], prediction


def test_masked_patches_are_the_mask_at_their_own_position_and_the_class_token_is_spared():
    model = model_of(corrupted=1.0, masked=1.0, replaced=0.0)
    nn.init.normal_(model.vit.cls_token)
    tokens_BTD, _ = into_the_blocks(model, ranged(pixels()))
    positions_1TD = model.vit.pos_embed

    assert torch.equal(tokens_BTD[:, 1:], (model.mask_token + positions_1TD[:, 1:]).expand(3, -1, -1))
    assert torch.equal(tokens_BTD[:, :1], (model.vit.cls_token + positions_1TD[:, :1]).expand(3, -1, -1))


def test_replaced_patches_are_others_embeddings_at_the_replaced_position():
    model = model_of(corrupted=0.5, masked=0.0, replaced=1.0)
    images_BCHW = ranged(pixels())
    tokens_BTD, prediction = into_the_blocks(model, images_BCHW)
    embeddings_BND = model.vit.patch_embed(images_BCHW)
    places_BM, sources_BM, _ = prediction.corruption

    for image in range(3):
        corrupted = dict(zip(places_BM[image].tolist(), sources_BM[image].tolist(), strict=True))
        for place in range(24):
            source = corrupted.get(place, image * 24 + place)
            expected_D = embeddings_BND[source // 24, source % 24] + model.vit.pos_embed[0, 1 + place]
            assert torch.equal(tokens_BTD[image, 1 + place], expected_D)
            assert place not in corrupted or source != image * 24 + place


def test_the_loss_sees_every_corrupted_patch_and_no_other_token():
    model = model_of()
    kept = []
    model.vit.norm.register_forward_hook(
        lambda _, args, output: (output.retain_grad(), kept.append(output))[1]
    )
    prediction = model(ranged(pixels()))
    masked_patch.loss(prediction).backward()
    moved_BT = kept[0].grad.abs().sum(dim=-1) > 0

    for image in range(3):
        asked = set((1 + prediction.corruption.places_BM[image]).tolist())
        assert set(moved_BT[image].nonzero().flatten().tolist()) == asked


def test_the_loss_is_the_mean_over_patches_and_what_is_asked_of_them():
    for target in TARGETS:
        prediction = model_of(target=target)(ranged(pixels()))
        outputs, targets, _ = prediction
        if target == "pixels":
            by_patch = (outputs.double() - targets).square().mean(dim=-1)
        else:
            right = outputs.double().gather(-1, targets[..., None]).squeeze(-1)
            by_patch = (outputs.double().exp().sum(dim=-1).log() - right).mean(dim=-1)

        assert masked_patch.loss(prediction).item() == pytest.approx(by_patch.mean().item(), rel=1e-5)
        torch.testing.assert_close(
            masked_patch.example_losses(prediction).double(), by_patch.mean(dim=1), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("target", ["mean_color", "downsized"])
def test_who_knows_nothing_has_a_loss_of_the_log_of_the_colour_count(target):
    model = model_of(target=target)
    nn.init.zeros_(model.prediction.weight)

    assert masked_patch.loss(model(ranged(pixels()))).item() == pytest.approx(math.log(512), rel=1e-6)


def test_right_answers_and_colours_are_counted():
    targets_BMS = torch.tensor([[[3, 5], [3, 7]], [[3, 3], [8, 0]]])
    outputs_BMSK = nn.functional.one_hot(torch.tensor([[[3, 5], [3, 0]], [[0, 0], [0, 0]]]), 512).float()
    prediction = Prediction(outputs_BMSK, targets_BMS, None)
    counts_K = masked_patch.color_counts(prediction)

    assert masked_patch.num_right(prediction).tolist() == [3, 1]
    assert {k: n for k, n in enumerate(counts_K.tolist()) if n} == {0: 1, 3: 4, 5: 1, 7: 1, 8: 1}
    assert len(counts_K) == 512


def test_fresh_parameters_are_drawn_as_stated():
    model = model_of(architecture("Ti/16", image_size=(64, 64), num_classes=0))
    weight, fan_in = model.prediction.weight, 192

    assert weight.std().item() == pytest.approx(math.sqrt(1 / fan_in), rel=0.02)
    assert weight.abs().max() <= 2 * math.sqrt(1 / fan_in) / 0.8796256610342398 * 1.0001
    assert not model.prediction.bias.any()
    assert model.mask_token.shape == (1, 1, 192)
    assert model.mask_token.std().item() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("shares", [(0.5, 0.8, 0.1), (0.5, 0.0, 1.0), (1.0, 1.0, 0.0)])
def test_every_parameter_has_a_gradient_as_several_processes_need(shares):
    corrupted, masked, replaced = shares
    model = model_of(corrupted=corrupted, masked=masked, replaced=replaced)
    masked_patch.loss(model(ranged(pixels()))).backward()

    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.slow
def test_a_seed_gives_the_same_prediction_in_a_copy_and_compiled_and_in_evaluation():
    model = model_of()
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager")
    outcomes = []
    for one in (model, copy.deepcopy(model), compiled, copy.deepcopy(model).eval()):
        torch.manual_seed(5)
        prediction = one(ranged(pixels()))
        masked_patch.loss(prediction).backward()
        outcomes.append((prediction, one.mask_token.grad))

    for prediction, grad in outcomes[1:]:
        assert torch.equal(prediction.targets, outcomes[0][0].targets)
        assert all(map(torch.equal, prediction.corruption, outcomes[0][0].corruption))
        torch.testing.assert_close(prediction.outputs, outcomes[0][0].outputs)
        torch.testing.assert_close(grad, outcomes[0][1])
    assert not torch.equal(model(ranged(pixels())).corruption.places_BM, outcomes[0][0].corruption.places_BM)


@pytest.mark.parametrize("target", TARGETS)
def test_targets_and_loss_are_exact_in_bf16(target):
    model = model_of(target=target)
    corruption = model.draw(3)
    exact = model(ranged(pixels()), corruption)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(ranged(pixels()), corruption)
    loss = masked_patch.loss(low)

    assert low.outputs.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert torch.equal(low.targets, exact.targets) and low.targets.dtype == exact.targets.dtype
    assert loss.item() == pytest.approx(masked_patch.loss(exact).item(), rel=0.03)


def test_the_backbone_has_timms_names_and_is_the_network_without_a_head():
    arch = tiny()
    torch.manual_seed(0)
    vit = build(replace(arch, num_classes=9, pre_logits=True), dropout=0.0)
    model = MaskedPatchModel(
        vit, target="pixels", corrupted=0.5, masked=0.8, replaced=0.1, mean=HALF, std=HALF
    )
    state = backbone_state(model.state_dict())

    assert {name: tensor.shape for name, tensor in state.items()} == expected_tensors(arch)
    own = {name for name in model.state_dict() if not name.startswith("vit.")}
    assert own == {"mask_token", "prediction.weight", "prediction.bias"}


@pytest.mark.parametrize(
    "network",
    [
        lambda: timm.create_model("resnet18", num_classes=0),
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, global_pool="avg", num_classes=0),
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_drop_rate=0.5, num_classes=0),
        lambda: timm.create_model("vit_tiny_patch16_224", img_size=40, num_classes=0),
    ],
)
def test_networks_without_a_token_for_every_patch_are_refused(network):
    with pytest.raises(VitError, match="masked patch prediction is not possible"):
        MaskedPatchModel(
            network(), target="pixels", corrupted=0.5, masked=0.8, replaced=0.1, mean=HALF, std=HALF
        )


@pytest.mark.parametrize("target", TARGETS)
def test_pictures_show_what_the_network_sees_and_says(target):
    model, images = model_of(target=target), pixels(2)
    # of picture 0: patch 7 masked, 8 replaced by patch 1 of picture 1; of picture 1: 0 masked, 23 as it was
    corruption = Corruption(
        torch.tensor([[7, 8], [0, 23]]),
        torch.tensor([[7, 25], [24, 47]]),
        torch.tensor([[True, False], [True, False]]),
    )
    prediction = model(ranged(images), corruption)
    color = 6 + 8 * 1 + 64 * 4  # the middles of its bins: 6.5, 1.5 and 4.5 eighths of 255
    if target == "pixels":
        said = images[:, :, :8, :8]
        outputs = ranged(said).permute(0, 2, 3, 1).reshape(2, 1, -1).expand(-1, 2, -1)
    else:
        answers = torch.zeros(2, 2, prediction.targets.shape[-1], dtype=torch.int64)
        answers[..., 0 if target == "mean_color" else 7] = color  # all, or second row and last column
        outputs = nn.functional.one_hot(answers, 512).float()
        said = torch.full((2, 3, 8, 8), 16)  # 0.5 eighths of 255 is 15.9
        colored = said if target == "mean_color" else said[:, :, 2:4, 6:]
        colored[:] = torch.tensor([207, 48, 143])[:, None, None]
    views = model.views(ranged(images), prediction._replace(outputs=outputs))

    for i, (original, corrupted, predicted) in enumerate(views):
        assert np.array_equal(original, images[i].permute(1, 2, 0).numpy())
        expected = images[i].clone()
        patch(expected, [7, 0][i], 6, 8)[:] = 128
        if i == 0:
            patch(expected, 8, 6, 8)[:] = patch(images[1], 1, 6, 8)
        assert np.array_equal(corrupted, expected.permute(1, 2, 0).numpy())
        expected = images[i].clone()
        for place in corruption.places_BM[i].tolist():
            patch(expected, place, 6, 8)[:] = said[i]
        assert np.array_equal(predicted, expected.permute(1, 2, 0).numpy())


def test_a_figure_has_a_row_of_three_for_each_picture():
    model, images_BCHW = model_of(), ranged(pixels(2))
    views = model.views(images_BCHW, model(images_BCHW))
    figure = figures.masked_patch_grid(views)
    shown = [axes.images[0].get_array() for axes in figure.axes]

    assert [axes.get_title() for axes in figure.axes[:3]] == ["image", "corrupted", "predicted"]
    assert all(np.array_equal(*pair) for pair in zip(shown, (*views[0], *views[1]), strict=True))
    width, height = figure.get_size_inches()
    assert width == 5 and height == pytest.approx(2 * 5 / 3 * 32 / 48, abs=0.3)


def test_a_tiny_network_learns_a_few_pictures():
    arch = tiny(image_size=(32, 32))
    model = model_of(arch, seed=1)
    pictures = np.stack([demo.draw("demo", "train", row)[0][16:48, 16:48] for row in range(4)])
    images_BCHW = ranged(torch.from_numpy(pictures).permute(0, 3, 1, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(100):
        loss = masked_patch.loss(model(images_BCHW))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    assert losses[0] == pytest.approx(math.log(512), abs=1.0)
    assert np.mean(losses[-10:]) < 2.0


def test_registers_are_no_patches():
    arch = tiny()
    model = model_of(replace(arch, model_args=arch.model_args | {"reg_tokens": 4})).eval()
    corruption = model.draw(3)

    outputs = model(ranged(pixels()), corruption).outputs
    tokens_BTD = model.encode(ranged(pixels()), corruption)
    of_places = tokens_BTD[torch.arange(3)[:, None], 1 + 4 + corruption.places_BM]
    assert model.vit.num_prefix_tokens == 5
    torch.testing.assert_close(outputs[:, :, 0], model.prediction(of_places))
