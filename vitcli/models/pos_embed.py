"""Position embeddings: resampled to another patch grid (paper, section 3.2), and those that timm lacks.

Learned embeddings and patch kernels are resampled at another resolution or patch size. The embeddings of the
paper's Table 8 (section D.4) and fixed ones are installed into a network that timm built with
pos_embed="none", under names timm does not know, so timm refuses to load their weights: `positions.*`,
`blocks.<i>.positions.*` and `blocks.<i>.attn.relative_embed`. Fixed ones ("sincos2d") are not stored.

B batch, T tokens (prefix tokens such as the class token, then N patches), D hidden width, A attention heads,
E = D / A width of a head, R = 2T - 1 offsets between tokens, H x W the patch grid.
"""

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from timm.layers import (
    Attention,
    maybe_add_mask,
    resample_abs_pos_embed,
    resample_patch_embed,
    resolve_self_attn_mask,
)
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import init

from vitcli.errors import VitError, nearest
from vitcli.models.architecture import POSEMB_PLACES, POSEMBS, Architecture

METHODS = ("paper", "timm")


def method_for(arch: Architecture, method: str) -> str:
    """Return the method for a network; "auto" is the paper's for its networks, timm's for timm's others."""
    return method if method != "auto" else "paper" if arch.is_of_the_paper else "timm"


def resample_posemb(
    posemb_1TD: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    *,
    num_prefix: int = 1,
    method: str = "paper",
) -> Tensor:
    """Resample a learned position embedding to another patch grid.

    A larger image at the same patch size has more patches than the embedding has rows, so the
    rows are interpolated in 2-D, each at the place of its patch in the image. The class token
    has no place in the image and stays as it is.
    Source: paper, section 3.2. It names no kernel; bilinear with aligned corners is the zoom of
    the authors' code (equal to 1e-14 in float64).

    Args:
        posemb_1TD: (1, num_prefix + H*W, D), class token first, any float dtype.
        old_grid: (H, W) in patches, not pixels. Never guessed from T: 16 rows may be 4x4 or 2x8.
        new_grid: (H', W') in patches.
        num_prefix: tokens without a place in the image: the class token, registers.
        method: "paper", or "timm": bicubic with antialias and half-pixel centres, as timm resamples
            when it loads a state dict or changes the image size.

    Returns:
        (1, num_prefix + H'*W', D), same dtype and device; computed in float32.

    Raises:
        VitError: T is not num_prefix + H*W, or there is no such method.
    """
    check_method(method)
    height, width = old_grid
    if num_prefix < 0 or posemb_1TD.shape[1] != num_prefix + height * width:
        raise VitError(
            f"a position embedding of {posemb_1TD.shape[1]} rows does not cover a grid of {height}x{width}",
            where="position embedding",
            fix="name the image size these weights were trained at",
        )
    if method == "timm":
        return resample_abs_pos_embed(
            posemb_1TD, new_size=list(new_grid), old_size=list(old_grid), num_prefix_tokens=num_prefix
        )
    prefix_1SD, grid_1ND = posemb_1TD[:, :num_prefix], posemb_1TD[:, num_prefix:]
    grid_1DHW = grid_1ND.unflatten(1, old_grid).permute(0, 3, 1, 2)
    resampled_1DHW = F.interpolate(grid_1DHW.float(), size=new_grid, mode="bilinear", align_corners=True)
    resampled_1ND = resampled_1DHW.flatten(2).transpose(1, 2).to(posemb_1TD.dtype)
    return torch.cat([prefix_1SD, resampled_1ND], dim=1)


def resample_patch_embedding(kernel_DCPP: Tensor, patch_size: int, *, method: str) -> Tensor:
    """Resample the patch projection to another patch size: the pseudo-inverse resize of FlexiViT.

        new kernel = pinv(B^T) kernel        B resizes a patch, as a matrix

    With a larger patch, an enlarged patch gets exactly the response of the old patch. With a smaller one the
    responses are the closest in least squares over patches of white noise.
    Source: arXiv 2212.08013, section 3.4, and big_vision's flexi/vit.py. It is not in the ViT paper.

    Args:
        kernel_DCPP: weight of the convolution that makes the tokens, any float dtype; its bias stays.
        patch_size: side of the new patch in pixels.
        method: "paper": B is bilinear without antialias, as in FlexiViT's code, so a kernel made smaller by
            more than 2 ignores some pixels; "timm": bicubic with antialias, timm's defaults.

    Returns:
        (D, C, patch_size, patch_size), same dtype and device; computed in float32.

    Raises:
        VitError: the patch size is not positive, or there is no such method.
    """
    check_method(method)
    if patch_size < 1:
        fix = "take a patch size of 1 or more"
        raise VitError(f"a patch of {patch_size} pixels cannot be projected", where="patch size", fix=fix)
    kernel, is_timms = "bilinear" if method == "paper" else "bicubic", method == "timm"
    return resample_patch_embed(kernel_DCPP, [patch_size, patch_size], kernel, antialias=is_timms)


