"""The examples for exported ONNX files, run as they stand: each answers as `vit predict` does."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.browser import Browser, find
from tests.conftest import REPOSITORY, run

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"
WEB = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
CLIENTS, REQUESTS = 32, 1_000
MOST_BYTES = 10_000_000


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with photos.onnx, classes.txt, three pictures, and what `vit predict` says of each."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("photos")
    assert run("export", "demo", folder / "photos.onnx", "-q").code == 0
    from onnxruntime import InferenceSession

    stored = InferenceSession(folder / "photos.onnx").get_modelmeta().custom_metadata_map
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in json.loads(stored["class_names"])))
    rng, files = np.random.default_rng(0), []
    for number, (height, width) in enumerate([(64, 64), (90, 150), (301, 200)]):
        pixels_HWC = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        pixels_HWC[height // 4 : height // 2, width // 3 :] = (250, 40, 40)
        files.append(folder / f"{number}.png")
        Image.fromarray(pixels_HWC).save(files[-1])
    said = run("predict", "--ckpt", "demo", *files, "--json", "-q").json["predictions"]
    return folder, [(file, entry["top"][0]) for file, entry in zip(files, said, strict=True)]


def test_the_python_example(exported, tmp_path):
    folder, expected = exported
    words = [sys.executable, EXAMPLES / "predict.py", folder / "photos.onnx", *(file for file, _ in expected)]

    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout

    answers = [f"{file}: {top['class']} {top['probability']:.1%}" for file, top in expected]
    assert printed.splitlines() == answers
    # A truncated image costs no other answer.
    (tmp_path / "cut.png").write_bytes(expected[1][0].read_bytes()[:200])
    done = subprocess.run([*words[:3], tmp_path / "cut.png", *words[3:]], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, printed)
    assert done.stderr.startswith(f"{tmp_path / 'cut.png'}: ") and len(done.stderr.splitlines()) == 1
    done = subprocess.run(words[:2], capture_output=True, text=True)
    assert done.returncode == 1 and "python predict.py photos.onnx image.jpg" in done.stderr


def test_the_cpp_example(exported, tmp_path):
    """With a release of onnxruntime in VIT_ONNXRUNTIME, which has include/ and lib/."""
    folder, expected = exported
    compiler, release = shutil.which("g++") or shutil.which("clang++"), os.environ.get("VIT_ONNXRUNTIME")
    if not compiler or not release:
        pytest.skip("no compiler, or no release of onnxruntime in VIT_ONNXRUNTIME")
    paths = ["-I", f"{release}/include", "-L", f"{release}/lib", "-lonnxruntime"]
    source, built = EXAMPLES / "cpp/predict.cpp", tmp_path / "predict"
    subprocess.run([compiler, "-std=c++17", "-Wall", source, *paths, "-o", built], check=True)

    names, env = (folder / "classes.txt").read_text().split("\n"), {"LD_LIBRARY_PATH": f"{release}/lib"}
    for file, top in expected:
        Image.open(file).save(tmp_path / "picture.ppm")
        words = [built, folder / "photos.onnx", tmp_path / "picture.ppm"]
        _, number, _, probability = subprocess.run(
            words, check=True, capture_output=True, text=True, env=env
        ).stdout.split()
        assert names[int(number.rstrip(","))] == top["class"]
        assert float(probability) == pytest.approx(top["probability"], abs=1e-5)
    (tmp_path / "cut.ppm").write_bytes((tmp_path / "picture.ppm").read_bytes()[:-9])
    for broken in (tmp_path / "cut.ppm", expected[0][0], tmp_path / "none.ppm"):
        assert subprocess.run([built, folder / "photos.onnx", broken], env=env).returncode == 1


@contextmanager
def serving(folder: Path):
    """Serve a folder as `python -m http.server` does."""
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    handler.log_message = lambda *_: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def web_runtime(tmp_path_factory) -> Path:
    """The dist folder of onnxruntime-web: VIT_ONNXRUNTIME_WEB, or fetched by npm."""
    if given := os.environ.get("VIT_ONNXRUNTIME_WEB"):
        return Path(given)
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("npm")
    if (
        not npm
        or subprocess.run([npm, "pack", "onnxruntime-web"], cwd=folder, capture_output=True).returncode
    ):
        pytest.skip("no onnxruntime-web in VIT_ONNXRUNTIME_WEB, and npm does not fetch it")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder, "gztar")
    return folder / "package/dist"


def test_the_page_in_a_browser(exported, web_runtime, tmp_path):
    folder, expected = exported
    find()
    for file in (EXAMPLES / "browser/index.html", folder / "photos.onnx", folder / "classes.txt"):
        shutil.copy(file, tmp_path)
    for name in WEB:
        shutil.copy(web_runtime / name, tmp_path)

    with serving(tmp_path) as address, Browser(tmp_path / "profile") as browser:
        browser.open(f"{address}/index.html", width=900)
        wait_until(lambda: browser.value("!document.querySelector('input').disabled"))
        root = browser("DOM.getDocument")["root"]["nodeId"]
        node = browser("DOM.querySelector", nodeId=root, selector="input")["nodeId"]
        browser("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file, _ in expected])
        wait_until(lambda: browser.value("document.querySelectorAll('figcaption').length") == len(expected))
        captions = browser.value("[...document.querySelectorAll('figcaption')].map(each => each.textContent)")
        if picture := os.environ.get("VIT_PICTURE"):
            browser.screenshot(Path(picture))
        asked = browser.requests()

    assert captions == [f"{top['class']}, {100 * top['probability']:.1f} %" for _, top in expected]
    assert all(url.startswith((address, "blob:")) for url in asked)  # nothing from elsewhere


def wait_until(holds, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.05)


@contextmanager
def serving_answers(folder: Path, *, setting: str = "pass"):
    """The port and the process of the server, with a constant of it set to another value if one is named."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"import uvicorn, server; {setting}; uvicorn.main()"
    words = [sys.executable, "-c", code, "server:app", "--port", str(port), "--log-level", "warning"]
    env = os.environ | {"MODEL": str(folder / "photos.onnx")}
    with subprocess.Popen(words, cwd=EXAMPLES, env=env, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: answer_to(port, "GET", "/healthz")[0] == 200)
        yield port, process
        process.kill()


