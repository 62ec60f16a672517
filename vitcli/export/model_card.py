"""The two model cards: of a run, with data, protocol and results; and of weights alone, without any score.

All numbers of a run's card come from its summary. Local paths are shown by their last part.
"""

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from vitcli import recipe as recipes
from vitcli.data.dataset import is_remote
from vitcli.data.parts.held_out import FoldName
from vitcli.evaluation.calibration import selective
from vitcli.evaluation.statistics import ENOUGH_TO_RESAMPLE, NUM_RESAMPLES, interval_of
from vitcli.export.markdown import code, fenced, paragraph, table
from vitcli.export.usage import HERE, how_to_load
from vitcli.models.architecture import Architecture
from vitcli.output.redaction import is_local, public_name, public_toml, public_values
from vitcli.output.scores import (
    ERRORS,
    SHOWN,
    interval_shown,
    score_rows,
    shown,
    top5_is_informative,
)
from vitcli.output.text import (
    average_lines,
    compute_text,
    count_of,
    delivery_text,
    first_few,
    fold_notes,
    held_out,
    interval_text,
    percent,
    plain,
    size_text,
)
from vitcli.weights import licences
from vitcli.weights.download import hub_id
from vitcli.weights.formats import unsupported_feature

TAGS = ["image-classification", "vision-transformer", "vitcli"]
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

Complete: `vit {command} --recipe recipe.toml` repeats the run. Of local paths only the last part is shown.

{recipe}
"""
WEIGHTS_CARD = """{front_matter}
# {model}

{facts}

## Intended use and limits

{limits}

