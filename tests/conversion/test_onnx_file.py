"""ONNX files of `vit export`: what they answer, `--gate`, which refuses wrong ones, and `--check`."""

import base64
import copy
import hashlib
import io
import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from onnx import load as load_graph
from PIL import Image

from tests.conftest import run
from tests.conversion.test_export import to_export, vit  # noqa: F401  # a fixture
from vitcli.conversion import comparison, golden, images, onnx_process
from vitcli.conversion import export as exports
from vitcli.conversion.comparison import highest_drop
from vitcli.conversion.golden import write_golden
from vitcli.data.dataset import DataSet
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, VitError
from vitcli.weights import formats, onnx
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import read_weights, write_weights_file
from vitcli.weights.locate import DEMO_FOLDER
from vitcli.weights.production.program import ProgramForm, ProgramNetwork

SHALLOW = "shallow.safetensors"


@pytest.fixture(scope="module")
def exported(made_once):
    """A network, the file of it that a gate has accepted, one with another bias, and golden files of both."""
    pytest.importorskip("onnxruntime")
    folder = made_once("exported", write_exported)
    return folder, json.loads((folder / "result.json").read_text())


def write_exported(folder):
    """Export the first block of the demo's network; each more of its six takes torch's exporter a second."""
    folder.mkdir()
    demo = read_weights("demo")
    arch = replace(demo.architecture, model_args=demo.architecture.model_args | {"depth": 1})
    state = {
        name: t for name, t in demo.state.items() if name.startswith("blocks.0.") or "blocks" not in name
    }
    about = {"preprocessing": demo.preprocessing, "class_names": demo.class_names, "metadata": {}}
    write_weights_file(folder / SHALLOW, state, WeightsInfo(arch, **about))
    gate = ("--gate", "demo:pretrain", "--split", "test[:60]", "--max-drop", 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "ENOUGH_S", 0.0)
        outcome = run("export", folder / SHALLOW, folder / "net.onnx", *gate, "--json", "-q")
    assert outcome.code == 0, outcome.err
    change_bias(folder / "net.onnx", folder / "other.onnx")
    images = DataSet("demo").open("test[:20]")
    write_golden(folder / "other.onnx", images, preprocessing(), precision="fp32")
    (folder / "result.json").write_text(outcome.out)


def preprocessing():
    return Preprocessing.from_dict(read_weights("demo").preprocessing)


def change_bias(path, to):
    library = pytest.importorskip("onnx")
    proto = library.load(path)
    (bias,) = (each for each in proto.graph.initializer if each.name == "network.head.bias")
    bias.CopyFrom(library.numpy_helper.from_array(np.arange(24, dtype=np.float32), bias.name))
    library.save(proto, to)


def images_of(golden_file, folder):
    """Write the images of a golden file to a folder, and return their paths."""
    folder.mkdir()
    paths = []
    for number, entry in enumerate(json.loads(golden_file.read_text())["images"]):
        paths.append(folder / f"{number}.png")
        paths[-1].write_bytes(base64.b64decode(entry["png"]))
    return paths


@pytest.fixture
def copied(exported, tmp_path):
    for name in ("net.onnx", "net.golden.json", "other.onnx", "other.golden.json", SHALLOW):
        shutil.copy(exported[0] / name, tmp_path)
    return tmp_path


def test_the_result_has_the_verdict_the_speed_and_the_files(exported):
    _, result = exported

    gate = result["gate"]
    assert (gate["num_images"], gate["drop"], gate["max_drop"]) == (60, 0, 0.05)
    assert gate["highest_drop"] == pytest.approx(2.7055 / 62.7055, rel=1e-4)  # by hand
    assert gate["top1_checkpoint"] == gate["top1_exported"] > 0
    assert result["files"].keys() == {"net.onnx", "net.golden.json"} and result["opset"] == 20
    for side in ("exported", "pytorch"):
        of_side = result["speed"][side]
        assert of_side["images_per_s"] >= 1000 / of_side["latency_ms"] * 0.999 and of_side["batch_size"] in (
            1,
            8,
            32,
        )


