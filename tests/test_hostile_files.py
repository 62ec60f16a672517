"""Files of a stranger that would take all memory or time: refused before either is spent.

The bounds are those of the table in SECURITY.md. The slow tests run `vit` in a process whose address space is
limited: to so many MB more than it has with its libraries.
"""

import base64
import io
import json
import os
import re
import subprocess
import sys
import time
import zipfile
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.conftest import REPOSITORY, Outcome, run
from vitcli.conversion import golden, onnx_process
from vitcli.data import decoding, video
from vitcli.data.sources import label_files
from vitcli.errors import WeightsError
from vitcli.io.files import MOST_BYTES, MOST_TEXT_BYTES, MOST_VALUES
from vitcli.recipe import toml, validation
from vitcli.weights import files
from vitcli.weights.io import read_weights

SERVER = REPOSITORY / "examples/server.py"
MOST_MB = 1_200  # of a process, with torch: the aim for every file of less
LIMITED = """\
import resource, sys
{imports}
from vitcli.cli import app
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {megabytes} * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    app.main(sys.argv[1:])
finally:
    print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0], file=sys.stderr)
"""
needs_limits = pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")


def vit_within(megabytes: int, *arguments: object, imports: str = "") -> tuple[Outcome, float]:
    """Run a command that may take so many MB of addresses besides what its libraries have.

    Returns:
        How it ended, and the most memory that it had, in MB.
    """
    program = LIMITED.format(imports=imports, megabytes=megabytes)
    words = [sys.executable, "-c", program, *map(str, arguments)]
    # What each thread reserves without using it would count
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    *lines, peak_kb = ended.stderr.splitlines()
    return Outcome(ended.returncode, ended.stdout, "\n".join(lines)), int(peak_kb) / 1024


def check_refused(outcome: Outcome, code: int, *words: str) -> None:
    lines = outcome.err.strip().splitlines()
    assert outcome.code == code, outcome.err
    assert [line.split(":")[0].strip() for line in lines[-3:]] == ["error", "where", "fix"]
    assert all(word in outcome.err for word in words), outcome.err


# recipes

DOTS = "a." * 30_000 + "b = 1\n"  # of 60 KB: 4 GB in tomllib


def test_a_recipe_of_long_keys_or_of_more_than_a_megabyte_is_refused_unparsed(tmp_path, in_ten_seconds):
    recipe, folder = tmp_path / "mine.toml", tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    for text, what in ((DOTS, "line 1 has 30,000 dots"), ("#" * 2**20 + "\n", "more than 1,048,576 bytes")):
        recipe.write_text(text)
        (folder / "recipe.toml").write_text(text)

        check_refused(run("recipes", "check", recipe), 2, what, str(recipe))
        check_refused(run("report", folder), 3, what, "recipe.toml")


@needs_limits
@pytest.mark.slow
def test_the_longest_keys_that_a_recipe_may_have_take_little_memory(tmp_path):
    lines = "".join(f"k{number}.{'a.' * 98}b = 1\n" for number in range(5_000))
    (tmp_path / "mine.toml").write_text(lines[: 2**20].rpartition("\n")[0])
    outcome, peak_mb = vit_within(700, "recipes", "check", tmp_path / "mine.toml")

    assert outcome.code == 2 and "mistakes in recipe" in outcome.err
    assert peak_mb < 700


def test_of_many_mistakes_in_a_recipe_the_first_twenty_are_named_and_the_rest_counted(tmp_path):
    unknown = "".join(f"k{number} = 1\n" for number in range(5_000))
    choices = f"lr = {list(range(1, 200))}\n"
    for text, count in (
        (f"[optimizer]\n{unknown}", 5_000),
        (unknown, 5_000),
        (f"[optimizer]\n{choices}{unknown}", 5_000),
    ):
        (tmp_path / "mine.toml").write_text(text)
        began_at = time.monotonic()
        outcome = run("recipes", "check", tmp_path / "mine.toml")
        elapsed_s = time.monotonic() - began_at

        found = int(re.match(r"error: ([\d,]+) mistakes in", outcome.err)[1].replace(",", ""))
        assert outcome.code == 2 and found > count
        assert f"    and {found - 20:,} more\n" in outcome.err
        assert outcome.err.count("      fix:   ") == 20 and outcome.err.count("\n") == 44
        assert elapsed_s < 2  # of each a nearest name was looked for: 0.75 ms


