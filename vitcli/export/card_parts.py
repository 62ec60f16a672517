"""What the Hub reads of a model card: the YAML before its text."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vitcli.output.redaction import public_name
from vitcli.output.text import plain

TAGS = ["image-classification", "vision-transformer", "vitcli"]


def front_matter(summary: dict[str, Any], *, loads_in_timm: bool, dataset_on_hub: str | None = None) -> str:
    """The block of YAML of a run's card, between its lines of dashes.

    Args:
        loads_in_timm: then transformers loads it too.
        dataset_on_hub: id of the data set there, where it has one.
    """
    is_classifier = is_classifier_run(summary)
    model_name = f"{summary['model']} on {plain(public_name(summary['dataset']))}"
    return metadata(
        loads_in_timm=loads_in_timm,
        is_classifier=is_classifier,
        ckpt=summary["ckpt"],
        datasets=[dataset_on_hub] if dataset_on_hub else None,
        metrics=["accuracy"] if is_classifier else None,
        model_name=model_name,
        eval_results=_results(summary, dataset_on_hub) if is_classifier else None,
    )


def metadata(*, loads_in_timm: bool, is_classifier: bool, ckpt: str | None, **more: Any) -> str:
    """The block of YAML of any card of ours; `more` is as ModelCardData takes it."""
    data = ModelCardData(
        library_name="timm" if loads_in_timm else "vitcli",
        pipeline_tag="image-classification" if is_classifier else "image-feature-extraction",
        tags=TAGS + (["timm", "transformers"] if loads_in_timm else []),
        base_model=base_model(ckpt),
        **more,
    )
    return f"---\n{data.to_yaml()}\n---"


def base_model(ckpt: str | None) -> str | None:
    """The repository of the Hub that training started from."""
    if ckpt and ckpt.startswith(("hf-hub:", "timm/")):
        return ckpt.removeprefix("hf-hub:").partition("@")[0]
    return None


def is_classifier_run(summary: dict[str, Any]) -> bool:
    """Whether the run's score is a share of images whose class is named right."""
    return "top1" in summary


def parts_of_split(name: str) -> tuple[str, str]:
    """Data set and split of a split's name, as `data` gives it."""
    dataset, _, split = name.rpartition(", split ")
    return (dataset, split) if dataset else (name, "")


def _results(summary: dict[str, Any], dataset_on_hub: str | None) -> list[EvalResult]:
    runs = len(summary.get("runs") or ())
    dataset = plain(public_name(summary["dataset"]))
    scores = [("top1", "top-1")] + ([("top5", "top-5")] if summary["num_classes"] > 5 else [])
    return [
        EvalResult(
            task_type="image-classification",
            dataset_type=dataset_on_hub or dataset,
            dataset_name=dataset,
            dataset_split=plain(parts_of_split(summary["eval_split"])[1]) or None,
            metric_type="accuracy",
            metric_name=name + (f", mean of {runs} runs" if runs > 1 else ""),
            metric_value=summary[key],
        )
        for key, name in scores
    ]


def paragraph(text: str) -> str:
    """Its lines not longer than ours are; a point of a list is indented under its dash."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def code(value: object) -> str:
    """As code, on one line: nothing in it is taken for markup."""
    text = plain(str(value))
    ticks = "`" * (_longest_run(text) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def fenced(text: str, language: str = "") -> str:
    """A block of code, fenced by more backticks than any in it."""
    ticks = "`" * max(3, _longest_run(text) + 1)
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown, in which a bar is a bar."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