@pytest.fixture
def server(exported):
    with serving_answers(exported[0]) as (port, process):
        yield port, process


def answer_to(port: int, method: str, path: str, body: bytes | None = None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError as error:
        return 0, repr(error)
    finally:
        connection.close()


def test_the_server_answers_a_thousand_requests_of_32_clients_and_stops_at_sigterm(server, exported):
    port, process = server
    _, expected = exported
    bodies = [file.read_bytes() for file, _ in expected]
    outcomes: Counter = Counter()

    def client(number: int) -> None:
        for request in range(number, REQUESTS, CLIENTS):
            status, body = answer_to(port, "POST", "/predict", bodies[request % 3])
            name, probability = next(iter(json.loads(body).items())) if status == 200 else (body, 0)
            top = expected[request % 3][1]
            same = name == top["class"] and abs(probability - top["probability"]) < 1e-5
            outcomes[status, same] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert outcomes == {(200, True): REQUESTS}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) in (0, -signal.SIGTERM) and process.stderr.read() == ""


def test_the_server_refuses_what_is_no_image_or_too_large(server, exported, tmp_path):
    port, process = server
    _, ((file, _), *_) = exported
    for name, size in {"huge.png": (6_000, 5_000), "thin.png": (20_000, 1), "plain.jpg": (64, 64)}.items():
        Image.new("1", size).save(tmp_path / name)
    Image.open(file).save(tmp_path / "photo.eps")
    whole, jpeg = file.read_bytes(), (tmp_path / "plain.jpg").read_bytes()
    for body, status in [
        (b"", 400), (b"no image", 400), (whole[:200], 400), (whole[: len(whole) // 2], 400),
        ((tmp_path / "huge.png").read_bytes(), 413), (b"x" * (MOST_BYTES + 1), 413), (whole, 200),
        ((tmp_path / "thin.png").read_bytes(), 400), ((tmp_path / "photo.eps").read_bytes(), 400),
        (jpeg, 200), (jpeg + 200 * b"\xff\xda", 413),
    ]:  # fmt: skip
        assert answer_to(port, "POST", "/predict", body)[0] == status
    assert answer_to(port, "GET", "/predict")[0] == 405
    assert answer_to(port, "GET", "/nowhere")[0] == 404
    # A client that announces much and sends little, or goes away, takes nothing from the others.
    for _ in range(20):
        half = socket.create_connection(("127.0.0.1", port))
        half.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\nabc")
        half.close()
    assert answer_to(port, "POST", "/predict", whole)[0] == 200
    assert json.loads(answer_to(port, "GET", "/healthz")[1]) == {"status": "ok"}
    process.terminate()
    assert process.stderr.read() == ""  # no traceback for a log to fill with


def test_hostile_images_of_many_clients_cost_neither_the_memory_nor_the_others(server, tmp_path):
    """Images of one colour at the limit of pixels, in 10 MB each: what a file of 15 kB could hold as well."""
    port, process = server
    outcomes: Counter = Counter()
    for number, (mode, size) in enumerate(
        {"RGB": (2_236, 2_236), "RGBA": (65_000, 76), "P": (76, 65_000)}.items()
    ):
        Image.new(mode, size).save(tmp_path / f"{number}.png")
    bodies = [file.read_bytes().ljust(MOST_BYTES, b"x") for file in sorted(tmp_path.glob("*.png"))]
    bodies = [bodies[0], bodies[0], *bodies]

    def client(number: int) -> None:
        outcomes[answer_to(port, "POST", "/predict", bodies[number % len(bodies)])[0]] += 1

    clients = [threading.Thread(target=client, args=(number,)) for number in range(60)]
    for each in clients:
        each.start()
    slowest = 0.0
    while any(each.is_alive() for each in clients):
        began_at = time.monotonic()
        assert answer_to(port, "GET", "/healthz")[0] == 200
        slowest = max(slowest, time.monotonic() - began_at)
        time.sleep(0.05)
    assert {*outcomes} <= {0, 200, 400, 503} and outcomes[200] >= 10  # 0: closed while it was still sent
    peak_kib = next(
        int(line.split()[1])
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    assert peak_kib < 1.2e6, f"{peak_kib / 1e6:.2f} GB"
    assert slowest < 10


def test_a_body_that_never_ends_is_not_waited_for(exported):
    with serving_answers(exported[0], setting="server.BODY_WITHIN_S = 0.5") as (port, process):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as half:
            half.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\nabc")
            assert half.recv(1_000).startswith(b"HTTP/1.1 408")
        process.terminate()
        assert process.stderr.read() == ""


def test_without_a_file_the_server_says_how_it_is_started():
    pytest.importorskip("fastapi")
    env = {key: value for key, value in os.environ.items() if key != "MODEL"}
    words = [sys.executable, "-m", "uvicorn", "server:app"]
    done = subprocess.run(words, cwd=EXAMPLES, env=env, capture_output=True, text=True)
    assert done.returncode != 0 and done.stderr.endswith("MODEL=photos.onnx uvicorn server:app\n")
    assert "Traceback" not in done.stderr
