"""Results of `vit inspect` in words: the text of a terminal, and captions and tables of the page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitcli.inspection.figures import step_of_tiles
from vitcli.output import text as output_text
from vitcli.output.document import Cell, Header, Row, Table
from vitcli.output.redaction import public_name
from vitcli.output.text import pairs, plain, short_names

Result = Mapping[str, Any]

# Figures in the order of the page: the name in texts, and the heading on the page.
FIGURES = {
    "filters": ("filters", "Patch and position embeddings"),
    "position_similarity": ("position similarity", "Patch and position embeddings"),
    "attention_distance": ("attention distance", "Attention distance"),
    "distances_compared": ("attention distance compared", "Attention distance"),
    "attention_by_head": ("attention by head", "Attention by head"),
    "rollout": ("attention rollout", "Attention of the output"),
    "attention_by_layer": ("attention by layer", "Attention of the output"),
    "patch_features": ("patch features", "Features after the last layer"),
}
DRAWN_FROM = {"distances_compared": "attention_distance", "attention_by_layer": "attention_by_head"}
LONGEST = 48  # characters of a name


def names(results: Sequence[Result]) -> list[str]:
    """Return a short name of each checkpoint, with its number where there are two."""
    short = short_names([result["ckpt"] for result in results])
    shortened = [_without_middle(plain(short[result["ckpt"]])) for result in results]
    return shortened if len(shortened) == 1 else [f"{n}: {name}" for n, name in enumerate(shortened, start=1)]


def _without_middle(name: str) -> str:
    """Cut the middle out of a long name: its ends distinguish it from others."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half:]}"


def facts(results: Sequence[Result]) -> list[str]:
    """Return a line about each network, and one about the images if there are any."""
    lines = []
    for name, result in zip(names(results), results, strict=True):
        grid = result["patch_grid"]
        patches = f", {grid[0]}x{grid[1]} patches of {result['patch_size']}" if grid else ""
        size = output_text.size_text(result["resolution"])
        lines.append(f"{name}: {result['model']} at {size} px{patches}")
    split, dataset = results[0]["eval_split"], results[0]["dataset"]
    if split:
        # A network without attention sees only the images that are shown.
        count = _images(max(result["num_images"] for result in results))
        source = f" of {public_name(dataset)}{split.removeprefix(dataset)}" if dataset else ", from --images"
        lines.append(f"{count}{source}")
    return lines


def _images(count: int) -> str:
    return f"{count} image{'s' * (count != 1)}"


def caption(name: str, result: Result) -> str:
    """Return the caption of a figure of one checkpoint, with the corresponding figure of the paper."""
    numbers = result[DRAWN_FROM.get(name, name)]
    match name:
        case "filters":
            return _filters(numbers)
        case "position_similarity":
            return _positions(numbers, result)
        case "attention_distance":
            return _distance(numbers, result)
        case "rollout":
            return _rollout(numbers)
        case "attention_by_head" | "attention_by_layer":
            is_by_head = name == "attention_by_head"
            maps = "in the first image, by layer and head" if is_by_head else "by layer, mean over the heads"
            return (
                f"Attention of the {numbers['read_from']} {maps}; each map from dark, no attention, to "
                "yellow, its own maximum."
            )
        case _:
            fraction, (height, width) = f"{sum(numbers['variance_shares']):.0%}", numbers["grid"]
            return (
                f"Features at each of {height}x{width} places after the last layer, as colours: their first "
                f"three principal components over all these images, {fraction} of the variance. Places of "
                "similar colour have similar features."
            )


def _filters(numbers: Mapping[str, Any]) -> str:
    fractions, (height, width) = numbers["variance_shares"], numbers["size"]
    return (
        f"The first {len(fractions)} principal components of the {numbers['num_filters']} filters of "
        f"{height}x{width} pixels of the first layer, by falling variance from the upper left; together "
        f"{sum(fractions):.0%} of the variance. Grey is zero; each component has its own range of colours. "
        "Paper, Figure 7, left."
    )


def _positions(numbers: Mapping[str, Any], result: Result) -> str:
    places = {"same_row": "in the same row", "same_column": "in the same column", "elsewhere": "elsewhere"}
    known = {place: numbers[key] for key, place in places.items() if numbers[key] is not None}
    means = ", ".join(f"{round(mean, 2) + 0.0:.2f} {place}" for place, mean in known.items())
    mean = f", on average {means}" if means else ""
    height, width = result["patch_grid"]
    step = max(map(step_of_tiles, (height, width)))
    ordinal = {2: "second", 3: "third"}.get(step, f"{step}th")
    some = f" Along a long side only every {ordinal} patch has a tile." if step > 1 else ""
    return (
        f"Each tile is one patch of the {height}x{width} grid and shows the cosine similarity of its "
        f"position embedding with that of every patch{mean}.{some} Rows and columns that form a cross show "
        "that the network has learned the 2-D grid. Paper, Figure 7, centre, and Figure 10."
    )