def similarity_at_landmarks(
    old_1TD: Tensor,
    old_grid: tuple[int, int],
    new_1TD: Tensor,
    new_grid: tuple[int, int],
    *,
    num_prefix: int,
) -> dict[str, float]:
    """Compare two position embeddings at the same places of the image, on any two grids.

    Both are sampled, bilinear with aligned corners, at the corners of the image, the middles of its edges and
    its centre. Bilinear resampling with aligned corners keeps the corners exactly (similarity 1), and the
    midpoints where both grids have odd sides.

    Returns:
        Cosine similarities from -1 to 1, 0 where an embedding is zero: "corners" is the smallest of the four
        corners, "midpoints" the smallest of the four middles of edges and the centre.

    Raises:
        VitError: an embedding does not cover its grid.
    """
    old_9D, new_9D = (
        resample_posemb(posemb.float(), grid, (3, 3), num_prefix=num_prefix)[0, num_prefix:]
        for posemb, grid in ((old_1TD, old_grid), (new_1TD, new_grid))
    )
    similarities = F.cosine_similarity(old_9D, new_9D, dim=-1).tolist()  # row by row from the upper left
    corners = [similarities[i] for i in (0, 2, 6, 8)]
    midpoints = [similarities[i] for i in (1, 3, 4, 5, 7)]
    return {"corners": min(corners), "midpoints": min(midpoints)}


def check_method(method: str) -> None:
    """Refuse a resampling method that is not in METHODS."""
    if method not in METHODS:
        raise VitError(
            f"there is no resampling method {method!r}{nearest(method, METHODS)}",
            where="--method (recipe key model.posemb_resample)",
            fix=f"take one of {', '.join(METHODS)}",
        )


STD = 0.02  # normal, not truncated, as in the authors' code


def check_choice(kind: str, place: str) -> None:
    """Refuse a choice without a cell in the paper's Table 8, except "sincos2d" at the stem."""
    for key, choice, choices in (("posemb", kind, POSEMBS), ("posemb_at", place, POSEMB_PLACES)):
        if choice not in choices:
            raise VitError(
                f"there is no {key} {choice!r}{nearest(choice, choices)}",
                where=f"recipe key model.{key}",
                fix=f"take one of {', '.join(choices)}",
            )
    if kind in ("none", "relative", "sincos2d") and place != "stem":
        reason = "it is added to the patches once" if kind == "sincos2d" else "it adds nothing to the tokens"
        raise VitError(
            f"posemb {kind!r} cannot be at {place!r}: {reason}",
            where="recipe keys model.posemb and model.posemb_at",
            fix='set posemb_at = "stem", or posemb to 1d or 2d',
        )


def square_grid(num_patches: int) -> tuple[int, int]:
    """Return rows and columns of the patches of a square image."""
    side = math.isqrt(num_patches)
    assert side * side == num_patches, "not of a square image"
    return side, side


def check_patches_may_go(kind: str, place: str) -> None:
    """Refuse to leave out patches where a block still needs to know which place each token has."""
    if kind == "relative" or place != "stem":
        raise VitError(
            "patches cannot be left out where every layer adds their positions",
            where="recipe keys model.patch_dropout, posemb and posemb_at",
            fix="leave out model.patch_dropout, or take position embeddings at the stem",
        )


def is_timms(kind: str, place: str) -> bool:
    """Return True if timm has this choice itself, as pos_embed "learn" or "none"."""
    return (kind, place) in (("1d", "stem"), ("none", "stem"))


