"""`.pte` files: ExecuTorch gives the logits of our checkpoint, and what it cannot run is refused first."""

import json
import sys

import pytest
import torch

from tests.conftest import run
from tests.conversion.test_export import bit, distance, hybrid, normalised, pixels, to_export, vit  # noqa: F401
from vitcli.errors import CheckFailed, MachineError, VitError
from vitcli.weights.production.session import ExecuTorchSession


@pytest.mark.parametrize(
    "arch",
    [
        vit(),
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (vit((16, 48), gelu="erf"), hybrid(), bit())
        ),
    ],
    ids=["tanh", "erf", "hybrid", "bit"],
)
def test_executorch_gives_our_outputs_and_a_file_that_was_changed_is_refused(
    to_export,  # noqa: F811
    tmp_path,
    arch,
    capfd,
):
    """XNNPACK's own GELU is the exact one: with it the logits of the tanh form are 1e-3 off."""
    pytest.importorskip("executorch")
    result, model = to_export(arch, "out.pte", input="pixels")
    path, bytes_BHWC = tmp_path / "out.pte", pixels(*arch.image_size)
    opened, golden_file = ExecuTorchSession(path, num_threads=1), tmp_path / "out.golden.json"
    with torch.no_grad():
        logits_BK = model(normalised(bytes_BHWC))

    assert distance(opened.run("logits", bytes_BHWC), logits_BK) < 1e-5 > result["max_rel_difference"]
    assert distance(opened.run("probabilities", bytes_BHWC), logits_BK.softmax(1)) < 1e-4
    assert opened.input_shape == (1, *arch.image_size, 3) and opened.answer_name == "probabilities"
    assert json.loads(opened.about["preprocessing"])["resize"] == "square"
    assert list(result["files"]) == [golden_file.name, path.name] and "opset" not in result
    checked = run("export", "--check", path)
    assert checked.code == 0 and "on 10 images, by executorch" in checked.out, checked.err
    refused = run("export", "--check", path, "--runtime", "openvino")
    assert refused.code == 2 and "openvino does not run .pte files" in refused.err
    assert "cpuinfo" not in capfd.readouterr().err

    golden = json.loads(golden_file.read_text())
    golden["images"][0]["outputs"]["0"] += 1
    golden_file.write_text(json.dumps(golden))
    assert run("export", "--check", path).code == 8
    for damaged in (b"", b"no program", path.read_bytes()[:5000]):
        path.write_bytes(damaged)
        with pytest.raises(CheckFailed, match="ExecuTorch does not accept the file"):
            ExecuTorchSession(path, num_threads=1)
    assert run("export", "--check", path).code == 8


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "a .pte file does not resize images"),
        ({"input": "pixels", "precision": "fp16"}, "it is for ONNX files, and not for pte"),
    ],
    ids=["images", "fp16"],
)
def test_what_a_pte_file_cannot_do_is_refused_before_any_work(to_export, tmp_path, changes, problem):  # noqa: F811
    with pytest.raises(VitError, match=problem):
        to_export(vit(), "out.pte", **changes)
    assert not (tmp_path / "out.pte").exists()


def test_executorch_that_is_not_installed_is_named(to_export, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "executorch.runtime", None)
    with pytest.raises(MachineError, match=r"\.pte files need executorch") as error:
        to_export(vit(), "out.pte", input="pixels")
    assert "vitcli[executorch]" in error.value.fix