{loading}"""
PAPER = "as in the ViT paper ([arXiv 2010.11929](https://arxiv.org/abs/2010.11929))"
FINE_TUNING = (
    f"Fine-tuning {PAPER}, section 3.2: the head replaced by zeros, the position embedding resampled to the "
    "resolution, all weights trained."
)
FROM_SCRATCH = f"The fine-tuning protocol {PAPER}, section 3.2, from fresh weights, as a baseline."


def model_card(summary: dict[str, Any], recipe_toml: str, arch: Architecture) -> str:
    """Return the Markdown card of a run.

    Args:
        summary: of one run, of several (`runs`), or of a selection (`choices` and `chosen`), as summary.json.
        recipe_toml: the resolved recipe, as `recipe.to_toml` writes it.
    """
    public, is_classifier = public_values(summary), is_classifier_run(summary)
    hub_id = _id_on_the_hub(summary["dataset"])
    return CARD.format(
        front_matter=_front_matter(
            loads_in_timm=not unsupported_feature("timm", arch),
            is_classifier=is_classifier,
            ckpt=summary["ckpt"],
            model_name=f"{summary['model']} on {plain(public['dataset'])}",
            datasets=[hub_id] if hub_id else None,
            metrics=["accuracy"] if is_classifier else None,
            **licences.in_card(summary.get(licences.KEY)),
            eval_results=_eval_results(summary, hub_id) if is_classifier else None,
        ),
        model=public["model"],
        dataset=code(public["dataset"]),
        claim=paragraph(_claim(public)),
        results=_results(public),
        data=_data(public),
        protocol=_protocol(public),
        compute=_compute(public),
        limits=_limits(public),
        loading=how_to_load(HERE, arch, dataset=summary["dataset"] if is_classifier else None),
        command=public["command"],
        recipe=fenced(public_toml(recipe_toml), "toml"),
    )


def weights_card(exported: dict[str, Any], loading: str) -> str:
    """Return the Markdown card of weights without a run.

    Args:
        exported: result of `vit export` for the timm folder.
        loading: from `how_to_load`.
    """
    origin, num_classes = public_name(exported["ckpt"]), exported["num_classes"]
    facts = [
        ("from", code(origin)),
        ("image size", f"{size_text(exported['resolution'])} px"),
        ("preprocessing", f"{exported['preprocessing']}; as numbers in config.json"),
        ("classes", str(num_classes) if num_classes else "none: features"),
        ("numerics", exported["numerics"]),
        (
            "largest difference from the original",
            f"{exported['max_rel_difference']:.2g}, relative, on {exported['num_images']} images",
        ),
    ]
    licence = exported.get(licences.KEY, licences.UNKNOWN)
    stated = f"It is licensed under {code(licence)}, as {code(origin)} is"
    if licence == licences.UNKNOWN:
        stated = f"Its licence is unknown to vit: that of {code(origin)} applies"
    limits = f"No accuracy was measured for this copy. {stated}."
    return WEIGHTS_CARD.format(
        front_matter=_front_matter(
            loads_in_timm=True,
            is_classifier=num_classes > 0,
            ckpt=exported["ckpt"],
            **licences.in_card(licence),
        ),
        model=exported["model"],
        facts=table(("", ""), facts),
        limits=paragraph(limits),
        loading=loading,
    )


def _front_matter(*, loads_in_timm: bool, is_classifier: bool, ckpt: str | None, **more: Any) -> str:
    """Return the YAML block of a card, between its lines of dashes.

    Args:
        loads_in_timm: transformers then loads it too.
        ckpt: that training started from or that was copied; a Hub repository becomes the base model.
        more: keywords of ModelCardData.
    """
    data = ModelCardData(
        library_name="timm" if loads_in_timm else "vitcli",
        pipeline_tag="image-classification" if is_classifier else "image-feature-extraction",
        tags=TAGS + (["timm", "transformers"] if loads_in_timm else []),
        base_model=hub_id(ckpt) if ckpt else None,
        **more,
    )
    return f"---\n{data.to_yaml()}\n---"


def is_classifier_run(summary: dict[str, Any]) -> bool:
    """Return whether the run was scored by classification accuracy."""
    return "top1" in summary


def _split_of(name: str) -> str:
    """Return the split in the name that the data package gives a split of a data set."""
    dataset, _, split = name.rpartition(", split ")
    return split if dataset else ""


def _eval_results(summary: dict[str, Any], dataset_on_hub: str | None) -> list[EvalResult]:
    """Return the accuracies of a run as the Hub reads them."""
    runs = len(summary.get("runs") or ())
    dataset = plain(public_name(summary["dataset"]))
    scores = ("top1", "top5") if top5_is_informative(summary["num_classes"]) else ("top1",)
    return [
        EvalResult(
            task_type="image-classification",
            dataset_type=dataset_on_hub or dataset,
            dataset_name=dataset,
            dataset_split=plain(_split_of(summary["eval_split"])) or None,
            metric_type="accuracy",
            metric_name=key.replace("top", "top-") + (f", mean of {runs} runs" if runs > 1 else ""),
            metric_value=summary[key],
        )
        for key in scores
    ]


def _id_on_the_hub(dataset: str) -> str | None:
    """Return the Hub id of an alias or of owner/name[:config][@revision]; None for local and remote paths."""
    alias = recipes.dataset_aliases().get(dataset)
    if alias:
        return alias.get("hub")
    is_path = Path(dataset).expanduser().exists() or is_local(dataset) or is_remote(dataset)
    return None if is_path or dataset.count("/") != 1 else dataset.partition("@")[0].partition(":")[0]


def _claim(summary: dict[str, Any]) -> str:
    origin = f"fine-tuned from {code(summary['ckpt'])}" if summary["ckpt"] else "trained from fresh weights"
    claim = f"{summary['model']} at {size_text(summary['resolution'])} px, {origin}."
    if is_classifier_run(summary):
        several = f" (mean of {len(summary['runs'])} runs)" if _has_several_runs(summary) else ""
        scored = f"{summary['num_eval_examples']:,} held-out images"
        if _fold_notes(summary):
            scored = f"{summary['num_eval_examples']:,} images, each by a model that has not seen it"
        if summary.get("mean_ap") is not None:
            precision = f"{summary['mean_ap']:.2%} mean average precision"
            return f"{claim} It gives an image several labels, with **{precision}**{several} on {scored}."
        return f"{claim} It reaches **{summary['top1']:.2%} top-1**{several} on {scored}."
    if "mae" in summary:
        name, scored = summary["target"]["name"], f"{summary['num_eval_examples']:,} held-out images"
        error = f"a mean absolute error of **{summary['mae']:.4g}**"
        return f"{claim} It predicts a number, {code(name)}, with {error} on {scored}."
    if summary["patch_accuracy"] is None:
        return f"{claim} It was trained to restore the pixels of corrupted patches."
    accuracy, majority = f"{summary['patch_accuracy']:.2%}", f"{summary['most_frequent_color']:.2%}"
    return (
        f"{claim} It predicts **{accuracy} of the colors of corrupted patches**; the majority class alone "
        f"gives {majority}."
    )


def _results(summary: dict[str, Any]) -> str:
    scored = f"{summary['num_eval_examples']:,} images of {code(summary['eval_split'])}, each counted once."
    if "mae" in summary:
        return _errors(summary, scored)
    if not is_classifier_run(summary):
        return f"Loss {summary['loss']:.4f} on {scored}"
    meaning = (
        f"On {scored} The intervals are percentile bootstraps ({NUM_RESAMPLES:,} resamples of the images): "
        "they show how far an accuracy depends on which images were sampled, and do not cover the variation "
        f"between seeds. With fewer than {ENOUGH_TO_RESAMPLE} images, or where all or none are right, they "
        "are the exact (Clopper-Pearson) ones."
    )
    scores = _table_of_runs(summary) if _has_several_runs(summary) else _table_of_scores(summary)
    parts = [scores, paragraph(meaning)]
    if probe := summary.get("fewshot"):
        task = f"{probe['shots']} shots of {code(probe['dataset'])}"
        parts.append(f"Few-shot, in closed form on frozen features: {probe['top1']:.2%} at {task}.")
    if (calibration := summary.get("belief")) and not summary.get("average"):
        parts.append(_thresholds(selective.results_of(calibration)))
    return "\n\n".join(parts)


def _thresholds(result: dict[str, Any]) -> str:
    """Return how many images a threshold answers, and how many of these are right."""
    text = (
        "Left to a person where the highest probability is below a threshold (`vit predict --threshold`): "
        f"{result['advice']}."
    )
    header = ("threshold", "answered", "right", "95 % interval")
    return f"{paragraph(text)}\n\n{table(header, selective.table_rows(result))}"


def _errors(summary: dict[str, Any], scored: str) -> str:
    """Return the table of the errors of a regression, and what the network's output means."""
    target = summary["target"]
    rows = table(("metric", "value, 95 % interval"), score_rows(summary, ERRORS))
    meaning = (
        f"On {scored} The intervals are percentile bootstraps over the images. The output of the network is "
        "in standard deviations from the mean: "
        f"{plain(target['name'])} = output * {target['std']!r} + {target['mean']!r}."
    )
    return f"{rows}\n\n{paragraph(meaning)}"


