"""Who gets the page of `vit label`, its images and its clicks, and who does not."""

import base64
import hashlib
import http.client
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from tests.teaching.test_labelling import session
from vitcli.data.image_files import as_split
from vitcli.data.split import Split
from vitcli.teaching import label_server
from vitcli.teaching.labelling import Labelling

JSON = {"Content-Type": "application/json"}


class Served:
    """A page with two images on disk and one that is gone."""

    def __init__(self, folder: Path):
        for row, shape in enumerate([(40, 30), (3000, 2000)]):
            pixels = np.random.default_rng(row).integers(0, 255, (*shape, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{row}.png", compress_level=1)
        images = as_split([str(folder / f"{row}.png") for row in range(3)])
        self.serve(folder, session(folder, num_images=3), images)

    def serve(self, folder: Path, labelling: Labelling, images: Split) -> None:
        self.folder, self.session, addresses = folder, labelling, list[str]()
        ready = threading.Event()

        def announce(address: str) -> None:
            addresses.append(address)
            ready.set()

        options = dict(port=0, ready=announce)
        threading.Thread(
            target=label_server.serve, args=(self.session, images), kwargs=options, daemon=True
        ).start()
        assert ready.wait(10)
        self.host, self.base = urlsplit(addresses[0]).netloc, urlsplit(addresses[0]).path

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        method: str | None = None,
        base: str | None = None,
        **headers: str,
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.host, timeout=10)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named = (JSON if content is not None else {}) | named
        verb = method or ("GET" if body is None else "POST")
        connection.request(verb, (self.base if base is None else base) + path, content, named)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    yield Served(tmp_path_factory.mktemp("served"))


def test_the_page_runs_its_own_script_alone_and_loads_nothing_from_elsewhere(served):
    code, page, headers = served.ask("")

    text, policy = page.decode(), headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert code == 200 and "default-src 'none'" in policy and "unsafe" not in policy
    assert not re.findall(
        r'\son\w+="|https?://|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(', text
    )
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert served.ask("", method="HEAD")[:2] == (200, b"")


def test_images_come_by_their_number_as_pixels_of_a_bounded_size(served):
    shapes = {}
    for path in ("image/0", "image/1", "small/1"):
        code, content, headers = served.ask(path)
        assert (code, headers["Content-Type"]) == (200, "image/jpeg")
        shapes[path] = Image.open(io.BytesIO(content)).size
    assert shapes == {"image/0": (30, 40), "image/1": (853, 1280), "small/1": (107, 160)}
    odd = ("image/2", "image/3", "image/-1", "image/0/", "image/1e0", f"image/{10**12}", "image/..%2f0.png",
           "../0.png", "image/%00", "labels.csv", "image/x", "state/", "click", "//state")  # fmt: skip
    assert {path: served.ask(path)[0] for path in odd} == dict.fromkeys(odd, 404)


def test_nobody_without_the_token_gets_anything(served):
    for base in ("/", "", "/x/", served.base[:-2] + "/", served.base.upper(), "/%00/"):
        for path in ("", "state", "image/0"):
            if base + path:
                assert served.ask(path, base=base)[0] == 403, base + path
        assert served.ask("click", {"state": 0, "label": "x"}, base=base or "/")[0] == 403
    assert served.session.state()["state"] == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},  # another port of this machine
        {"Content_Type": "text/plain"},  # which a form may send without asking first
    ],
)
def test_another_origin_is_refused_even_with_the_token(served, headers):
    click = {"state": served.session.state()["state"], "label": "cat"}

    assert served.ask("click", click, **headers)[0] == 403
    if "Content_Type" not in headers:
        assert served.ask("state", **headers)[0] == served.ask("image/0", **headers)[0] == 403
    assert served.session.state()["num_labels"] == 0


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", 400), (b"[1]", 400), (b"[" * 10_000, 400), (b"\xff", 400), (b" " * 20_000, 413),
     ({"state": 0, "label": "x" * 9_999}, 400), ({"state": 0, "label": "a|b"}, 400),
     ({"state": 0, "label": ["a"]}, 400), ({"state": 0, "label": "\ud800"}, 400), ({"state": 0}, 400)],
)  # fmt: skip
def test_a_body_that_is_no_click_changes_nothing(served, body, code):
    status, answer, _ = served.ask("click", body)

    assert status == code, answer
    assert served.session.state()["state"] == 0 and not (served.folder / "labels.csv").exists()
    with suppress(ConnectionError):
        assert served.ask("click", b"{}", Content_Length="x")[0] == 413


def test_a_click_is_answered_with_all_of_the_next_state(served):
    before = json.loads(served.ask("state")[1])
    upcoming = json.loads(served.ask("next")[1])
    origin = {"Origin": f"http://{served.host}", "Sec_Fetch_Site": "same-origin"}
    name = '<img src=x onerror=alert(1)> & "co"'

    code, content, headers = served.ask("click", {"state": before["state"], "label": name}, **origin)
    after = json.loads(content)
    assert (code, headers["Content-Type"]) == (200, "application/json")
    assert after["classes"] == [{"name": name, "count": 1}] and after["shown"]["row"] == upcoming
    assert after == json.loads(served.ask("state")[1])
    assert json.loads(served.ask("click", {"state": after["state"], "undo": True})[1])["num_labels"] == 0
