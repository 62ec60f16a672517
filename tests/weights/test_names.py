"""Every name of weights that people type: from a stand-in of the Hub and of a bucket, a cache, or refused."""

import base64
import hashlib
import io
import json
import os
import threading
import time
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from tests.weights.servers import COMMIT, serve
from vitcli.errors import MachineError, VitError, WeightsError
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture, build
from vitcli.models.variants import vit_args
from vitcli.output.progress import Progress
from vitcli.weights import authors, download, names
from vitcli.weights.download import cached_path, fetch_address
from vitcli.weights.io import read_weights
from vitcli.weights.jax import to_official
from vitcli.weights.names import names_weights, resolve

SIZE = vit_args(layers=1, hidden=48, mlp=96, heads=3, patch_size=16)
HF_CONFIG = {
    "model_type": "vit", "hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 1,
    "intermediate_size": 96, "patch_size": 16, "image_size": 32,
    "id2label": {"0": "ant", "1": "bee", "2": "cat"},
}  # fmt: skip


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


def network(*, num_classes: int = 3, seed: int = 0) -> tuple[Architecture, dict[str, torch.Tensor]]:
    torch.manual_seed(seed)
    arch = Architecture("small", "vit_tiny_patch16_224", (32, 32), num_classes, "tanh", False, SIZE)
    return arch, {name: torch.randn(t.shape) for name, t in build(arch, dropout=0.0).state_dict().items()}


def timm_files(state: dict[str, torch.Tensor]) -> dict[str, bytes]:
    """A repository as timm pushes it."""
    cfg = {"input_size": [3, 32, 32], "num_classes": 3}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 3, "pretrained_cfg": cfg}
    config["model_args"] = {**SIZE, "img_size": 32}
    return {"config.json": json.dumps(config).encode(), "model.safetensors": save(state)}


def huggingface_files() -> dict[str, bytes]:
    """A repository as transformers pushes it."""
    parts = {
        "vit.embeddings.patch_embeddings.projection": (48, 3, 16, 16),
        "vit.layernorm": (48,),
        "classifier": (3, 48),
    }  # fmt: skip
    layer = "vit.encoder.layer.0"
    parts |= {f"{layer}.attention.attention.{part}": (48, 48) for part in ("query", "key", "value")}
    parts |= {f"{layer}.layernorm_{when}": (48,) for when in ("before", "after")}
    parts[f"{layer}.attention.output.dense"] = (48, 48)
    parts |= {f"{layer}.intermediate.dense": (96, 48), f"{layer}.output.dense": (48, 96)}
    tensors = {f"{name}.weight": torch.randn(shape) for name, shape in parts.items()}
    tensors |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in parts.items()}
    tensors["vit.embeddings.cls_token"] = torch.randn(1, 1, 48)
    tensors["vit.embeddings.position_embeddings"] = torch.randn(1, 5, 48)
    return {"config.json": json.dumps(HF_CONFIG).encode(), "model.safetensors": save(tensors)}


def npz_of(state: dict[str, torch.Tensor]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **to_official(state, heads=3, spelling="published"))
    return file.getvalue()


@pytest.mark.parametrize(
    ("ckpt", "repository", "note"),
    [
        ("timm/vit_tiny_patch16_224.augreg_in21k", "timm/vit_tiny_patch16_224.augreg_in21k", ""),
        ("vit_tiny_patch16_224.augreg_in21k", "timm/vit_tiny_patch16_224.augreg_in21k", ""),
        ("vit_tiny_patch16_224", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "timm's default"),
        ("timm/vit_tiny_patch16_224", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "timm's default"),
        ("vit_tiny_patch16_224_in21k", "timm/vit_tiny_patch16_224.augreg_in21k", "as timm calls it now"),
        ("vit_ti16@augreg_in21k", "timm/vit_tiny_patch16_224.augreg_in21k", "ViT-Ti/16@augreg_in21k"),
        ("timm/newer_net.tag", "timm/newer_net.tag", ""),
        ("ann/vit-small", "ann/vit-small", ""),
        ("hf-hub:ann/vit-small", "ann/vit-small", ""),
        ("hf://ann/vit-small", "ann/vit-small", ""),
        ("hf://ann/vit-small@main/model.safetensors", "ann/vit-small", ""),
        ("{server}/ann/vit-small", "ann/vit-small", ""),
        ("{server}/ann/vit-small/resolve/main/model.safetensors", "ann/vit-small", ""),
        ("{server}/ann/vit-small/tree/main", "ann/vit-small", ""),
    ],
)  # fmt: skip
def test_every_name_of_the_hub_gives_the_weights_of_its_repository(server, capsys, ckpt, repository, note):
    _, state = network()
    server.repositories[repository] = timm_files(state)
    weights = read_weights(ckpt.format(server=server.address))

    assert weights.fetched_from == repository
    assert weights.format == "hub repository" and weights.architecture.image_size == (32, 32)
    assert all(torch.equal(weights.state[name], state[name]) for name in state)
    assert note in (said := capsys.readouterr().err) and bool(said) == bool(note)
    assert note == "" or repository in said


