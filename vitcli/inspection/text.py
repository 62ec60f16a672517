"""What was seen inside a network in words: for a terminal, and below each picture of the page."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitcli.inspection.figures import step_of_tiles
from vitcli.output import text as output_text
from vitcli.output.document import Cell, Header, Row, Table
from vitcli.output.redaction import public_name
from vitcli.output.text import plain, short_names

# Figures in the order of the page: what a person calls each.
NAMES = {
    "filters": "filters",
    "position_similarity": "position similarity",
    "attention_distance": "attention distance",
    "distances_compared": "attention distance compared",
    "attention_by_head": "attention by head",
    "rollout": "attention roll-out",
    "attention_by_layer": "attention by layer",
    "patch_features": "patch features",
}
# The heading it stands under.
HEADINGS = {
    "filters": "Patch and position embeddings",
    "position_similarity": "Patch and position embeddings",
    "attention_distance": "How far attention reaches",
    "distances_compared": "How far attention reaches",
    "attention_by_head": "How far attention reaches",
    "rollout": "What the output attends to",
    "attention_by_layer": "What the output attends to",
    "patch_features": "Features after the last layer",
}
DRAWN_FROM = {"distances_compared": "attention_distance", "attention_by_layer": "attention_by_head"}
ABOUT = "left_out"  # the table at the end
LONGEST = 48  # characters of a name
WIDTH = 80  # columns of a line on a terminal


def names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a person calls each checkpoint: by its number, too, where there are two."""
    short = short_names([one["ckpt"] for one in results])
    called = [_cut(plain(short[one["ckpt"]])) for one in results]
    return called if len(called) == 1 else [f"{n}: {name}" for n, name in enumerate(called, start=1)]


def _cut(name: str) -> str:
    """A long one without its middle: what comes first and last tells it from others."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half:]}"


def size(result: Mapping[str, Any]) -> str:
    return output_text.size_text(result["resolution"])


def facts(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the page is of, a few words each."""
    told = []
    for name, one in zip(names(results), results, strict=True):
        grid = one["patch_grid"]
        patches = f", {grid[0]}x{grid[1]} patches of {one['patch_size']}" if grid else ""
        told.append(f"{name}: {one['model']} at {size(one)} px{patches}")
    split, dataset = results[0]["eval_split"], results[0]["dataset"]
    if split:
        count = _pictures(max(one["num_images"] for one in results))  # fewer of one without attention
        named = f" of {public_name(dataset)}{split.removeprefix(dataset)}" if dataset else ", as given"
        told.append(f"{count}{named}")
    return told


def _pictures(count: int) -> str:
    return f"{count} picture{'s' * (count != 1)}"


def caption(name: str, result: Mapping[str, Any]) -> str:
    """What a reader sees in a figure of one checkpoint, and which figure of the paper it is."""
    said = result[DRAWN_FROM.get(name, name)]
    match name:
        case "filters":
            return _filters(said)
        case "position_similarity":
            return _positions(said, result)
        case "attention_distance":
            return _distance(said, result)
        case "rollout":
            return _rollout(said)
        case "attention_by_head":
            return (
                f"What the {said['read_from']} attends to in the first picture, by layer and head; each map "
                "from dark, no attention, to yellow, its own largest."
            )
        case "attention_by_layer":
            return (
                f"What the {said['read_from']} attends to, layer by layer, mean of its heads; each map from "
                "dark, no attention, to yellow, its own largest."
            )
        case _:
            share, (height, width) = f"{sum(said['variance_shares']):.0%}", said["grid"]
            return (
                f"The features at each of {height}x{width} places after the last layer as a colour: their "
                f"first three principal components over all these pictures, {share} of the variance. Where "
                "two places have the same colour, the network has much the same to say of them."
            )


def _filters(said: Mapping[str, Any]) -> str:
    shares, (height, width) = said["variance_shares"], said["size"]
    return (
        f"The first {len(shares)} principal components of the {said['num_filters']} filters of "
        f"{height}x{width} pixels that see the image first, the strongest at the upper left; together "
        f"{sum(shares):.0%} of the variance. Grey is zero, and each has its own full range of colours. "
        "Paper, Figure 7, left."
    )


