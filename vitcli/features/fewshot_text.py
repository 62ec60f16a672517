"""Results of `vit fewshot` as text for a person."""

from typing import Any

from vitcli.output import text


def as_text(result: dict[str, Any]) -> str:
    """The table of a result, for a person."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("shots", "top-1", "std", "runs"):
        table.add_column(title, justify="right" if title != "runs" else "left")
    for shots, scored in result["shots"].items():
        std = "" if scored["std"] is None else f"{scored['std']:.2%}"
        runs = "  ".join(f"{run:.2%}" for run in scored["runs"])
        table.add_row(shots, f"{scored['mean']:.2%}", std, runs)
    how = result["classifier"]
    if result["l2"] is not None:
        how += ", l2 " + (result["l2"] if result["l2"] == "sweep" else f"{result['l2']:g}")
    rows = [
        ("classifier", f"{how}, {result['feature_dim']} features ({result['layer']})"),
        ("scored on", f"{result['num_test_examples']} images, {result['eval_split']}"),
        ("model", f"{result['model']}, {result['numerics']}"),
        ("pixels", f"{result['preprocessing']}, {result['preprocessing_from']}"),
        ("features", f"{result['computed_rows']} computed, {result['cached_rows']} kept from before"),
    ]
    rows += [*text.skipped(result), *(("note", note) for note in result["notes"])]
    return text.printed(table) + "\n" + text.pairs([*rows, ("run folder", result["run_dir"])])