def _table_of_scores(summary: dict[str, Any]) -> str:
    rows = [(*row, "") for row in score_rows(summary, ("mean_ap", "f1_at_thresholds"))]
    keys = ("top1", "top5") if top5_is_informative(summary["num_classes"]) else ("top1",)
    rows += [
        (SHOWN[key].label, shown(summary, key), interval_shown(summary.get("intervals"), key)) for key in keys
    ]
    rows.append(("loss", f"{shown(summary, 'loss')} nats", ""))
    return table(("metric", "value", "95 % interval"), rows)


def _table_of_runs(summary: dict[str, Any]) -> str:
    runs, std = summary["runs"], summary.get("top1_std")
    spread = f" ± {100 * std:.2f}" if std is not None else ""
    count, num_classes = summary["num_eval_examples"], summary["num_classes"]
    rows = [
        (
            str(run["seed"]),
            shown(run, "top1"),
            interval_text(interval_of(run["top1"], count)),
            shown(run | {"num_classes": num_classes}, "top5"),
            shown(run, "loss"),
        )
        for run in runs
    ]
    mean = (
        f"**{summary['top1']:.2%}{spread}** top-1: mean and standard deviation (n - 1) of {len(runs)} runs "
        f"with different seeds. {_delivered(summary)}"
    )
    return f"{paragraph(mean)}\n\n{table(('seed', 'top-1', '95 % interval', 'top-5', 'loss'), rows)}"


