"""Where weights lie, and broken safetensors files and metadata: each a WeightsError that names the file."""

import json
import os
import random
import struct
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from vitcli.errors import MachineError, WeightsError
from vitcli.models.build import architecture, build
from vitcli.output.atomic import replace_file
from vitcli.weights import locate
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.files import write_safetensors
from vitcli.weights.io import read_weights, write_weights

ARCH = architecture("ViT-demo/8", image_size=(32, 32), num_classes=5)
PREPROCESSING = {
    "resize": "square",
    "crop_fraction": 1.0,
    "interpolation": "bilinear",
    "mean": [0.5] * 3,
    "std": [0.5] * 3,
}


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return build(ARCH, dropout=0.0).state_dict()


@pytest.fixture
def folder(tmp_path, state) -> Path:
    write_weights(
        tmp_path, state, WeightsInfo(ARCH, preprocessing=PREPROCESSING, class_names=None, metadata={})
    )
    return tmp_path


def refusal(ckpt, **options) -> WeightsError:
    """The error of reading, which must name the file and what to do, and end the tool with code 4."""
    with pytest.raises(WeightsError) as caught:
        read_weights(str(ckpt), **options)
    error = caught.value
    assert error.exit_code == 4 and str(ckpt) in error.where and error.fix
    return error


def with_header(path: Path, header: bytes, body: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)
    return path


def test_the_error_of_a_missing_file_lists_the_forms_and_the_nearest_name(folder):
    error = refusal(folder / "model.safetensor")

    assert error.message.endswith(f"did you mean '{folder / 'model.safetensors'}'?")
    assert all(form in error.fix for form in (".npz", "timm/NAME.TAG", "hf-hub:OWNER/NAME", "demo"))


def test_a_file_of_another_kind_is_refused_by_its_name(tmp_path):
    (tmp_path / "vit.txt").write_text("weights")

    assert "no known file ending" in refusal(tmp_path / "vit.txt").message


def test_a_folder_without_weights_is_refused(tmp_path):
    assert "model.safetensors" in refusal(tmp_path).message

    (tmp_path / "recipe.toml").touch()  # of an unfinished run
    assert refusal(tmp_path).fix == "let the run finish first"
    for step in (5, 25):
        (tmp_path / "checkpoints" / f"step_{step:07d}").mkdir(parents=True)
    assert refusal(tmp_path).fix.endswith(f"checkpoint: {tmp_path / 'checkpoints' / 'step_0000025'}")


def test_missing_demo_weights_are_an_error(monkeypatch, folder, tmp_path):
    monkeypatch.setattr(locate, "DEMO_FOLDER", folder)
    assert (read_weights("demo").architecture, read_weights("demo").format) == (ARCH, "demo")

    monkeypatch.setattr(locate, "DEMO_FOLDER", tmp_path / "none")
    assert "no demo weights" in refusal("demo").message


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 5_000, -1])
def test_a_truncated_safetensors_file_is_refused(folder, kept):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])

    refusal(file)


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"[]",
        b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"__metadata__":{"vit":"[1]"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"__metadata__":{"vit":"{"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    ],
    ids=["half", "list", "huge", "twice", "vit-list", "vit-half"],
)
def test_a_safetensors_header_that_cannot_be_is_refused(tmp_path, header):
    refusal(with_header(tmp_path / "x.safetensors", header, b"\0\0\0\0"))


def test_a_header_longer_than_the_file_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")

    assert "longer than the file" in refusal(tmp_path / "x.safetensors").message


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pth", "bin", "pt"])
@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_weights_that_are_a_pipe_or_a_device_are_not_waited_for(tmp_path, suffix, kind, in_ten_seconds):
    path = tmp_path / f"x.{suffix}"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")

    assert "it is a pipe or a device" in refusal(path).message


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_number_that_is_not_finite_is_refused_with_its_tensor(tmp_path, state, value):
    broken = {name: tensor.clone() for name, tensor in state.items()}
    broken["blocks.2.attn.proj.weight"][1, 2] = value
    save_file(broken, tmp_path / "x.safetensors")

    assert refusal(tmp_path / "x.safetensors").message == "non-finite numbers in blocks.2.attn.proj.weight"