def test_it_takes_batches_says_what_it_is_and_nothing_of_the_machine_that_made_it(exported):
    path = exported[0] / "net.onnx"
    network = ProgramNetwork(path)
    images_BHWC = torch.randint(0, 256, (3, 41, 90, 3), dtype=torch.uint8)

    alone = torch.cat([network(image_HWC[None]) for image_HWC in images_BHWC])
    torch.testing.assert_close(network(images_BHWC), alone, rtol=1e-5, atol=1e-5)
    told = network.opened.session.get_modelmeta().custom_metadata_map
    assert json.loads(told["class_names"]) == list(read_weights("demo").class_names)
    assert json.loads(told["preprocessing"]).items() >= preprocessing().as_rules().items()
    assert b".py" not in path.read_bytes() and str(path.parent).encode() not in path.read_bytes()


def test_attention_in_a_file_copies_no_keys_and_computes_no_shapes(exported):
    nodes = load_graph(exported[0] / "net.onnx").graph.node
    made_by = {name: node for node in nodes for name in node.output}
    softmax = next(node for node in nodes if node.op_type == "Softmax")

    product = made_by[softmax.input[0]]
    assert [product.op_type, made_by[product.input[1]].op_type] == ["MatMul", "Transpose"]


@pytest.mark.slow
def test_int8_is_smaller_nearly_as_right_and_no_answer_depends_on_its_batch(exported, tmp_path):
    folder, _ = exported
    images_of(folder / "net.golden.json", tmp_path / "images")
    how = ("--precision", "int8", "--input", "pixels", "--calibrate", tmp_path / "images")
    smaller = run("export", "demo", tmp_path / "small.onnx", *how, "--json", "-q").json
    network = ProgramNetwork(tmp_path / "small.onnx")
    images_BHWC = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)

    in_fp32 = (DEMO_FOLDER / "model.safetensors").stat().st_size
    assert smaller["files"]["small.onnx"] < 0.4 * in_fp32 and not network.takes_any_size
    assert 0 < smaller["max_rel_difference"] < 0.2 and smaller["top1_agreement"] >= 0.8
    (note,) = smaller["notes"]
    same = (
        f"int8: {round(32 * smaller['top1_agreement'])} of 32 images of demo, split test[:32] have the class"
    )
    assert note.startswith(same)
    alone = torch.cat([network(image_HWC[None]) for image_HWC in images_BHWC])
    torch.testing.assert_close(network(images_BHWC), alone, rtol=1e-5, atol=1e-5)
    assert run("export", "--check", tmp_path / "small.onnx").code == 0


def test_golden_answers_are_those_of_vit_predict_and_are_repeated(copied):
    golden = json.loads((copied / "net.golden.json").read_text())
    entries = golden["images"]
    files = images_of(copied / "net.golden.json", copied / "images")
    words = ("--ckpt", copied / SHALLOW, *files, "--topk", 24, "--json", "-q")
    predicted = run("predict", *words).json["predictions"]

    assert len(entries) == 20 and golden["output"] == "probabilities"
    rows = [int(entry["image"].rpartition("row ")[2]) for entry in entries]  # from the whole of the gate's
    assert (rows[0], rows[-1]) == (0, 59) and {*np.diff(rows)} <= {3, 4}
    for entry, said in zip(entries, predicted, strict=True):
        by_number = sorted(entry["outputs"].values(), reverse=True)
        assert by_number == pytest.approx([each["probability"] for each in said["top"]], abs=2e-6)
    for name in ("net", "other"):
        checked = run("export", "--check", copied / f"{name}.onnx", "--json", "-q")
        assert checked.code == 0 and checked.json["same_file"] and checked.json["num_images"] == 20
        assert checked.json["max_rel_difference"] < 1e-5


