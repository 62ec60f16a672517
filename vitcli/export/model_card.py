"""The README.md of a run folder: what was trained on what, how well it does, what it is for, how to load it.

The numbers are those of the run's summary. Paths of the machine it was made on become names (`sharing`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.data.dataset import is_remote
from vitcli.evaluation.statistics import NUM_RESAMPLES, share_interval
from vitcli.export.card_parts import (
    code,
    fenced,
    front_matter,
    is_classifier_run,
    metadata,
    paragraph,
    parts_of_split,
    table,
)
from vitcli.export.usage import HERE, LoadingNames, how_to_load
from vitcli.models.architecture import Architecture
from vitcli.models.variants import BIT, HYBRID
from vitcli.output.redaction import is_local, public_name, public_toml, public_values
from vitcli.output.text import size_text
from vitcli.recipe import Recipe
from vitcli.weights.formats import caveats, unsupported_feature

CARD = """{front_matter}
# {model} on {dataset}

{claim}

## Results

{results}

## Data

{data}

## Protocol

{protocol}

## Compute

{compute}

## Intended use and limits

{limits}

{loading}
## Recipe

Complete: `vit {command} --recipe recipe.toml` repeats the run. Of paths only the last part is shown.

{recipe}
"""
PAPER = "as in the ViT paper ([arXiv 2010.11929](https://arxiv.org/abs/2010.11929))"
FINE_TUNING = (
    f"Fine-tuning {PAPER}, section 3.2: the head replaced by zeros, the position embedding resampled to the "
    "resolution, all weights trained."
)
FROM_NOTHING = f"The protocol of fine-tuning {PAPER}, section 3.2, from fresh weights, to compare with."


def model_card(
    summary: dict[str, Any],
    recipe_toml: str,
    *,
    unsaid_in_timm: str | None,
    caveats: Sequence[str] = (),
    needs_backbones: bool = False,
    dataset_on_hub: str | None = None,
    place: LoadingNames = HERE,
) -> str:
    """The card in Markdown.

    Args:
        summary: of one run, of several (`runs`), or of a selection (`choices` and `chosen`), as summary.json.
        recipe_toml: the resolved recipe.
        unsaid_in_timm: what timm cannot say of the network, from `export_formats.unsaid_in`.
        caveats: in what timm differs, from `export_formats.caveats`.
        needs_backbones: the network is one that timm knows from `vitcli.backbones` alone.
        dataset_on_hub: its id there, where it has one.
        place: what a reader's commands call the folder.
    """
    told = public_values(summary)
    words = {
        "front_matter": front_matter(
            summary, loads_in_timm=not unsaid_in_timm, dataset_on_hub=dataset_on_hub
        ),
        "model": told["model"],
        "dataset": code(told["dataset"]),
        "claim": paragraph(_claim(told)),
        "results": _results(told),
        "data": _data(told),
        "protocol": _protocol(told),
        "compute": _compute(told),
        "limits": _limits(told),
        "loading": how_to_load(
            place,
            dataset=summary["dataset"] if is_classifier_run(summary) else None,
            has_classes=is_classifier_run(summary),
            unsaid_in_timm=unsaid_in_timm,
            caveats=caveats,
            needs_backbones=needs_backbones,
        ),
        "command": told["command"],
        "recipe": fenced(public_toml(recipe_toml), "toml"),
    }
    return CARD.format(**words)


def _claim(told: dict[str, Any]) -> str:
    origin = f"fine-tuned from {code(told['ckpt'])}" if told["ckpt"] else "trained from fresh weights"
    claim = f"{told['model']} at {size_text(told['resolution'])} px, {origin}."
    if is_classifier_run(told):
        several = f" (mean of {len(told['runs'])} runs)" if _is_of_several(told) else ""
        held_out = f"{told['num_eval_examples']:,} held-out images"
        return f"{claim} It reaches **{told['top1']:.2%} top-1**{several} on {held_out}."
    if told["patch_accuracy"] is None:
        return f"{claim} It was trained to restore the pixels of corrupted patches."
    right, guess = f"**{told['patch_accuracy']:.2%}", f"{told['most_frequent_color']:.2%}"
    return f"{claim} It names {right} of the colours of corrupted patches**; one guess for all gets {guess}."


def _results(told: dict[str, Any]) -> str:
    counted = f"{told['num_eval_examples']:,} images of {code(told['eval_split'])}, each counted once."
    if not is_classifier_run(told):
        return f"Loss {told['loss']:.4f} on {counted}"
    meaning = (
        f"On {counted} The intervals are percentile bootstraps ({NUM_RESAMPLES:,} resamples of the images): "
        "how far a share rests on which images were drawn. They have no width where all or none are right, "
        "and say nothing of another seed."
    )
    scores = _several(told) if _is_of_several(told) else _one(told)
    return "\n\n".join([scores, paragraph(meaning), *_probe(told)])


def _one(told: dict[str, Any]) -> str:
    rows = [("top-1", f"{told['top1']:.2%}", _interval(told["top1"], told))]
    if told["num_classes"] > 5:  # of five or fewer it is 1 by definition
        rows.append(("top-5", f"{told['top5']:.2%}", _interval(told["top5"], told)))
    return table(("", "share", "95 % interval"), [*rows, ("loss", f"{told['loss']:.4f} nats", "")])


def _several(told: dict[str, Any]) -> str:
    runs, std = told["runs"], told.get("top1_std")
    spread = f" ± {100 * std:.2f}" if std is not None else ""
    rows = [
        (
            str(run["seed"]),
            f"{run['top1']:.2%}",
            _interval(run["top1"], told),
            f"{run['top5']:.2%}" if told["num_classes"] > 5 else "-",
            f"{run['loss']:.4f}",
        )
        for run in runs
    ]
    said = (
        f"**{told['top1']:.2%}{spread}** top-1: mean and standard deviation (n - 1) of {len(runs)} runs that "
        f"differ in the seed alone. The weights in this folder are those of seed {runs[0]['seed']}."
    )
    return f"{paragraph(said)}\n\n{table(('seed', 'top-1', '95 % interval', 'top-5', 'loss'), rows)}"


def _is_of_several(told: dict[str, Any]) -> bool:
    return len(told.get("runs") or ()) > 1


def _interval(share: float, told: dict[str, Any]) -> str:
    count = told["num_eval_examples"]
    low, high = share_interval(round(share * count), count)
    return f"{100 * low:.2f} to {100 * high:.2f}"


def _probe(told: dict[str, Any]) -> list[str]:
    probed = told.get("fewshot")
    if not probed:
        return []
    of = f"{probed['shots']} shots of {code(probed['dataset'])}"
    return [f"Few-shot, in closed form on frozen features: {probed['top1']:.2%} at {of}."]


def _data(told: dict[str, Any]) -> str:
    rows = []
    if "train_split" in told:
        trained_on = f"{code(told['train_split'])}: {told['num_train_examples']:,} images"
        rows.append(("trained on", f"{trained_on}, {told['num_classes']} classes"))
    rows += [
        ("scored on", f"{code(told['eval_split'])}: {told['num_eval_examples']:,} images"),
        ("pixels", told["preprocessing"]),
        ("unreadable images", _skipped(told.get("num_skipped_images", 0))),
    ]
    text = table(("", ""), rows)
    if _is_dev(told):
        text += "\n\nThere was no other split to score: these images were cut from the training images."
    return text


def _is_dev(told: dict[str, Any]) -> bool:
    """Whether the images that were scored are a part of the training split."""
    return parts_of_split(told["eval_split"])[1].endswith("dev part")


def _skipped(count: int) -> str:
    return f"{count} left out; the first of them are in summary.json" if count else "none"


def _protocol(told: dict[str, Any]) -> str:
    text = FINE_TUNING if told["ckpt"] else FROM_NOTHING
    if told["command"] == "pretrain":
        section = (
            "sections 3.1 and 4.1" if is_classifier_run(told) else "section 4.6 (masked patch prediction)"
        )
        text = f"Pre-training {PAPER}, {section}, from fresh weights."
    text += " The weights are those at the end of training, not the best on the way."
    if not told.get("choices"):
        return paragraph(f"{text} Nothing was selected within this run.")
    return f"{paragraph(text)}\n\n{_selection(told)}"


def _selection(told: dict[str, Any]) -> str:
    """The values that were tried, and how each did on the dev split."""
    choices, chosen = told["choices"], told.get("chosen") or {}
    keys = [key for key in choices[0] if not key.startswith("dev_")]
    rows = [
        (
            *(code(choice[key]) for key in keys),
            _or_dash(choice.get("dev_top1", choice.get("dev_patch_accuracy")), ".2%"),
            _or_dash(choice["dev_loss"], ".4f"),
            "chosen" if chosen.items() <= choice.items() else "",
        )
        for choice in choices
    ]
    named = " and ".join(code(key) for key in keys)
    scored = "were cut from it too, and may be the same" if _is_dev(told) else "had no part in it"
    said = f"Chosen on images cut from the training split: {named}. The images scored above {scored}."
    return f"{paragraph(said)}\n\n{table((*keys, 'dev accuracy', 'dev loss', ''), rows)}"


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _compute(told: dict[str, Any]) -> str:
    steps, batch, exaflops = told["steps"], told["batch_size"], told.get("exaflops")
    memory, rate = told.get("peak_memory_gib"), told.get("images_per_s")
    processes = f"{told['num_processes']} process{'es' * (told['num_processes'] > 1)}"
    speed = f", {rate:.1f} images/s" if rate else ""
    rate_text = f"learning rate {told['lr']:g}, {told['precision']}"
    rows = [
        ("training", f"{steps:,} steps of {batch:,} images, {rate_text}"),
        ("time", f"{told['elapsed_s']:.0f} s on {processes}{speed}"),
        *([("arithmetic", f"{exaflops:.3g} exaFLOPs")] if exaflops else []),
        *([("peak memory", f"{memory:.2g} GiB a process")] if memory else []),
    ]
    return table(("", ""), rows)


def _limits(told: dict[str, Any]) -> str:
    origin = f" and of {code(told['ckpt'])}" if told["ckpt"] else ""
    licence = f"No licence is stated here: those of the data{origin} hold."
    points = [
        f"It says which of its {told['num_classes']} classes a picture shows, and always names one: a "
        "picture of anything else gets a class too.",
        "It was scored on pictures of this data set, with pixels prepared as above. Other pictures, other "
        "cameras and other crops were not tried.",
        "The accuracy is that of the one split named above. Nothing was measured of fairness, of robustness "
        "or of how far the probabilities can be trusted (`vit evaluate` measures the last).",
    ]
    if not is_classifier_run(told):
        points = ["It has no classes: it is there to be fine-tuned, or for its features."]
    return "\n".join(paragraph(f"- {point}") for point in [*points, licence])


def card_of(summary: dict[str, Any], recipe: Recipe, arch: Architecture) -> str:
    """The model card of a run, or of several and a selection, by its summary."""
    return model_card(
        summary,
        recipes.to_toml(recipe),
        **in_timm(arch),
        dataset_on_hub=_id_on_the_hub(recipe.data.dataset),
    )


def in_timm(arch: Architecture) -> dict[str, Any]:
    """What a card has to say of the network in timm, as `model_card` and `how_to_load` take it."""
    return {
        "unsaid_in_timm": unsupported_feature("timm", arch),
        "caveats": caveats("timm", arch),
        "needs_backbones": arch.timm_name in (BIT, HYBRID),
    }


def _id_on_the_hub(dataset: str) -> str | None:
    alias = recipes.dataset_aliases().get(dataset)
    if alias:
        return alias.get("hub")
    is_path = Path(dataset).expanduser().exists() or is_local(dataset) or is_remote(dataset)
    return None if is_path or dataset.count("/") != 1 else dataset.partition("@")[0].partition(":")[0]


WEIGHTS_CARD = """{metadata}
# {model}

{facts}

## Intended use and limits

{limits}

{loading}"""


def weights_card(exported: dict[str, Any], loading: str) -> str:
    """The card in Markdown.

    Args:
        exported: what `vit export` says of the timm folder.
        loading: from `loading_text.how_to_load`.
    """
    origin, num_classes = public_name(exported["ckpt"]), exported["num_classes"]
    compared = f"{exported['max_rel_difference']:.2g}, relative, on {exported['num_images']} pictures"
    facts = [
        ("from", code(origin)),
        ("image size", f"{size_text(exported['resolution'])} px; how they are prepared is in config.json"),
        ("classes", str(num_classes) if num_classes else "none: features"),
        ("arithmetic", exported["numerics"]),
        ("largest difference from it", compared),
    ]
    limits = (
        f"No accuracy was measured of this copy, and no licence is stated here: that of {code(origin)} holds."
    )
    return WEIGHTS_CARD.format(
        metadata=metadata(loads_in_timm=True, is_classifier=num_classes > 0, ckpt=exported["ckpt"]),
        model=exported["model"],
        facts=table(("", ""), facts),
        limits=paragraph(limits),
        loading=loading,
    )
