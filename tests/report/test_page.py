"""The report's page: whole in one file, asking for nothing, safe with strange names, right in a browser."""

import json
import os
import queue
import re
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from tests import report_runs as made
from tests.browser import Browser, find
from tests.conftest import run
from tests.pages import SHAPES, Page, assert_fetches_nothing

LIMIT = 3_000_000  # bytes of a report on twenty runs
STRANGE = "<img src=x onerror=alert(1)>\"'&"


def page_of(*places: Path, out: Path) -> str:
    written = run("report", *places, "--out", out)
    assert written.code == 0, written.err
    return out.read_text()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A page with one of each picture, and its text."""
    root = tmp_path_factory.mktemp("report")
    made.finetuned(root / "runs" / "b", 0.94, top1s=(0.93, 0.95), std=0.0141)
    made.finetuned(root / "runs" / "l", 0.95, model="ViT-L/16")
    made.evaluated(root / "runs" / "scored", made.evaluation(num_classes=5))
    return root, page_of(root / "runs", out=root / "report.html")


def test_nothing_of_the_page_is_fetched_from_anywhere(small):
    _, text = small

    assert_fetches_nothing(text)


def test_every_table_and_picture_is_there_once_and_has_a_name(small):
    _, text = small
    page = Page(text)

    assert [one["class"] for tag, one in page.elements if tag == "table"] == [
        "runs", "evaluations", "classes few", "costs",
    ]  # fmt: skip
    assert page.count("figure") == 4  # loss, accuracy, reliability, confusion
    labels = [one["aria-label"] for tag, one in page.elements if tag == "svg"]
    assert len(labels) == 4 and all(labels)
    assert re.findall(r"<b>(?:Table|Figure) (\d+)\.", text) == [
        "1", "2", "3", "1", "2", "3", "4", "4",
    ]  # fmt: skip


def test_no_two_elements_share_an_id_and_every_reference_in_the_page_has_one(small):
    _, text = small
    page = Page(text)
    ids = [one["id"] for _, one in page.elements if "id" in one]
    wanted = [one[1:] for one in page.references() if one.startswith("#")] + re.findall(
        r"url\(#([^)]+)\)", text
    )

    assert len(set(ids)) == len(ids) and wanted and set(wanted) <= set(ids)


def test_a_run_has_one_colour_in_all_pictures_and_no_picture_more_lines_than_colours(tmp_path):
    for number in range(9):
        made.finetuned(tmp_path / f"run-{number}", lr=0.01 * (number + 1), evaluated=0 if number == 0 else 5)

    text = page_of(tmp_path, out=tmp_path / "report.html")
    told = re.findall(r'style="background:(#\w+)"></span>ViT-B/16, (run-\d)', text)
    colours = {name: {colour for colour, other in told if other == name} for _, name in told}

    assert len(colours) == 9 and all(len(own) == 1 for own in colours.values())
    assert len(set.union(*(colours[f"run-{number}"] for number in range(8)))) == 8
    assert text.count("Part 1 of 2.</figcaption>") == text.count("Part 2 of 2.</figcaption>") == 2


def test_headings_come_in_reading_order(small):
    levels = [int(level) for level in re.findall(r"<h(\d)>", small[1])]

    assert levels[0] == 1 and set(levels[1:]) == {2}


def test_the_best_is_bold_and_the_deviation_is_told(small):
    assert '94.00<span class="std"> ± 1.41</span>' in small[1] and "<b>95.00</b>" in small[1]


def test_links_lead_from_the_file_to_the_run_folders(small):
    root, text = small
    links = {
        one["href"] for tag, one in Page(text).elements if tag == "a" and not one["href"].startswith("#")
    }

    assert {(root / unquote(link)).resolve() for link in links} == {
        root / "runs" / name for name in ("b", "l", "scored")
    }


def test_strange_names_are_text_in_every_format(tmp_path):
    folder = tmp_path / "javascript:alert(1)"
    made.finetuned(
        folder / STRANGE.replace("/", ""), 0.9, dataset=STRANGE, model=STRANGE, ckpt=STRANGE, lr=0.1
    )
    said = made.evaluation(STRANGE, per_class={STRANGE: {"top1": 0.9, "num_examples": 10}}, num_classes=1)
    made.evaluated(folder / "a b#?%", said)

    text = page_of(folder, out=tmp_path / "report.html")
    assert Page(text).count("img") == 0 and "onerror" in text
    assert not [one for one in Page(text).elements if "onerror" in one[1]]
    links = [one for one in Page(text).references() if not one.startswith(("#", "data:"))]
    assert links and all((tmp_path / unquote(link)).is_dir() and link.startswith("./") for link in links)
    assert "<img" not in run("report", folder, "--format", "markdown").out
    assert "\x1b" not in run("report", folder).out


def test_a_page_of_the_web_or_another_path_gets_nothing(small):
    from vitcli.report import report
    from vitcli.report.server import serve

    root, _ = small
    said: list[str] = []
    answered = threading.Event()

    def ready(address: str) -> None:
        said.append(address)
        answered.set()

    def page() -> str:
        return report.page(report.read([str(root / "runs")]), base=None)

    threading.Thread(target=serve, args=(page,), kwargs=dict(port=0, ready=ready), daemon=True).start()
    assert answered.wait(10) and said[0].startswith("http://127.0.0.1:")

    def ask(path: str = "", method: str = "GET", **headers: str) -> tuple[int, str]:
        asked = urllib.request.Request(said[0] + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    code, text = ask()
    assert code == 200 and '<meta http-equiv="refresh" content="60">' in text and "Training runs" in text
    assert not [
        one for one in Page(text).references() if not one.startswith(("#", "data:"))
    ]  # it serves no folder
    made.finetuned(root / "runs" / "new", 0.5, dataset="new", is_finished=False, step=123)
    text = ask()[1]
    assert '<meta http-equiv="refresh" content="5">' in text and "step 123 of 500" in text
    for path in ("runs", "report.html", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "favicon.ico"):
        assert ask(path)[0] == 404
    assert ask(Host="evil.example")[0] == 403
    assert ask(method="HEAD") == (200, "")
    assert ask(method="POST")[0] == 501
    os.rename(root / "runs", root / "gone")
    code, text = ask()
    assert code == 503 and "does not exist" in text


def test_clients_that_read_nothing_say_nothing_or_vanish_keep_no_other_waiting(monkeypatch, capfd):
    from vitcli.report import server

    assert 0 < server._Handler.timeout <= 30
    monkeypatch.setattr(server._Handler, "timeout", 0.3)
    addresses: queue.Queue = queue.Queue()
    options = dict(port=0, ready=addresses.put)
    threading.Thread(
        target=server.serve, args=(lambda: "x" * 30_000_000,), kwargs=options, daemon=True
    ).start()
    address = addresses.get(timeout=10)
    place = ("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]))

    clients = []

    def connect(request: bytes) -> None:  # and nothing of the answer is read
        clients.append(socket.create_connection(place, timeout=20))
        clients[-1].sendall(request)

    for _ in range(3):
        connect(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(0.2)  # they are being answered
    vanishing = clients.pop(0)
    vanishing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    vanishing.close()
    for _ in range(15):
        connect(b"GET / HT")
    for _ in range(100):  # those above are given up after 0.3 s
        with suppress(OSError), urllib.request.urlopen(address, timeout=20) as answer:
            assert len(answer.read()) == 30_000_000
            break
        time.sleep(0.1)
    else:
        pytest.fail("no answer in ten seconds")

    for client in clients:
        client.close()
    assert capfd.readouterr().err == ""


def test_clients_beyond_the_limit_are_turned_away_and_make_room_for_others(monkeypatch):
    from vitcli.report import server

    begun, end = threading.Semaphore(0), threading.Event()

    class Waits(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            begun.release()
            end.wait(10)

    monkeypatch.setattr(server, "MOST_CLIENTS", 3)
    with server._Server(("127.0.0.1", 0), Waits) as served, ExitStack() as clients:

        def connect() -> socket.socket:
            return clients.enter_context(socket.create_connection(served.server_address, timeout=5))

        threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        for _ in range(3):
            connect()
            assert begun.acquire(timeout=5)
        assert connect().recv(1) == connect().recv(1) == b"", "the connection is closed at once"
        end.set()
        for _ in range(100):
            connect()
            if begun.acquire(timeout=0.1):
                break
        else:
            pytest.fail("no room is made")
        served.shutdown()


def test_a_taken_port_is_told(tmp_path):
    made.finetuned(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("report", tmp_path, "--serve", "--port", port)

    assert refused.code == 5 and f"port {port} cannot be used" in refused.err


@pytest.mark.slow
def test_ctrl_c_ends_a_served_page_in_silence(tmp_path):
    made.finetuned(tmp_path / "run")
    words = [sys.executable, "-m", "vitcli", "report", str(tmp_path), "--serve"]
    heard = dict(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **heard
    ) as process:
        address = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=30)

    assert address.startswith("http://127.0.0.1:") and (process.returncode, rest, err) == (130, "", "")


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """A report on twenty run folders and more."""
    root = tmp_path_factory.mktemp("twenty")
    made.everything(root / "runs")
    page_of(root / "runs", out=root / "report.html")
    return root / "report.html"


@pytest.mark.slow
def test_twenty_runs_fit_into_three_megabytes(twenty):
    assert twenty.stat().st_size <= LIMIT


@pytest.mark.slow
def test_twenty_long_runs_fit_into_three_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(20):
        folder = made.finetuned(
            tmp_path / "runs" / f"run-{number}", 0.9, lr=0.001 * (number + 1), steps=20_000
        )
        losses = [{"step": at, "loss": float(one)} for at, one in enumerate(rng.normal(2, 1, 20_000))]
        evals = [
            {"step": at, "eval": {"top1": float(one)}} for at, one in enumerate(rng.uniform(0, 1, 2_000))
        ]
        made.write_lines(folder / "metrics.jsonl", losses + evals)
        made.evaluated(
            tmp_path / "runs" / f"scored-{number}", made.evaluation(f"run-{number}", num_classes=102)
        )

    assert len(page_of(tmp_path / "runs", out=tmp_path / "report.html").encode()) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (390, False), (390, True)])
def test_a_browser_shows_every_table_and_picture_and_asks_for_nothing(twenty, tmp_path, width, is_dark):
    page = Page(twenty.read_text())
    find()
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"file://{twenty}", width=width, is_dark=is_dark)
        shapes = json.loads(browser.value(SHAPES))
        time.sleep(1)  # whatever comes late
        browser.value("1")
        asked = [url for url in browser.requests() if not url.startswith("data:")]
        browser.screenshot(tmp_path / "page.png")

    assert asked == [f"file://{twenty}"]
    tags = [tag.lower() for tag, _, _ in shapes["boxes"]]
    assert tags.count("table") == page.count("table") == 11
    assert tags.count("svg") == page.count("figure") == 19
    assert all(box_width > 150 and height > 60 for _, box_width, height in shapes["boxes"])
    assert len(shapes["images"]) == 4 and min(shapes["images"]) > 5  # two matrices and their colour bars
    assert shapes["reach"] <= shapes["width"] == width  # nothing but tables scrolls sideways, in their boxes
    assert (shapes["cut"], shapes["sticky"]) == (0, "sticky")
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("L"), dtype=float)
    assert (pixels.mean() < 100) == is_dark
    for part in np.array_split(pixels, 12):  # from its top to its end there is something to see
        assert part.std() > 3


@pytest.mark.slow
def test_the_live_page_comes_back_by_itself(tmp_path):
    folder = made.finetuned(tmp_path / "runs" / "going", 0.9, is_finished=False, step=100)
    find()
    words = [sys.executable, "-m", "vitcli", "report", str(tmp_path / "runs"), "--serve"]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process,
        Browser(tmp_path / "profile") as browser,
    ):
        browser.open(process.stdout.readline().split()[0], width=1280)
        before = browser.value("document.querySelector('table.progress').innerText")
        made.write_lines(folder / "metrics.jsonl", [{"step": 300, "loss": 1.0}])
        deadline = time.monotonic() + 30
        while (
            "step 300" not in (browser.value("document.body.innerText") or "") and time.monotonic() < deadline
        ):
            time.sleep(0.5)
        after = browser.value("document.querySelector('table.progress').innerText")
        asked = {url for url in browser.requests() if not url.startswith("data:")}
        process.terminate()

    assert "step 100 of 500" in before and "step 300 of 500" in after
    assert len(asked) == 1
