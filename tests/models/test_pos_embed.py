"""Position embeddings of the paper's Table 8 and fixed ones, against the formulas as loops and timm."""

import copy
import math

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from timm.utils import AttentionExtract
from torch import Tensor

from vitcli.errors import VitError
from vitcli.models import pos_embed as models_pos_embed
from vitcli.models.architecture import POSEMB_PLACES, POSEMBS
from vitcli.models.pos_embed import resample_posemb

TABLE_8 = [
    ("none", "stem"), ("relative", "stem"),
    ("1d", "stem"), ("1d", "every_layer"), ("1d", "every_layer_shared"),
    ("2d", "stem"), ("2d", "every_layer"), ("2d", "every_layer_shared"),
]  # fmt: skip
ADDED = [cell for cell in TABLE_8 if cell[0] in ("1d", "2d")]
FIXED = ("sincos2d", "stem")  # arXiv 2205.01580
CELLS = [*TABLE_8, FIXED]
WITH_NUMBERS = [cell for cell in TABLE_8 if cell[0] != "none"]
HEIGHT, WIDTH = 2, 3
NUM_TOKENS = 1 + HEIGHT * WIDTH


def bare(
    *, grid=(HEIGHT, WIDTH), width=8, heads=2, layers=2, pos_embed="none", **options
) -> VisionTransformer:
    """A network on patches of 4 x 4 pixels, all its numbers large enough to be seen in the output."""
    size = (4 * grid[0], 4 * grid[1])
    model = VisionTransformer(
        img_size=size, patch_size=4, num_classes=3, embed_dim=width, num_heads=heads, depth=layers,
        pos_embed=pos_embed, **options,
    ).eval()  # fmt: skip
    return fill(model)


