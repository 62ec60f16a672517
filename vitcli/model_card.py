"""The README.md of a run folder: what was trained on what, how well it does, and how to load it."""

from typing import Any

CARD = """---
library_name: timm
tags: [image-classification, vision-transformer]
---
# {model} on {dataset}

{model} at {resolution} px, {origin}. It reaches {reaches}
(loss {loss:.4f}) on {num_eval_examples} images of `{eval_split}`, each counted once.

| | |
|---|---|
| training | {steps} steps of {batch_size} images, learning rate {lr:g}, {precision} |
| classes | {num_classes} |
| preprocessing | {preprocessing} |
| compute | {elapsed_s:.0f} s on {num_processes} process(es){exaflops} |

## How to load it

```
{use}
```

{timm}

The class names and the preprocessing are stored with the weights, so that prediction and evaluation see the
same pixels as the evaluation above.

## Recipe

```toml
{recipe}```
"""


TIMM = """```python
import timm
model = timm.create_model("local-dir:{run_dir}", pretrained=True).eval()
```"""
NOT_TIMM = """```python
from vitcli import load_model
model, transform, info = load_model("{run_dir}")
```

timm cannot load it; it has no way to say: {unsaid}."""
PREDICT = "vit predict --ckpt {run_dir} PICTURES\nvit evaluate --ckpt {run_dir} --dataset {dataset}"
FINETUNE = "vit finetune --ckpt {run_dir} --dataset DATA"


def _reaches(summary: dict[str, Any]) -> str:
    if "top1" in summary:
        return f"**{summary['top1']:.2%} top-1** and {summary['top5']:.2%} top-5"
    if summary["patch_accuracy"] is None:
        return "a squared error in the pixels of corrupted patches"
    right, guess = summary["patch_accuracy"], summary["most_frequent_color"]
    return f"**{right:.2%} of the colours of corrupted patches**, of which one guess gets {guess:.2%},"


def model_card(summary: dict[str, Any], recipe_toml: str, *, unsaid_in_timm: str | None) -> str:
    """The card in Markdown, from the run's summary, its resolved recipe, and what timm cannot say of it."""
    size = summary["resolution"]
    exaflops = summary["exaflops"]
    words = {
        **summary,
        "resolution": size if isinstance(size, int) else "x".join(map(str, size)),
        "reaches": _reaches(summary),
        "use": (PREDICT if "top1" in summary else FINETUNE).format(**summary),
        "timm": (NOT_TIMM if unsaid_in_timm else TIMM).format(
            run_dir=summary["run_dir"], unsaid=unsaid_in_timm
        ),
        "origin": f"fine-tuned from `{summary['ckpt']}`" if summary["ckpt"] else "trained from fresh weights",
        "exaflops": f", {exaflops:.3g} exaFLOPs" if exaflops else "",
        "recipe": recipe_toml,
    }
    return CARD.format(**words)
