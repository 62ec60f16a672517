"""Parts of a model card: the YAML front matter that the Hub reads, and Markdown blocks."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vitcli.output.redaction import public_name
from vitcli.output.text import plain, top5_is_informative

TAGS = ["image-classification", "vision-transformer", "vitcli"]


def front_matter(*, loads_in_timm: bool, is_classifier: bool, ckpt: str | None, **more: Any) -> str:
    """Return the YAML block of a card, between its lines of dashes.

    Args:
        loads_in_timm: transformers then loads it too.
        ckpt: that training started from or that was copied; a Hub repository becomes the base model.
        more: keywords of ModelCardData.
    """
    is_on_the_hub = ckpt is not None and ckpt.startswith(("hf-hub:", "timm/"))
    data = ModelCardData(
        library_name="timm" if loads_in_timm else "vitcli",
        pipeline_tag="image-classification" if is_classifier else "image-feature-extraction",
        tags=TAGS + (["timm", "transformers"] if loads_in_timm else []),
        base_model=ckpt.removeprefix("hf-hub:").partition("@")[0] if is_on_the_hub else None,
        **more,
    )
    return f"---\n{data.to_yaml()}\n---"


def is_classifier_run(summary: dict[str, Any]) -> bool:
    """Return whether the run was scored by classification accuracy."""
    return "top1" in summary


def split_of(name: str) -> str:
    """Return the split in the name that the data package gives a split of a data set."""
    dataset, _, split = name.rpartition(", split ")
    return split if dataset else ""


def eval_results(summary: dict[str, Any], dataset_on_hub: str | None) -> list[EvalResult]:
    """Return the accuracies of a run as the Hub reads them."""
    runs = len(summary.get("runs") or ())
    dataset = plain(public_name(summary["dataset"]))
    scores = ("top1", "top5") if top5_is_informative(summary["num_classes"]) else ("top1",)
    return [
        EvalResult(
            task_type="image-classification",
            dataset_type=dataset_on_hub or dataset,
            dataset_name=dataset,
            dataset_split=plain(split_of(summary["eval_split"])) or None,
            metric_type="accuracy",
            metric_name=key.replace("top", "top-") + (f", mean of {runs} runs" if runs > 1 else ""),
            metric_value=summary[key],
        )
        for key in scores
    ]


def paragraph(text: str) -> str:
    """Wrap a paragraph; the lines of a list item are indented under its dash."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def code(value: object) -> str:
    """Return an untrusted value as inline code, in which nothing is read as markup."""
    text = plain(str(value))
    ticks = "`" * (_longest_run(text) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def fenced(text: str, language: str = "") -> str:
    """Return a code block, fenced by more backticks than any in it."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the cells are Markdown, their bars are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
