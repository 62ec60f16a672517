"""`vit inspect --summary`: every kind of checkpoint described, each problem named, broken files refused."""

import json
import math
import shlex
import struct
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from tests.conftest import SHARED, run
from tests.weights.test_authors_npz import CLASSES, GRID, HIDDEN, PATCH, official_arrays
from vitcli.errors import VitError, WeightsError
from vitcli.models.build import architecture, build
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.diagnose import find_non_finite, mismatches
from vitcli.weights.io import read_weights, write_weights
from vitcli.weights.summary import as_text, summarise

GOLDEN, REAL = SHARED / "golden" / "checkpoints", SHARED / "data" / "checkpoints"
needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden data (VIT_TEST_DATA) is not here")
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real checkpoint (VIT_TEST_DATA) is not here")
ARCH = architecture("ViT-demo/8", image_size=(32, 32), num_classes=5)
PREPROCESSING = {
    "image_size": [32, 32],
    "resize": "square",
    "crop_fraction": 1.0,
    "interpolation": "bilinear",
    "antialias": False,
    "mean": [0.5] * 3,
    "std": [0.5] * 3,
    "decoder": "any",
}


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return build(ARCH, dropout=0.0).state_dict()


def summary(ckpt, model_name: str | None = None) -> dict:
    """The result, which must be JSON, and right about whether the file can be read."""
    result = summarise(str(ckpt), model_name=model_name)
    assert json.loads(json.dumps(result)) == result
    try:
        read_weights(str(ckpt), model_name=model_name)
    except VitError as error:
        assert not result["usable"] and result["problems"][0].startswith(error.message)
        assert error.fix in result["advice"]
    else:
        assert result["usable"] and result["recognised"] and not result["problems"] + result["advice"]
        assert result["unexpected"] == result["of_another_shape"] == result["non_finite"] == []
        assert not result["missing"] or result["head"] == "none"
    return result


def saved(folder: Path, state: dict, **metadata: dict) -> Path:
    texts = {name: json.dumps(value) for name, value in metadata.items()}
    save_file({name: t.contiguous() for name, t in state.items()}, folder / "x.safetensors", metadata=texts)
    return folder / "x.safetensors"


def numbers_in(tensors: dict) -> int:
    return sum(int(np.prod(tensor.shape)) for tensor in tensors.values())