# weights

TORCH = "from vitcli.distributed import startup; startup.load(); import vitcli.weights.summary"


def write_shared(path: Path, *, num_names: int) -> None:
    """Write a .pth of 2 MB whose names all have the same numbers, of 16 bits."""
    numbers = torch.zeros(2**20, dtype=torch.float16)
    torch.save({f"t{name}": numbers for name in range(num_names)}, path)


def write_pickled(path: Path, content: bytes, *, is_archive: bool) -> None:
    """Write a .pth whose pickle is this, of an archive compressed: a thousandth of it."""
    pickled = b"\x80\x02" + content + b"."
    if not is_archive:
        path.write_bytes(pickled)
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in (("data.pkl", pickled), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"a/{name}", member)
        archive.writestr("a/data/0", os.urandom(2**20), zipfile.ZIP_STORED)


NO_NUMBERS = b':{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
EMPTY_LISTS = b"[[]]," * 660_000 + b"0]"
HEADERS = {  # each as large as it may be
    "tensors": lambda: b",".join(b'"%x"%b' % (number, NO_NUMBERS) for number in range(550_000)),
    "lists": lambda: b'"t":[' + EMPTY_LISTS,
    "texts": lambda: metadata(b",".join(b'"%x":"a"' % number for number in range(1_900_000))),
    "wide text": lambda: metadata(b'"x":"\xf0\x9f\x98\x80' + b"a" * 33_000_000 + b'"'),
    "text of lists": lambda: metadata(b'"vit":"[' + EMPTY_LISTS + b'"'),
}


def metadata(content: bytes) -> bytes:
    return b'"__metadata__":{' + content + b'},"t"' + NO_NUMBERS


def write_header(path: Path, content: bytes) -> None:
    """Write a .safetensors file without numbers."""
    path.write_bytes((len(content) + 2).to_bytes(8, "little") + b"{" + content + b"}")


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as refused:
        read_weights(str(path))
    assert str(path) in refused.value.where
    return refused.value.message


def test_names_that_share_their_numbers_are_refused_before_these_are_copied(tmp_path, monkeypatch):
    write_shared(tmp_path / "x.pth", num_names=50)
    monkeypatch.setattr(torch.Tensor, "float", lambda tensor: pytest.fail("converted"))

    assert "claim 104,857,600 bytes, more than the 2,09" in refusal(tmp_path / "x.pth")


@pytest.mark.parametrize("is_archive", [True, False])
def test_a_pickle_of_many_objects_is_refused(tmp_path, monkeypatch, is_archive):
    monkeypatch.setattr(files, "MOST_PICKLED_BYTES", 2**16)
    write_pickled(tmp_path / "x.pth", b"]" * 2**16, is_archive=is_archive)

    assert ("data.pkl has 65,539 bytes" if is_archive else "begins with more than 65,536") in refusal(
        tmp_path / "x.pth"
    )


@needs_limits
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "pickle", "old pickle"])
def test_what_pickles_may_claim_takes_little_memory(tmp_path, kind):
    path = tmp_path / "x.pth"
    if kind == "shared":
        write_shared(path, num_names=5_000)
    else:
        write_pickled(path, b"]" * 2**23, is_archive=kind == "pickle")
    outcome, peak_mb = vit_within(500, "inspect", "--ckpt", path, "--summary", imports=TORCH)

    check_refused(outcome, 4, str(path))
    assert peak_mb < MOST_MB


def test_a_header_of_many_tensors_is_refused_unparsed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "parse_json", lambda *_, **__: pytest.fail("parsed"))
    write_header(tmp_path / "x.safetensors", b",".join([b'"a"' + NO_NUMBERS] * 10_001))

    assert "tensors, more than any network has" in refusal(tmp_path / "x.safetensors")


@needs_limits
@pytest.mark.slow
@pytest.mark.parametrize("kind", HEADERS)
def test_whatever_a_header_claims_takes_little_memory(tmp_path, kind):
    write_header(tmp_path / "x.safetensors", HEADERS[kind]())
    outcome, peak_mb = vit_within(
        700, "inspect", "--ckpt", tmp_path / "x.safetensors", "--summary", imports=TORCH
    )

    assert outcome.code == 4 and "Traceback" not in outcome.err, outcome.err
    assert peak_mb < MOST_MB