def _delivered(summary: dict[str, Any]) -> str:
    """Return which weights the folder of several runs holds."""
    if average := summary.get("average"):
        return f"The weights in this folder reach {average['top1']:.2%}: {average_lines(average)[0]}."
    return f"The weights in this folder are those of seed {summary['runs'][0]['seed']}."


def _has_several_runs(summary: dict[str, Any]) -> bool:
    return len(summary.get("runs") or ()) > 1


def _data(summary: dict[str, Any]) -> str:
    rows, num_skipped = [], summary.get("num_skipped_images", 0)
    if "train_split" in summary:
        trained_on = f"{code(summary['train_split'])}: {summary['num_train_examples']:,} images"
        labels = "numbers" if "mae" in summary else f"{summary['num_classes']} classes"
        rows.append(("trained on", f"{trained_on}, {labels}"))
    skipped = f"{num_skipped} skipped; the first of them are in summary.json" if num_skipped else "none"
    rows += [
        ("evaluated on", f"{code(summary['eval_split'])}: {summary['num_eval_examples']:,} images"),
        ("preprocessing", summary["preprocessing"]),
        ("unreadable images", skipped),
        ("files left out", _left_out(summary)),
    ]
    note = "\n\nThere was no other split to evaluate on: these images were held out from the training images."
    text = table(("", ""), rows) + (note if _is_dev(summary) else "")
    notes = [*_fold_notes(summary), *(note for _, note in held_out(summary))]
    return "\n\n".join([text, *(paragraph(f"**Note**: {note}.") for note in notes)])


def _fold_notes(summary: dict[str, Any]) -> list[str]:
    """Return the sentences about a model of all images, whose scores are those of the models of folds."""
    folds = FoldName.of(summary["eval_split"].rpartition(", ")[2])
    if folds is None or folds.fold is not None:
        return []
    scored = (
        f"the scores are those of {folds.num_folds} models trained like this one, each without one fold "
        "of the images and scored on that; this model was trained on all of them"
    )
    return [scored, *fold_notes(summary)]


def _left_out(summary: dict[str, Any]) -> str:
    """Return how many files of the data set's folder are not read, and the first of them."""
    count, paths = summary.get("num_left_out_files"), summary.get("left_out_files", [])
    if not count:
        return "none" if count == 0 else "not recorded"
    return f"{count:,}: {first_few([code(path) for path in paths], 3, total=count)}"


def _is_dev(summary: dict[str, Any]) -> bool:
    """Return whether the evaluated images are a part of the training split."""
    return _split_of(summary["eval_split"]).endswith("dev part")


def _protocol(summary: dict[str, Any]) -> str:
    text = FINE_TUNING if summary["ckpt"] else FROM_SCRATCH
    if summary["command"] == "pretrain":
        is_supervised = is_classifier_run(summary) or "mae" in summary
        section = "sections 3.1 and 4.1" if is_supervised else "section 4.6 (masked patch prediction)"
        text = f"Pre-training {PAPER}, {section}, from fresh weights."
    if "delivered" in summary:
        text = text.replace("the head replaced by zeros", "the head replaced by the closed form of few-shot")
        text += f" The weights are {delivery_text(summary)}. They were neither trained on nor scored."
    else:
        text += " The weights are those at the end of training, not the best during it."
        if facts := summary.get("refit"):
            text += " The closed form of few-shot classification on their features of "
            text += f"{count_of(facts['num_examples'], 'training image')} was then added to the head."
            if layers := facts.get("head_layers"):
                text += f" That reads class token and mean of the patches of the last {layers} blocks, since "
                text += "their closed form was ahead before training, each image left out in turn."
    if average := summary.get("average"):
        return f"{paragraph(text)}\n\n{_average(average)}"
    if not summary.get("choices") and "delivered" in summary:
        return paragraph(text)
    if not summary.get("choices"):
        return paragraph(f"{text} Nothing was selected within this run.")
    return f"{paragraph(text)}\n\n{_selection(summary)}"