def test_another_network_under_the_same_name_is_found(copied):
    shutil.copy(copied / "other.onnx", copied / "net.onnx")
    refused = run("export", "--check", copied / "net.onnx")
    assert refused.code == 8 and "outputs differ by" in refused.err

    shutil.copy(copied / "other.golden.json", copied / "net.golden.json")
    same = run("export", "--check", copied / "net.onnx")
    assert same.code == 0 and "same outputs" in same.out
    golden = json.loads((copied / "net.golden.json").read_text())
    first, *_ = golden["images"]
    first["outputs"] = dict(zip(first["outputs"], reversed(list(first["outputs"].values())), strict=True))
    (copied / "net.golden.json").write_text(json.dumps(golden))
    refused = run("export", "--check", copied / "net.onnx")
    assert refused.code == 8 and "another class for 1 image of 20" in refused.err


def png(*size: int, mode: str = "RGB") -> str:
    buffer = io.BytesIO()
    Image.new(mode, size[::-1]).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def with_first(**changes):
    def change(golden: dict) -> dict:
        golden["images"][0] |= changes
        return golden

    return change


@pytest.mark.parametrize(
    ("change", "code", "problem"),
    [
        (lambda golden: [], 3, "is damaged"),
        (lambda golden: golden | {"images": []}, 3, "has no images"),
        (lambda golden: golden | {"images": 3}, 3, "is damaged"),
        (lambda golden: golden | {"tolerance": "much"}, 3, "tolerance"),
        (lambda golden: golden | {"tolerance": 1e9}, 3, "tolerance"),
        (lambda golden: golden | {"output": 7}, 3, "it has no probabilities"),
        (with_first(png="not base64"), 3, "is damaged"),
        (with_first(image="\x1b[2J", outputs={"0": 0.9, "23": 0.1}), 8, "another class"),
        (with_first(png=base64.b64encode(b"no image").decode()), 3, "golden"),
        (with_first(outputs={}), 3, "outputs are missing"),
        (with_first(outputs={"0": "many"}), 3, "is damaged"),
        (with_first(outputs={"-1": 0.5}), 3, "outputs are missing"),
        (with_first(outputs={"24": 0.5}), 3, "it has output 24, and the file 24"),
        (with_first(outputs={"0": 1e999}), 3, "not finite"),
        (with_first(png=png(5, 5)), 8, "differ by"),
        (with_first(png=png(257, 256)), 3, "has 256 x 257 pixels, and 256 x 256 at most are written"),
        (with_first(png=png(9000, 9000, mode="1")), 3, "has 9000 x 9000 pixels"),
        (lambda golden: golden | {"images": 2 * golden["images"]}, 3, "it has 40 images, and 20 at most"),
    ],
)
def test_a_damaged_golden_file_is_named(copied, change, code, problem):
    path = copied / "net.golden.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))

    refused = run("export", "--check", copied / "net.onnx")

    assert (refused.code, refused.out) == (code, "") and problem in refused.err
    assert "--skip-bad" not in refused.err  # which export has not
    assert len(refused.err.splitlines()) == 3 and "\x1b" not in refused.err


def test_what_cannot_be_checked_is_refused(copied):
    (copied / "text.onnx").write_text("no graph")
    shutil.copy(copied / "net.golden.json", copied / "text.golden.json")
    (copied / "alone.onnx").write_bytes((copied / "net.onnx").read_bytes())
    for words, code, problem in [
        ((copied / "none.onnx",), 2, "does not exist"),
        ((copied / "net.golden.json",), 2, "is not an .onnx or .pte file"),
        ((copied,), 2, "is not an .onnx or .pte file"),
        ((copied / "alone.onnx",), 3, "there is no alone.golden.json"),
        ((copied / "text.onnx",), 8, "does not accept the file"),
    ]:
        refused = run("export", "--check", *words)
        assert refused.code == code and problem in refused.err, refused.err
    for words in (["demo", "--check", "x.onnx"], [], ["demo", "x.onnx", "--split", "test"]):
        assert run("export", *words).code == 2
    for words, problem in [
        (("x.npz", "--precision", "int8"), "--precision"),
        (("x.onnx", "--calibrate", "photos"), "only int8 is calibrated"),
        (("x.onnx", "--precision", "int8"), "training images of these weights are not here"),
        (("x.onnx", "--gate", "demo:pretrain", "--no-head"), "features have no accuracy"),
        (("x.onnx", "--gate", "demo"), "different classes"),
        (("x.onnx", "--gate", "nowhere/"), "nowhere"),
    ]:
        refused = run("export", "demo", copied / words[0], *words[1:], "-q")
        assert refused.code in (2, 3) and problem in refused.err, refused.err
    assert not list(copied.glob("x.*"))


