"""ONNX in 8 bits: what rounding loses, what smoothing wins, and which layers stay in float32."""

from collections import Counter

import numpy as np
import pytest
import torch

from vitcli.weights.production import int8
from vitcli.weights.production.session import OnnxSession

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

K, N, OUTLIER = 24, 48, 1000.0
LAYERS = ["stem", "blocks.0.mlp.fc1", "blocks.0.mlp.fc2"]


def graph_of(rng: np.random.Generator, outlier: float) -> onnx.ModelProto:
    """Return a network with a block and a head; one hidden channel of the block is large, and hardly used."""

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    second_NK, bias_N = normal(N, K), np.zeros(N, np.float32)
    second_NK[5], bias_N[5] = 0.01 / max(outlier, 1), outlier
    arrays = {
        "shape": np.array([0, -1, 12]),
        "stem": normal(12, K),
        "network.stem.bias": normal(K),
        "norm.scale": (1 + np.arange(K) / 4).astype(np.float32),
        "norm.shift": normal(K),
        "first": normal(K, N),
        "network.blocks.0.mlp.fc1.bias": bias_N,
        "second": second_NK,
        "network.blocks.0.mlp.fc2.bias": normal(K),
        "axis": np.array([1]),
        "head": normal(7, K),
        "head.bias": normal(7),
    }
    node = onnx.helper.make_node
    nodes = [
        node("Cast", ["images"], ["bytes"], to=onnx.TensorProto.FLOAT),
        node("Reshape", ["bytes", "shape"], ["patches"]),
        node("MatMul", ["patches", "stem"], ["products"], name="product_0"),
        node("Add", ["products", "network.stem.bias"], ["tokens"]),
        node("LayerNormalization", ["tokens", "norm.scale", "norm.shift"], ["normed"]),
        node("MatMul", ["normed", "first"], ["hidden_products"]),
        node("Add", ["hidden_products", "network.blocks.0.mlp.fc1.bias"], ["hidden"]),
        node("Gelu", ["hidden"], ["activated"]),
        node("MatMul", ["activated", "second"], ["second_products"]),
        node("Add", ["second_products", "network.blocks.0.mlp.fc2.bias"], ["branch"]),
        node("ReduceMean", ["branch", "axis"], ["pooled"], keepdims=0),
        node("Gemm", ["pooled", "head", "head.bias"], ["logits"], transB=1),
    ]
    images = onnx.helper.make_tensor_value_info("images", onnx.TensorProto.UINT8, ["batch", 8, 8, 3])
    logits = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 7])
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "network", [images], [logits], constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture
def network(tmp_path):
    """The file of a network with a large channel, and images."""
    onnx.save(graph_of(np.random.default_rng(0), OUTLIER), tmp_path / "net.onnx")
    return tmp_path / "net.onnx", torch.from_numpy(images(64, seed=2)).split(1)