# ONNX files, which are programs


def write_program(path: Path, kind: str) -> None:
    """Write an ONNX file that fills the memory or never ends on images such as ours, and a golden file."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, types = onnx.helper, onnx.TensorProto
    images = make.make_tensor_value_info("images", types.UINT8, ["batch", "height", "width", 3])
    number = make.make_tensor_value_info("number", types.FLOAT, ["batch", 1])
    side = 60_000 if kind == "memory" else 1
    shape = make.make_tensor("shape", types.INT64, [2], [side, side])
    nodes = [
        make.make_node("Constant", [], ["s"], value=shape),
        make.make_node("ConstantOfShape", ["s"], ["large"]),
        make.make_node("ReduceSum", ["large"], ["one"], keepdims=1),
    ]
    if kind == "time":
        turns = make.make_tensor("turns", types.INT64, [], [2**62])
        go_on = make.make_tensor("go_on", types.BOOL, [], [True])
        body = make.make_graph(
            [make.make_node("Identity", ["c"], ["c2"]), make.make_node("Add", ["v", "v"], ["v2"])],
            "turn",
            [make.make_tensor_value_info(n, t, s) for n, t, s in
             (("i", types.INT64, []), ("c", types.BOOL, []), ("v", types.FLOAT, [1, 1]))],
            [make.make_tensor_value_info(n, t, s) for n, t, s in
             (("c2", types.BOOL, []), ("v2", types.FLOAT, [1, 1]))],
        )  # fmt: skip
        nodes += [
            make.make_node("Constant", [], ["turns"], value=turns),
            make.make_node("Constant", [], ["go_on"], value=go_on),
            make.make_node("Loop", ["turns", "go_on", "one"], ["number"], body=body),
        ]
    else:
        nodes += [make.make_node("Identity", ["one"], ["number"])]
    graph = make.make_graph(nodes, "\x1b[2J", [images], [number])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 20)], ir_version=9), path)
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    image = {"image": "a.png", "png": base64.b64encode(buffer.getvalue()).decode(), "outputs": {"0": 1.0}}
    golden = {"output": "number", "tolerance": 1e-4, "images": [image]}
    path.with_name(f"{path.stem}.golden.json").write_text(json.dumps(golden))


@needs_limits
@pytest.mark.parametrize(
    ("kind", "what"), [("memory", "more than 512 MB of memory"), ("time", "more than 1 s")]
)
def test_an_onnx_file_that_takes_all_memory_or_never_ends_is_refused(tmp_path, monkeypatch, kind, what):
    monkeypatch.setattr(onnx_process, "MOST_S", 1 if kind == "time" else onnx_process.MOST_S)
    write_program(tmp_path / "x.onnx", kind)
    refused = run("export", "--check", tmp_path / "x.onnx")

    check_refused(refused, 8, f"it takes {what}, which no network of its size does", "x.onnx")
    assert "\x1b" not in refused.err and len(refused.err.splitlines()) == 3


# data


def write_photographs(folder: Path, num_images: int) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(num_images):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name / f"{number}.png")


def write_labels(folder: Path, *, num_columns: int) -> None:
    """Write as many values as a file of labels may have, of images that are not there."""
    write_photographs(folder, 1)
    num_rows = label_files.MOST_VALUES // num_columns
    names = ",".join(f"c{number}" for number in range(2, num_columns))
    cells = ",a class" * (num_columns - 2)
    rows = (f"{number}.png,class {number}{cells}" for number in range(num_rows))
    (folder / "labels.csv").write_text("\n".join(["file,label" + ("," + names if names else ""), *rows]))


def write_golden(path: Path) -> None:
    """Write a golden file of images that are 15 KB each as PNG and 265 MB as pixels."""
    write_program(path, "memory")
    golden_file = path.with_name(f"{path.stem}.golden.json")
    written, buffer = json.loads(golden_file.read_text()), io.BytesIO()
    Image.new("1", (9_400, 9_400)).save(buffer, "PNG")
    (image,) = written["images"]
    written["images"] = [image | {"png": base64.b64encode(buffer.getvalue()).decode()}] * 20
    golden_file.write_text(json.dumps(written))


def write_video(path: Path) -> None:
    """Write a video whose second frame has 256 million pixels."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number, size in enumerate([(64, 48), (16_000, 16_000)]):
            buffer = io.BytesIO()
            Image.new("L", size).save(buffer, "JPEG")
            packet = av.Packet(buffer.getvalue())
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, number, number, Fraction(1, 10)
            container.mux(packet)