@torch.no_grad()
def fill(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(module.named_parameters()):
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return module


def network(kind: str, place: str, *, dropout: float = 0.0, **options) -> VisionTransformer:
    """`bare` with the position embeddings in, their numbers as large; the others are those of `bare`."""
    model = bare(**options)
    models_pos_embed.install(model, kind=kind, place=place, dropout=dropout)
    for i, name in enumerate(positions_of(model)):
        table = model.get_parameter(name)
        table.data = torch.randn(table.shape, generator=torch.Generator().manual_seed(100 + i))
    return model


def positions_of(model: VisionTransformer) -> list[str]:
    return [name for name, _ in model.named_parameters() if "positions" in name or "relative" in name]


def images(grid=(HEIGHT, WIDTH), count: int = 2) -> Tensor:
    shape = (count, 3, 4 * grid[0], 4 * grid[1])
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def tokens_before_positions(model: VisionTransformer, images_BCHW: Tensor) -> Tensor:
    patches_BND = model.patch_embed(images_BCHW)
    return torch.cat([model.cls_token.expand(len(patches_BND), -1, -1), patches_BND], dim=1)


def input_of_block(model: VisionTransformer, i: int, images_BCHW: Tensor) -> Tensor:
    """What the block computes with, position embeddings and dropout included."""
    seen = []

    def look(module, args):
        seen.append(args[0])

    with model.blocks[i].register_forward_pre_hook(look):  # runs after those of the embeddings
        model(images_BCHW)
    return seen[0]


def added_by_hand(model: VisionTransformer, prefix: str) -> Tensor:
    """(T, D) from the tables under `prefix`, patch by patch."""
    state = {
        name.removeprefix(prefix): t for name, t in model.state_dict().items() if name.startswith(prefix)
    }
    if "table" in state:
        return state["table"][0]
    rows = [state["prefix"][0]]
    for y in range(HEIGHT):
        for x in range(WIDTH):
            rows.append(torch.cat([state["columns"][x], state["rows"][y]]))
    return torch.stack(rows)


def attention_by_hand(attn, tokens_BTD: Tensor, allowed) -> Tensor:
    """The formulas of paper D.4, one query, one key and one head at a time."""
    batch, num_tokens, width = tokens_BTD.shape
    head_width = width // attn.num_heads
    mixed_BTD = torch.zeros_like(tokens_BTD)
    for b in range(batch):
        query, key, value = (attn.qkv(tokens_BTD[b])[:, i * width : (i + 1) * width] for i in range(3))
        for h in range(attn.num_heads):
            of_head = slice(h * head_width, (h + 1) * head_width)
            for q in range(num_tokens):
                logits = []
                for k in range(num_tokens):
                    offset_row = attn.relative_embed[(q - k) + num_tokens - 1]
                    content = sum(query[q, of_head] * key[k, of_head])
                    relative = sum(query[q, of_head] * offset_row[of_head])
                    logit = (content + relative) / math.sqrt(head_width)
                    logits.append(logit if allowed(q, k) else torch.tensor(-math.inf))
                shares = torch.stack(logits).softmax(dim=0)
                mixed_BTD[b, q, of_head] = sum(share * value[k, of_head] for k, share in enumerate(shares))
    return attn.proj(mixed_BTD)


def sincos_by_hand(y: int, x: int, width: int) -> list[float]:
    """Of one patch, number by number."""
    quarter = width // 4
    frequencies = [1 / 10_000 ** (i / (quarter - 1)) for i in range(quarter)]
    of_column = [math.sin(x * w) for w in frequencies] + [math.cos(x * w) for w in frequencies]
    return of_column + [math.sin(y * w) for w in frequencies] + [math.cos(y * w) for w in frequencies]


def sincos_of_the_authors(height: int, width: int, hidden: int) -> np.ndarray:
    """(N, D) by the steps of big_vision's models/vit.py, in float64."""
    rows, columns = np.indices((height, width)).reshape(2, -1)
    omega = np.power(10_000.0, -np.arange(hidden // 4) / (hidden // 4 - 1))
    by_row, by_column = np.multiply.outer(rows, omega), np.multiply.outer(columns, omega)
    return np.hstack([np.sin(by_column), np.cos(by_column), np.sin(by_row), np.cos(by_row)])


def test_table_8_has_eight_cells_and_no_others_are_taken_but_the_fixed_one():
    taken = []
    for kind in POSEMBS:
        for place in POSEMB_PLACES:
            try:
                models_pos_embed.check_choice(kind, place)
            except VitError as error:
                assert "posemb" in error.where
            else:
                taken.append((kind, place))

    assert sorted(taken) == sorted(CELLS)
    assert [cell for cell in CELLS if models_pos_embed.is_timms(*cell)] == [("none", "stem"), ("1d", "stem")]


@pytest.mark.parametrize(
    ("kind", "place", "hint"), [("relativ", "stem", "relative"), ("1d", "every_layers", "every_layer")]
)
def test_a_mistyped_choice_is_refused_with_the_nearest(kind, place, hint):
    with pytest.raises(VitError, match=f"did you mean '{hint}'"):
        models_pos_embed.check_choice(kind, place)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_1d_at_the_stem_is_timms_own(mode):
    ours, timms = network("1d", "stem", dropout=0.3), bare(pos_embed="learn", pos_drop_rate=0.3)
    state = ours.state_dict()
    timms.load_state_dict({"pos_embed": state.pop("positions.table"), **state})

    outputs = []
    for model in (ours, timms):
        torch.manual_seed(3)
        outputs.append(model.train(mode == "train")(images()))
    assert torch.equal(*outputs)


@pytest.mark.parametrize(("kind", "place"), WITH_NUMBERS)
def test_tables_of_zeros_are_the_network_without_positions(kind, place):
    model = network(kind, place)
    moved = model(images())
    for name in positions_of(model):
        model.get_parameter(name).data.zero_()

    torch.testing.assert_close(model(images()), bare()(images()), atol=1e-6, rtol=0)
    assert not torch.allclose(moved, bare()(images()), atol=1e-2)


@pytest.mark.parametrize(("kind", "place"), ADDED)
def test_each_token_gets_what_the_tables_say_where_the_tables_stand(kind, place):
    model, x_BTD = network(kind, place), tokens_before_positions(bare(), images())
    if place == "stem":
        x_BTD = x_BTD + added_by_hand(model, "positions.")
    for i, block in enumerate(bare().blocks):
        if place != "stem":
            x_BTD = x_BTD + added_by_hand(
                model, "positions." if "shared" in place else f"blocks.{i}.positions."
            )
        x_BTD = block(x_BTD)

    torch.testing.assert_close(model.forward_features(images()), bare().norm(x_BTD))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("mask", ["all", "boolean", "additive", "causal"])
def test_relative_attention_is_the_formula_query_by_key(fused, mask):
    attn = network("relative", "stem", grid=(2, 2)).blocks[1].attn
    attn.fused_attn = fused
    tokens_BTD = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    seen = torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) < 0.7
    seen.fill_diagonal_(True)
    options, allowed = {
        "all": ({}, lambda q, k: True),
        "boolean": ({"attn_mask": seen}, lambda q, k: seen[q, k]),
        "additive": ({"attn_mask": torch.zeros(5, 5).masked_fill(~seen, -math.inf)}, lambda q, k: seen[q, k]),
        "causal": ({"is_causal": True}, lambda q, k: k <= q),
    }[mask]

    by_hand = attention_by_hand(attn, tokens_BTD, allowed)

    torch.testing.assert_close(attn(tokens_BTD, **options), by_hand, atol=1e-5, rtol=1e-5)


def test_the_fused_and_the_plain_attention_have_the_same_gradients():
    gradients = []
    for fused in (True, False):
        model = network("relative", "stem")
        for block in model.blocks:
            block.attn.fused_attn = fused
        model(images()).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])

    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("kind", ["none", "relative"])