def _positions(said: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    words = {"same_row": "of one row", "same_column": "of one column", "elsewhere": "of neither"}
    told = ", ".join(
        f"{round(said[key], 2) + 0.0:.2f} {text}" for key, text in words.items() if said[key] is not None
    )
    mean = f", on average {told}" if told else ""
    height, width = result["patch_grid"]
    step = max(map(step_of_tiles, (height, width)))
    which = {2: "second", 3: "third"}.get(step, f"{step}th")
    some = f" Along a long side only every {which} patch has a tile." if step > 1 else ""
    return (
        f"Each tile stands for one patch of the {height}x{width} grid, and shows how alike its position "
        f"embedding is to that of every patch: the cosine{mean}.{some} Rows and columns make a "
        "cross where the network has learnt the grid. Paper, Figure 7, centre, and Figure 10."
    )


def _distance(said: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    by_layer = said["by_layer"]
    nearest, farthest = (by_layer.index(extreme(by_layer)) for extreme in (min, max))
    bars = "; bars are one standard deviation over pictures" if said["std_over_images"] else ""
    spread = f" Layer {nearest + 1} looks nearest, {by_layer[nearest]:.1f} px on average, layer "
    spread += f"{farthest + 1} farthest, {by_layer[farthest]:.1f} px." if len(by_layer) > 1 else ""
    if said["prefix_tokens"]:
        is_one = said["prefix_tokens"] == 1 and said["has_class_token"]
        tokens = "The class token is" if is_one else "Tokens that are no patch are"
        theirs = "it its" if is_one else "them their"
        rest = "" if said["renormalised"] else f", and with {theirs} part of the weights"
        bars += f". {tokens} left out{rest}"
    return (
        "How far each head looks: the distance in pixels from patch to patch, weighted by attention, mean "
        f"over {_pictures(result['num_images'])}{bars}. Dashed: attention "
        f"that is the same everywhere, {said['uniform']:.1f} px; above it a head prefers what is far, such "
        f"as the corners.{spread if len(by_layer) > 1 else ''} Paper, Figure 7, right, and Figure 11."
    )


def _rollout(said: Mapping[str, Any]) -> str:
    residual = ", each layer half its skip connection" if said["residual"] else ""
    full = said["full_at"]
    light = "the largest is full light" if full == 1 else f"full light from the {full:.0%} quantile on"
    return (
        f"Each picture, and beside it the same lit by how much the {said['read_from']} attends to each patch "
        f"through all layers: head means multiplied{residual}; {light}. Paper, Figures 6 and 14."
    )


def comparison(results: Sequence[Mapping[str, Any]]) -> str:
    """Below the figure that has both checkpoints."""
    both = " and ".join(names(results))
    return (
        f"Attention distance of {both} in parts of what uniform attention has, so that resolutions compare: "
        "lines are means of a layer's heads, bands go from the head that looks nearest to the farthest."
    )


def by_layer(results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Attention distance of each layer in pixels."""
    told = [
        (name, one["attention_distance"])
        for name, one in zip(names(results), results, strict=True)
        if "attention_distance" in one
    ]
    if not told:
        return None
    columns, lines = [], []
    for name, _ in told:
        which = f"network {name.partition(':')[0]}" if len(results) > 1 else ""
        columns += [Header(kind, which) for kind in ("nearest head", "mean", "farthest head")]
    for layer in range(max(len(said["mean"]) for _, said in told)):
        cells = []
        for _, said in told:
            of_heads = said["mean"][layer] if layer < len(said["mean"]) else []
            values = (min(of_heads), said["by_layer"][layer], max(of_heads)) if of_heads else ()
            cells += [Cell(f"{value:.1f}", value) for value in values] or [Cell("-")] * 3
        lines.append(Row(Header(str(layer + 1)), tuple(cells)))
    uniform = " and ".join(f"{said['uniform']:.1f}" for _, said in told)
    text = f"Attention distance in pixels by layer; uniform attention has {uniform}."
    return Table("layers", "Attention distance by layer", text, Header("layer"), tuple(columns), tuple(lines))


def what_is_left_out(results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Why a figure is not there."""
    lines = tuple(
        Row(Header(", ".join(figures), name if len(results) > 1 else ""), (Cell(why),))
        for name, one in zip(names(results), results, strict=True)
        for why, figures in _by_reason(one["left_out"]).items()
    )
    text = "Not every network has everything that the paper's pictures show."
    corner, why = Header("figures", kind="text"), Header("why", kind="text")
    return Table(ABOUT, "What does not apply", text, corner, (why,), lines) if lines else None


def _by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for figure, why in left_out.items():
        found.setdefault(why, []).append(NAMES[figure])
    return found


def as_text(result: Mapping[str, Any]) -> str:
    """The result for a person."""
    results = result.get("inspections", [result])
    networks, pictures = facts(results)[: len(results)], facts(results)[len(results) :]
    rows = [("network", fact) for fact in networks] + [("pictures", fact) for fact in pictures]
    for one in results:
        rows += output_text.skipped(one)
    parts = [_wrapped(rows)]
    distances = by_layer(results)
    if distances:
        # Six columns fit into a terminal by short names.
        columns = tuple(Header(_short_header(column)) for column in distances.columns)
        parts.append(f"{distances.caption}\n{replace(distances, columns=columns).as_text()}")
    left_out = what_is_left_out(results)
    rest = []
    for line in left_out.rows if left_out else ():
        whose = line.head.detail.partition(" ")[0]  # its number
        told = " ".join(filter(None, (whose, f"{line.head.name}: {line.cells[0].text}")))
        rest.append(("" if rest else "left out", told))
    count = sum(len(one["figures"]) for one in results) + bool(result.get("compared", {}).get("figures"))
    files = [("figures", f"{count} in {result['out']}, as PNG and SVG"), ("page", result["page"])]
    parts.append(_wrapped(rest) + output_text.pairs(files))
    return "\n".join(parts)


def _short_header(column: Header) -> str:
    """Return the header "1: nearest" of the nearest head of network 1."""
    number = column.detail.removeprefix("network ")
    return f"{number}: {column.name.removesuffix(' head')}" if number else column.name


def _wrapped(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, long ones on several lines."""
    lines: list[tuple[str, str]] = []
    for name, value in rows:
        parts = textwrap.wrap(plain(value), WIDTH - 12, break_long_words=False, break_on_hyphens=False)
        lines += [(name if at == 0 else "", part) for at, part in enumerate(parts)]
    return output_text.pairs(lines)