def test_a_repository_of_transformers_is_read_by_its_bare_name(server):
    server.repositories["google/vit-tiny-test"] = huggingface_files()

    weights = read_weights("google/vit-tiny-test")
    assert weights.class_names == ("ant", "bee", "cat") and weights.architecture.gelu == "erf"


@pytest.mark.parametrize(
    ("ckpt", "path"),
    [
        ("gs://vit_models/x/small.npz", "vit_models/x/small.npz"),
        ("{server}/vit_models/x/small.npz", "vit_models/x/small.npz"),
        ("{bucket}/some%20where/small.npz?token=hunter2", "some where/small.npz"),
        ("{bucket}/Größe/small.npz", "Größe/small.npz"),
        ("ViT-B/16@in21k", "vit_models/imagenet21k/ViT-B_16.npz"),
        ("b16@imagenet21k+imagenet2012", "vit_models/imagenet21k+imagenet2012/ViT-B_16.npz"),
        ("R50+ViT-B/16@in21k", "vit_models/imagenet21k/R50+ViT-B_16.npz"),
    ],
)  # fmt: skip
def test_addresses_and_the_papers_names_give_the_file_of_a_bucket(server, capsys, monkeypatch, ckpt, path):
    monkeypatch.delenv("HF_ENDPOINT")  # its pages are read as repositories
    _, state = network()
    server.bucket[path] = npz_of(state)
    ckpt = ckpt.format(server=server.address, bucket=server.address)
    source = names.resolve(ckpt)
    file = fetch_address(source.place, Progress(quiet=True))

    assert file.read_bytes() == server.bucket[path] and file.name == Path(path).name
    assert file.is_relative_to(os.environ["XDG_CACHE_HOME"]) and server.gets(file.name) == [None]
    assert [path for path in file.parent.iterdir() if path.suffix != ".lock"] == [file]
    assert ("the authors' gs://vit_models" in source.note) == ("@" in ckpt)
    # The second time nothing is asked, also without a network
    server.status = 500
    assert fetch_address(source.place, Progress(quiet=True)) == file and len(server.requests) == 1


def test_an_official_file_of_the_bucket_is_read_as_such(server):
    _, state = network(num_classes=0)
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=4)
    state = {name: torch.randn(t.shape) for name, t in build(arch, dropout=0.0).state_dict().items()}
    server.bucket["vit_models/demo.npz"] = npz_of(state)

    weights = read_weights("gs://vit_models/demo.npz")
    assert weights.format == "official npz" and weights.architecture == arch
    assert weights.fetched_from == f"{server.address}/vit_models/demo.npz"
    assert torch.equal(weights.state["blocks.0.attn.qkv.weight"], state["blocks.0.attn.qkv.weight"])


def test_a_local_file_or_folder_of_the_name_wins(server, tmp_path):
    for name in ("vit_tiny_patch16_224", "ann/vit-small", "ViT-B", "timm/vit_tiny_patch16_224.augreg_in21k"):
        (tmp_path / name).mkdir(parents=True)
        assert resolve(name).kind == "local"
    (tmp_path / "ViT-B" / "16@in21k").mkdir()
    assert resolve("ViT-B/16@in21k").kind == "local" and resolve("demo").kind == "demo"
    assert not server.requests


