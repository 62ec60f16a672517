"""The pass over pictures: the same for any batch size, each picture once, memory within its bound."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, to_model_range
from vitcli.distributed import runtime
from vitcli.errors import DataError, WeightsError
from vitcli.evaluation.inference import EvalSettings
from vitcli.inspection import analysis, attention
from vitcli.inspection.attention import probe_attention_layout, record_attention
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.output.progress import Progress

SIZE = (32, 48)
PIXELS = Preprocessing(
    image_size=SIZE, resize="none", crop_fraction=1.0, interpolation="bilinear", antialias=False,
    mean=(0.5,) * 3, std=(0.5,) * 3,
)  # fmt: skip


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    arch = architecture(
        "ViT-Ti/16",
        image_size=SIZE,
        num_classes=3,
        options=TransformerOptions(layers=2, hidden=48, heads=3, mlp=64),
    )
    return build(arch, dropout=0.0).eval(), arch


def pictures(count: int, broken: tuple[int, ...] = ()) -> Split:
    pixels = np.random.default_rng(0).integers(0, 256, (count, *SIZE, 3), dtype=np.uint8)

    def read_row(row: int) -> tuple[bytes, int]:
        file = io.BytesIO()
        Image.fromarray(pixels[row]).save(file, "png")
        return (b"no picture" if row in broken else file.getvalue()), 0

    return Split(
        name="drawn", num_examples=count, class_names=None, num_classes=1, read_row=read_row,
        read_labels=lambda: np.zeros(count, dtype=np.int64), where_is=lambda row: f"picture {row}",
    )  # fmt: skip


def look(network, split: Split, **changed) -> attention.AttentionPass:
    model, arch = network
    precision, batch_size = changed.pop("precision", "fp32"), changed.pop("batch_size", 4)
    on_bad_image = changed.pop("on_bad_image", "error")
    settings = EvalSettings(
        runtime.start("fp32"), batch_size, on_bad_image, 2, Progress(quiet=True), precision
    )
    options = dict(num_shown=3, residual=True, renormalise=True, layout=probe_attention_layout(model, arch))
    return attention.collect_attention(
        model, split=split, preprocessing=PIXELS, settings=settings, **options | changed
    )


def test_everything_is_that_of_the_whole_set_in_one_pass(network):
    """A second way: all weights of all layers in memory at once."""
    model, _ = network
    split = pictures(6)
    images = torch.from_numpy(
        np.stack([np.asarray(Image.open(io.BytesIO(split.read_row(row)[0]))) for row in range(6)])
    )
    layers: list[torch.Tensor] = []
    with torch.no_grad(), record_attention(model, lambda _, weights: layers.append(weights)):
        encoded = model.forward_features(
            to_model_range(images.permute(0, 3, 1, 2), mean=(0.5,) * 3, std=(0.5,) * 3)
        )
    distances = analysis.patch_distances((2, 3), 16).float()
    patches = torch.stack(layers)[..., 1:, 1:]
    by_hand = (patches * distances).sum(-1) / patches.sum(-1)
    rolled = torch.eye(7)
    for weights in layers:
        rolled = (weights.mean(1) + torch.eye(7)) / 2 @ rolled

    seen = look(network, split)

    assert torch.equal(seen.images_MHWC, images[:3])
    assert seen.rows_n == list(range(6))
    torch.testing.assert_close(
        seen.stats.distance_nLA, by_hand.mean(-1).permute(1, 0, 2).double(), rtol=0, atol=1e-4
    )
    torch.testing.assert_close(seen.stats.rollout_MN, rolled[:3, 0, 1:])
    torch.testing.assert_close(seen.stats.heads_MLAN, torch.stack(layers, 1)[:3, :, :, 0, 1:])
    torch.testing.assert_close(seen.stats.features_MHWD.flatten(1, 2), encoded[:3, 1:])


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_nothing_depends_on_the_batch_size(network, batch_size):
    """But for a last bit here: products as small as these are added up in another order in larger batches."""
    one, other = look(network, pictures(7)), look(network, pictures(7), batch_size=batch_size)

    assert other.rows_n == one.rows_n
    assert torch.equal(other.images_MHWC, one.images_MHWC)
    for name, numbers in vars(one.stats).items():
        torch.testing.assert_close(getattr(other.stats, name), numbers, rtol=1e-5, atol=1e-6)


def test_without_the_residual_rollout_is_the_bare_product(network):
    model, _ = network
    split, layers = pictures(2), []
    seen = look(network, split, residual=False)
    with torch.no_grad(), record_attention(model, lambda _, weights: layers.append(weights)):
        model.forward_features(
            to_model_range(seen.images_MHWC.permute(0, 3, 1, 2), mean=(0.5,) * 3, std=(0.5,) * 3)
        )

    product = layers[1].mean(1) @ layers[0].mean(1)

    torch.testing.assert_close(seen.stats.rollout_MN, product[:, 0, 1:])


def test_only_the_network_computes_in_less_precision(network):
    """Its weights are bfloat16's, what follows from them is not: 1 % would be the price in roll-out."""
    model, _ = network
    split, layers = pictures(4), []
    seen = look(network, split, num_shown=4, precision="bf16")
    images = seen.images_MHWC.permute(0, 3, 1, 2)
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        record_attention(model, lambda _, weights: layers.append(weights.float())),
    ):
        model.forward_features(to_model_range(images, mean=(0.5,) * 3, std=(0.5,) * 3))
    rolled = torch.eye(7)
    for weights in layers:
        rolled = (weights.mean(1) + torch.eye(7)) / 2 @ rolled
    rolled = rolled / rolled.sum(-1, keepdim=True)  # bfloat16's rows do not quite sum to 1

    assert all(numbers.dtype in (torch.float32, torch.float64) for numbers in vars(seen.stats).values())
    # The pass and torch.autocast round the same products in another order.
    torch.testing.assert_close(seen.stats.rollout_MN, rolled[:, 0, 1:], rtol=5e-3, atol=0)


