"""`vit fewshot`: a few images a class, frozen features, a classifier in closed form (paper, section 4.1)."""

import json
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vitcli import recipe as recipes
from vitcli.data import dataset
from vitcli.data.split import Split
from vitcli.errors import DataError, Stopped, VitError
from vitcli.evaluation.setup import RunSettings, check_named, read_checkpoint
from vitcli.features import classifiers, least_squares
from vitcli.features import draws as features_draws
from vitcli.features.draws import Draws
from vitcli.features.extract import ExtractedFeatures, FeatureExtractor, extract, open_extractor
from vitcli.features.feature_store import StoredFeatures, open_cached
from vitcli.output import run_folder, text
from vitcli.output.atomic import read_json
from vitcli.output.document import simple_table
from vitcli.output.owned_folder import refuse_other
from vitcli.output.run_folder import refuse_other_recipe
from vitcli.output.summaries import FewshotSummary, ShotScores
from vitcli.recipe import Recipe
from vitcli.recipe.request import RecipeRequest


def fewshot(
    request: RecipeRequest, run: RunSettings, *, draws_file: str | None, arguments: Sequence[str]
) -> dict[str, Any]:
    """Accuracy by images a class, mean and std over draws; of the first process, the others return nothing.

    Features are computed once for all draws, and kept: another call computes only the images it adds.
    """
    name = request.name or recipes.find_for_dataset("fewshot", request.shorthands.get("data.dataset"))
    recipe = request.load(default=name)
    check_named(recipe, "fewshot")
    if recipe.fewshot is None:
        fix = "take fewshot/default, or extend it"
        raise VitError("the recipe has no section [fewshot]", where=f"recipe {name}", fix=fix)
    _check_choices(recipe, request.given.keys(), draws_file)
    # Before the processes join, so that a long download is no stalled collective.
    weights = read_checkpoint(recipe)
    train, test = _open_splits(recipe)
    labels_N, draws = _labels_and_draws(train, recipe, draws_file)
    recipe = _as_drawn(recipe, draws)
    frozen = open_extractor(weights, recipe, request, run)
    runtime = frozen.settings.runtime
    notes = _oddities(train, labels_N, draws, recipe)
    for line in notes:
        frozen.settings.progress.note(f"note: {line}")
    if run.out and not run.overwrite:
        earlier = runtime.on_main(lambda: _finished_result(run.out, frozen.recipe, draws))
        if earlier:
            runtime.shutdown()
            return earlier
    folder = _open_run_folder(frozen, run, arguments)
    began_at = time.perf_counter()
    known = extract(frozen, train, features_draws.drawn_rows(draws), open_cached, with_logits=False)
    tests = extract(frozen, test, np.arange(len(test)), open_cached, with_logits=False)
    runtime.shutdown()  # the others have nothing to add, and would wait in vain for a long fit
    if not runtime.is_main:
        return {}
    present = _drop_undecodable(draws, known, train)
    found = _scores(frozen, present, known, tests, labels_N, num_classes=train.num_classes)
    result = _result(frozen, train, test, present, found, known, tests)
    result |= {"notes": notes, "draws_from": draws_file, "elapsed_s": time.perf_counter() - began_at}
    for computed in (known, tests):
        computed.store.close()
    return _write_run_folder(folder, result, draws, present, found)


def _check_choices(recipe: Recipe, given: Collection[str], draws_file: str | None) -> None:
    """Refuse keys of the command line that would go unheard."""
    classifier = recipe.fewshot.classifier
    classifiers.check_installed(classifier)
    if draws_file and set(given) & {"fewshot.shots", "fewshot.seeds"}:
        raise VitError(
            "a file of draws has its own shots and seeds",
            where="--draws",
            fix="leave fewshot.shots and fewshot.seeds (--shots, --seeds) out",
        )
    if classifier != "least-squares" and "fewshot.l2" in given:
        raise VitError(
            f"l2 is the strength of least squares, and the classifier is {classifier}",
            where="--l2",
            fix="leave it out, or take --classifier least-squares",
        )


def _as_drawn(recipe: Recipe, draws: Draws) -> Recipe:
    """The recipe with the shots and seeds that are run, be they from a file."""
    used = {"shots": tuple(next(iter(draws.values()))), "seeds": len(draws)}
    return recipe.model_copy(update={"fewshot": recipe.fewshot.model_copy(update=used)})


