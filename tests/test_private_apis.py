"""What we rely on of other packages beyond their public interfaces: tests/README.md lists it.

Each test compares what we do with what the other package does now, or finds the names that we use, so that a
version that changes them fails here, with the reason, and not in a run.
"""

import copy
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
import typer
from accelerate import Accelerator
from timm.layers import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from tests.conftest import REPOSITORY
from vitcli.data import transforms
from vitcli.distributed import accelerate_settings, fsdp, runtime
from vitcli.inspection.attention import record_attention
from vitcli.models import kernels, masked_patch, pos_embed
from vitcli.models.pos_embed import RelativeAttention

TABLE = (REPOSITORY / "tests" / "README.md").read_text().partition("## What is not public")[2]
TINY = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=3)
NETWORKS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "no class token": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "positions of patches alone": {"no_embed_class": True, "reg_tokens": 1},
    "norm before the blocks": {"pre_norm": True},
    "checkpointing": {},
}


def network(name: str) -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(**TINY, **NETWORKS[name])
    nn.init.normal_(model.pos_embed)
    model.set_grad_checkpointing(name == "checkpointing")
    return model.train()


def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NETWORKS)
def test_timms_forward_features_is_that_of_masked_patches(name, monkeypatch):
    vit = network(name)
    half = (0.5, 0.5, 0.5)
    kind = dict(target="mean_color", corrupted=0.5, masked=0.8, replaced=0.1, mean=half, std=half)
    model = masked_patch.MaskedPatchModel(vit, **kind)
    monkeypatch.setattr(masked_patch, "corrupt", lambda embeddings, *_: embeddings)

    ours, theirs = model.encode(images(), model.draw(2)), vit.forward_features(images())
    assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad(tokens.sum(), vit.pos_embed)[0] for tokens in (ours, theirs)]
    assert torch.equal(*gradients)


def test_timms_network_calls_its_parts_once_and_in_this_order():
    vit, calls = network("class token"), []
    for name in ("patch_embed", "patch_drop", "norm_pre", "blocks", "norm"):
        getattr(vit, name).register_forward_hook(lambda *_, name=name: calls.append(name))
    vit.forward_features(images())

    assert calls == ["patch_embed", "patch_drop", "norm_pre", "blocks", "norm"]


def test_our_positions_at_the_stem_stand_where_timm_adds_its_own():
    theirs = network("class token")
    ours = VisionTransformer(**TINY, pos_embed="none")
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if k != "pos_embed"})
    pos_embed.install(ours, kind="sincos2d", place="stem", dropout=0.0)
    with torch.no_grad():
        theirs.pos_embed.copy_(ours.positions())

    assert torch.equal(ours(images()), theirs(images()))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"scale_norm": True}], ids=str)
def test_attention_with_relative_positions_of_zero_is_timms_attention(fused, options):
    torch.manual_seed(0)
    theirs = Attention(24, num_heads=2, qkv_bias=True, norm_layer=nn.LayerNorm, **options).eval()
    theirs.fused_attn = fused
    ours = copy.deepcopy(theirs)
    pos_embed._make_relative(ours, 7)
    nn.init.zeros_(ours.relative_embed)
    tokens, mask = torch.randn(2, 7, 24), torch.rand(2, 1, 7, 7) > 0.2

    assert type(ours) is RelativeAttention
    for given in ({}, {"attn_mask": mask}, {"is_causal": True}):
        torch.testing.assert_close(ours(tokens, **given), theirs(tokens, **given), atol=1e-6, rtol=1e-5)
    assert (
        list(inspect.signature(ours.forward).parameters)[1:]
        == list(inspect.signature(theirs.forward).parameters)[1:]
    ), "timm's attention takes other arguments"