def changed_state(change):
    def sabotage(model, form):
        model = copy.deepcopy(model)
        with torch.no_grad():
            change(model.state_dict())
        return model, form

    return sabotage


def changed_pixels(**changes):
    return lambda model, form: (model, replace(form, preprocessing=replace(form.preprocessing, **changes)))


def swap_channels(state):
    kernels = state["patch_embed.proj.weight"]
    kernels.copy_(kernels.flip(1))


def shuffle_classes(state):
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    for name in ("head.weight", "head.bias"):
        state[name].copy_(state[name][order])


def zero_half_the_head(state):
    state["head.weight"][::2] = 0


def forget_positions(state):
    state["pos_embed"].zero_()


def drop_a_block(state):
    for name in ("attn.proj.weight", "mlp.fc2.weight"):
        state[f"blocks.1.{name}"].zero_()


def round_weights(state):
    for value in state.values():
        value.copy_((value * 4).round() / 4)


SABOTAGE = {
    "statistics of ImageNet": changed_pixels(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "no statistics": changed_pixels(mean=(0.0,) * 3, std=(1.0,) * 3),
    "BGR": changed_state(swap_channels),
    "another crop": changed_pixels(resize="short_side", crop_fraction=0.8),
    "no antialias and another filter": changed_pixels(
        resize="square", crop_fraction=0.6, interpolation="bicubic", antialias=False
    ),
    "shuffled classes": changed_state(shuffle_classes),
    "half the head": changed_state(zero_half_the_head),
    "no positions": changed_state(forget_positions),
    "a block less": changed_state(drop_a_block),
    "weights of three bits": changed_state(round_weights),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SABOTAGE)
def test_a_network_written_wrongly_is_refused_and_nothing_is_left(what, tmp_path, monkeypatch):
    write = formats.write

    def sabotaged(format, path, model, weights, *, form, **more):
        model, form = SABOTAGE[what](model, form)
        write(format, path, model, weights, form=form, **more)

    pytest.importorskip("onnxruntime")
    check_is_refused(sabotaged, tmp_path, monkeypatch, num_images=600, points=0.5)


def test_a_file_with_another_bias_is_refused_and_nothing_is_left(exported, tmp_path, monkeypatch):
    def sabotaged(format, path, *_, **__):
        change_bias(exported[0] / "net.onnx", path)

    ckpt = exported[0] / SHALLOW
    check_is_refused(sabotaged, tmp_path, monkeypatch, num_images=60, points=5, ckpt=ckpt)


def check_is_refused(sabotaged, folder, monkeypatch, *, num_images, points, ckpt="demo"):
    """By the comparison of outputs, and by the gate alone, on images that would do for an unchanged file."""
    assert 100 * highest_drop(0, 0, num_images) < points
    check_agreement, refused = exports._check_agreement, []

    def noted(*args):
        with pytest.raises(CheckFailed, match="differ by"):
            check_agreement(*args)
        refused.append("by outputs")

    monkeypatch.setattr(comparison, "ENOUGH_S", 0.0)
    monkeypatch.setattr(formats, "write", sabotaged)
    monkeypatch.setattr(exports, "_check_agreement", noted)
    gate = ("--gate", "demo:pretrain", "--split", f"test[:{num_images}]", "--max-drop", points)
    outcome = run("export", ckpt, folder / "out.onnx", *gate, "-q")

    assert refused
    assert outcome.code == 8 and "--max-drop" in outcome.err, outcome.out
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "words",
    [("--gate", "demo"), ("--precision", "fp16"), ("--fastest",), ("--max-drop", "0"), ("--no-head",)],
)
def test_a_check_takes_no_option_of_an_export(tmp_path, words):
    outcome = run("export", "--check", tmp_path / "x.onnx", *words)

    assert outcome.code == 2 and f"leave {words[0]} out" in outcome.err


