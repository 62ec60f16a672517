"""Every name of weights that people type gives its weights, or is refused with those that would be."""

import json
import os
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save, save_file

from tests.weights.servers import network, npz_of, timm_files
from vitcli.errors import VitError, WeightsError
from vitcli.models.build import architecture, build
from vitcli.output.progress import Progress
from vitcli.weights import authors_catalog, names
from vitcli.weights.download import cached_path, fetch_address
from vitcli.weights.io import read_weights
from vitcli.weights.names import FORMATS, names_weights, resolve

HF_CONFIG = {
    "model_type": "vit", "hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 1,
    "intermediate_size": 96, "patch_size": 16, "image_size": 32,
    "id2label": {"0": "ant", "1": "bee", "2": "cat"},
}  # fmt: skip


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
    assert note in (printed := capsys.readouterr().err) and bool(printed) == bool(note)
    assert note == "" or repository in printed


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
    assert {path for path in file.parent.iterdir() if not path.name.endswith("lock")} == {file}
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


def test_a_checkpoint_of_a_training_script_is_read(tmp_path):
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=4)
    state = build(arch, dropout=0.0).state_dict()
    stored = {"encoder": {f"module.{name}": tensor for name, tensor in state.items()}, "epoch": 3}
    torch.save(stored, tmp_path / "last.pth.tar")  # as of I-JEPA

    weights = read_weights(str(tmp_path / "last.pth.tar"))
    assert weights.format == "pth" and all(torch.equal(weights.state[name], state[name]) for name in state)


def test_timms_weights_at_addresses_of_their_own_have_endings_that_are_read():
    configs = map(timm.models.get_pretrained_cfg, timm.list_pretrained())
    addresses = [config.url for config in configs if not config.hf_hub_id]

    assert len(addresses) > 4
    for address in addresses:
        assert resolve(address).kind == "address" and cached_path(address).suffix in FORMATS


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
        ("https://example.org/model.safetensors.index.json", "a list of several", "to one folder"),
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


def test_names_of_networks_are_not_names_of_weights():
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


def test_the_authors_files_are_of_known_networks_and_timm_has_its_copies_of_them():
    for file in authors_catalog.FILES.values():
        assert resolve(file.name).note and resolve(file.name).place.endswith(".npz")
        assert not file.in_timm or file.in_timm.removeprefix("timm/") in timm.list_pretrained()


def test_only_names_like_timms_wait_for_timm():
    assert not any(map(names._resembles_timms, ("nothere", "my_model.v2", "runs", "weights")))
    slips = ("vit_base_patch16_2244", "vit_tiny_patch16_224_in21k", "resnet50.a1_in1k")
    assert all(map(names._resembles_timms, slips))

    known = timm.list_models()
    assert all(map(names._resembles_timms, known[:: len(known) // 4]))
    with pytest.raises(WeightsError, match="no file, folder or known weights called 'nothere'"):
        names.check("nothere")
    names.check("demo")
    names.check("random")
