"""What is not wholly an official network is refused in both directions, with the name of the culprit."""

import numpy as np
import pytest
import torch

from tests.weights.test_authors_npz import HEADS, HIDDEN, linen, official_arrays, state_of, without, written
from vitcli.errors import WeightsError
from vitcli.weights.authors_npz import from_official, to_official

ATTENTION = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
POSEMB = "Transformer/posembed_input/pos_embedding"


def refusal_of(arrays: dict[str, np.ndarray]) -> str:
    with pytest.raises(WeightsError) as refusal:
        from_official(arrays)
    return refusal.value.message


def refusal_to_write(state: dict[str, torch.Tensor], heads: int | None = HEADS) -> str:
    with pytest.raises(WeightsError) as refusal:
        to_official(state, heads=heads, spelling="published")
    return refusal.value.message


def zeros(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("network", "spelling"), [("ViT", "linen"), ("hybrid", "linen"), ("BiT", "published")]
)
def test_the_refusal_of_a_file_names_the_array_that_it_lacks(network, spelling):
    arrays = written(network, spelling)
    for name in without(arrays, "cls"):  # a network without that one averages
        assert f"the array {name} is missing" in refusal_of(without(arrays, name))


def test_a_missing_array_is_named_in_both_spellings():
    name = "Transformer/encoderblock_0/LayerNorm_2/scale"

    assert f"published as {name}" in refusal_of(without(official_arrays(), name))


@pytest.mark.parametrize("network", ["ViT", pytest.param("hybrid", marks=pytest.mark.slow), "BiT"])
def test_a_file_whose_array_has_another_shape_is_refused(network):
    arrays = written(network)
    for name, array in arrays.items():
        for wrong in (array[None], np.concatenate([array, array], axis=-1)):
            free = name in ("head/kernel", "resnet/head/conv2d/kernel")  # as many classes as it likes
            assert ("head" if free else "is of shape") in refusal_of(arrays | {name: wrong})


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("other/kernel", zeros(3)),
        ("blocks.0.norm1.weight", zeros(HIDDEN)),
        ("Transformer/encoderblock_1/LayerNorm_3/scale", zeros(HIDDEN)),
        ("resnet/group_norm/gamma", zeros(HIDDEN)),
        ("head/kernel", zeros(3)),
        ("cls", zeros(1, 1, HIDDEN, dtype=np.int64)),
        ("cls", zeros(2, 1, HIDDEN)),
        (POSEMB, zeros(1, 10, HIDDEN + 1)),
        (f"{ATTENTION}/query/kernel", zeros(HIDDEN, HEADS + 1, HIDDEN // HEADS)),
        (f"{ATTENTION}/key/kernel", zeros(HIDDEN, 2 * HEADS, HIDDEN // HEADS // 2)),
        (f"{ATTENTION}/out/kernel", zeros(HIDDEN, HEADS, HIDDEN // HEADS)),
    ],
)
def test_an_unknown_array_a_wrong_shape_and_a_wrong_type_are_named(name, array):
    assert name in refusal_of(official_arrays() | {name: array})


def test_heads_that_do_not_make_up_the_width_are_refused():
    halved = {
        name: array[..., :4] if "/query/" in name or "/key/" in name or "/value/" in name else array
        for name, array in official_arrays().items()
    }
    halved |= {name: array[:, :4] for name, array in halved.items() if name.endswith("/out/kernel")}

    assert "encoderblock_0/MultiHeadDotProductAttention_1/query/kernel" in refusal_of(halved)
    assert "make up 24" in refusal_of(halved)


def test_the_features_of_a_hybrid_must_be_those_of_its_last_stage():
    arrays = {name: array for name, array in written("hybrid").items() if not name.startswith("block")}

    assert "embedding/kernel is of shape (1, 1, 32, 24), not (1, 1, 16, D)" in refusal_of(arrays)


def test_a_network_has_at_least_one_layer():
    no_blocks = {name: array for name, array in official_arrays().items() if "block" not in name}
    no_units = {name: array for name, array in written("BiT").items() if "/unit" not in name}

    assert "Transformer/encoderblock_0/LayerNorm_0/scale is missing" in refusal_of(no_blocks)
    assert "resnet/block1/unit01/a/proj/standardized_conv2d/kernel is missing" in refusal_of(no_units)


def test_one_array_in_two_spellings_is_refused():
    arrays = official_arrays()
    prefixed = {f"params/{name}": array for name, array in arrays.items()}
    numbered = {"resnet/root_block/standardized_conv2d_9/kernel": zeros(7, 7, 3, 12)}

    assert "twice" in refusal_of(arrays | linen(arrays))
    assert "twice" in refusal_of(arrays | {"pos_embedding": arrays[POSEMB][:, 1:]})
    assert "twice" in refusal_of(written("BiT") | numbered)
    assert "cls is not under params/" in refusal_of(prefixed | {"cls": arrays["cls"]})
    assert "params/embedding/kernel is not under opt/target/" in refusal_of(
        prefixed | {f"opt/target/{name}": array for name, array in arrays.items()}
    )


def test_arrays_of_the_model_beside_the_prefix_are_not_dropped_in_silence():
    arrays = {f"params/{name}": array for name, array in official_arrays().items() if "head" not in name}

    assert "head/kernel" in refusal_of(arrays | {"head/kernel": zeros(HIDDEN, 5), "head/bias": zeros(5)})


def test_attention_pooling_is_refused_by_its_name():
    assert "attention pooling" in refusal_of(official_arrays() | {"MAPHead_0/probe": zeros(1, 1, HIDDEN)})


@pytest.mark.parametrize("network", ["ViT", "hybrid", "BiT"])
@pytest.mark.parametrize(
    "name",
    ["reg_token", "positions.freqs", "blocks.0.ls1.gamma", "fc_norm.weight", "stages.0.blocks.0.conv9"],
)
def test_a_tensor_without_an_official_name_is_not_written(network, name):
    assert f"no name for the tensor {name}" in refusal_to_write(state_of(network) | {name: torch.ones(3)})


@pytest.mark.parametrize("network", ["ViT", "hybrid", "BiT"])
def test_a_state_dict_that_lacks_any_tensor_is_not_written(network):
    state = state_of(network)
    for name in without(state, "cls_token"):
        assert refusal_to_write(without(state, name)) == f"the tensor {name} is missing"


@pytest.mark.parametrize("network", ["ViT", pytest.param("hybrid", marks=pytest.mark.slow), "BiT"])
def test_a_tensor_of_another_shape_or_type_is_not_written(network):
    state = state_of(network)
    for name, tensor in state.items():
        longer = torch.cat([tensor, tensor[:1]])
        free = name.startswith("head.")
        assert ("head" if free else "is of shape") in refusal_to_write(state | {name: longer})
        assert f"the tensor {name} is of shape" in refusal_to_write(state | {name: tensor[None]})
        assert f"the tensor {name} is of torch.int64" in refusal_to_write(state | {name: tensor.long()})


@pytest.mark.parametrize("heads", [None, 0, 5])
def test_heads_that_do_not_divide_the_width_are_refused(heads):
    assert f"{heads} heads" in refusal_to_write(state_of("ViT"), heads)


@pytest.mark.parametrize("spelling", ["linen", "big_vision"])
def test_bit_has_one_spelling(spelling):
    with pytest.raises(WeightsError, match=f"no {spelling} spelling"):
        to_official(state_of("BiT"), heads=None, spelling=spelling)