def test_timms_attention_passes_its_weights_through_attn_drop():
    vit, weights = network("class token").eval(), []
    with torch.no_grad(), record_attention(vit, lambda layer, w_BATT: weights.append(w_BATT)):
        features = vit.forward_features(images())

    block, tokens = vit.blocks[0], vit.patch_drop(vit._pos_embed(vit.patch_embed(images())))
    qkv = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, 2, 12)).permute(2, 0, 3, 1, 4)
    by_hand = (qkv[0] @ qkv[1].transpose(-2, -1) / 12**0.5).softmax(dim=-1)
    assert len(weights) == 2
    torch.testing.assert_close(weights[0], by_hand, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(features, vit.forward_features(images()), atol=1e-5, rtol=1e-5)


def test_torch_compiles_a_module_in_place_and_says_so():
    model = nn.Linear(2, 2)
    assert model._compiled_call_impl is None
    model.compile(backend="eager")
    assert model._compiled_call_impl is not None and torch.is_tensor(model(torch.ones(1, 2)))
    wrapped = torch.compile(nn.Linear(2, 2), backend="eager")
    assert type(runtime.unwrap(wrapped)) is nn.Linear  # by `_orig_mod`


def test_timm_adds_the_table_that_stands_in_the_place_of_its_own():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=12, depth=1, num_heads=3)
    names, own, patches = list(model.state_dict()), model.pos_embed, torch.randn(2, 4, 12)
    before = model._pos_embed(patches)
    model._parameters["pos_embed"] = own.detach() + 1
    after = model._pos_embed(patches)
    model._parameters["pos_embed"] = own

    torch.testing.assert_close(after, before + 1)
    assert list(model.state_dict()) == names and model.pos_embed is own


def test_torch_moves_a_module_and_its_parts_by_apply():
    class Counted(nn.Linear):
        calls = 0

        def _apply(self, fn, recurse=True):
            Counted.calls += 1
            return super()._apply(fn, recurse)

    model = nn.Sequential(Counted(2, 2))
    for move in (lambda: model.to(torch.float64), lambda: model.to_empty(device="cpu"), model.half):
        before = Counted.calls
        move()
        assert Counted.calls == before + 1


def test_torch_adds_and_scales_lists_of_tensors_as_one_by_one():
    left, right = ([torch.randn(n, 3) for n in (1, 2, 5)] for _ in range(2))
    sums, factor = [a + b for a, b in zip(left, right, strict=True)], torch.tensor(0.3)

    torch._foreach_add_(left, right)
    assert all(map(torch.equal, left, sums))
    torch._foreach_mul_(left, factor)
    assert all(torch.equal(a, b * factor) for a, b in zip(left, sums, strict=True))
    means = [torch.lerp(a, b, 0.25) for a, b in zip(left, right, strict=True)]
    torch._foreach_lerp_(left, right, 0.25)
    assert all(map(torch.equal, left, means))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_fused_optimizer_skips_its_update_where_found_inf_is_1(optimizer):
    weights = nn.Parameter(torch.ones(3))
    fused = optimizer([weights], lr=0.5, fused=True)
    for is_skipped in (1.0, 0.0):
        weights.grad, before = torch.ones(3), weights.detach().clone()
        fused.found_inf = torch.tensor(is_skipped)
        fused.step()
        assert torch.equal(weights, before) == bool(is_skipped)


@pytest.mark.parametrize(("interpolation", "antialias"), transforms.RESIZE)
def test_torch_resizes_bytes_into_their_place_as_interpolate_does(interpolation, antialias):
    images_BHWC = torch.randint(0, 256, (3, 40, 30, 3), dtype=torch.uint8)
    image_1CHW = images_BHWC[1:2, 3:38, 5:].permute(0, 3, 1, 2)
    batch_BHWC = torch.zeros(3, 24, 20, 3, dtype=torch.uint8)
    place_1CHW = batch_BHWC[1:2].permute(0, 3, 1, 2)

    transforms.RESIZE[interpolation, antialias](image_1CHW, (24, 20), False, None, None, out=place_1CHW)
    options = dict(size=(24, 20), mode=interpolation, antialias=antialias)
    assert torch.equal(place_1CHW, nn.functional.interpolate(image_1CHW, **options))
    assert batch_BHWC[1].any() and not batch_BHWC[::2].any()


@pytest.mark.slow
def test_torch_reports_a_failed_process_with_the_file_that_it_wrote(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(
        "import json, os, sys\n"
        "extra = {'py_callstack': '', 'timestamp': '1'}\n"
        "report = {'message': {'message': 'lost', 'extraInfo': extra}, 'vit': {'exit_code': 5}}\n"
        "open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write(json.dumps(report))\n"
        "sys.exit(5)\n"
    )
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import sys\n"
        "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError\n"
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, run_id='x', rdzv_backend='c10d',\n"
        "                      rdzv_endpoint='127.0.0.1:0', local_addr='127.0.0.1', max_restarts=0)\n"
        "try:\n"
        f"    elastic_launch(config, sys.executable)({str(script)!r})\n"
        "except ChildFailedError as failed:\n"
        "    (failure,) = failed.failures.values()\n"
        "    print(failure.error_file_data['vit'], failure.exitcode, failure.pid > 0)\n"
    )
    ended = subprocess.run([sys.executable, parent], capture_output=True, text=True, timeout=100)
    assert ended.stdout == "{'exit_code': 5} 5 True\n", ended.stderr[-2000:]