def test_images_of_a_golden_file_are_256_pixels_wide_or_high_at_most():
    shapes = [golden.shrunk(np.zeros((height, width, 3), np.uint8)).shape for height, width in
              ((300, 600), (600, 300), (256, 200), (10, 20))]  # fmt: skip

    assert shapes == [(128, 256, 3), (256, 128, 3), (256, 200, 3), (10, 20, 3)]


def test_of_many_outputs_a_golden_file_has_those_farthest_from_zero():
    """Features and numbers are negative too, where probabilities are not."""
    outputs_K = np.random.default_rng(0).normal(size=400).astype(np.float32)

    kept = golden._kept(outputs_K)

    others = np.setdiff1d(np.arange(400), kept)
    assert len(kept) == golden.MOST_OUTPUTS and (np.diff(kept) > 0).all() and (outputs_K[kept] < 0).any()
    assert np.abs(outputs_K[kept]).min() > np.abs(outputs_K[others]).max()
    assert golden._kept(outputs_K[:7]).tolist() == list(range(7))


@pytest.mark.parametrize(
    ("num_classes", "metadata", "what"),
    [
        (0, {}, "weights without a head have no accuracy"),
        (1, {"target": {"name": "age", "mean": 40.0, "std": 9.0}}, "has a number per image"),
        (2, {"several_labels": {"thresholds": [0.5, 0.4]}}, "has several labels per image"),
    ],
)
def test_a_gate_is_for_weights_that_have_an_accuracy(num_classes, metadata, what):
    architecture = SimpleNamespace(num_classes=num_classes)
    weights = SimpleNamespace(architecture=architecture, metadata=metadata, source="w")

    with pytest.raises(VitError, match=what) as refused:
        images.open_labelled("demo", "auto", weights)
    assert refused.value.where == "--gate"


def test_a_process_has_memory_and_time_by_the_bytes_of_its_weights(monkeypatch):
    words = []
    monkeypatch.setattr(onnx_process.subprocess, "Popen", lambda given, **_: words.append(given))

    for num_bytes, memory_mb, seconds in ((0, 512, 60), (300 * 2**20, 512 + 4 * 300, 60 + 31)):
        process = onnx_process.OnnxProcess("x.onnx", num_bytes=num_bytes)
        assert (process.memory_mb, process.seconds) == (memory_mb, seconds)
        assert words[-1][-3:] == ["x.onnx", str(memory_mb), str(seconds)]


@pytest.mark.parametrize(
    ("answers", "is_same"),
    [
        ([0.50004, 0.49996, 0.0], True),
        ([0.49998, 0.50002, 0.0], True),  # a tie that rounding decides
        ([0.4999, 0.5001, 0.0], False),
    ],
)
def test_a_tie_is_no_other_class(monkeypatch, tmp_path, answers, is_same):
    if is_same:
        assert checked(answers, tmp_path, monkeypatch)["max_rel_difference"] <= 1e-4
    else:
        with pytest.raises(CheckFailed, match=r"another class for 1 image of 1, the first a\.png"):
            checked(answers, tmp_path, monkeypatch)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_check_says_whether_the_file_is_the_one_that_was_exported(monkeypatch, tmp_path, is_same):
    sha256 = hashlib.sha256(b"net" if is_same else b"other").hexdigest()
    result = checked([0.5, 0.49999, 0.0], tmp_path, monkeypatch, sha256=sha256)

    assert result["same_file"] is is_same
    note = "the file is not byte for byte the one that was exported"
    assert result["notes"] == ([] if is_same else [note])