def test_a_list_of_shards_is_read_from_a_folder_by_its_own_name_and_from_the_hub(server, tmp_path):
    _, state = network()
    files = timm_files(state)
    parts = [dict(list(state.items())[at::2]) for at in range(2)]
    weight_map = {name: f"model-{at}.safetensors" for at, part in enumerate(parts) for name in part}
    files |= {f"model-{at}.safetensors": save(part) for at, part in enumerate(parts)}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    del files["model.safetensors"]
    server.repositories["ann/large"] = files
    (tmp_path / "large").mkdir()
    for name, data in files.items():
        (tmp_path / "large" / name).write_bytes(data)

    for ckpt in ("large", "large/model.safetensors.index.json", "ann/large"):
        weights = read_weights(ckpt)
        assert weights.state.keys() == state.keys()
        assert all(torch.equal(weights.state[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../model-0.safetensors"}, "not a list of shards: it names files that are not beside it"),
        ({"a": "/etc/passwd"}, "names files that are not beside it"),
        ({}, "names files that are not beside it"),
        ([1], "is not a list of shards"),
        ({"a": "model-9.safetensors"}, "model-9.safetensors, which is missing"),
        ({"a": "model-0.safetensors", "b": "model-0.safetensors"}, "lack b"),
        ({"b": "model-0.safetensors"}, "holds a, which"),
    ],
)
def test_a_damaged_list_of_shards_is_refused(tmp_path, weight_map, message):
    save_file({"a": torch.zeros(2)}, tmp_path / "model-0.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(WeightsError, match=message):
        read_weights(str(tmp_path))


def test_a_download_that_stops_is_resumed_where_it_stopped(server):
    data = os.urandom(300_000)
    server.bucket["b/x.npz"] = data
    server.cut = [100_000, 50_000]

    assert fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True)).read_bytes() == data
    assert server.gets("x.npz") == [None, "bytes=100000-", "bytes=150000-"]
    # Also by another command, after the first has given up
    server.bucket["b/y.npz"], server.cut = data, [70_000, 0, 0]
    with pytest.raises(MachineError, match="cannot be reached: the connection ended after 70,000 of 300,000"):
        fetch_address(f"{server.address}/b/y.npz", Progress(quiet=True))
    assert not cached_path(f"{server.address}/b/y.npz").exists()
    assert fetch_address(f"{server.address}/b/y.npz", Progress(quiet=True)).read_bytes() == data
    assert server.gets("y.npz")[-1] == "bytes=70000-"


def test_a_file_that_changed_meanwhile_is_downloaded_from_its_beginning(server):
    address, data = f"{server.address}/b/x.npz", os.urandom(9_000)
    path = cached_path(address)
    path.parent.mkdir(parents=True)
    path.with_name("x.npz.partial").write_bytes(b"of before")
    about = {"etag": '"another"', "headers": {"content-length": "9"}}
    path.with_name("x.npz.partial.json").write_text(json.dumps(about))
    server.bucket["b/x.npz"] = data

    assert fetch_address(address, Progress(quiet=True)).read_bytes() == data


def test_a_part_that_is_not_the_missing_one_is_never_appended(server):
    server.bucket["b/x.npz"] = os.urandom(9_000)
    server.cut, server.shift = [5_000], 1_000

    file = fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True))
    assert file.read_bytes() == server.bucket["b/x.npz"]
    assert server.gets("x.npz") == [None, "bytes=5000-", None]


@pytest.mark.parametrize(
    ("statuses", "error", "message"),
    [
        ([400], WeightsError, r"does not send it \(status 400\)"),
        ([403], WeightsError, "refuses access to it"),
        ([404], WeightsError, r"has no such file \(status 404\)"),
        ([416] * 3, WeightsError, r"does not send it \(status 416\)"),
        ([429, 500, 503], MachineError, "answers with status 503"),
    ],
)
def test_a_server_that_refuses_is_quoted_and_leaves_nothing_behind(server, statuses, error, message):
    server.bucket["b/x.npz"], address = b"weights", f"{server.address}/b/x.npz"
    server.statuses = statuses

    with pytest.raises(error, match=message):
        fetch_address(address, Progress(quiet=True))
    assert not server.statuses and fetch_address(address, Progress(quiet=True)).read_bytes() == b"weights"


def test_a_web_page_is_not_kept_as_weights(server):
    server.bucket["b/x.npz"], server.page = b"<html>", True

    with pytest.raises(WeightsError, match="answers with a web page, not with a file"):
        fetch_address(f"{server.address}/b/x.npz", Progress(quiet=True))
    assert not download.is_here(resolve("gs://b/x.npz"))