def _distance(numbers: Mapping[str, Any], result: Result) -> str:
    details = "; bars are one standard deviation over images" if numbers["std_over_images"] else ""
    if numbers["prefix_tokens"]:
        is_class_token = numbers["prefix_tokens"] == 1 and numbers["has_class_token"]
        tokens = "The class token is" if is_class_token else "Tokens without a patch are"
        pronoun = "it" if is_class_token else "them"
        weights = "" if numbers["renormalised"] else f"; attention to {pronoun} counts as distance 0"
        details += f". {tokens} left out{weights}"
    by_layer = numbers["by_layer"]
    extremes = ""
    if len(by_layer) > 1:
        shortest, longest = (by_layer.index(extreme(by_layer)) for extreme in (min, max))
        extremes = f" The mean is shortest in layer {shortest + 1}, {by_layer[shortest]:.1f} px, and longest "
        extremes += f"in layer {longest + 1}, {by_layer[longest]:.1f} px."
    return (
        "Attention distance of each head: pixels from query to key, weighted by attention, mean over "
        f"{_images(result['num_images'])}{details}. Dashed: uniform attention, {numbers['uniform']:.1f} px; "
        f"above it a head prefers distant patches.{extremes} Paper, Figure 7, right, and Figure 11."
    )


def _rollout(numbers: Mapping[str, Any]) -> str:
    residual = ", with the skip connection as half of each layer" if numbers["residual"] else ""
    quantile = numbers["full_at"]
    brightest = "the maximum" if quantile == 1 else f"the {quantile:.0%} quantile and above"
    return (
        "Each image, and beside it the image darkened by the attention of the "
        f"{numbers['read_from']} to each patch through all layers: means over heads, multiplied{residual}; "
        f"{brightest} at full brightness. Paper, Figures 6 and 14."
    )


def comparison(results: Sequence[Result]) -> str:
    """Return the caption of the figure that compares two checkpoints."""
    return (
        f"Attention distance of {' and '.join(names(results))}, relative to uniform attention so that "
        "resolutions are comparable: lines are means over the heads of a layer, bands range from the head "
        "with the shortest distance to the one with the longest."
    )


def by_layer(results: Sequence[Result]) -> Table | None:
    """Return the table of attention distances by layer, in pixels; None without attention."""
    with_attention = [
        (name, result["attention_distance"])
        for name, result in zip(names(results), results, strict=True)
        if "attention_distance" in result
    ]
    if not with_attention:
        return None
    columns, rows = [], []
    for name, _ in with_attention:
        network = f"network {name.partition(':')[0]}" if len(results) > 1 else ""
        columns += [Header(kind, network) for kind in ("shortest head", "mean", "longest head")]
    for layer in range(max(len(numbers["mean"]) for _, numbers in with_attention)):
        cells = []
        for _, numbers in with_attention:
            heads = numbers["mean"][layer] if layer < len(numbers["mean"]) else []
            values = (min(heads), numbers["by_layer"][layer], max(heads)) if heads else ()
            cells += [Cell(f"{value:.1f}", value) for value in values] or [Cell("-")] * 3
        rows.append(Row(Header(str(layer + 1)), tuple(cells)))
    uniform = " and ".join(f"{numbers['uniform']:.1f}" for _, numbers in with_attention)
    text = f"Attention distance in pixels by layer; uniform attention has {uniform}."
    title = "Attention distance by layer"
    return Table("layers", title, text, Header("layer"), tuple(columns), tuple(rows), is_at_end=True)


def table_left_out(results: Sequence[Result]) -> Table | None:
    """Return the table of figures that do not apply, and the reasons; None if all apply."""
    rows = []
    for name, result in zip(names(results), results, strict=True):
        figures_by_reason: dict[str, list[str]] = {}
        for figure, reason in result["left_out"].items():
            figures_by_reason.setdefault(reason, []).append(FIGURES[figure][0])
        for reason, figures in figures_by_reason.items():
            rows.append(Row(Header(", ".join(figures), name if len(results) > 1 else ""), (Cell(reason),)))
    text = "Some figures of the paper do not apply to every network."
    corner, reason = Header("figures", kind="text"), Header("reason", kind="text")
    table = Table("left_out", "Not applicable", text, corner, (reason,), tuple(rows), is_at_end=True)
    return table if rows else None


def as_text(result: Result) -> str:
    """Return the result as text for a terminal."""
    results = result.get("inspections", [result])
    # The networks and images.
    lines = facts(results)
    rows = [("network", line) for line in lines[: len(results)]]
    rows += [("images", line) for line in lines[len(results) :]]
    for each in results:
        rows += output_text.skipped(each)
    parts = [pairs(rows)]

    # The table of distances; short names, so that six columns fit into a terminal.
    distances = by_layer(results)
    if distances:
        columns = tuple(Header(_short_header(column)) for column in distances.columns)
        parts.append(f"{distances.caption}\n{replace(distances, columns=columns).as_text()}")

    # Figures that do not apply, with the number of the network where there are two.
    left_out = table_left_out(results)
    rows = []
    for row in left_out.rows if left_out else ():
        number = row.head.detail.partition(" ")[0]
        text = f"{number} {row.head.name}: {row.cells[0].text}".lstrip()
        rows.append(("" if rows else "left out", text))
    count = sum(len(each["figures"]) for each in results) + bool(result.get("compared", {}).get("figures"))
    files = [("figures", f"{count} in {result['out']}, as PNG and SVG"), ("page", result["page"])]
    parts.append(pairs([*rows, *files]))
    return "\n".join(parts)


def _short_header(column: Header) -> str:
    """Return the header "1: shortest" for the shortest head of network 1."""
    number = column.detail.removeprefix("network ")
    return f"{number}: {column.name.removesuffix(' head')}" if number else column.name