def test_attention_weights_are_dropped_in_both_attentions_while_training(kind):
    for fused in (True, False):
        model = network(kind, "stem", attn_drop_rate=0.5)
        for block in model.blocks:
            block.attn.fused_attn = fused
        evaluated = model(images())

        assert not torch.allclose(model.train()(images()), evaluated, atol=1e-3)


def test_a_token_alone_attends_to_itself():
    logits = models_pos_embed.relative_logits(torch.tensor([[[[2.0, 3.0]]]]), torch.tensor([[5.0, 7.0]]))

    assert logits.tolist() == [[[[31.0]]]]


@pytest.mark.parametrize(("kind", "place"), ADDED)
def test_the_tokens_are_dropped_after_the_first_addition_and_no_other(kind, place):
    model = network(kind, place, dropout=1.0).train()
    second = input_of_block(model, 1, images())
    model.blocks[0].register_forward_hook(lambda block, args, output: torch.zeros_like(output))
    alone = input_of_block(model, 1, images())

    assert not input_of_block(model, 0, images()).any()
    assert second.all()
    name = {"every_layer": "blocks.1.positions.", "every_layer_shared": "positions."}.get(place)
    added_TD = added_by_hand(model, name) if name else torch.zeros(NUM_TOKENS, 8)
    torch.testing.assert_close(alone, added_TD.expand(2, -1, -1))


def test_an_evaluating_network_drops_nothing_from_the_start():
    assert torch.equal(network("1d", "stem", dropout=0.5)(images()), network("1d", "stem")(images()))


@pytest.mark.parametrize("kind", ["none", "relative"])
def test_nothing_is_dropped_where_nothing_is_added(kind):
    model = network(kind, "stem", dropout=1.0, pos_drop_rate=1.0)

    assert torch.equal(model.train()(images()), model.eval()(images()))


