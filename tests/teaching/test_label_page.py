"""The page of `vit label` in a real browser: keys, two tabs, hostile names, widths, and how fast it is."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.browser import Browser
from tests.teaching.test_label_server import Served
from tests.teaching.test_labelling import features, labels, session
from vitcli.data.image_files import as_split

pytestmark = pytest.mark.slow

NUM_IMAGES = 60
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"


class Folder(Served):
    """A folder of images of two colours, and its page."""

    def __init__(self, folder: Path, **more):
        folder.mkdir()
        for row in range(NUM_IMAGES):
            pixels = np.random.default_rng(row).integers(0, 90, (120, 160, 3), dtype=np.uint8)
            pixels[..., row % 2] += 150
            Image.fromarray(pixels).save(folder / f"{row}.png")
        images = as_split([str(folder / f"{row}.png") for row in range(NUM_IMAGES)])
        self.serve(folder, session(folder, num_images=NUM_IMAGES, **more), images)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile") / "chromium") as opened:
        yield opened


def press(browser: Browser, *keys: str) -> None:
    for key in keys:
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        for kind in ("keyDown", "keyUp"):
            browser("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "")
        wait(lambda: browser.value("!isBusy"))


def wait(is_so: Callable[[], bool], most_s: float = 10.0) -> None:
    until = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def open_page(browser: Browser, served: Served, **size) -> None:
    browser.open(f"http://{served.host}{served.base}", **({"width": 1280} | size))
    wait(
        lambda: browser.value(
            "state !== null && (!state.shown || document.querySelector('#frame img').complete)"
        )
    )


def shown(browser: Browser) -> dict:
    return browser.value("state.shown")


def text_of(browser: Browser, name: str) -> str:
    return browser.value(f"document.getElementById('{name}').innerText")


def test_a_person_with_a_keyboard_alone_labels_skips_and_undoes(browser, tmp_path):
    served = Folder(tmp_path / "photos")
    open_page(browser, served)
    names = [shown(browser)["name"]]
    press(browser, "t", *"red", "Enter")
    names.append(shown(browser)["name"])
    press(browser, "t", *"green", "Enter")
    assert labels(served.folder) == dict(zip(names, ("red", "green"), strict=True))

    for key, label in (("1", "red"), ("2", "green")):
        name = shown(browser)["name"]
        press(browser, key)
        assert labels(served.folder)[name] == label
    press(browser, "3", "s", "n")  # there is no third class
    state = served.session.state()
    assert (state["num_labels"], state["num_skipped"], state["num_none"]) == (4, 1, 1)
    guess, name = shown(browser)["guess"][0]["class"], shown(browser)["name"]
    press(browser, "Enter")  # takes the guess
    assert labels(served.folder)[name] == guess
    press(browser, *"zzz")
    state = served.session.state()
    assert (state["num_labels"], state["num_skipped"], state["num_none"]) == (4, 0, 0)
    for typed, label in (
        ("gre", "green"),
        ("x", "x"),
        ("RED", "red"),
    ):  # the first class that fits, or a new one
        press(browser, "t", "z", "Escape", "t", *typed, "Enter")
        assert [*labels(served.folder).values()][-1] == label
    press(browser, "t", *"ed")
    browser("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", modifiers=8)  # Shift
    wait(lambda: [*labels(served.folder).values()][-1] == "ed")
    # Tab reaches every control, and shows where it is.
    reached = set()
    for _ in range(12):
        press(browser, "Tab")
        browser("Input.dispatchKeyEvent", type="rawKeyDown", key="Tab", windowsVirtualKeyCode=9)
        reached.add(browser.value("document.activeElement.innerText || document.activeElement.id"))
    assert {"word"} <= reached and any("None of these" in each for each in reached)
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_tab_that_is_behind_labels_nothing_and_shows_where_it_is_now(browser, tmp_path):
    served = Folder(tmp_path / "photos", classes=["red", "green"])
    open_page(browser, served)
    with Browser(tmp_path / "other") as other:
        open_page(other, served)
        assert shown(other)["name"] == shown(browser)["name"]
        press(browser, "1")
        before = labels(served.folder)
        press(other, "2")

        assert labels(served.folder) == before and "Another tab was quicker" in text_of(other, "message")
        assert shown(other) == shown(browser)
        press(other, "2")
        assert len(labels(served.folder)) == 2 and text_of(other, "message") == ""


def test_names_are_text_whatever_they_hold(browser, tmp_path):
    served = Folder(tmp_path / HOSTILE.replace("/", ""), classes=[HOSTILE, LONG, "\u202egpj.exe"])
    open_page(browser, served, width=390)
    press(browser, "1", "2", "3")

    assert browser.value("document.title").startswith("Label <script>")
    assert browser.value("document.querySelectorAll('script').length") == 1
    assert browser.value("document.querySelectorAll('#classes button')[0].title") == HOSTILE
    assert HOSTILE in text_of(browser, "classes")
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert not [url for url in browser.requests() if served.host not in url and not url.startswith("data:")]


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("num_classes", [2, 40])
def test_the_page_fits_every_width_and_its_words_can_be_read(browser, tmp_path, num_classes, is_dark):
    names = [LONG, *(f"class {number}" for number in range(1, num_classes))]
    served = Folder(tmp_path / "photos", classes=names)
    for width in (390, 768, 1280):
        open_page(browser, served, width=width, is_dark=is_dark)
        press(browser, "1", "2")
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        boxes = browser.value(
            "[...document.querySelectorAll('button:not([hidden]), input, #question, #guess li, #name')]"
            ".filter(e => e.offsetParent).map(e => [e.scrollWidth - e.clientWidth, e.innerText])"
        )
        assert len(boxes) > num_classes and not [box for box in boxes if box[0] > 1], boxes
        frame = "document.getElementById('frame').getBoundingClientRect()"
        first = "document.querySelector('#classes button').getBoundingClientRect()"
        assert browser.value(f"{frame}.width * {frame}.height > 0.2 * innerWidth * innerHeight")
        assert browser.value(f"{first}.top < innerHeight"), "the classes are below the image"


def test_the_next_image_is_there_within_a_tenth_of_a_second(browser, tmp_path):
    served = Folder(tmp_path / "photos", classes=["red", "green"])
    open_page(browser, served)
    click = """new Promise(done => {
      const began = performance.now(), before = state.shown.row;
      const wait = () => state.shown.row !== before && document.querySelector('#frame img').complete
        ? done(performance.now() - began) : requestAnimationFrame(wait);
      document.querySelectorAll('#classes button')[before % 2].click();
      wait();
    })"""
    took_ms = []
    for _ in range(40):
        answer = browser("Runtime.evaluate", expression=click, awaitPromise=True, returnByValue=True)
        took_ms.append(answer["result"]["value"])
        time.sleep(0.05)  # a person looks, while the next image is fetched

    assert np.quantile(took_ms, 0.95) <= 100, took_ms
    assert features(2).shape[1] and len(labels(served.folder)) == 40


def test_a_page_without_its_server_says_that_nothing_was_saved(browser, tmp_path):
    served = Folder(tmp_path / "photos", classes=["red"])
    open_page(browser, served)
    browser(
        "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
    )
    press(browser, "1")
    browser(
        "Network.emulateNetworkConditions",
        offline=False,
        latency=0,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )

    assert "Not saved" in text_of(browser, "message") and not labels(served.folder)
