"""The two model cards: of a run, with data, protocol and results; and of weights alone, without any score.

All numbers of a run's card come from its summary. Local paths are shown by their last part.
"""

import json
import re
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from vitcli import recipe as recipes
from vitcli.conversion.markdown import code, rendered
from vitcli.data import demo
from vitcli.data.dataset import is_remote
from vitcli.data.parts.eval_split_names import FoldName
from vitcli.evaluation.calibration import selective
from vitcli.evaluation.intervals import interval_of
from vitcli.models.architecture import Architecture
from vitcli.models.variants import BIT, HYBRID
from vitcli.output.redaction import is_local, public_name, public_toml, public_values
from vitcli.output.scores import ERRORS, SHOWN, interval_shown, score_rows, shown, top5_is_informative
from vitcli.output.text import first_few, fold_notes, held_out, interval_text, plain
from vitcli.weights import licences
from vitcli.weights.download import hub_id
from vitcli.weights.formats import caveats, unsupported_feature

BEGIN, END = "<!-- how to load: written by vit -->", "<!-- end of how to load -->"
BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
TAGS = ["image-classification", "vision-transformer", "vitcli"]


class LoadingNames(NamedTuple):
    """Names of a folder of weights in commands and libraries.

    Attributes:
        ckpt: for vit, in --ckpt and load_model.
        timm: for timm.create_model.
        transformers: the arguments of from_pretrained.
        intro: sentence that says where the reader starts from.
    """

    ckpt: str
    timm: str
    transformers: str
    intro: str


HERE = LoadingNames(".", "local-dir:.", '"."', "From within this folder:")


def on_the_hub(repository: str, revision: str | None = None) -> LoadingNames:
    """Return the names of a Hub repository, at a revision if it is not the default branch."""
    at = f"@{revision}" if revision else ""
    arguments = json.dumps(repository) + (f", revision={json.dumps(revision)}" if revision else "")
    return LoadingNames(f"hf-hub:{repository}{at}", f"hf-hub:{repository}{at}", arguments, "From the Hub:")


def model_card(summary: dict[str, Any], recipe_toml: str, arch: Architecture) -> str:
    """Return the Markdown card of a run, `model_card.md.j2`.

    Args:
        summary: of one run, of several (`runs`), or of a selection (`choices` and `chosen`), as summary.json.
        recipe_toml: the resolved recipe, as `recipe.to_toml` writes it.
    """
    public, is_classifier = public_values(summary), is_classifier_run(summary)
    hub_id = _id_on_the_hub(summary["dataset"])
    calibration = None if summary.get("average") else summary.get("belief")
    return rendered(
        "model_card.md.j2",
        run=public,
        is_classifier=is_classifier,
        has_several_runs=_has_several_runs(summary),
        is_dev=_split_of(summary["eval_split"]).endswith("dev part"),
        scores=_score_rows(public),
        thresholds=selective.results_of(calibration) if calibration else None,
        files_left_out=_left_out(public),
        choice_keys=[key for key in (summary.get("choices") or [{}])[0] if not key.startswith("dev_")],
        fold_notes=_fold_notes(public),
        held_out_notes=[note for _, note in held_out(public)],
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
        loading=how_to_load(HERE, arch, dataset=summary["dataset"] if is_classifier else None),
        recipe=public_toml(recipe_toml),
    )


def weights_card(exported: dict[str, Any], loading: str) -> str:
    """Return the Markdown card of weights without a run that `vit export` made, `weights_card.md.j2`."""
    licence = exported.get(licences.KEY, licences.UNKNOWN)
    front_matter = _front_matter(
        loads_in_timm=True,
        is_classifier=exported["num_classes"] > 0,
        ckpt=exported["ckpt"],
        **licences.in_card(licence),
    )
    return rendered(
        "weights_card.md.j2",
        exported=exported,
        origin=public_name(exported["ckpt"]),
        licence=licence,
        front_matter=front_matter,
        loading=loading,
    )


def taught_card(summary: dict[str, Any], arch: Architecture, licence: str) -> str:
    """Return the Markdown card of a classifier that was taught, `taught_card.md.j2`."""
    start = summary["from"]
    front_matter = _front_matter(
        loads_in_timm=True, is_classifier=True, ckpt=start, **licences.in_card(licence)
    )
    loading = how_to_load(HERE, arch, dataset=None)
    return rendered("taught_card.md.j2", taught=summary, front_matter=front_matter, loading=loading)


def how_to_load(
    names: LoadingNames, arch: Architecture, *, dataset: str | None, of_onnx: dict[str, Any] | None = None
) -> str:
    """Return the section of a card on loading, `loading.md.j2`, with vit, Python, timm and transformers.

    It stands between two marks, so that `vit export --push-to-hub` can replace it and keep everything else
    that the owner of the card has written.

    Args:
        arch: without classes, the examples compute features.
        dataset: that the weights were evaluated on, if any.
        of_onnx: result of the export of an ONNX file that goes with the weights.
    """
    if dataset and not _is_known_by_name(dataset):
        dataset = f"PATH/TO/{PurePath(public_name(dataset)).name}"
    return rendered(
        "loading.md.j2",
        names=names,
        has_classes=arch.num_classes > 0,
        dataset=public_name(dataset) if dataset else None,
        unsupported=unsupported_feature("timm", arch),
        is_registered_by_vit=arch.timm_name in (BIT, HYBRID),
        caveats=caveats("timm", arch),
        onnx=of_onnx,
        file=Path(of_onnx["out"]).name if of_onnx else None,
        BEGIN=BEGIN,
        END=END,
    )


def replace_section(card: str, section: str) -> str | None:
    """Return the card with another section on loading; None where it has none between marks."""
    changed, count = BLOCK.subn(lambda _: section.rstrip("\n"), card)
    return changed if count == 1 else None


def _is_known_by_name(dataset: str) -> bool:
    """Return whether a data set's name means the same everywhere, as a path does not."""
    if dataset in recipes.dataset_aliases() or dataset in demo.SETS or "://" in dataset:
        return True
    is_hub_id = dataset.count("/") == 1 and not dataset.endswith("/")
    return is_hub_id and not is_local(dataset) and not Path(dataset).exists()


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


def _score_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table of results: a run each where there are several, else a score each."""
    if "mae" in summary or not is_classifier_run(summary):
        return score_rows(summary, ERRORS)
    count, num_classes = summary["num_eval_examples"], summary["num_classes"]
    if _has_several_runs(summary):
        return [
            (
                str(run["seed"]),
                shown(run, "top1"),
                interval_text(interval_of(run["top1"], count)),
                shown(run | {"num_classes": num_classes}, "top5"),
                shown(run, "loss"),
            )
            for run in summary["runs"]
        ]
    rows = [(*row, "") for row in score_rows(summary, ("mean_ap", "f1_at_thresholds"))]
    keys = ("top1", "top5") if top5_is_informative(num_classes) else ("top1",)
    rows += [
        (SHOWN[key].label, shown(summary, key), interval_shown(summary.get("intervals"), key)) for key in keys
    ]
    return [*rows, ("loss", f"{shown(summary, 'loss')} nats", "")]


def _has_several_runs(summary: dict[str, Any]) -> bool:
    return len(summary.get("runs") or ()) > 1


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