def install(model: VisionTransformer, *, kind: str, place: str, dropout: float) -> None:
    """Install the position embedding of one cell of Table 8, or "sincos2d", into a network without one.

    "1d" is one learned row for each token; for "2d" and "sincos2d" see `Positions`, for "relative"
    `RelativeAttention`; "none" changes nothing. At "stem" it is added to the tokens once. At "every_layer"
    each block has its own, at "every_layer_shared" all blocks share one, added to the block's input, which is
    the residual stream. Weights are drawn from torch's global generator: normal with deviation 0.02.

    Args:
        model: built by timm with pos_embed="none"; changed in place.
        kind: one of POSEMBS.
        place: one of POSEMB_PLACES.
        dropout: probability, after the first addition only. The paper uses dropout at the stem and does not
            mention the other places; its code has none where nothing is added, so "none" and "relative" have
            no such dropout.

    Raises:
        VitError: a choice that is not in Table 8, or a width that "2d" or "sincos2d" cannot split.
    """
    check_choice(kind, place)
    assert model.pos_embed is None, "the network already has timm's position embedding"
    assert not model.dynamic_img_size, "tokens would move"
    match kind, place:
        case "none", _:
            pass
        case "relative", _:
            for block in model.blocks:
                _make_relative(block.get_submodule("attn"), _num_tokens(model))
        case _, "stem":
            model.positions = Positions(model, kind, dropout)
            # The next module after the place where timm adds its own position embedding.
            model.patch_drop.register_forward_pre_hook(model.positions.add_and_drop)
        case _, "every_layer":
            for i, block in enumerate(model.blocks):
                block.positions = Positions(model, kind, dropout)
                block.register_forward_pre_hook(block.positions.add if i else block.positions.add_and_drop)
        case _, "every_layer_shared":
            model.positions = Positions(model, kind, dropout)
            for i, block in enumerate(model.blocks):
                block.register_forward_pre_hook(model.positions.add if i else model.positions.add_and_drop)


