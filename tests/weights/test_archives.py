"""Pickles and archives of strangers: read where they are tensors, refused where not, and never run."""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from vitcli.errors import WeightsError
from vitcli.models.build import architecture, build
from vitcli.weights.io import read_weights


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return build(architecture("demo/8", image_size=(32, 32), num_classes=5), dropout=0.0).state_dict()


def refusal(ckpt, **options) -> WeightsError:
    """The error of reading, which must name the file and what to do, and end the tool with code 4."""
    with pytest.raises(WeightsError) as caught:
        read_weights(str(ckpt), **options)
    error = caught.value
    assert error.exit_code == 4 and str(ckpt) in error.where and error.fix
    return error


class WritesAFile:
    """A pickle that would create a file when loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("nesting", [None, "state_dict", "model", "state_dict_ema"])
def test_a_pth_file_is_read_bare_or_nested_and_with_wrapper_names(tmp_path, state, nesting):
    content = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({nesting: content, "epoch": 3} if nesting else content, tmp_path / "vit.pth")
    weights = read_weights(str(tmp_path / "vit.pth"))

    assert (weights.architecture.name, weights.format) == ("ViT-demo/8", "pth")
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.state.items())


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin"])
@pytest.mark.parametrize("old_format", [False, True])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path, suffix, old_format):
    victim, file = tmp_path / "created", tmp_path / f"x{suffix}"
    torch.save({"state_dict": WritesAFile(victim)}, file, _use_new_zipfile_serialization=not old_format)

    assert "could run code" in refusal(file).message
    assert not victim.exists()
    torch.load(file, weights_only=False)
    assert victim.exists()  # so the file was dangerous indeed


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, {"state_dict": {"a": 1}}], ids=str)
def test_a_pth_file_without_a_state_dict_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "x.pth")

    assert "no state dict" in refusal(tmp_path / "x.pth").message


@pytest.mark.parametrize("suffix", [".npz", ".pth"])
def test_an_archive_that_is_cut_or_is_none_is_refused(tmp_path, state, suffix):
    file = tmp_path / f"x{suffix}"
    np.savez(file, **{"embedding/kernel": np.zeros((8, 8, 3, 96))}) if suffix == ".npz" else torch.save(
        state, file
    )
    for content in (file.read_bytes()[:-30], file.read_bytes()[:100], b"", b"PK"):
        file.write_bytes(content)
        refusal(file)


def test_an_npz_of_python_objects_is_refused_and_not_run(tmp_path):
    np.savez(tmp_path / "x.npz", cls=np.array([WritesAFile(tmp_path / "created")], dtype=object))

    assert "Python objects" in refusal(tmp_path / "x.npz").message
    assert not (tmp_path / "created").exists()


def test_an_npz_with_a_pickle_in_place_of_an_array_is_refused_and_not_run(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("cls.npy", pickle.dumps(WritesAFile(tmp_path / "created")))

    refusal(tmp_path / "x.npz")
    assert not (tmp_path / "created").exists()


def test_an_npz_that_would_grow_a_thousandfold_is_refused_unread(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", **{"embedding/kernel": np.zeros((1000, 10_000), np.float32)})

    assert "would unpack to" in refusal(tmp_path / "x.npz").message


def test_an_npz_array_that_claims_to_be_larger_than_it_is_is_refused_unread(tmp_path):
    claim = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    np.lib.format.write_array_header_1_0(claim, header)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", claim.getvalue() + b"\0" * 64)

    assert "size in its header" in refusal(tmp_path / "x.npz").message


def test_an_npz_of_someone_else_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", features=np.zeros(3))

    assert "authors" in refusal(tmp_path / "x.npz").message