@pytest.mark.parametrize("place", ["bucket", "hub"])
def test_a_file_with_another_checksum_is_refused_and_not_kept(server, place):
    _, state = network()
    server.repositories["ann/vit-small"] = timm_files(state)
    server.bucket["b/x.npz"] = npz_of(state)
    server.damaged, ckpt = True, "ann/vit-small" if place == "hub" else "gs://b/x.npz"

    with pytest.raises(WeightsError, match="arrived damaged: its checksum is not the one that the"):
        read_weights(ckpt)
    server.damaged = False
    if place == "hub":
        assert read_weights(ckpt).state.keys() == state.keys()
    else:
        assert resolve(ckpt) and fetch_address(resolve(ckpt).place, Progress(quiet=True)).is_file()


def test_processes_that_need_the_same_file_download_it_once(server):
    server.bucket["b/x.npz"] = os.urandom(2_000_000)
    address, paths = f"{server.address}/b/x.npz", []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch_address(address, Progress(quiet=True))))
        for _ in range(4)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    assert len(paths) == 4 and len(set(paths)) == 1 and server.gets("x.npz") == [None]


def test_a_download_shows_its_progress_unless_it_is_quiet(server, capsys, monkeypatch):
    monkeypatch.setattr("vitcli.output.progress.PLAIN_EVERY_S", 0.0)
    _, state = network()
    server.bucket["b/x.npz"] = server.bucket["b/y.npz"] = os.urandom(3_000_000)
    large = timm_files(state | {"head.weight": torch.randn(3, 400_000)})
    server.repositories |= {"ann/a": large, "ann/b": large}

    fetch_address(f"{server.address}/b/x.npz", Progress(quiet=False))
    with pytest.raises(WeightsError):
        read_weights("ann/a")
    said = capsys.readouterr().err
    assert "download x.npz, MB 3/3" in said and "download model.safetensors, MB 6/6" in said
    fetch_address(f"{server.address}/b/y.npz", Progress(quiet=True))
    with pytest.raises(WeightsError):
        read_weights("ann/b", quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "ckpt", ["ann/vit-small", "timm/vit_tiny_patch16_224.augreg_in21k", "ViT-B/16@in21k"]
)
def test_without_a_network_it_is_said_at_once(server, monkeypatch, ckpt):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    monkeypatch.setattr(names, "STORAGE", "http://127.0.0.1:9")
    began_at = time.monotonic()

    with pytest.raises(MachineError, match="cannot be reached") as refusal:
        read_weights(ckpt)
    assert time.monotonic() - began_at < 2 and "check the connection" in refusal.value.fix
    assert ("timm has the same weights: timm/vit_base_patch16_224.orig_in21k" in refusal.value.fix) == (
        "@" in ckpt
    )


@pytest.mark.parametrize("ckpt", ["ann/vit-small", "hf://ann/vit-small/part/x.safetensors"])
def test_without_a_network_the_cache_is_read_and_that_is_noted(server, monkeypatch, capsys, ckpt):
    files = timm_files(network()[1])
    in_folder = {"part/config.json": files["config.json"], "part/x.safetensors": files["model.safetensors"]}
    server.repositories["ann/vit-small"] = files | in_folder
    names_online = read_weights(ckpt).state.keys()
    assert server.requests[-1][1].split("/")[3] == COMMIT  # of the first file, should the branch move on
    server.status = 503
    assert read_weights(ckpt).state.keys() == names_online
    note = "ann/vit-small is read from the Hub's cache: the Hub answers with status 503"
    assert note in capsys.readouterr().err
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()
    assert read_weights(ckpt).state.keys() == names_online and not server.requests


def test_a_hub_that_fails_in_the_middle_is_never_taken_to_lack_the_file(server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda wait_s: None)  # of the Hub's client
    server.repositories["ann/vit-small"] = timm_files(network()[1])
    server.statuses = [0] + [503] * 12  # for config.json, after the first question

    with pytest.raises(MachineError, match=r"could not download ann/vit-small from the Hub: .*503"):
        read_weights("ann/vit-small")