def _open_splits(recipe: Recipe) -> tuple[Split, Split]:
    train, test = dataset.open_train_and_eval(recipe.data, seed=0)
    for split in (train, test):
        if split.has_several_labels:
            fix = "name a column of one label with data.label_column"
            raise DataError(f"the rows of {split.name} have several labels each", where=split.name, fix=fix)
    return train, test


def _labels_and_draws(train: Split, recipe: Recipe, draws_file: str | None) -> tuple[np.ndarray, Draws]:
    labels_N, wanted = train.read_labels(), recipe.fewshot
    names = _class_names(train)
    counts_K = np.bincount(labels_N, minlength=train.num_classes)
    if train.num_classes == 1:
        fix = "take data of two classes or more; data.label_column names another column of labels"
        raise DataError(
            f"{train.name} has one class, so there is nothing to tell apart", where=names[0], fix=fix
        )
    if not counts_K.all():
        missing = [names[label] for label in np.flatnonzero(counts_K == 0)]
        raise DataError(
            f"{len(missing)} of {train.num_classes} classes have no image in {train.name}",
            where=text.first_few(missing),
            fix="train on a split that has every class, with data.train_split",
        )
    if draws_file:
        return labels_N, features_draws.read_draws(draws_file, labels_N, names)
    return labels_N, features_draws.draw_support_sets(
        labels_N, num_classes=train.num_classes, shots=sorted(set(wanted.shots)), seeds=range(wanted.seeds)
    )


def _oddities(train: Split, labels_N: np.ndarray, draws: Draws, recipe: Recipe) -> list[str]:
    """Classes that give fewer images than they should, and a choice that one image a class does not allow."""
    told, names = [], _class_names(train)
    counts_K = np.bincount(labels_N, minlength=train.num_classes)
    for shots in next(iter(draws.values())):
        few = np.flatnonzero(counts_K < shots)
        if len(few):
            given = text.first_few([f"{names[label]} {counts_K[label]}" for label in few])
            classes = "1 class has" if len(few) == 1 else f"{len(few)} classes have"
            told.append(f"{classes} fewer than {shots} images and give all: {given}")
    wanted = recipe.fewshot
    if 1 in next(iter(draws.values())) and wanted.classifier == "least-squares" and wanted.l2 == "sweep":
        usual = least_squares.DEFAULT_L2
        told.append(f"with one image a class none can be left out to choose l2 by; it is {usual:g} there")
    return told


def _class_names(train: Split) -> list[str]:
    return list(train.class_names or (f"class {label}" for label in range(train.num_classes)))


def _drop_undecodable(draws: Draws, known: ExtractedFeatures, train: Split) -> Draws:
    """Without the rows whose image could not be decoded."""
    if not known.skipped:
        return draws
    kept = {
        seed: {shots: rows[known.store.has(rows)] for shots, rows in by_shots.items()}
        for seed, by_shots in draws.items()
    }
    if not all(len(rows) for by_shots in kept.values() for rows in by_shots.values()):
        raise DataError("no drawn image can be decoded", where=train.name, fix="look at its files")
    return kept