@pytest.mark.parametrize(("kind", "place"), TABLE_8)
def test_the_names_are_ours_and_timm_refuses_them(kind, place):
    tables = {"1d": {"table"}, "2d": {"rows", "columns", "prefix"}, "none": set(), "relative": set()}[kind]
    homes = ["blocks.0.positions", "blocks.1.positions"] if place == "every_layer" else ["positions"]
    expected = {f"{home}.{table}" for home in homes for table in tables}
    if kind == "relative":
        expected = {"blocks.0.attn.relative_embed", "blocks.1.attn.relative_embed"}

    model = network(kind, place)
    assert set(positions_of(model)) == model.state_dict().keys() - bare().state_dict().keys() == expected
    for other in [bare(), bare(pos_embed="learn")][kind == "none" :]:
        with pytest.raises(RuntimeError, match="Unexpected" if kind != "none" else "Missing"):
            other.load_state_dict(model.state_dict())


def test_the_tables_have_the_shapes_of_the_paper():
    shapes = {
        name: tuple(t.shape) for name, t in network("2d", "stem").named_parameters() if "positions" in name
    }

    assert shapes == {"positions.rows": (2, 4), "positions.columns": (3, 4), "positions.prefix": (1, 8)}
    assert network("1d", "stem").positions.table.shape == (1, 7, 8)
    assert network("relative", "stem").blocks[0].attn.relative_embed.shape == (13, 8)


@pytest.mark.parametrize(("kind", "place"), [("1d", "stem"), ("2d", "stem"), ("relative", "stem")])
def test_fresh_tables_are_normal_with_deviation_0_02_and_not_cut(kind, place):
    tables = []
    for _ in range(2):
        model = bare(grid=(16, 16), width=96, layers=1)
        torch.manual_seed(0)
        models_pos_embed.install(model, kind=kind, place=place, dropout=0.0)
        tables.append(torch.cat([model.get_parameter(name).flatten() for name in positions_of(model)]))

    assert torch.equal(*tables)
    assert tables[0].std().item() == pytest.approx(0.02, rel=0.05)
    assert tables[0].mean().item() == pytest.approx(0, abs=0.002)
    assert tables[0].abs().max() > 0.05  # cut at two deviations none would exceed 0.04


def test_without_a_class_token_there_is_no_row_for_one():
    options = {"class_token": False, "global_pool": "avg"}

    model = network("2d", "stem", **options)
    assert positions_of(model) == ["positions.rows", "positions.columns"]
    first = model.positions.columns[0].tolist() + model.positions.rows[0].tolist()
    assert model.positions()[0, 0].tolist() == first
    assert network("1d", "every_layer_shared", **options)(images()).isfinite().all()
    assert network("relative", "stem", **options).blocks[0].attn.relative_embed.shape == (11, 8)


def test_an_odd_width_has_no_halves_for_columns_and_rows():
    with pytest.raises(VitError, match="width of 9"):
        network("2d", "stem", width=9, heads=3)


@pytest.mark.parametrize(("kind", "place"), WITH_NUMBERS)
def test_a_deep_copy_goes_its_own_way(kind, place):
    model = network(kind, place)
    before = model(images())
    other = copy.deepcopy(model)
    for name in positions_of(other):
        other.get_parameter(name).data.mul_(-1)
    moved = other(images())

    assert torch.equal(model(images()), before)
    assert not torch.allclose(moved, before, atol=1e-2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images()), before)


@pytest.mark.parametrize(("kind", "place"), WITH_NUMBERS)
def test_gradients_are_the_same_with_checkpointing(kind, place):
    plain, saving = network(kind, place), network(kind, place)
    saving.set_grad_checkpointing(True)
    for model in (plain, saving):
        model.train()(images()).square().sum().backward()

    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(saving.get_parameter(name).grad, parameter.grad)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pytest.param("1d", "every_layer_shared", marks=pytest.mark.slow),
        pytest.param("2d", "every_layer", marks=pytest.mark.slow),
        ("relative", "stem"),
        FIXED,
    ],
)
@pytest.mark.slow
def test_torch_compile_takes_the_whole_network(kind, place):
    torch._dynamo.reset()
    model = network(kind, place, layers=2)
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    with torch.no_grad():
        torch.testing.assert_close(compiled(images()), model(images()))