@pytest.mark.parametrize(
    ("ckpt", "message", "fix"),
    [
        ("nope", "no file, folder or known weights called 'nope'\n", "vit models --weights"),
        ("vit_base_patch16_24", "mean 'timm/vit_base_patch16_224.augreg2_in21k_ft_in1k'", "timm/NAME"),
        ("vit_base_patch16_224.augreg_in2k", "did you mean 'timm/vit_base_patch16_224.augreg_in21k'", "dino"),
        ("timm/vit_base_patch16_224.augreg_in21", "mean 'timm/vit_base_patch16_224.augreg_in21k'", "name"),
        ("ViT-B/16", "ViT-B/16 names a network and no weights", "ViT-B/16@in21k, ViT-B/16@in21k_ft_in1k"),
        ("ViT-B/16@in22k", "no weights ViT-B/16@in22k, did you mean 'ViT-B/16@in21k'", "@in21k"),
        ("ViT-B/17", "no file, folder or known weights called 'ViT-B/17', did you mean", "ViT-B/16@in21k"),
        ("runs/nope", "no file, folder or known weights called 'runs/nope'", "a run folder"),
        ("./nope.npz", "no file, folder or known weights called './nope.npz'", "a run folder"),
        ("ann/nope", "there is no ann/nope on the Hub, or it is private", "hf auth login"),
        ("ann/vit-small@v2", "ann/vit-small has no such branch, tag or commit", "main branch"),
        ("ann/no-weights", "has no model.safetensors and no pytorch_model.bin", "hf://ann/no-weights/FILE"),
        ("hf://ann/vit-small/README.md", "README.md has no known file ending", ".npz"),
        ("hf://nobody", "'nobody' is not the name of a repository", "google/vit-base-patch16-224"),
        ("gs://vit_models/nope.npz", "127.0.0.1 has no such file", "check the address"),
        ("https://example.org/index.html", "index.html has no known file ending", ".safetensors"),
        ("s3://bucket/x.npz", "addresses of the kind s3:// are not read", "name a downloaded file"),
        ("https://[x/y.npz", "'https://\\[x/y.npz' is not an address", "https://HOST/FOLDER/FILE"),
        ("https:///y.npz", "is not an address", "https://HOST/FOLDER/FILE"),
        ("https://example.org/%00.npz", "is not an address", "https://HOST/FOLDER/FILE"),
        ("https://ann:pw@example.org/x.npz", "with a user name are not read", "download the file first"),
        ("my photo", "no file, folder or known weights called 'my photo'", "--ckpt takes"),
        ("vit_tiny_patch16_18x2_224", "did you mean|no weights of it", "--ckpt takes"),
    ],
)  # fmt: skip
def test_a_name_that_is_none_says_what_would_be(server, ckpt, message, fix):
    server.repositories |= {
        "ann/vit-small": timm_files(network()[1]),
        "ann/no-weights": {"config.json": b"{}"},
    }

    with pytest.raises(VitError, match=message) as refusal:
        read_weights(ckpt)
    assert fix in refusal.value.fix and refusal.value.where


def test_the_checksums_of_servers_are_understood():
    data = b"weights"
    md5, sha = hashlib.md5(data).digest(), hashlib.sha256(data).digest()
    md5_text, sha_text = (base64.b64encode(digest).decode() for digest in (md5, sha))
    for headers, checksums in (
        ({"x-goog-hash": f"crc32c=AAAA, md5={md5_text}"}, {"md5": md5}),
        ({"x-goog-hash": "crc32c=AAAA"}, {}),
        ({"content-md5": md5_text}, {"md5": md5}),
        ({"repr-digest": f"sha-256=:{sha_text}:"}, {"sha256": sha}),
        ({"digest": f"SHA-256={sha_text}"}, {"sha256": sha}),
        # Of other lengths, no base64, or whatever a server likes
        ({"digest": f"sha-256={sha.hex()}", "content-md5": "abcde"}, {}),
        ({"etag": f'"{sha.hex()}"'}, {}),
    ):
        assert download._checksums(headers) == checksums


def test_a_network_is_told_from_weights():
    for network_name in ("ViT-B/16", "vit_b16", "vit_base_patch16_224", "resnet18"):
        assert not names_weights(network_name)
    for ckpt in (
        "demo",
        "ViT-B/16@in21k",
        "vit_base_patch16_224.mae",
        "ann/x",
        "x.npz",
        "gs://b/x.npz",
        "hf:a/b",
    ):
        assert names_weights(ckpt)


def test_the_authors_files_are_of_known_networks_and_timm_has_those_it_is_said_to_have():
    import timm

    for file in authors.FILES.values():
        assert resolve(file.name).note and resolve(file.name).place.endswith(".npz")
        assert not file.in_timm or file.in_timm.removeprefix("timm/") in timm.list_pretrained()