def test_large_weights_go_through_in_smaller_batches(network, monkeypatch):
    """3 heads of 7 x 7 tokens are 147 weights an image: within 300 there is no room for four."""
    sizes = []
    model, _ = network
    monkeypatch.setattr(attention, "MOST_WEIGHTS", 300)
    monkeypatch.setattr(
        model, "forward_features", lambda x, own=model.forward_features: sizes.append(len(x)) or own(x)
    )

    look(network, pictures(5))

    assert sizes[1:] == [1] * 5  # the first is the one by which the network is known


def test_batches_are_as_large_as_fits(network, monkeypatch):
    sizes = []
    model, _ = network
    monkeypatch.setattr(attention, "MOST_WEIGHTS", 147 * 5)
    monkeypatch.setattr(
        model, "forward_features", lambda x, own=model.forward_features: sizes.append(len(x)) or own(x)
    )

    look(network, pictures(7), batch_size=64)

    assert sizes[1:] == [8, 4]  # five pictures and two, filled up with blank ones to a multiple of four


def test_a_picture_that_cannot_be_decoded_stops_it_or_is_left_out(network):
    with pytest.raises(DataError, match="decoded"):
        look(network, pictures(6, broken=(1,)))

    seen = look(network, pictures(6, broken=(1, 4, 5)), on_bad_image="skip", batch_size=2)

    assert seen.rows_n == [0, 2, 3]
    assert seen.skipped == ["picture 1", "picture 4", "picture 5"]
    assert len(seen.images_MHWC) == len(seen.stats.rollout_MN) == len(seen.stats.distance_nLA) == 3


def test_pictures_none_of_which_can_be_decoded_are_refused(network):
    with pytest.raises(DataError, match="no image of drawn can be decoded"):
        look(network, pictures(3, broken=(0, 1, 2)), on_bad_image="skip")


def test_weights_that_overflow_are_refused(network):
    model, arch = network
    weight = model.blocks[1].mlp.fc2.weight
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.fill_(float("inf"))
        with pytest.raises(WeightsError, match="not finite numbers, so nothing can be shown"):
            look((model, arch), pictures(2))
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def test_a_network_without_attention_is_only_asked_for_its_features(network):
    torch.manual_seed(0)
    arch = architecture("resnet18", image_size=SIZE, num_classes=3)
    model = build(arch, dropout=0.0).eval()

    seen = look((model, arch), pictures(2), layout=None)

    assert seen.stats.features_MHWD.shape == (2, 1, 2, 512)
    assert seen.stats.distance_nLA is None and seen.stats.rollout_MN is None