def images(count: int, *, seed: int) -> np.ndarray:
    """Return noise around a colour of each image."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, 200, (count, 1, 1, 3)) + rng.integers(0, 56, (count, 8, 8, 3))).astype(np.uint8)


def lost(proto: onnx.ModelProto, path) -> float:
    """Return what a file loses against another on the images of calibration."""
    onnx.save(proto, path.with_name("other.onnx"))
    both = [OnnxSession(each, num_threads=1) for each in (path.with_name("other.onnx"), path)]
    return int8.loss(*(each.run("logits", images(64, seed=2)) for each in both))


def constants_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}


def test_a_large_channel_is_smoothed_away_and_all_products_stay_in_8_bits(network, monkeypatch):
    path, calibration = network
    proto, fp32 = int8.quantized(path, calibration)

    assert fp32 == () and lost(proto, path) < 0.02
    operators = Counter(node.op_type for node in proto.graph.node)
    assert operators["QuantizeLinear"] == 3 and operators["DequantizeLinear"] == 6
    (mul, _) = (node for node in proto.graph.node if node.op_type == "Mul")  # and the head's weights
    assert mul.input[0] == "activated"  # behind the norm smoothing costs nothing
    monkeypatch.setattr(int8, "WORTH_A_PRODUCT", 0.0)
    monkeypatch.setattr(int8, "MOST_LOSS", np.inf)
    without, _ = int8.quantized(path, calibration)
    assert lost(without, path) > 50 * lost(proto, path)


def test_smoothing_alone_changes_no_answer(network):
    """Weights times what their input was divided by are those of the network, but for half a step."""
    path, calibration = network
    before, (proto, _) = constants_of(onnx.load(path)), int8.quantized(path, calibration)
    after = constants_of(proto)

    for name, s_K in (
        ("first", before["norm.scale"] / after["norm.scale"]),
        ("second", 1 / after["activated_smoothing"]),
    ):
        assert np.ptp(s_K) > 0.1
        rounded = after[f"{name}_8_bits"] * after[f"{name}_steps"]
        differences = np.abs(rounded - before[name] * s_K[:, None])
        assert (differences <= 0.501 * after[f"{name}_steps"]).all()
    np.testing.assert_allclose(
        before["norm.shift"] / after["norm.shift"], before["norm.scale"] / after["norm.scale"], rtol=1e-4
    )


def test_a_layer_that_loses_much_stays_in_float32_and_is_named(network, monkeypatch):
    path, calibration = network
    monkeypatch.setattr(int8, "WORTH_A_PRODUCT", 0.0)
    proto, fp32 = int8.quantized(path, calibration)

    assert fp32 == ("blocks.0.mlp.fc2",) and lost(proto, path) < 0.02
    assert np.array_equal(constants_of(proto)["second"], constants_of(onnx.load(path))["second"])


def test_no_sum_of_two_products_overflows_16_bits(network):
    """As processors without VNNI add them; the weights of the head are multiplied by nothing in 8 bits."""
    path, calibration = network
    after = constants_of(int8.quantized(path, calibration)[0])

    for name in ("stem", "first", "second"):
        assert (
            np.abs(after[f"{name}_8_bits"].astype(int)).max(axis=0).tolist()
            == [63] * (after[f"{name}_8_bits"].shape[1])
        )
    assert 2 * 255 * 63 < 2**15 and np.abs(after["head_8_bits"].astype(int)).max() == 127


def test_weights_alone_have_8_bits_wherever_the_file_has_them(network):
    path, _ = network
    proto = int8.with_quantized_weights(path)

    assert 0 < lost(proto, path) < 1e-2
    operators = Counter(node.op_type for node in proto.graph.node)
    assert (operators["Mul"], operators["QuantizeLinear"], operators["DequantizeLinear"]) == (4, 0, 0)
    large = path.with_name("large.onnx")
    onnx.save(onnx.load(path), large, save_as_external_data=True, size_threshold=1024, location="large.data")
    from_large, expected = constants_of(int8.with_quantized_weights(large)), constants_of(proto)
    assert from_large.keys() == expected.keys()
    assert all(np.array_equal(array, expected[name]) for name, array in from_large.items())
    images_of = images(8, seed=3)
    of_both = (int8.quantized(each, torch.from_numpy(images_of).split(1))[0] for each in (large, path))
    assert lost(next(of_both), path) == lost(next(of_both), path)
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "large.data", "large.onnx", "net.onnx", "other.onnx",
    ]  # fmt: skip


def test_what_loses_most_for_its_cost_goes_back_first_until_little_is_lost():
    losses = {"a": 0.03, "b": 0.5, "c": 0.3, "d": 0.004, "quiet": 0.7}
    num_products = {"a": 1, "b": 10, "c": 1, "d": 1, "quiet": 100}
    noises = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0, "quiet": 5.0}
    roundings = {name: int8.Rounding(0.0, 1.0, np.ones(1), noise) for name, noise in noises.items()}

    def chosen(names: str) -> tuple[str, ...]:
        def loss_without(fp32: set[str]) -> float:
            return sum(losses[name] for name in names.split() if name not in fp32)

        named = {name: roundings[name] for name in names.split()}
        return int8.fallback(named, {name: num_products[name] for name in named}, loss_without)

    assert chosen("d") == ()
    assert chosen("b c d") == ("c",)  # b is no worse than the average of all products
    assert chosen("a c d quiet") == ("c", "a")
    assert chosen("a quiet") == ("a",)


def test_layers_that_share_a_bias_have_names_of_their_own_and_a_network_may_have_none(network):
    """Exporters store equal constants once, such as the zeros of fresh biases."""
    path, _ = network
    proto = onnx.load(path)
    proto.graph.node[9].input[1] = "network.stem.bias"
    onnx.save(proto, path)
    assert [each.name for each in int8.linears_of(path)] == ["stem", "blocks.0.mlp.fc1", "second"]
    assert int8.fallback({}, {}, lambda names: 1.0) == ()


def test_only_the_noisiest_layers_are_tried(monkeypatch):
    tried: list[set[str]] = []

    def loss_without(fp32: set[str]) -> float:
        tried.append(set(fp32))
        return 1.0 - 0.01 * len(fp32)

    roundings = {str(n): int8.Rounding(0.0, 1.0, np.ones(1), float(n)) for n in range(20)}
    assert int8.fallback(roundings, dict.fromkeys(roundings, 1), loss_without) == ()
    assert tried == [set(), *({str(n)} for n in range(19, 11, -1))]


@pytest.mark.parametrize("outlier", [0.0, 100.0])
def test_the_noise_is_that_of_rounding(outlier):
    """Against rounding itself, of inputs and weights, in float64."""
    rng = np.random.default_rng(0)
    values_TK, weights_KN = rng.standard_normal((4000, K)), rng.standard_normal((K, N))
    values_TK[:, 3] += outlier
    weights_KN[3] /= 1 + outlier
    shown = int8.Activations(values_TK.min(0), values_TK.max(0), (values_TK**2).mean(0), 4000)
    linear = int8.Linear("x", "x", ("w",), weights_KN, norm=None)
    rounding = int8.rounding_of(linear, shown)

    s_K = rounding.smoothing_K
    assert (np.ptp(s_K) > 0) == bool(outlier)
    step, smoothed_KN = (rounding.high - rounding.low) / 255, weights_KN * s_K[:, None]
    steps_N = np.abs(smoothed_KN).max(0) / 63
    rounded_TK = np.rint(values_TK / s_K / step) * step
    error_TN = rounded_TK @ (np.rint(smoothed_KN / steps_N) * steps_N) - values_TK @ weights_KN
    signal_KN = weights_KN**2 * shown.squares_K[:, None]
    assert (error_TN**2).sum(1).mean() / signal_KN.sum() == pytest.approx(rounding.noise, rel=0.25)


def test_the_loss_is_a_fraction_of_what_sets_images_apart():
    exact_IN = np.array([[1.0, 5.0], [3.0, 5.0]])  # a variance of 1 and 0

    assert int8.loss(exact_IN, exact_IN) == 0
    assert int8.loss(exact_IN + 0.1, exact_IN) == pytest.approx(4 * 0.01 / 2)
    assert int8.loss(exact_IN[:1] + 0.1, exact_IN[:1]) == pytest.approx(2 * 0.01 / 26)