def checked(
    answers: list[float], folder: Path, monkeypatch, runtime="onnxruntime", sides=(4, 4), **about
) -> dict:
    """The check of a file of 3 bytes with 7 more of weights beside it, which gives these answers."""
    (folder / "net.onnx").write_bytes(b"net")
    (folder / "net.onnx.data").write_bytes(b"weights")
    entry = {"image": "a.png", "png": png(4, 4), "outputs": {"0": 0.5, "1": 0.49999, "2": 0.0}}
    about = {"output": "probabilities", "tolerance": 1e-4, "images": [entry], **about}
    golden.golden_path(folder / "net.onnx").write_text(json.dumps(about))

    def process_of(path: Path, *, num_bytes: int, runtime: str):
        assert (path.name, num_bytes) == ("net.onnx", 10)
        answer = {"answer_name": "probabilities", "input_shape": (1, *sides, 3)}
        return nullcontext(SimpleNamespace(**answer, answers=lambda image_HWC: np.array(answers)))

    monkeypatch.setattr(golden, "OnnxProcess", process_of)
    monkeypatch.setattr(golden, "data_files", lambda path: [path.with_name("net.onnx.data")])
    return golden.check(str(folder / "net.onnx"), runtime=runtime)


@pytest.mark.parametrize(
    ("runtime", "sides", "tolerance"),
    [
        ("openvino", ("height", "width"), 5e-2),
        ("openvino", (4, 4), 1e-4),
        ("onnxruntime", ("height", "width"), 1e-4),
    ],
)
def test_a_file_that_resizes_in_float32_may_differ_by_a_twentieth(
    monkeypatch, tmp_path, runtime, sides, tolerance
):
    answers = {5e-2: [0.48, 0.52, 0.0], 1e-4: [0.50002, 0.49998, 0.0]}[tolerance]
    result = checked(answers, tmp_path, monkeypatch, runtime, sides)

    assert (result["runtime"], result["tolerance"]) == (runtime, tolerance)
    with pytest.raises(CheckFailed, match=f"allowed: {tolerance:g}"):
        checked([0.5 + 2 * tolerance, 0.5, 0.0], tmp_path, monkeypatch, runtime, sides)


@pytest.mark.parametrize("by_user", [None, 7])
def test_a_process_for_an_onnx_file_writes_nothing_and_ends_in_time(monkeypatch, by_user):
    """Seconds are of all its threads together; a limit that the user has set is never raised."""
    resource = pytest.importorskip("resource")
    pytest.importorskip("onnxruntime")
    limits, opened = {}, []
    of_user = resource.RLIM_INFINITY if by_user is None else by_user
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (of_user, of_user))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: limits.update({kind: both}))
    monkeypatch.setattr(onnx_process, "cpu_count", lambda: 3)
    sessions = {"onnxruntime": lambda path, *, num_threads: opened.append(num_threads)}
    monkeypatch.setattr(onnx_process, "SESSIONS", sessions)

    onnx_process._open_within(100, 60, "x.onnx", "onnxruntime")

    assert opened == [3]
    assert limits[resource.RLIMIT_CPU] == ((180, 180) if by_user is None else (7, 7))
    assert limits[resource.RLIMIT_FSIZE] == limits[resource.RLIMIT_CORE] == (0, 0)
    if sys.platform == "linux" and by_user is None:  # its libraries, and 16 MB for the stack of each thread
        most, _ = limits[resource.RLIMIT_AS]
        assert 100 + 3 * 16 < most / 2**20 < 200_000 and most % resource.getpagesize() == 0
    monkeypatch.setattr(onnx_process, "cpu_count", lambda: 64)
    onnx_process._open_within(100, 60, "x.onnx", "onnxruntime")
    assert opened[-1] == 8


def test_a_file_is_quantised_from_the_one_in_fp32_that_is_there(to_export, tmp_path, monkeypatch):  # noqa: F811
    """The same bytes come as from another export of the network, which is not made."""
    _, model = to_export(vit(), "out.onnx", input="pixels")
    preprocessing = Preprocessing((32, 32), "square", 1.0, "bilinear", True, (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
    form = ProgramForm(preprocessing, "classes", input="pixels", precision="int8")
    images = torch.randint(
        0, 256, (4, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    onnx.write_onnx(tmp_path / "a.onnx", model, form, {}, images.split(1))
    monkeypatch.setattr(onnx, "_exported", None)
    onnx.write_onnx(tmp_path / "b.onnx", model, form, {}, images.split(1), tmp_path / "out.onnx")

    outputs = [ProgramNetwork(tmp_path / name)(images) for name in ("a.onnx", "b.onnx")]
    assert torch.equal(*outputs)