@needs_limits
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["many rows", "many columns", "golden", "program", "video", "image", "recipe"]
)
def test_what_is_read_of_data_takes_little_memory(tmp_path, kind):
    file, allowed_mb, code, imports = tmp_path / "x", 700, 3, TORCH
    match kind:
        case "many rows" | "many columns":
            write_labels(tmp_path, num_columns=2 if kind == "many rows" else 2_000)
            words, allowed_mb, imports = ("datasets", "check", tmp_path), 1_200, ""
        case "golden":
            write_golden(tmp_path / "x.onnx")
            words = ("export", "--check", tmp_path / "x.onnx")
        case "program":
            write_program(tmp_path / "x.onnx", "memory")
            words, code = ("export", "--check", tmp_path / "x.onnx"), 8
        case "video":
            write_video(tmp_path / "x.mkv")
            words = ("predict", "--ckpt", "demo", tmp_path / "x.mkv", "--every", 1)
        case "image":
            Image.new("1", (9_500, 9_500)).save(tmp_path / "x.png")
            words = ("predict", "--ckpt", "demo", tmp_path / "x.png")
        case "recipe":
            file = tmp_path / "runs" / "a"
            file.mkdir(parents=True)
            (file / "recipe.toml").write_text(DOTS)
            (file / "plan.json").write_text("{}")
            words = ("report", file)
    outcome, peak_mb = vit_within(allowed_mb, *words, imports=imports)

    check_refused(outcome, code)
    assert peak_mb < MOST_MB


# the table


def test_the_bounds_that_security_md_states_are_those_of_the_code():
    table = (REPOSITORY / "SECURITY.md").read_text().partition("## What a file may cost")[2]
    stated = {}
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| file |"):
            _, file, bounds, _ = line.split("|")
            stated[file.strip()] = [
                int(word.replace(",", "")) for word in re.findall(r"\d[\d,]*\d|\d", bounds)
            ]
    server = dict(re.findall(r"([A-Z_]+)(?:, MOST_PIXELS)? = ([\d_., ()A-Za-z]+)", SERVER.read_text()))
    most_bytes, most_pixels = re.findall(r"\d[\d_]+", server["MOST_BYTES"])
    at_once = [int(number) for number in re.findall(r"Semaphore\((\d+)\)", SERVER.read_text())]

    assert stated == {
        "image": [
            decoding.MAX_PIXELS,
            decoding.MAX_SIDE,
            MOST_BYTES,
            decoding.MOST_SCANNED_PIXELS,
        ],
        "frame of a video": [int(video.DECODER_OPTIONS["max_pixels"])],
        "`.safetensors`": [files.MOST_HEADER_BYTES, files.MOST_TENSORS, files.MOST_KEYS],
        "`.pth`": [files.MOST_PICKLED_BYTES, files.MAX_EXPANSION],
        "JSON of settings and results": [MOST_TEXT_BYTES, MOST_VALUES],
        "recipe": [toml.MOST_BYTES, toml.MOST_DOTS, validation.MOST_MISTAKES],
        "file of labels": [
            label_files.MOST_BYTES,
            label_files.MOST_COLUMNS,
            label_files.MOST_VALUES,
            label_files.MOST_MISSING,
        ],
        "count file beside shards": [],
        "golden file": [golden.MOST_BYTES, golden.NUM_IMAGES, golden.MOST_SIDE, golden.MOST_SIDE],
        "ONNX file in `--check`": [
            onnx_process.MEMORY_MB,
            onnx_process.MEMORY_PER_BYTE,
            onnx_process.MOST_S,
            1,
            onnx_process.BYTES_IN_A_SECOND,
            onnx_process.MOST_OUTPUTS,
        ],
        "request to `examples/server.py`": [
            int(most_bytes),
            round(float(server["BODY_WITHIN_S"])),
            int(most_pixels),
            int(server["MOST_SCANS"].split()[0]),
            *at_once,
        ],
    }