@pytest.mark.parametrize(("kind", "place"), CELLS)
def test_a_network_of_shapes_alone_has_the_same_tensors(kind, place):
    with torch.device("meta"):
        model = VisionTransformer(
            img_size=(8, 12), patch_size=4, num_classes=3, embed_dim=8, num_heads=2, depth=2,
            pos_embed="none", weight_init="skip",
        )  # fmt: skip
        models_pos_embed.install(model, kind=kind, place=place, dropout=0.1)

    real = {name: tensor.shape for name, tensor in network(kind, place).state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == real
    assert all(tensor.is_meta for tensor in model.state_dict().values())


@pytest.mark.parametrize(("kind", "place"), CELLS)
def test_timms_other_ways_through_the_network_see_the_positions(kind, place):
    model = network(kind, place)
    features, (first, last) = model.forward_intermediates(images(), output_fmt="NLC")

    assert torch.equal(features, model.forward_features(images()))
    assert torch.equal(model.norm(model.forward_intermediates(images())[1][1].flatten(2).mT), features[:, 1:])
    assert not torch.equal(first, last)
    assert torch.equal(model.forward_head(features), model(images()))


@pytest.mark.parametrize(
    ("kind", "place", "method"),
    [
        ("2d", "stem", "hook"),
        ("2d", "every_layer", "hook"),
        ("relative", "stem", "hook"),
        ("2d", "every_layer", "fx"),
        pytest.param("2d", "stem", "fx", marks=pytest.mark.slow),
        pytest.param("relative", "stem", "fx", marks=pytest.mark.slow),
    ],
)
def test_timm_finds_the_attention_weights(kind, place, method):
    model = network(kind, place)
    for block in model.blocks:
        block.attn.fused_attn = False
    maps = list(AttentionExtract(model, method=method)(images()).values())

    x_BTD = model.blocks[1].norm1(input_of_block(model, 1, images()))
    value_BTD = model.blocks[1].attn.qkv(x_BTD)[..., 16:]
    mixed = [maps[1][:, h] @ value_BTD[..., 4 * h : 4 * h + 4] for h in range(2)]
    attn = model.blocks[1].attn
    torch.testing.assert_close(attn.proj(torch.cat(mixed, dim=-1)), attn(x_BTD))


def test_relative_attention_runs_in_bfloat16():
    model = network("relative", "stem")
    with torch.autocast("cpu", torch.bfloat16):
        halved = model(images())

    torch.testing.assert_close(halved.float(), model(images()), atol=0.15, rtol=0)


@pytest.mark.parametrize("place", POSEMB_PLACES)
@pytest.mark.parametrize("kind", ["1d", "2d"])
def test_resampling_is_that_of_the_whole_table(kind, place):
    model, other = network(kind, place), network(kind, place, grid=(5, 4))
    state = model.state_dict()
    moved, changed = models_pos_embed.resample(
        state, kind=kind, place=place, old_grid=(2, 3), new_grid=(5, 4), num_prefix=1
    )
    other.load_state_dict(moved)

    assert changed == [name for name in positions_of(model) if not name.endswith("prefix")]
    assert all(moved[name] is state[name] for name in state.keys() - set(changed))
    for ours, theirs in zip(model.modules(), other.modules(), strict=True):
        if isinstance(ours, models_pos_embed.Positions):
            torch.testing.assert_close(theirs(), resample_posemb(ours(), (2, 3), (5, 4)))


def test_only_the_axis_that_changes_is_resampled():
    state = network("2d", "stem").state_dict()
    options = {"kind": "2d", "place": "stem", "old_grid": (2, 3), "num_prefix": 1}

    assert models_pos_embed.resample(state, new_grid=(4, 3), **options)[1] == ["positions.rows"]
    moved, changed = models_pos_embed.resample(state, new_grid=(2, 5), **options)
    assert changed == ["positions.columns"]
    middle = (state["positions.columns"][0] + state["positions.columns"][1]) / 2
    torch.testing.assert_close(moved["positions.columns"][1], middle)


def test_timms_resampling_of_a_1d_table_is_bicubic_and_2d_tables_have_none():
    options = {"old_grid": (2, 3), "new_grid": (4, 6), "num_prefix": 1, "method": "timm"}
    ours, timms = network("1d", "stem").state_dict(), bare(pos_embed="learn")
    timms.pos_embed.data = ours["positions.table"].clone()
    timms.set_input_size(img_size=(16, 24))

    moved, _ = models_pos_embed.resample(ours, kind="1d", place="stem", **options)
    assert torch.equal(moved["positions.table"], timms.pos_embed)
    of_timm = {"pos_embed": ours["positions.table"]}
    assert torch.equal(
        models_pos_embed.resample(of_timm, kind="1d", place="stem", **options)[0]["pos_embed"],
        timms.pos_embed,
    )
    with pytest.raises(VitError, match="rows and columns"):
        models_pos_embed.resample(network("2d", "stem").state_dict(), kind="2d", place="stem", **options)


@pytest.mark.parametrize(("kind", "place"), CELLS)
def test_the_same_grid_changes_nothing(kind, place):
    state = network(kind, place).state_dict()
    same, changed = models_pos_embed.resample(
        state, kind=kind, place=place, old_grid=(2, 3), new_grid=[2, 3], num_prefix=1, method="timm"
    )

    assert changed == []
    assert all(same[name] is state[name] for name in state)


def test_relative_embeddings_stay_on_their_grid_even_where_the_shapes_would_fit():
    options = {"old_grid": (2, 3), "new_grid": (3, 2), "num_prefix": 1}
    with pytest.raises(VitError, match="2x3 cannot be used on one of 3x2"):
        models_pos_embed.resample(
            network("relative", "stem").state_dict(), kind="relative", place="stem", **options
        )

    state = bare().state_dict()
    assert models_pos_embed.resample(state, kind="none", place="stem", **options) == (state, [])


def test_the_fixed_embedding_is_the_formula_patch_by_patch():
    table_1TD = models_pos_embed.sincos2d((HEIGHT, WIDTH), NUM_TOKENS, 8)
    expected = [[0.0] * 8] + [sincos_by_hand(y, x, 8) for y in range(HEIGHT) for x in range(WIDTH)]

    assert table_1TD.dtype == torch.float64
    torch.testing.assert_close(table_1TD[0], torch.tensor(expected, dtype=torch.float64))
    first_of_second_row = [0, 0, 1, 1, math.sin(1), math.sin(1e-4), math.cos(1), math.cos(1e-4)]
    assert table_1TD[0, 1 + WIDTH].tolist() == pytest.approx(first_of_second_row, abs=1e-12)


@pytest.mark.parametrize(("grid", "width"), [((14, 14), 384), ((7, 12), 192), ((1, 5), 16), ((32, 3), 768)])
def test_the_fixed_embedding_is_big_visions(grid, width):
    ours = models_pos_embed.sincos2d(grid, grid[0] * grid[1], width)

    np.testing.assert_allclose(ours[0].numpy(), sincos_of_the_authors(*grid, width), atol=1e-12)


@pytest.mark.parametrize("with_class_token", [True, False])
def test_each_patch_gets_its_sines_and_cosines_and_the_class_token_nothing(with_class_token):
    options = {} if with_class_token else {"class_token": False, "global_pool": "avg"}
    plain = bare(**options)
    tokens_BTD = plain.patch_embed(images())
    for y in range(HEIGHT):
        for x in range(WIDTH):
            tokens_BTD[:, y * WIDTH + x] += torch.tensor(sincos_by_hand(y, x, 8))
    if with_class_token:
        tokens_BTD = torch.cat([plain.cls_token.expand(2, -1, -1), tokens_BTD], dim=1)

    torch.testing.assert_close(input_of_block(network(*FIXED, **options), 0, images()), tokens_BTD)


def test_the_fixed_embedding_is_no_parameter_and_in_no_state_dict():
    model, plain = network(*FIXED), bare()
    model(images()).square().sum().backward()

    assert list(model.state_dict()) == list(plain.state_dict()) and not positions_of(model)
    assert not model.positions.table.requires_grad and model.positions.table.grad is None
    assert all(parameter.grad is not None for parameter in model.parameters())
    network(*FIXED, grid=(4, 3)).load_state_dict(plain.state_dict(), strict=True)
    with pytest.raises(RuntimeError, match="pos_embed"):
        bare(pos_embed="learn").load_state_dict(model.state_dict())


def test_the_tokens_are_dropped_after_the_fixed_embedding():
    model = network(*FIXED, dropout=1.0)

    assert input_of_block(model, 0, images()).all()
    assert not input_of_block(model.train(), 0, images()).any()


def test_another_grid_has_the_fixed_embedding_of_that_grid():
    state = network(*FIXED).state_dict()
    moved, changed = models_pos_embed.resample(
        state, kind="sincos2d", place="stem", old_grid=(2, 3), new_grid=(5, 4), num_prefix=1, method="timm"
    )
    other = network(*FIXED, grid=(5, 4))
    other.load_state_dict(moved)

    assert changed == [] and all(moved[name] is state[name] for name in state)
    expected = [sincos_by_hand(y, x, 8) for y in range(5) for x in range(4)]
    torch.testing.assert_close(other.positions()[0, 1:], torch.tensor(expected))


def test_the_fixed_embedding_has_numbers_on_any_default_device():
    with torch.device("meta"):
        on_meta = models_pos_embed.sincos2d((2, 3), 6, 16)

    assert torch.equal(on_meta, models_pos_embed.sincos2d((2, 3), 6, 16))


def test_the_fixed_embedding_is_exact_wherever_the_network_has_been():
    model, expected = network(*FIXED), network(*FIXED).positions().clone()
    assert model.double().positions().dtype == torch.float64
    assert torch.equal(model.double().positions(), models_pos_embed.sincos2d((HEIGHT, WIDTH), NUM_TOKENS, 8))
    assert torch.equal(model.bfloat16().positions(), expected.bfloat16())
    assert torch.equal(model.float().positions(), expected)
    assert torch.equal(copy.deepcopy(model).positions(), expected)
    assert model.to("meta").positions().is_meta
    assert torch.equal(model.to_empty(device="cpu").positions(), expected)


def test_a_network_built_of_shapes_alone_computes_the_fixed_embedding_once_it_has_memory():
    with torch.device("meta"):
        model = VisionTransformer(
            img_size=(8, 12), patch_size=4, num_classes=3, embed_dim=8, num_heads=2, depth=2,
            pos_embed="none", weight_init="skip",
        ).eval()  # fmt: skip
        models_pos_embed.install(model, kind="sincos2d", place="stem", dropout=0.0)
        assert model(torch.empty(1, 3, 8, 12)).is_meta
    model.to_empty(device="cpu").load_state_dict(network(*FIXED).state_dict())

    assert torch.equal(model(images()), network(*FIXED)(images()))


@pytest.mark.parametrize("width", [9, 10, 18])
def test_a_width_without_four_equal_parts_has_no_sines_and_cosines(width):
    with pytest.raises(VitError, match=f"width of {width}"):
        network(*FIXED, width=width, heads=1)


def test_the_fixed_embedding_is_added_at_the_stem_alone():
    with pytest.raises(VitError, match="added to the patches once"):
        models_pos_embed.check_choice("sincos2d", "every_layer")