class Positions(nn.Module):
    """Position embedding, added to the tokens by a forward pre-hook of another module.

    "1d"        `table` (1, T, D), one row for each token.
    "2d"        `rows` (H, D/2) and `columns` (W, D/2); a patch has that of its column, then that of its row
                (X before Y, as in the paper). The paper does not say what the class token gets; here each
                prefix token has a learned row in `prefix` (S, D).
    "sincos2d"  fixed `table` (1, T, D), not in the state dict; prefix tokens get zeros, as in big_vision.

    `add` and `add_and_drop` are the hooks. They are methods, so that a deep copy of the network adds its own
    embedding and not the original's.
    """

    table: Tensor
    prefix: Tensor | None

    def __init__(self, model: VisionTransformer, kind: str, dropout: float):
        super().__init__()
        width, num_prefix = model.embed_dim, model.num_prefix_tokens
        self.kind = kind
        self.num_rows, self.num_columns = model.patch_embed.grid_size
        _check_width(kind, width)
        match kind:
            case "1d":
                self.table = _drawn(model, 1, _num_tokens(model), width)
            case "2d":
                self.rows = _drawn(model, self.num_rows, width // 2)
                self.columns = _drawn(model, self.num_columns, width // 2)
                self.register_parameter("prefix", _drawn(model, num_prefix, width) if num_prefix else None)
            case "sincos2d":
                table_1TD = sincos2d(model.patch_embed.grid_size, _num_tokens(model), width)
                self.register_buffer("table", table_1TD.to(next(model.parameters())), persistent=False)
        self.drop = nn.Dropout(dropout)
        self.method: str | None = None  # of resampling for images of other sizes; None takes none
        self.train(model.training)

    def forward(self) -> Tensor:
        """Return the position embedding (1, T, D)."""
        if self.kind != "2d":
            return self.table
        x_HWd = self.columns.expand(self.num_rows, -1, -1)
        y_HWd = self.rows[:, None].expand(-1, self.num_columns, -1)
        patches_ND = torch.cat([x_HWd, y_HWd], dim=-1).flatten(0, 1)
        tokens_TD = patches_ND if self.prefix is None else torch.cat([self.prefix, patches_ND])
        return tokens_TD[None]

    def for_tokens(self, num_tokens: int) -> Tensor:
        """Return the position embedding (1, T, D) of this many tokens, of a square image if not its own."""
        own_1TD, own_grid = self(), (self.num_rows, self.num_columns)
        num_prefix = own_1TD.shape[1] - self.num_rows * self.num_columns
        if num_tokens == own_1TD.shape[1]:
            return own_1TD
        grid = square_grid(num_tokens - num_prefix)
        if self.kind == "sincos2d":
            return sincos2d(grid, num_tokens, own_1TD.shape[-1]).to(own_1TD)
        return resample_posemb(own_1TD, own_grid, grid, num_prefix=num_prefix, method=self.method or "paper")

    def add(self, module: nn.Module, args: tuple) -> tuple:
        """Return the arguments of `module` with the embedding added to the first one, its tokens."""
        tokens_BTD, *others = args
        own_or_resampled = self() if self.method is None else self.for_tokens(tokens_BTD.shape[1])
        return (tokens_BTD + own_or_resampled, *others)

    def add_and_drop(self, module: nn.Module, args: tuple) -> tuple:
        """Return the same with dropout after the addition."""
        tokens_BTD, *others = self.add(module, args)
        return (self.drop(tokens_BTD), *others)

    def _apply(self, fn, recurse=True):
        """Move or cast the module, computing a fixed table again: `to_empty` or bfloat16 would damage it."""
        super()._apply(fn, recurse)
        if self.kind == "sincos2d":
            self.table = sincos2d((self.num_rows, self.num_columns), *self.table.shape[1:]).to(self.table)
        return self


@lru_cache(maxsize=8)  # not in each pass at another size; never write to the result
def sincos2d(grid: tuple[int, int], num_tokens: int, width: int) -> Tensor:
    """Return the fixed embedding (1, T, D), float64, of "Better plain ViT baselines" (arXiv 2205.01580).

        embedding(x, y) = [sin(x w), cos(x w), sin(y w), cos(y w)]      column x, row y of the patch
        w_i             = 10000^(-i / (D/4 - 1)),  i = 0, ..., D/4 - 1

    The frequencies are those of MoCo v3 and big_vision's posemb_sincos_2d. Prefix tokens have zeros.
    """
    with torch.device("cpu"):  # with a dtype, the same bits under any default device and dtype
        places = (torch.arange(side, dtype=torch.float64) for side in grid)
        y_HW, x_HW = torch.meshgrid(*places, indexing="ij")
        w_d = 10_000 ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
    x_Nd, y_Nd = (places_HW.reshape(-1, 1) * w_d for places_HW in (x_HW, y_HW))
    patches_ND = torch.cat([x_Nd.sin(), x_Nd.cos(), y_Nd.sin(), y_Nd.cos()], dim=1)
    return F.pad(patches_ND, (0, 0, num_tokens - len(patches_ND), 0))[None]


class RelativeAttention(Attention):
    """timm's attention, with a learned embedding of the offset from key to query in the logits.

    Query and key are at positions p and p' in the sequence of tokens, the class token at 0. The embedding of
    p - p' is split over the heads and scaled as a key is (paper, section D.4):

        logit(p, p') = (query_p . key_p' + query_p . embedding_{p - p'}) / sqrt(E)

    `relative_embed` (R, D) has the row of offset o at T - 1 + o.
    """

    relative_embed: Tensor

    def forward(self, tokens_BTD: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        num_tokens = tokens_BTD.shape[1]
        qkv_3BATE = self.qkv(tokens_BTD).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q_BATE, k_BATE, v_BATE = qkv_3BATE.unbind(0)
        q_BATE, k_BATE = self.q_norm(q_BATE), self.k_norm(k_BATE)
        # The second term of the logits is a bias of ordinary attention.
        bias_BATT = relative_logits(q_BATE * self.scale, self.relative_embed)
        mask = resolve_self_attn_mask(num_tokens, bias_BATT, attn_mask, is_causal)
        bias_BATT = maybe_add_mask(bias_BATT, mask)
        if self.fused_attn:
            rate = self.attn_drop.p if self.training else 0.0
            mixed_BATE = F.scaled_dot_product_attention(
                q_BATE, k_BATE, v_BATE, attn_mask=bias_BATT, dropout_p=rate
            )
        else:
            logits_BATT = (q_BATE * self.scale) @ k_BATE.transpose(-2, -1) + bias_BATT
            mixed_BATE = self.attn_drop(logits_BATT.softmax(dim=-1)) @ v_BATE
        mixed_BTD = self.norm(mixed_BATE.transpose(1, 2).flatten(2))
        return self.proj_drop(self.proj(mixed_BTD))


@torch.fx.wrap  # as timm's own attention, for its feature extraction
def relative_logits(q_BATE: Tensor, embedding_RD: Tensor) -> Tensor:
    """Return the products (B, A, T, T) of each query with the embedding of its offset to each key.

    Every query is multiplied with all R embeddings. Then each row is shifted by one more than the row above
    it by reading it from another address, without an index or a copy of the table for each pair (the
    "skewing" of Music Transformer, arXiv 1809.04281).
    """
    num_heads, num_tokens = q_BATE.shape[1:3]
    descending_RAE = embedding_RD.flip(0).unflatten(1, (num_heads, -1))  # offset T-1 first: keys ascend
    products_BATR = torch.einsum("bate,rae->batr", q_BATE, descending_RAE)
    # Key k of query q is in column T-1-q+k, at address q*R + T-1-q+k = T-1 + q*(R-1) + k.
    step = max(2 * num_tokens - 2, 1)  # R - 1; a single token has one offset
    in_memory = products_BATR.flatten(-2)[..., num_tokens - 1 : num_tokens - 1 + num_tokens * step]
    return in_memory.unflatten(-1, (num_tokens, step))[..., :num_tokens]


def resample(
    state: dict[str, Tensor],
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    *,
    kind: str,
    place: str,
    num_prefix: int,
    method: str = "paper",
) -> tuple[dict[str, Tensor], list[str]]:
    """Resample the position embeddings of a state dict to another patch grid.

    Tables of "1d", also timm's `pos_embed`, are resampled in 2-D, `rows` and `columns` of "2d" along their
    axis, which is equivalent. "sincos2d" is not stored: the network of the new grid computes it.

    Args:
        state: of a whole network; not changed.
        kind: one of POSEMBS.
        place: one of POSEMB_PLACES.
        old_grid: (H, W) in patches.
        new_grid: (H', W') in patches.
        num_prefix: rows of a "1d" table without a place in the image.
        method: as in `resample_posemb`.

    Returns:
        The state dict for the new grid, and the names of the resampled tensors.

    Raises:
        VitError: a table does not cover the old grid; or the grids differ and the kind is "relative", or it
            is "2d" and the method "timm".
    """
    check_choice(kind, place)
    check_method(method)
    if kind in ("none", "sincos2d") or tuple(old_grid) == tuple(new_grid):
        return dict(state), []
    check_can_move(kind, old_grid, new_grid, method)
    changed = {}
    for name, table in state.items():
        match kind, name.split("."):
            case "1d", ["pos_embed"] | [*_, "positions", "table"]:
                changed[name] = resample_posemb(
                    table, old_grid, new_grid, num_prefix=num_prefix, method=method
                )
            case "2d", [*_, "positions", "rows"] if old_grid[0] != new_grid[0]:
                changed[name] = _along_one_axis(table, old_grid[0], new_grid[0])
            case "2d", [*_, "positions", "columns"] if old_grid[1] != new_grid[1]:
                changed[name] = _along_one_axis(table, old_grid[1], new_grid[1])
    return state | changed, list(changed)


def check_can_move(kind: str, old_grid: tuple[int, int], new_grid: tuple[int, int], method: str) -> None:
    if kind == "relative":
        raise VitError(
            "relative position embeddings of a grid of {}x{} cannot be used on one of {}x{}: the same offset "
            "in the sequence is another displacement in the image".format(*old_grid, *new_grid),
            where="recipe key model.posemb",
            fix="keep the image size the weights were trained at, or train with posemb 1d or 2d",
        )
    if kind == "2d" and method == "timm":
        raise VitError(
            "timm has no position embeddings of rows and columns, and no method to resample them",
            where="resampling method",
            fix="take the method paper",
        )


def _along_one_axis(table_HD: Tensor, old_length: int, new_length: int) -> Tensor:
    """Resample a table linearly along its first axis, with both ends fixed."""
    return resample_posemb(table_HD[None], (old_length, 1), (new_length, 1), num_prefix=0)[0]


def _make_relative(attention: nn.Module, num_tokens: int) -> None:
    assert type(attention) is Attention and attention.gate is None, "not the paper's attention"
    attention.__class__ = RelativeAttention  # parameters and names stay, and one is added
    attention.relative_embed = _drawn(attention, 2 * num_tokens - 1, attention.proj.in_features)


def _check_width(kind: str, width: int) -> None:
    num_parts = {"2d": 2, "sincos2d": 4}.get(kind, 1)
    if width % num_parts:
        raise VitError(
            f"a hidden width of {width} cannot be split into {num_parts} equal parts for column and row",
            where="recipe key model.posemb",
            fix=f'take posemb = "1d" or a network whose width is a multiple of {num_parts}',
        )


def _num_tokens(model: VisionTransformer) -> int:
    return model.num_prefix_tokens + model.patch_embed.num_patches


def _drawn(module: nn.Module, *shape: int) -> nn.Parameter:
    """Draw a fresh table on the module's device, in its precision."""
    like = next(module.parameters())
    return nn.Parameter(init.normal_(torch.empty(shape, dtype=like.dtype, device=like.device), std=STD))