def _average(average: dict[str, Any]) -> str:
    """Return how the weights were made of those of several runs, and the table of these."""
    lines = "".join(f"{line[0].upper()}{line[1:]}. " for line in average_lines(average))
    sources = (
        "arXiv [2203.05482](https://arxiv.org/abs/2203.05482), [2403.19522](https://arxiv.org/abs/2403.19522)"
    )
    text = f"Of these weights, several runs from one start were averaged ({sources}). {lines}"
    text += "The recipe below is that of the first run; `vit average` with all of them repeats the average."
    rows = [
        (
            code(run["run_dir"]),
            str(run["seed"]),
            f"{run['weight']:.3g}",
            percent(run["dev_top1"]),
            percent(run["top1"]),
            code(run["sha256"][:16]),
        )
        for run in average["runs"]
    ]
    header = ("run", "seed", "weight", "dev accuracy", "top-1", "SHA-256 of its weights")
    return f"{paragraph(text)}\n\n{table(header, rows)}"


def _selection(summary: dict[str, Any]) -> str:
    """Return the table of the values that were tried, with their scores on the dev split."""
    choices, chosen = summary["choices"], summary.get("chosen") or {}
    keys = [key for key in choices[0] if not key.startswith("dev_")]
    rows = [
        (
            *(code(choice[key]) for key in keys),
            percent(choice.get("dev_top1", choice.get("dev_patch_accuracy"))),
            "-" if choice["dev_loss"] is None else f"{choice['dev_loss']:.4f}",
            "chosen" if chosen.items() <= choice.items() else "",
        )
        for choice in choices
    ]
    names = " and ".join(code(key) for key in keys)
    evaluated = "were held out from it too, and may be the same" if _is_dev(summary) else "had no part in it"
    text = f"Chosen on images held out from the training split: {names}. The images evaluated {evaluated}."
    return f"{paragraph(text)}\n\n{table((*keys, 'dev accuracy', 'dev loss', ''), rows)}"


def _compute(summary: dict[str, Any]) -> str:
    steps, batch_size, num_processes = (summary[key] for key in ("steps", "batch_size", "num_processes"))
    rate, exaflops, memory = (summary.get(key) for key in ("images_per_s", "exaflops", "peak_memory_gib"))
    settings = f"learning rate {summary['lr']:g}, {summary['precision']}"
    processes = f"{num_processes} process{'es' * (num_processes > 1)}"
    speed = f", {rate:.1f} images/s" if rate else ""
    rows = [
        ("training", f"{count_of(steps, 'step')} of {count_of(batch_size, 'image')}, {settings}"),
        ("time", f"{summary['elapsed_s']:.0f} s on {processes}{speed}"),
        *([("compute", compute_text(exaflops))] if exaflops else []),
        *([("peak memory", f"{memory:.2g} GiB per process")] if memory else []),
    ]
    return table(("", ""), rows)


def _limits(summary: dict[str, Any]) -> str:
    origin = f" and of {code(summary['ckpt'])}" if summary["ckpt"] else ""
    points = [
        f"It assigns every image to one of its {summary['num_classes']} classes, also an image of anything "
        "else.",
        "It was evaluated on images of this data set, preprocessed as above. Other images, other cameras and "
        "other crops were not tried.",
        "The accuracy is that of the one split named above. Fairness, robustness and calibration were not "
        "measured (`vit evaluate` measures calibration).",
    ]
    if "mae" in summary:
        number = code(summary["target"]["name"])
        points = [f"It gives a number, {number}, for any image, also of anything else."]
    elif not is_classifier_run(summary):
        points = ["It has no classes: it is meant for fine-tuning, or for its features."]
    licence = _licence(summary, origin)
    return "\n".join(paragraph(f"- {point}") for point in [*points, licence])


def _licence(summary: dict[str, Any], origin: str) -> str:
    """Return what is known of the licence of the weights that training started from.

    Args:
        origin: " and of CKPT", or "" for fresh weights.
    """
    licence = summary.get(licences.KEY)
    if not origin or licence is None:  # fresh weights
        return f"No licence is stated here: those of the data{origin} apply."
    if licence == licences.UNKNOWN:
        return (
            f"The licence of {code(summary['ckpt'])}, which training started from, is unknown to vit: it and "
            "that of the data apply."
        )
    excluded = " It excludes commercial use." if licences.is_non_commercial(licence) else ""
    return (
        f"Training started from {code(summary['ckpt'])}, which is licensed under {code(licence)}.{excluded} "
        "That licence and that of the data apply."
    )