def test_torch_names_what_failed_in_a_sharded_save(tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.checkpoint.api import CheckpointException

    writer = HuggingFaceStorageWriter(str(tmp_path), save_distributed=True)
    dcp.save({"model/weight": torch.ones(2, 3)}, storage_writer=writer, no_dist=True)
    (entry,) = HuggingFaceStorageReader(str(tmp_path)).read_metadata().state_dict_metadata.values()
    assert (entry.size, entry.properties.dtype) == (torch.Size([2, 3]), torch.float32)
    error = CheckpointException("save", {0: (OSError(28, "No space left on device"), None)})
    ((cause, _), *_) = error.failures.values()
    assert cause.errno == 28


def test_a_sharded_weight_is_gathered_in_bf16_or_as_it_is():
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        kinds, policy = [], fsdp._policy(model, "bf16")
        model[0].register_forward_pre_hook(lambda layer, _: kinds.append(layer.weight.dtype))
        model[1].register_forward_pre_hook(lambda layer, _: kinds.append(layer.weight.dtype))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)), mp_policy=policy)
        model.use = None  # as `fsdp.shard` leaves it
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                model(torch.ones(2, 4)).sum().backward()
            with torch.no_grad(), fsdp.in_full_precision(model):
                model(torch.ones(2, 4))
        # torch 2.11 has no policies by parameter: autocast alone casts the matrices there.
        matrices = torch.bfloat16 if policy.param_dtype else torch.float32
        assert kinds == 2 * [matrices, *3 * [torch.float32]]
        assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    finally:
        distributed.destroy_process_group()


def test_accelerate_still_reads_the_settings_that_we_refuse_or_take_out():
    from accelerate import accelerator, state
    from accelerate.utils import dataclasses, launch

    source = "".join(map(inspect.getsource, (accelerator, state, dataclasses, launch)))
    known = {*accelerate_settings.REFUSED, *accelerate_settings.NOTED, *accelerate_settings.HARMLESS}
    known |= {accelerate_settings.CPU, accelerate_settings.DEVICE}
    # Two are put together, or read by another module.
    assembled = {"ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_LOG_LEVEL"}
    assert [name for name in sorted(known - assembled) if name not in source] == []
    assert 'prefix + "BACKEND"' in source
    assert "ACCELERATE_BYPASS_DEVICE_MAP" in source  # which `runtime.start` sets
    # Older versions prepare models for Intel's extension, which vit does not use.
    new = set(re.findall(r"\bACCELERATE_USE_[A-Z_]+", source)) - known - {"ACCELERATE_USE_IPEX"}
    assert not new, "Accelerate has a new switch: refuse it, or say that it is harmless"
    for name in (
        "prepare",
        "backward",
        "no_sync",
        "end_training",
        "process_index",
        "num_processes",
        "device",
    ):
        assert hasattr(Accelerator, name), name


def test_typer_has_what_the_help_page_and_the_completion_use():
    from typer import completion, core

    for owner, names in (
        (core.TyperCommand, ("format_help", "parse_args", "get_params", "params")),
        (core.TyperGroup, ("format_help", "resolve_command", "list_commands", "get_command")),
        (completion, ("get_completion_script", "install", "completion_init")),
    ):
        for name in names:
            assert hasattr(owner, name) or name in inspect.getsource(owner.__init__) or name == "params", name
    usage_error = typer.BadParameter.__bases__[0]
    assert usage_error.__name__ == "UsageError"
    error = usage_error("wrong")
    assert (error.format_message(), error.ctx) == ("wrong", None)
    application = typer.Typer()

    @application.command()
    def command(name: str = typer.Option("x", "--name", rich_help_panel="Data")) -> None:
        """Do."""

    built = typer.main.get_command(application)
    (option, *_) = built.params
    assert (option.opts, option.rich_help_panel, option.secondary_opts) == (["--name"], "Data", [])


