"""Adapters: peft's own numbers, merged in each evaluation and in what is published, whole in checkpoints."""

import builtins
import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import run
from tests.training.methods.conftest import ADAM, SAVED, begun, fine_tune, only_with_checkpoint, refusal, tiny
from tests.training.test_finetune import fingerprint
from vitcli.errors import MachineError, VitError
from vitcli.training.methods.partial import adapters_merged, add_adapters, freeze
from vitcli.weights.adapters import merged
from vitcli.weights.io import read_weights

LAYERS = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
LORA = ("--set", "model.lora_rank=4", *ADAM, *SAVED, "--set", "optimizer.average=0.9")


def with_trained_adapters(model, **options):
    """Adapters whose second factors are not zero."""
    torch.manual_seed(1)
    add_adapters(model, **options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_adapters_and_head_alone_are_trained_and_change_nothing_at_first():
    (model, _), images = tiny(), torch.randn(4, 3, 32, 32)
    before = model.eval()(images)
    add_adapters(model, rank=4, alpha=None)

    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    factors = {
        f"blocks.{block}.{layer}.lora_{factor}.default.weight"
        for block in range(2) for layer in LAYERS for factor in "AB"
    }  # fmt: skip
    assert trained.keys() == factors | {"head.weight", "head.bias"}
    assert trained["blocks.1.mlp.fc1.lora_A.default.weight"].shape == (4, 32)
    assert torch.equal(model(images), before)
    assert model.blocks[0].attn.qkv.lora_scale == 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32}),
        ("vit_tiny_r_s16_p8_224", {"img_size": 32}),
        ("beit_base_patch16_224", {"img_size": 32}),  # reads the weight of its layer, not the layer
        ("eva02_tiny_patch14_224", {"img_size": 28}),
    ],
)
def test_the_merged_network_has_the_logits_of_the_adapters_and_is_timms(name, options):
    options |= {"embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 3}
    plain, adapted = (timm.create_model(name, **options) for _ in range(2))
    torch.nn.init.normal_(adapted.head.weight)
    images = torch.randn(2, 3, options["img_size"], options["img_size"])
    without = adapted.eval()(images)
    with_trained_adapters(adapted, rank=4, alpha=6.0)
    state = {name: value.clone() for name, value in adapted.state_dict().items()}

    adapted(images).sum().backward()
    assert all(p.grad is not None for p in adapted.parameters() if p.requires_grad)
    logits = adapted(images)
    plain.load_state_dict(merged(adapted.state_dict()))  # strict: in timm's names
    with adapters_merged(adapted):
        assert torch.allclose(adapted(images), plain.eval()(images), atol=1e-6)
        assert adapted.state_dict().keys() == plain.state_dict().keys()
    assert (plain(images) - logits).abs().max() <= 1e-5 < 1e-3 < (without - logits).abs().max()
    assert all(torch.equal(value, state[name]) for name, value in adapted.state_dict().items())


def test_the_merged_weights_are_those_of_peft():
    model, _ = tiny()
    with_trained_adapters(model, rank=4, alpha=6.0)
    ours = merged(model.state_dict())
    for name in (f"blocks.{block}.{layer}" for block in range(2) for layer in LAYERS):
        layer = model.get_submodule(name)
        layer.merge()
        torch.testing.assert_close(ours[f"{name}.weight"], layer.base_layer.weight)


def test_frozen_blocks_get_no_adapters():
    model, _ = tiny()
    freeze(model, 1)
    add_adapters(model, rank=2, alpha=1.0)

    assert {name.split(".")[1] for name, _ in model.named_parameters() if "lora" in name} == {"1"}
    freeze(whole := tiny()[0], 2)
    with pytest.raises(VitError, match="no blocks with linear layers"):
        add_adapters(whole, rank=2, alpha=1.0)


@pytest.fixture(scope="module")
def adapted_run(ckpt, photos, tmp_path_factory):
    path = tmp_path_factory.mktemp("lora") / "run"
    return path, fine_tune(*LORA, "--set", "eval.every=2", out=path, ckpt=ckpt, photos=photos)


def test_a_run_publishes_timms_names_and_what_it_scored(adapted_run, ckpt, photos):
    path, summary = adapted_run
    before, after = load_file(ckpt / "model.safetensors"), load_file(path / "model.safetensors")

    assert after.keys() == before.keys() and summary["exaflops"] is None
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    of_layers = {f"blocks.{block}.{layer}.weight" for block in range(2) for layer in LAYERS}
    assert changed == of_layers | {"head.weight", "head.bias"}
    evaluated = run("evaluate", "--ckpt", path, "--dataset", photos, "--json").json
    assert (evaluated["top1"], evaluated["loss"]) == (summary["top1"], summary["loss"])


def test_a_checkpoint_has_the_adapters_and_is_read_merged(adapted_run, photos):
    path, _ = adapted_run
    folder = path / "checkpoints/step_0000002"
    state = load_file(folder / "model.safetensors")
    kept = {name.rpartition("/")[0] for name in load_file(folder / "optimizer.safetensors")}

    assert kept == {name for name in state if "lora_A" in name or "lora_B" in name} | {
        "head.weight",
        "head.bias",
    }
    records = [json.loads(line) for line in (path / "metrics.jsonl").open()]
    (during,) = (record["eval"] for record in records if "eval" in record and record["step"] == 2)
    evaluated = run("evaluate", "--ckpt", folder, "--dataset", photos, "--json")
    assert evaluated.code == 0, evaluated.out + evaluated.err
    assert evaluated.json["loss"] == during["loss"]


def test_a_run_with_adapters_resumes_bit_for_bit(adapted_run, ckpt, photos, tmp_path):
    path, _ = adapted_run
    resumed = only_with_checkpoint(path, 1, tmp_path / "resumed")
    fine_tune(*LORA, "--set", "eval.every=2", out=resumed, ckpt=ckpt, photos=photos)

    assert fingerprint(resumed) == fingerprint(path)


@pytest.mark.parametrize("damage", ["no factor", "other shape"])
def test_a_damaged_checkpoint_with_adapters_is_refused(adapted_run, tmp_path, damage):
    path, _ = adapted_run
    state = load_file(path / "checkpoints/step_0000002/model.safetensors")
    name = "blocks.0.attn.qkv.lora_A.default.weight"
    if damage == "no factor":
        del state[name]
    else:
        state[name] = state[name][:, :5].contiguous()
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((path / "config.json").read_bytes())

    with pytest.raises(VitError, match="the adapters"):
        read_weights(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["lora_rank=-1"], "model.lora_rank is -1"),
        (["lora_rank=2.5"], "model.lora_rank is 2.5"),
        (["lora_rank=true"], "model.lora_rank is true"),
        (['lora_rank="16"'], 'model.lora_rank is "16"'),
        (["lora_rank=none"], 'model.lora_rank is "none"'),
        (["lora_alpha=8"], "model.lora_alpha is for model.lora_rank"),
        (["lora_rank=2", "lora_alpha=0"], "model.lora_alpha is 0"),
        (["lora_rank=2", "lora_alpha=nan"], "model.lora_alpha"),
        (["lora_rank=2", "lora_bias=true"], "lora_bias is not a key"),
    ],
)
def test_what_is_no_adapter_is_refused(settings, words):
    assert words in refusal(*(f"model.{setting}" for setting in settings))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "model.freeze=backbone"], "nothing for LoRA to correct"),
        (["--shard"], "model.lora_rank"),  # which would have to gather all for each evaluation
    ],
)
def test_adapters_that_cannot_be_are_refused(ckpt, photos, tmp_path, more, words):
    outcome = run(
        *begun(ckpt, photos), "--steps", 1, "--out", tmp_path / "run", "--set", "model.lora_rank=2", *more
    )

    assert outcome.code == 2 and words in outcome.json["error"]["message"]
    assert not (tmp_path / "run").exists()


def test_without_peft_the_extra_is_named(monkeypatch):
    load = builtins.__import__

    def fail(name, *arguments, **more):
        if name == "peft":
            raise ImportError("No module named 'peft'")
        return load(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(MachineError) as error:
        add_adapters(tiny()[0], rank=2, alpha=None)
    assert "vitcli[lora]" in error.value.fix