def _scores(
    frozen: FeatureExtractor,
    draws: Draws,
    known: ExtractedFeatures,
    tests: ExtractedFeatures,
    labels_N: np.ndarray,
    *,
    num_classes: int,
) -> dict[int, list[features_draws.DrawScore]]:
    wanted, progress = frozen.recipe.fewshot, frozen.settings.progress
    rows_T = np.arange(tests.store.num_rows)
    rows_T = rows_T[tests.store.has(rows_T)]
    if not len(rows_T):
        raise DataError("no test image can be decoded", where="the test split", fix="look at its files")
    test_labels_T = np.concatenate(
        [tests.store.read(part)["labels"][:, 0] for part in np.array_split(rows_T, -(-len(rows_T) // 4096))]
    )
    problem = features_draws.FewshotProblem(
        features_of=lambda rows: known.store.read(rows)["features"],
        labels_N=labels_N,
        tests_TD=StoredFeatures(tests.store, rows_T),
        test_labels_T=test_labels_T,
        num_classes=num_classes,
    )
    progress.begin("fit", sum(map(len, draws.values())))
    try:
        return features_draws.score_draws(
            problem, draws, classifier=wanted.classifier, l2=wanted.l2, watch=progress.update
        )
    except KeyboardInterrupt:
        kept = "; the same command has its features" if known.store.is_kept else ""
        raise Stopped(signal.SIGINT, f"stopped while fitting{kept}") from None
    finally:
        progress.end()


def _result(
    frozen: FeatureExtractor,
    train: Split,
    test: Split,
    draws: Draws,
    found: dict[int, list[features_draws.DrawScore]],
    known: ExtractedFeatures,
    tests: ExtractedFeatures,
) -> dict[str, Any]:
    wanted, skipped = frozen.recipe, [*known.skipped, *tests.skipped]
    is_closed_form = wanted.fewshot.classifier == "least-squares"
    shots = {}
    for count, scored in found.items():
        mean, std = features_draws.mean_and_std([one.top1 for one in scored])
        runs, chosen = [one.top1 for one in scored], [one.chosen for one in scored]
        shots[str(count)] = ShotScores.written({"mean": mean, "std": std, "runs": runs, "chosen": chosen})
    return {
        "command": "fewshot",
        "ckpt": wanted.model.ckpt,
        "model": frozen.arch.name,
        "numerics": frozen.weights.numerics,
        "dataset": wanted.data.dataset,
        "train_split": train.name,
        "eval_split": test.name,
        "num_classes": train.num_classes,
        "resolution": frozen.preprocessing.resolution,
        "preprocessing": frozen.preprocessing.summary(),
        "preprocessing_from": frozen.preprocessing_from,
        "layer": wanted.eval.layer,
        "feature_dim": known.store.width[0],
        "classifier": wanted.fewshot.classifier,
        "l2": wanted.fewshot.l2 if is_closed_form else None,
        "seeds": list(draws),
        "shots": shots,
        "num_test_examples": len(test) - len(tests.skipped),
        "cached_rows": known.num_cached + tests.num_cached,
        "computed_rows": known.num_computed + tests.num_computed,
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        "precision": frozen.settings.precision,
        "num_processes": frozen.settings.runtime.world_size,
    }


DRAWS, TABLE = "draws.json", "table.txt"


def _finished_result(out: Path, recipe: Recipe, draws: Draws) -> dict[str, Any] | None:
    """The summary of a finished run of this very recipe and these draws in the folder."""
    if (out / run_folder.RECIPE).exists():
        refuse_other_recipe(out, recipe)
    summary = run_folder.finished_summary(out)
    if summary is None or not (out / DRAWS).exists():
        return None
    if read_json(out / DRAWS) != features_draws.as_json(draws):
        refuse_other(out, "a run of other draws", [DRAWS])
    return summary | {"run_dir": str(out)}


def _open_run_folder(
    frozen: FeatureExtractor, run: RunSettings, arguments: Sequence[str]
) -> run_folder.RunFolder | None:
    """The run folder, of the first process."""
    opened: list[run_folder.RunFolder] = []

    def open_folder() -> None:
        path = run.out or run_folder.new_folder("fewshot", frozen.recipe.data.dataset, frozen.arch.name)
        opened.append(run_folder.open_run(path, frozen.recipe, arguments, overwrite=run.overwrite))

    frozen.settings.runtime.on_main(open_folder)
    return opened[0] if opened else None


def _write_run_folder(
    folder: run_folder.RunFolder,
    result: dict[str, Any],
    draws: Draws,
    present: Draws,
    found: dict[int, list[features_draws.DrawScore]],
) -> dict[str, Any]:
    result["run_dir"] = str(folder.path)
    for shots, scored in found.items():
        for one in scored:
            rows = present[one.seed][shots]
            folder.log({"shots": shots, "num_examples": len(rows), **asdict(one)})
    folder.log_timing({"elapsed_s": result["elapsed_s"]})
    folder.write_text(DRAWS, json.dumps(features_draws.as_json(draws)) + "\n")
    folder.write_text(TABLE, as_text(result))
    folder.write_json(run_folder.SUMMARY, FewshotSummary.written(result))
    folder.close()
    return result


def as_text(result: dict[str, Any]) -> str:
    """The table of a result, for a person."""
    rows = []
    for shots, score in result["shots"].items():
        std = "" if score["std"] is None else text.percent(score["std"])
        rows.append((shots, text.percent(score["mean"]), std, "  ".join(map(text.percent, score["runs"]))))
    columns = {"shots": "number", "top-1": "number", "std": "number", "runs": "text"}
    table = simple_table(columns, rows).as_text()
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
    return table + "\n" + text.pairs([*rows, ("run folder", result["run_dir"])])