def test_numpy_reads_headers_of_arrays_and_pillow_limits_pixels():
    from numpy.lib import format as npy
    from PIL import Image

    for name in ("read_magic", "read_array_header_1_0", "read_array_header_2_0", "write_array"):
        assert callable(getattr(npy, name))
    assert isinstance(Image.MAX_IMAGE_PIXELS, int) and issubclass(Image.DecompressionBombError, Exception)


def test_matplotlib_and_datasets_are_used_by_their_public_names_alone():
    files = [path for path in (REPOSITORY / "vitcli").rglob("*.py")]
    for path in files:
        text = path.read_text()
        assert not re.search(r"(matplotlib|datasets|pyarrow|PIL|rich|pydantic)\._\w|\._indices\b", text), path


class Namespace:
    """torch's operators without those that `vit` calls by private names, or with others in their place."""

    def __init__(self, **others):
        vars(self).update(others)


@pytest.fixture
def unknown_kernels():
    """Ask torch anew for its private kernels, in this test and after it."""
    switches = (kernels._has_onednn, kernels._has_softmax_gradient)
    for switch in switches:
        switch.cache_clear()
    yield
    for switch in switches:
        switch.cache_clear()


OTHER_PRODUCTS = Namespace(
    _reorder_linear_weight=nn.Identity(), _linear_pointwise=lambda *_: torch.zeros(3, 8)
)


@pytest.mark.parametrize("mkldnn", [Namespace(), OTHER_PRODUCTS])
def test_a_torch_without_onednns_packed_products_casts_weights_and_says_so(
    mkldnn, unknown_kernels, monkeypatch
):
    monkeypatch.setattr(torch, "ops", Namespace(mkldnn=mkldnn, aten=torch.ops.aten))
    monkeypatch.setattr(kernels, "HAS_BF16", True)
    layer, rows = nn.Linear(24, 8), torch.randn(5, 24)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = layer(rows)
        with (
            pytest.warns(UserWarning, match="oneDNN's packed product is not in torch .* as it was"),
            kernels.dense_layers(layer, torch.device("cpu"), "bf16"),
        ):
            assert torch.equal(layer(rows), expected)


OTHER_GRADIENT = Namespace(_softmax_backward_data=Namespace(out=lambda *_, **__: None))


@pytest.mark.parametrize("aten", [Namespace(), OTHER_GRADIENT])
def test_a_torch_without_the_gradient_of_a_softmax_computes_it_by_its_formula(
    aten, unknown_kernels, monkeypatch
):
    tensors = [torch.randn(1, 2, 5, 8).bfloat16().requires_grad_() for _ in range(3)]
    expected = torch.autograd.grad(kernels.attend(*tensors).sum(), tensors)
    kernels._has_softmax_gradient.cache_clear()
    monkeypatch.setattr(torch, "ops", Namespace(aten=aten))

    with pytest.warns(UserWarning, match="the gradient of softmax is not in torch"):
        gradients = torch.autograd.grad(kernels.attend(*tensors).sum(), tensors)

    for gradient, known in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, known, atol=0.05, rtol=0.05)


def test_every_private_name_in_the_code_is_in_the_table():
    own = {name for path in (REPOSITORY / "vitcli").rglob("*.py") for name in own_names(path)}
    public = {"_replace", "_asdict", "_exit", "_current_frames"}  # of named tuples, os and sys: documented
    used = set()
    for path in (REPOSITORY / "vitcli").rglob("*.py"):
        code = re.sub(r'"""[\s\S]*?"""|#.*|"[^"\n]*"', "", path.read_text())
        used |= set(re.findall(r"(?<!self)(?<!cls)\.(_[a-z]\w*)", code)) - own - public
        used |= set(re.findall(r"from (?!vitcli)[\w.]+ import .*?\b(_\w+)", code)) - own
    assert "_pos_embed" in used and "_foreach_add_" in used  # the search finds something
    assert [name for name in sorted(used) if f"`{name}`" not in TABLE] == []


def own_names(path: Path) -> set[str]:
    text = path.read_text()
    names = set(re.findall(r"\bdef (_\w+)|\bself\.(_\w+)|^    (_\w+):|^(_\w+) ?[:=]", text, re.MULTILINE))
    return {name for group in names for name in group if name}


def test_every_row_of_the_table_has_its_test():
    named = re.findall(r"`(test_\w+)`", TABLE)
    here = {name for name in globals() if name.startswith("test_")}

    assert set(named) == here - {"test_every_private_name_in_the_code_is_in_the_table",
                                 "test_every_row_of_the_table_has_its_test"}  # fmt: skip
