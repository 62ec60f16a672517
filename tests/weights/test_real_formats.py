"""A real trained ViT-Ti/16 in every format we read and write: the same answers to every real picture."""

import pytest
import timm
import torch

from tests.conftest import SHARED, data_section, run
from vitcli.api import load_model
from vitcli.data import dataset, loader
from vitcli.data.transforms import to_model_range

SHARED = SHARED / "data"
CKPT = SHARED / "checkpoints" / "vit_ti16_augreg_in1k.npz"


@pytest.mark.slow
@pytest.mark.skipif(not CKPT.is_file(), reason="the real checkpoint (VIT_TEST_DATA) is not here")
def test_every_format_gives_the_same_logits_and_the_same_classes_to_the_image(tmp_path):
    pytest.importorskip("onnxruntime")
    from vitcli.weights.production.program import ProgramNetwork

    paths = {form: tmp_path / f"ti16{form}" for form in (".npz", ".safetensors", ".onnx", "")}
    for form, path in paths.items():
        more = ("--input", "pixels") if form == ".onnx" else ()
        assert run("export", str(CKPT), str(path), *more).code == 0
    assert run("export", str(CKPT), str(tmp_path / "linen.npz"), "--names", "linen").code == 0
    model, transform, _ = load_model(CKPT)
    readers = {
        "the .safetensors twin": load_model(CKPT.with_suffix(".safetensors")).model,
        "our .npz": load_model(paths[".npz"]).model,
        "our .npz in linen names": load_model(tmp_path / "linen.npz").model,
        "our .safetensors": load_model(paths[".safetensors"]).model,
        "our folder": load_model(paths[""]).model,
        "our folder in timm": timm.create_model(f"local-dir:{paths['']}", pretrained=True).eval(),
    }
    onnx_network = ProgramNetwork(paths[".onnx"])
    sample = dataset.open_eval(data_section(SHARED / "imagenet_sample"), "auto")
    batches = loader.eval_batches(
        sample,
        transform.preprocessing,
        batch_size=54,
        rank=0,
        world_size=1,
        on_bad_image="error",
        num_threads=2,
    )
    correct = 0
    for batch in batches:
        images_BCHW = to_model_range(batch.images_BCHW, mean=(0.5,) * 3, std=(0.5,) * 3)
        with torch.no_grad():
            logits_BK = model(images_BCHW)
            correct += int((logits_BK.argmax(1) == batch.labels_B).sum())
            of_readers = {name: reader(images_BCHW) for name, reader in readers.items()}
            of_readers["our .onnx"] = onnx_network(batch.images_BCHW.permute(0, 2, 3, 1).contiguous())
            for name, theirs_BK in of_readers.items():
                assert (theirs_BK - logits_BK).abs().max() <= 1e-5 * logits_BK.abs().max(), name
                assert torch.equal(theirs_BK.argmax(1), logits_BK.argmax(1)), name
    assert correct == 225  # what timm counts (README of the data)
