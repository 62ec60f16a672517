"""With HF_HUB_OFFLINE=1, which the tests set, no command opens a socket, whatever it is asked for."""

import sys

import pytest

from tests.conftest import run
from tests.training.test_finetune import SMALL

EVENTS = ("socket.__new__", "socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto")
sockets: list[tuple] | None = None  # while it is a list, what is asked of the network


def _hook(event: str, arguments: tuple) -> None:
    if sockets is not None and event in EVENTS:
        sockets.append((event, str(arguments)[:200]))


# Exit code, and the words after `vit`; {photos} and {out} are folders.
COMMANDS = {
    "a data set of the Hub": (3, *SMALL, "--dataset", "them/pets", "--out", "{out}"),
    "shards of the Hub": (5, *SMALL, "--dataset", "hf://datasets/them/pets/*.parquet", "--out", "{out}"),
    "weights of the Hub": (4, "inspect", "--ckpt", "hf://them/vit", "--summary"),
    "weights of timm": (4, "inspect", "--ckpt", "timm/vit_tiny_patch16_224.augreg_in21k", "--summary"),
    "weights of the paper": (4, "inspect", "--ckpt", "ViT-B/16@in21k", "--summary"),
    "weights at an address": (4, "inspect", "--ckpt", "https://somewhere.example/x.npz", "--summary"),
    "an upload": (None, "export", "demo", "--push-to-hub", "them/vit"),
}
SLOW = {
    "the lists": (0, "datasets", "list"),
    "the models": (0, "models"),
    "the weights": (0, "models", "--weights"),
    "the recipes": (0, "recipes", "list"),
    "the cache": (0, "cache", "list"),
    "the doctor": (None, "doctor", "--quiet"),
    "training": (0, *SMALL, "--dataset", "{photos}", "--out", "{out}", "--steps", "2", "--batch-size", "4"),
    "evaluation": (3, "evaluate", "--ckpt", "demo", "--dataset", "{photos}", "--out", "{out}"),
    "prediction": (0, "predict", "{photos}/test/red", "--ckpt", "demo"),
    "few shots": (0, "fewshot", "--ckpt", "demo", "--dataset", "{photos}", "--shots", "1", "--out", "{out}"),
    "features": (0, "embed", "--ckpt", "demo", "--dataset", "{photos}", "--out", "{out}.safetensors"),
    "a look inside": (0, "inspect", "--ckpt", "demo", "--out", "{out}"),
    "export": (0, "export", "demo", "{out}.npz"),
    "a check": (0, "datasets", "check", "{photos}"),
}


@pytest.fixture
def asked_of_the_network():
    global sockets
    if _hook not in _installed:
        sys.addaudithook(_hook)  # for good: there is no way to take it away
        _installed.append(_hook)
    sockets = []
    yield sockets
    sockets = None


_installed: list = []


@pytest.mark.parametrize("name", [*COMMANDS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_no_command_opens_a_socket_offline(asked_of_the_network, photos, tmp_path, name):
    expected, *words = (COMMANDS | SLOW)[name]
    words = [str(word).format(photos=photos, out=tmp_path / "out") for word in words]

    outcome = run(*words)
    assert asked_of_the_network == []
    assert outcome.code == expected or (expected is None and outcome.code in (0, 2, 4, 5)), outcome
    if outcome.code and "--json" not in words:
        assert outcome.err[outcome.err.index("error: ") :].count("\n") == 3  # after a note, perhaps
