import huggingface_hub
import pytest

from tests.weights.servers import serve
from vitcli.weights import download, names


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A stand-in for Hub and buckets, with empty caches."""
    with serve() as stand_in:
        monkeypatch.setenv("HF_ENDPOINT", stand_in.address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(names, "STORAGE", stand_in.address)
        monkeypatch.setattr(download, "WAITS_S", (0.01, 0.01))
        monkeypatch.chdir(tmp_path)
        yield stand_in