def in_huggingface_naming(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    renamed = {
        "vit.embeddings.cls_token": state["cls_token"],
        "vit.embeddings.position_embeddings": state["pos_embed"],
    }
    parts = {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    for kind in ("weight", "bias"):
        renamed[f"vit.embeddings.patch_embeddings.projection.{kind}"] = state[f"patch_embed.proj.{kind}"]
        renamed[f"vit.layernorm.{kind}"] = state[f"norm.{kind}"]
        renamed[f"classifier.{kind}"] = state[f"head.{kind}"]
        for layer in range(6):
            theirs = f"vit.encoder.layer.{layer}"
            for ours, their in parts.items():
                renamed[f"{theirs}.{their}.{kind}"] = state[f"blocks.{layer}.{ours}.{kind}"]
            qkv = state[f"blocks.{layer}.attn.qkv.{kind}"].chunk(3)
            for name, tensor in zip(("query", "key", "value"), qkv, strict=True):
                renamed[f"{theirs}.attention.attention.{name}.{kind}"] = tensor
    return renamed


def test_the_demo_weights_come_with_the_commands_that_take_them():
    result = summary("demo")

    assert (result["format"], result["model"], result["resolution"]) == ("demo", "ViT-demo/8", [64, 64])
    assert (result["patch_size"], result["patch_grid"], result["tokens"]) == (8, [8, 8], 65)
    assert (result["head"], result["classifier"], result["num_classes"]) == ("one layer", "token", 24)
    assert result["class_names"]["count"] == 24 and result["class_names"]["first"][0] == "plain ring"
    assert len(result["class_names"]["first"]) == 10
    assert result["metadata"]["trained_by"] == "pretrain"
    assert result["commands"] == [
        "vit evaluate --ckpt demo --dataset demo:pretrain",
        "vit predict --ckpt demo IMAGES",
        "vit inspect --ckpt demo --images IMAGES",
        "vit finetune --ckpt demo --dataset demo --res 112",
    ]


def test_an_official_file_is_described_with_its_own_dtypes(tmp_path):
    arrays = official_arrays()
    arrays["head/bias"] = arrays["head/bias"].astype(np.float16)
    np.savez(tmp_path / "vit.npz", **arrays)
    result = summary(tmp_path / "vit.npz")

    assert (result["format"], result["spelling"]) == ("official npz", "official")
    assert (result["model"], result["numerics"]) == (
        "ViT (2 layers, 24 wide)/4",
        "tanh GELU, as official files have it",
    )
    assert (result["resolution"], result["patch_size"]) == ([PATCH * GRID] * 2, PATCH)
    assert (result["tokens"], result["prefix_tokens"]) == (GRID**2 + 1, 1)
    assert (result["num_tensors"], result["num_params"]) == (len(arrays), numbers_in(arrays))
    assert result["dtypes"] == {"float32": len(arrays) - 1, "float16": 1}
    assert result["num_classes"] == CLASSES and result["class_names"] is result["preprocessing"] is None
    assert result["file_bytes"] == (tmp_path / "vit.npz").stat().st_size


def test_heads_and_pooling_are_described_and_a_file_without_a_plain_head_is_not_for_evaluation(tmp_path):
    linear = official_arrays()
    headless = {name: array for name, array in linear.items() if not name.startswith("head/")}
    with_layer = linear | {"pre_logits/kernel": np.eye(HIDDEN), "pre_logits/bias": np.zeros(HIDDEN)}
    averaging = {name: array for name, array in linear.items() if name != "cls"}
    averaging["Transformer/posembed_input/pos_embedding"] = np.zeros((1, GRID**2, HIDDEN))
    told = {}
    for name, arrays in {"none": headless, "two": with_layer, "gap": averaging}.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        result = summary(tmp_path / f"{name}.npz")
        words = [command.split()[1] for command in result["commands"]]
        told[name] = (result["head"], result["classifier"], result["prefix_tokens"], words)

    assert told == {
        "none": ("none", "token", 1, ["embed", "inspect", "finetune"]),
        "two": ("pre-logits and one layer", "token", 1, ["inspect", "finetune"]),
        "gap": ("one layer", "gap", 0, ["evaluate", "predict", "inspect", "finetune"]),
    }


def test_a_hugging_face_file_is_described_with_its_unused_tensors(tmp_path, state):
    theirs = in_huggingface_naming(state) | {
        "vit.pooler.dense.weight": torch.zeros(96, 96),
        "vit.pooler.dense.bias": torch.zeros(96),
    }
    result = summary(saved(tmp_path, theirs))

    assert (result["spelling"], result["model"]) == ("huggingface", "ViT-demo/8")
    assert result["numerics"] == "exact (erf) GELU, as Hugging Face has it"
    assert sorted(result["unused"]) == ["vit.pooler.dense.bias", "vit.pooler.dense.weight"]
    assert (result["num_tensors"], result["num_params"]) == (len(theirs), numbers_in(state))
    assert "unused      2, by any classifier: vit.pooler" in as_text(result)


def test_a_timm_folder_is_described_with_its_preprocessing_and_its_tag(tmp_path):
    changed = {"img_size": 64, "depth": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=4, **changed)
    timm.models.save_for_hf(model, tmp_path, model_args=changed, safe_serialization=True)
    result = summary(tmp_path)

    assert (result["format"], result["model"]) == ("timm folder", "vit_tiny_patch16_224")
    assert (result["resolution"], result["tokens"], result["num_classes"]) == ([64, 64], 17, 4)
    assert result["preprocessing"]["summary"] == (
        "64x64, short side 71, centre crop, bicubic with antialias, mean 0.5, std 0.5"
    )
    assert result["metadata"] == {"tag": "augreg_in21k_ft_in1k", "license": "apache-2.0"}
    assert result["num_params"] == sum(parameter.numel() for parameter in model.parameters())
    assert result["commands"][-1] == f"vit finetune --ckpt {tmp_path} --dataset DATA"


@pytest.mark.parametrize("alone", [False, True])
def test_a_run_is_described_with_all_its_metadata_also_from_the_file_alone(tmp_path, state, alone):
    metadata = {"trained_by": "finetune", "from": "demo", "steps": 7, "top1": 0.9756, "averaged": True}
    stored = {"preprocessing": PREPROCESSING, "class_names": tuple("abcde"), "metadata": metadata}
    write_weights(tmp_path, state, WeightsInfo(ARCH, **stored))
    if alone:
        (tmp_path / "config.json").unlink()
    result = summary(tmp_path / "model.safetensors" if alone else tmp_path)

    assert result["format"] == ("safetensors" if alone else "run folder")
    assert result["architecture"] == ARCH.as_dict()
    assert result["metadata"] == metadata | {"license": "apache-2.0"}  # of the demo, which it is from
    assert result["class_names"] == {"count": 5, "first": list("abcde")}
    assert result["preprocessing"] == {
        "summary": "32x32, whole image resized, bilinear, mean 0.5, std 0.5",
        "stored": PREPROCESSING,
        "from": "as stored with the weights",
    }
    text = as_text(result)
    assert "class names a, b, c, d, e\n" in text
    assert "top1        97.56%\n" in text and "averaged    True\n" in text


def test_pixels_in_words_of_another_version_leave_evaluation_by_recipe(tmp_path, state):
    vit = {"architecture": ARCH.as_dict(), "preprocessing": PREPROCESSING | {"interpolation": "lanczos"}}
    result = summary(saved(tmp_path, state, vit=vit))

    assert result["preprocessing"]["summary"] is None
    assert [command.split()[1] for command in result["commands"]] == ["evaluate", "finetune"]
    assert result["commands"][0].endswith("--recipe evaluate/default")


def test_a_file_that_is_not_recognised_asks_for_a_name_and_is_then_described(tmp_path):
    model = timm.create_model("resnet18", num_classes=3)
    file = saved(tmp_path, model.state_dict())
    unnamed, named = summary(file), summary(file, "resnet18")

    assert unnamed["model"] is unnamed["missing"] is unnamed["tokens"] is None
    assert unnamed["commands"] == [f"vit inspect {file} --summary --model NAME"]
    assert "model       not recognised" in as_text(unnamed)
    assert (named["model"], named["num_classes"], named["patch_size"]) == ("resnet18", 3, None)
    assert named["num_params"] == sum(parameter.numel() for parameter in model.parameters())
    assert named["commands"][1] == f"vit predict --ckpt {file} --model resnet18 IMAGES"
    with pytest.raises(VitError, match="no model"):
        summarise(str(file), model_name="resnet-eighteen")


def test_a_pth_file_is_described_with_its_own_dtypes(tmp_path, state):
    halves = {f"module.{name}": tensor.half() for name, tensor in state.items()}
    torch.save({"state_dict": halves, "epoch": 3}, tmp_path / "a name with spaces.pth")
    result = summary(tmp_path / "a name with spaces.pth")

    assert (result["format"], result["model"]) == ("pth", "ViT-demo/8")
    assert result["dtypes"] == {"float16": len(state)} and result["num_params"] == numbers_in(state)
    assert shlex.split(result["commands"][1])[3] == str(tmp_path / "a name with spaces.pth")


def test_a_thousand_classes_without_names_are_taken_for_imagenets(tmp_path, state):
    state = state | {"head.weight": torch.zeros(1000, 96), "head.bias": torch.zeros(1000)}

    assert "--dataset imagenet" in summary(saved(tmp_path, state))["commands"][0]
    vit = {"architecture": ARCH.as_dict() | {"num_classes": 1000}, "class_names": list(map(str, range(1000)))}
    assert "--dataset DATA" in summary(saved(tmp_path, state, vit=vit))["commands"][0]


def test_tensors_that_are_missing_left_over_or_misshapen_are_all_named(tmp_path, state):
    changed = {name: tensor for name, tensor in state.items() if not name.startswith("blocks.3.")}
    changed |= {"blocks.3.mlp.fc1.weight": state["blocks.3.mlp.fc1.weight"], "other": torch.zeros(1)}
    result = summary(saved(tmp_path, changed | {"blocks.0.norm1.bias": torch.zeros(7)}))

    assert result["model"] == "ViT-demo/8" and result["commands"] == []
    assert set(result["missing"]) == {
        name for name in state if name.startswith("blocks.3.") and name != "blocks.3.mlp.fc1.weight"
    }
    assert result["unexpected"] == ["other"]
    assert result["of_another_shape"] == ["blocks.0.norm1.bias (7,) for (96,)"]
    assert "and 3 more\n" in as_text(result)


@pytest.mark.parametrize("lost", ["blocks.5.", "blocks.0.mlp.fc1.weight", "pos_embed", "patch_embed.proj."])
def test_a_file_that_is_recognised_no_more_is_compared_with_the_network_that_is_named(tmp_path, state, lost):
    left = {name: tensor for name, tensor in state.items() if not name.startswith(lost)}
    file = saved(tmp_path, left)
    unnamed, named = summary(file), summary(file, "demo/8")

    assert unnamed["model"] is None and unnamed["commands"] == [f"vit inspect {file} --summary --model NAME"]
    assert (named["model"], named["recognised"]) == ("ViT-demo/8", False)
    assert set(state) - set(left) <= set(named["missing"])
    assert "model       looks like ViT-demo/8" in as_text(named)


def test_numbers_that_are_not_finite_are_named_with_their_tensors(tmp_path, state):
    broken = {name: tensor.clone() for name, tensor in state.items()}
    broken["blocks.2.attn.proj.weight"][1, 2] = torch.nan
    broken["head.bias"][0] = -torch.inf
    result = summary(saved(tmp_path, broken))

    assert sorted(result["non_finite"]) == ["blocks.2.attn.proj.weight", "head.bias"]
    assert result["missing"] == [] and result["commands"] == []


def test_a_position_embedding_without_a_row_for_the_class_token_is_a_problem_among_others(tmp_path, state):
    result = summary(saved(tmp_path, state | {"pos_embed": state["pos_embed"][:, 1:]}), "demo/8")

    assert "16 rows, 4x4 patches and none for the class token" in result["problems"][0]
    assert (result["model"], result["num_classes"], result["recognised"]) == ("ViT-demo/8", 5, False)
    assert [text.partition(" ")[0] for text in result["of_another_shape"]] == ["pos_embed"]


@pytest.mark.parametrize(
    ("vit", "told"),
    [
        ({"architecture": ARCH.as_dict() | {"num_classes": 6}}, r"head.weight (5, 96) for (6, 96)"),
        ({"architecture": ARCH.as_dict(), "class_names": ["a", "b"]}, "2 class names are stored for 5"),
        ({"architecture": ARCH.as_dict() | {"timm_name": "local-dir:/tmp"}}, "no network"),
        ({"architecture": ARCH.as_dict() | {"image_size": [32]}}, "damaged"),
        (
            {"architecture": ARCH.as_dict() | {"model_args": ARCH.model_args | {"depth": 10**9}}},
            "damaged (model_args, depth)",
        ),
        (
            {"architecture": ARCH.as_dict() | {"model_args": ARCH.model_args | {"num_heads": 0}}},
            "architecture cannot be read",
        ),
        (
            {"architecture": ARCH.as_dict() | {"model_args": ARCH.model_args | {"patch_size": "8"}}},
            "timm cannot build",
        ),
        ({"architecture": "ViT"}, "metadata cannot be read"),
    ],
    ids=["classes", "names", "hostile", "size", "depth", "heads", "patches", "text"],
)
def test_wrong_metadata_is_a_problem_and_the_network_is_still_recognised(tmp_path, state, vit, told):
    file = saved(tmp_path, state, vit=vit)
    result = summary(file)

    headings = [line for line in as_text(result).splitlines()[1:] if line and not line.startswith(" ")]
    assert headings == ["File", "Network", "Tensors", "Problems", "How to fix"]
    assert any(told in problem for problem in result["problems"])
    assert (result["model"], result["num_params"]) == ("ViT-demo/8", numbers_in(state))
    assert as_text(result).startswith(f"{file}: not usable: 1 problem")


def test_a_name_that_contradicts_the_file_is_a_problem_and_the_file_is_described(tmp_path, state):
    vit = {"architecture": ARCH.as_dict(), "class_names": list("abcde")}
    result = summary(saved(tmp_path, state, vit=vit), "B/16")

    assert result["problems"] == ["these are weights of ViT-demo/8, not of B/16 (--model)"]
    assert (result["model"], result["missing"]) == ("ViT-demo/8", [])
    assert result["class_names"]["first"] == list("abcde")


def test_a_headless_folder_is_usable_for_features_and_its_missing_head_is_named(tmp_path):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32, depth=2)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 1000, "model_args": {"depth": 2},
              "pretrained_cfg": {"input_size": [3, 32, 32]}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    result, text = summary(tmp_path), as_text(summary(tmp_path))

    assert (result["head"], result["num_classes"], result["usable"]) == ("none", 0, True)
    assert result["missing"] == ["head.weight", "head.bias"]
    assert text.startswith(f"{tmp_path}: usable for features, its head is missing\n")
    assert "head        missing from the file\n" in text and "missing     2: head.weight, head.bias" in text
    assert [command.split()[1] for command in result["commands"]] == ["embed", "inspect", "finetune"]
    arguments = shlex.split(result["commands"][0].replace("DATA", "demo"))[1:-1]
    embedded = run(*arguments, tmp_path / "out.safetensors", "--split", "test[:8]", "--quiet", "--json")
    assert (embedded.code, embedded.json["num_examples"]) == (0, 8), embedded.err


def test_a_damaged_official_file_is_described_under_its_own_names(tmp_path):
    arrays = official_arrays()
    arrays["cls"][0, 0, 0] = np.nan
    del arrays["Transformer/encoder_norm/scale"]
    np.savez(tmp_path / "vit.npz", **arrays)
    result = summary(tmp_path / "vit.npz")

    assert "Transformer/encoder_norm/scale is missing" in result["problems"][0]
    assert result["non_finite"] == ["cls"] and result["model"] is result["missing"] is None
    assert (result["num_tensors"], result["num_params"]) == (len(arrays), numbers_in(arrays))
    assert "no network to compare them with" in as_text(result)


def broken_files() -> dict[str, bytes]:
    tensor = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header, listed = b"{" + tensor + b"}", b'{"__metadata__":{"vit":"[1]"},' + tensor + b"}"
    return {
        "cut.safetensors": struct.pack("<Q", len(header)) + header + b"\0\0",
        "huge.safetensors": struct.pack("<Q", 2**63) + header,
        "empty.safetensors": b"",
        "list.safetensors": struct.pack("<Q", len(listed)) + listed + bytes(4),
        "text.npz": b"weights",
        "text.pth": b"weights",
        "weights.txt": b"weights",
    }


@pytest.mark.parametrize("name", broken_files())
def test_a_file_that_cannot_be_parsed_is_the_readers_error(tmp_path, name):
    (tmp_path / name).write_bytes(broken_files()[name])

    with pytest.raises(WeightsError) as refusal:
        summarise(str(tmp_path / name), model_name=None)
    assert refusal.value.exit_code == 4 and str(tmp_path / name) in refusal.value.where


def test_python_objects_in_an_npz_are_the_readers_error(tmp_path):
    np.savez(tmp_path / "x.npz", cls=np.array([{}], dtype=object))

    with pytest.raises(WeightsError, match="Python objects"):
        summarise(str(tmp_path / "x.npz"), model_name=None)


def test_the_text_fits_a_terminal_and_nothing_in_a_file_can_steer_it(tmp_path, state):
    hostile = "\x1b[31m\n\u202e" + "long " * 1000
    vit = {
        "architecture": ARCH.as_dict() | {"name": f"ViT{hostile}"},
        "class_names": [hostile] * 5,
        "metadata": {hostile: hostile, "many": list(range(10_000))} | {str(i): i for i in range(1, 1000)},
    }
    text = as_text(summary(saved(tmp_path, state | {hostile: torch.zeros(1)}, vit=vit)))

    assert all(line.isprintable() for line in text.splitlines())
    assert "and 985 more" in text and len(text) < 10_000
    lines = as_text(summary("demo")).splitlines()
    assert max(map(len, lines)) <= 80


@needs_golden
def test_every_golden_checkpoint_is_described_as_its_maker_did():
    for name, model in json.loads((GOLDEN / "models.json").read_text()).items():
        result = summary(GOLDEN / model["checkpoint"])
        resnet = model.get("resnet")
        reduction = 4 * 2 ** max(len(resnet["num_layers"]) - 1, 0) if resnet else 1

        assert (name, result["num_params"]) == (name, model["parameters"])
        assert result["resolution"] == [model["image_size"]] * 2
        assert result["patch_size"] == model["patch_size"][0] * reduction
        assert (result["num_classes"], result["classifier"]) == (model["num_classes"], model["classifier"])
        assert (result["head"] == "one layer") == (model["representation_size"] is None)
        assert result["architecture"]["model_args"]["num_heads"] == model["heads"]


@needs_real
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_the_real_checkpoint_is_described_with_the_published_numbers(suffix):
    result = summary(REAL / f"vit_ti16_augreg_in1k.{suffix}")

    assert (result["model"], result["timm_name"]) == ("ViT-Ti/16", "vit_tiny_patch16_224")
    assert (result["num_classes"], result["num_params"]) == (1000, 5_717_416)
    assert result["forward_gmacs"] == 1.253 and result["tokens"] == 197
    assert [command.partition(" --ckpt")[0] for command in result["commands"]] == [
        "vit evaluate",
        "vit predict",
        "vit inspect",
        "vit finetune",
    ]
    assert result["commands"][0].endswith("--dataset imagenet")
    assert result["commands"][3].endswith("--dataset DATA --res 384")


def test_tensors_that_do_not_fit_are_listed_by_what_is_wrong_with_them():
    """A transposed matrix has as many numbers; counters of timm's networks alone are whole numbers."""
    expected = {name: torch.Size(shape) for name, shape in {"a": (2, 3), "b": (4,), "c": (1, 2)}.items()}
    state = {
        "a": torch.zeros(3, 2),
        "b": torch.zeros(4, dtype=torch.int64),
        "d": torch.zeros(1),
        "bn.num_batches_tracked": torch.zeros((), dtype=torch.int64),
    }

    assert mismatches(state, expected) == {
        "missing": ["c"],
        "unexpected": ["d", "bn.num_batches_tracked"],
        "of another shape": ["a (3, 2) for (2, 3)"],
        "not floating point": ["b (torch.int64)"],
    }


def test_numbers_that_are_not_finite_are_found_anywhere_in_a_tensor():
    bad = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    state = {name: torch.tensor([[1.0, value], [2.0, 3.0]]) for name, value in bad.items()}
    state |= {"fine": torch.tensor([-3e38, 3e38]), "none": torch.zeros(0), "whole": torch.tensor([2**40])}

    assert find_non_finite(state) == ["nan", "inf", "-inf"]