def test_an_embedding_without_a_row_for_the_class_token_is_refused(tmp_path, state):
    save_file(state | {"pos_embed": state["pos_embed"][:, 1:].contiguous()}, tmp_path / "x.safetensors")

    assert "16 rows" in refusal(tmp_path / "x.safetensors").message


def test_every_misfit_is_counted_and_named(tmp_path, state):
    changed = {name: tensor for name, tensor in state.items() if not name.startswith("norm.")}
    changed |= {"other": torch.zeros(1), "blocks.0.norm1.bias": torch.zeros(7)}
    save_file(changed, tmp_path / "x.safetensors")
    message = refusal(tmp_path / "x.safetensors").message

    assert "2 missing: norm.weight, norm.bias" in message and "1 unexpected: other" in message
    assert "blocks.0.norm1.bias (7,) for (96,)" in message


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"timm_name": "local-dir:/tmp"}, "no network"),
        ({"timm_name": "nothing_like_it"}, "no network"),
        ({"model_args": {"checkpoint_path": "/etc/passwd"}}, "checkpoint_path"),
        ({"model_args": {"pretrained": True}}, "pretrained"),
        ({"model_args": {"embed_dim": "os.system"}}, "timm cannot build"),
        ({"model_args": {"depths": [10**8, 2]}}, "no network has the stored model_args of depths"),
        ({"model_args": {"layers": [600, 600]}}, "no network has the stored model_args of layers"),
        ({"model_args": {"embed_dim": 10**9}}, "no network has the stored model_args of embed_dim"),
        (
            {"model_args": {"drop": {"deep": {"depth": 10**6}}}},
            "no network has the stored model_args of drop",
        ),
        ({"model_args": {"patch_size": [1] * 65}}, "no network has the stored model_args of patch_size"),
        ({"image_size": [10**6, 10**6]}, "no network has the stored image size"),
        ({"image_size": [32]}, "damaged"),
        ({"num_classes": 6}, "do not fit"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_metadata_that_asks_for_anything_but_this_network_is_refused(tmp_path, state, damage, told):
    header = {"vit": json.dumps({"architecture": ARCH.as_dict() | damage})}
    save_file(state, tmp_path / "x.safetensors", metadata=header)

    assert told in refusal(tmp_path / "x.safetensors").message


def test_a_repeated_json_key_is_refused_wherever_it_stands(tmp_path, state):
    tensor = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = with_header(tmp_path / "header.safetensors", b"{" + tensor + b"," + tensor + b"}", b"\0\0\0\0")
    vit = json.dumps({"architecture": ARCH.as_dict()})[:-1] + ', "metadata": {"step": 1, "step": 2}}'
    save_file(state, tmp_path / "vit.safetensors", metadata={"vit": vit})
    (tmp_path / "folder").mkdir()
    save_file(state, tmp_path / "folder" / "model.safetensors")
    (tmp_path / "folder" / "config.json").write_text('{"step": 1, "step": 2}')

    for place in (header, tmp_path / "vit.safetensors", tmp_path / "folder"):
        assert "twice" in refusal(place).message


def test_class_names_that_are_not_as_many_as_the_classes_are_refused(tmp_path, state):
    vit = {"architecture": ARCH.as_dict(), "class_names": ["one", "two"]}
    save_file(state, tmp_path / "x.safetensors", metadata={"vit": json.dumps(vit)})

    assert "2 class names" in refusal(tmp_path / "x.safetensors").message


@pytest.mark.parametrize(
    "config", ["{", '{"architecture": "a", "architecture": "b"}', '{"architecture": "resnet18"}']
)
def test_a_config_that_is_broken_or_of_another_network_is_refused(tmp_path, state, config):
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(config)

    refusal(tmp_path)


def lay_out_hub_cache(cache: Path, repository: str, state: dict[str, torch.Tensor], config: dict) -> None:
    home = cache / f"models--{repository.replace('/', '--')}"
    snapshot = home / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text(json.dumps(config))
    save_file(state, snapshot / "model.safetensors")


def test_offline_the_hubs_cache_is_read_and_what_it_lacks_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))  # read from the environment
    monkeypatch.setattr(
        huggingface_hub.constants, "HF_HUB_OFFLINE", True
    )  # once, before any test could set it
    arch = architecture("Ti/16", image_size=(224, 224), num_classes=0)
    input_size = {"input_size": [3, 224, 224]}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 0, "pretrained_cfg": input_size}
    repository = "timm/vit_tiny_patch16_224.augreg_in21k"
    lay_out_hub_cache(tmp_path, repository, build(arch, dropout=0.0).state_dict(), config)

    weights = read_weights(repository)

    assert (weights.architecture, weights.format) == (arch, "hub repository")
    assert weights.numerics == "tanh GELU, as weights tagged augreg_in21k have it"
    for absent in ("hf-hub:owner/name", "owner/name", "timm/vit_base_patch16_224.orig_in21k"):
        error = refusal(absent)
        assert "HF_HUB_OFFLINE is set" in error.message and "unset HF_HUB_OFFLINE" in error.fix
    assert "not the name of a repository" in refusal("hf-hub:no name").message


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    (tmp_path / "x").write_text("old")

    def fails_half_way(path: Path) -> None:
        path.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(MachineError, match="No space left"):
        replace_file(tmp_path / "x", fails_half_way)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]

    replace_file(tmp_path / "x", lambda path: path.write_text("new"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_a_tensor_of_more_numbers_than_are_stored_is_refused(tmp_path):
    """1.8 KB that would take 4 TB once they are converted."""
    endless = torch.zeros(1).expand(10**6, 10**6)
    torch.save({"head.weight": endless}, tmp_path / "x.pth")

    assert "claim 4,000,000,000,000 bytes, more than the " in refusal(tmp_path / "x.pth").message

    torch.save({"head.weight": torch.zeros(3).to_sparse()}, tmp_path / "x.pth")
    assert "head.weight is not a dense tensor" in refusal(tmp_path / "x.pth").message


def test_a_header_of_a_million_tensors_is_refused(tmp_path):
    header = json.dumps(
        {f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(10**5 + 1)}
    )
    path = with_header(tmp_path / "x.safetensors", header.encode(), b"")

    assert "more than any network has" in refusal(path).message


def test_every_changed_bit_of_numbers_or_metadata_of_our_files_is_noticed(tmp_path, state):
    file, rng = tmp_path / "model.safetensors", random.Random(0)
    write_weights(
        tmp_path, state, WeightsInfo(ARCH, preprocessing=PREPROCESSING, class_names=None, metadata={})
    )
    whole = file.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    assert read_weights(str(file)).state

    for number in range(60):
        at = rng.randrange(begin, len(whole)) if number % 3 else whole.index(b"gelu") + number % 4
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)

        with pytest.raises(WeightsError):
            read_weights(str(file))


@pytest.mark.parametrize("metadata", [None, {"format": 'é "\n\u2028'}])
def test_written_bytes_are_those_of_safetensors_in_the_file_that_is_given(tmp_path, metadata):
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32,
             torch.int16, torch.int8, torch.uint8, torch.bool)  # fmt: skip
    tensors = {f"{9 - n} é": torch.arange(6).view(2, 3).to(kind) for n, kind in enumerate(kinds)}
    tensors |= {"a": torch.ones(3).bool(), "none": torch.zeros(0, 4), "number": torch.tensor(7.5)}
    save_file(tensors, tmp_path / "theirs", metadata=metadata)
    (tmp_path / "ours").touch()
    before = (tmp_path / "ours").stat().st_ino

    write_safetensors(tmp_path / "ours", tensors, metadata)

    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    # A kill leaves no file of another name, which nobody would remove.
    assert (tmp_path / "ours").stat().st_ino == before
