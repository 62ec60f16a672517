"""`vit fewshot`: classification of frozen features of a few images per class (paper, section 4.1)."""

import json
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data import dataset
from vitcli.data.parts.splitting import groups_to_divide
from vitcli.data.seen_images import digests_of
from vitcli.data.split import Split, classes_without
from vitcli.data.task import check_supports
from vitcli.errors import DataError, Stopped, VitError
from vitcli.evaluation.intervals import interval_of
from vitcli.evaluation.setup import RunSettings, Start, read_checkpoint, seen_by, starts_of, trained_on_by
from vitcli.features import classifiers, forecast, least_squares
from vitcli.features import draws as features_draws
from vitcli.features.draws import Draws, DrawScore, FewshotProblem
from vitcli.features.extract import ExtractedFeatures, FeatureExtractor, extract, open_extractor
from vitcli.features.feature_store import StoredFeatures, open_cached
from vitcli.features.statistics import ClosedFormStatistics, network_digest
from vitcli.output import plots, run_folder, summaries, text
from vitcli.output.atomic import read_json
from vitcli.output.document import simple_table
from vitcli.output.owned_folder import refuse_other
from vitcli.output.run_folder import DRAWS, refuse_other_recipe
from vitcli.output.summaries import FewshotSummary, ShotScores
from vitcli.recipe import Recipe
from vitcli.recipe.reading import data_words, size_words
from vitcli.weights.io import Weights

TABLE = "table.txt"


def fewshot(
    recipe: Recipe, run: RunSettings, *, draws_file: str | None, arguments: Sequence[str]
) -> dict[str, Any]:
    """Return the accuracy by images per class, mean and std over draws; {} on all processes but the first.

    Features are computed once for all draws and cached: another call computes only those of further images.
    """
    check_has_fewshot(recipe)
    _check_choices(recipe, draws_file)

    # Weights and data are read before the processes join: a long download would stall a collective.
    weights = read_checkpoint(recipe, quiet=run.quiet)
    train, test = open_splits(recipe)
    groups_N = groups_to_divide(train)
    labels_N, draws = _labels_and_draws(train, recipe, draws_file, groups_N)
    curve_rows_N = _rows_of_curve(train, labels_N, recipe)
    used = {"shots": tuple(next(iter(draws.values()))), "seeds": len(draws)}  # a file's, where there is one
    recipe = recipe.model_copy(update={"fewshot": recipe.fewshot.model_copy(update=used)})
    extractor = open_extractor(weights, recipe, run)
    runtime = extractor.network.settings.runtime
    notes = _notes_on_test(test, train, weights, recipe) + _notes(train, labels_N, draws, recipe)
    if recipe.fewshot.forecast and len(curve_rows_N) < len(labels_N):
        notes.append(f"the forecast is from {len(curve_rows_N):,} of the {len(labels_N):,} training images")
    if left_out := (train.left_out | test.left_out).count_text():
        extractor.network.settings.progress.note_once(f"left out: {left_out}")
    for line in dict.fromkeys([*train.lines, *test.lines, *(f"note: {note}" for note in notes)]):
        extractor.network.settings.progress.detail(line)

    # A finished run of the same request is returned as it is.
    if run.out and not run.overwrite:
        earlier = runtime.on_main(lambda: _finished_result(run.out, extractor.recipe, draws))
        if earlier:
            runtime.shutdown()
            return earlier
    folder = _open_run_folder(extractor, run, arguments)

    # All processes extract features; the first one alone fits, which may take longer than others would wait.
    kept = folder.discarded_on_error() if folder else nullcontext()  # the cache keeps the features
    with kept, ExitStack() as opened:
        began_at = time.perf_counter()
        rows_N = np.union1d(features_draws.drawn_rows(draws), curve_rows_N)
        support = extract(extractor, train, rows_N, open_cached, with_logits=False)
        if support.store is not None:
            opened.callback(support.store.close)  # also if the test images cannot be read
        tests = extract(extractor, test, np.arange(len(test)), open_cached, with_logits=False)
        runtime.shutdown()
        if not runtime.is_main:
            return {}
        draws_used = _drop_undecodable(draws, support, train)
        problem = _problem(support, tests, labels_N, num_classes=train.num_classes, groups_N=groups_N)
        scores = _scores(extractor, problem, draws_used, support, l2=recipe.fewshot.l2)
        notes += _write_statistics(folder.path, extractor, train, problem, draws_used)
        result = _result(extractor, train, test, scores, support, tests)
        result["next"] += size_words(recipe.given)
        if recipe.fewshot.forecast:
            result["forecast"] = _forecast(extractor, problem, curve_rows_N, support)
        result |= {"notes": notes, "draws_from": draws_file, "elapsed_s": time.perf_counter() - began_at}
        tests.store.close()
        return _write_run_folder(folder, result, draws, draws_used, scores)


def check_has_fewshot(recipe: Recipe) -> None:
    """Refuse a recipe that does not say how to classify frozen features."""
    if recipe.fewshot is None:
        fix = "take fewshot/default, or extend it"
        raise VitError("the recipe has no section [fewshot]", where=f"recipe {recipe.name}", fix=fix)


def _check_choices(recipe: Recipe, draws_file: str | None) -> None:
    """Refuse options that the classifier or a file of draws would ignore."""
    classifier, given = recipe.fewshot.classifier, recipe.given.keys()
    classifiers.check_installed(classifier)
    if draws_file and given & {"fewshot.shots", "fewshot.seeds"}:
        fix = "leave fewshot.shots and fewshot.seeds (--shots, --seeds) out"
        raise VitError("a file of draws has its own shots and seeds", where="--draws", fix=fix)
    if classifier != "least-squares" and "fewshot.l2" in given:
        raise VitError(
            f"l2 is the strength of least squares, but the classifier is {classifier}",
            where="--l2",
            fix="leave it out, or take --classifier least-squares",
        )
    if classifier != "least-squares" and recipe.fewshot.balance != "none":
        raise VitError(
            f"rows are weighted in least squares, but the classifier is {classifier}",
            where=f"recipe key fewshot.balance = {recipe.fewshot.balance}",
            fix="set it to none, or take --classifier least-squares",
        )


def open_splits(
    recipe: Recipe, starts: Sequence[Start] | None = None, *, seed: int = 0, needed_by: str = "vit fewshot"
) -> tuple[Split, Split]:
    """Open the training and the test split, of one label each.

    Args:
        starts: the checkpoints, if not those of the recipe: no image that they were trained on is cut as one
            to score on.
        needed_by: command or option, for errors.
    """
    before = partial(trained_on_by, starts or starts_of(recipe), quiet=True)
    train, test = dataset.open_train_and_eval(recipe.data, seed=seed, trained_before=before)
    for split in (train, test):
        fix = "name a column of one label with data.label_column"
        check_supports(needed_by, split.task, name=split.name, fix=fix)
    return train, test


def _labels_and_draws(
    train: Split, recipe: Recipe, draws_file: str | None, groups_N: np.ndarray | None
) -> tuple[np.ndarray, Draws]:
    """Return the labels of the training split, all classes present, and the draws from it."""
    labels_N, fewshot = train.read_labels(), recipe.fewshot
    names, num_classes = list(train.readable_class_names), train.num_classes
    counts_K = np.bincount(labels_N, minlength=num_classes)
    if num_classes == 1:
        problem = f"{train.name} has one class, so there is nothing to classify"
        fix = "take data of two classes or more; data.label_column names another column of labels"
        raise DataError(problem, where=names[0], fix=fix)
    if not counts_K.all():
        missing = [names[label] for label in np.flatnonzero(counts_K == 0)]
        raise DataError(
            f"{len(missing)} of {num_classes} classes have no image in {train.name}",
            where=text.first_few(missing),
            fix="train on a split that has every class, with data.train_split",
        )
    if draws_file:
        return labels_N, features_draws.read_draws(draws_file, labels_N, names)
    shots, seeds = sorted(set(fewshot.shots)), range(fewshot.seeds)
    draws = features_draws.draw_support_sets(
        labels_N, num_classes=num_classes, shots=shots, seeds=seeds, groups_N=groups_N
    )
    return labels_N, draws


def _notes_on_test(test: Split, train: Split, weights: Weights, recipe: Recipe) -> list[str]:
    """Note test images cut from train, classes without one, and ones that the weights were trained on."""
    missing = classes_without(test, train)
    cut = f"scored on {text.count_of(len(test), 'image')} held out from train (data.dev_fraction)"
    notes = [cut] if test.dev_cut else []
    notes += [f"no test image of: {text.first_few(missing)}"] if missing else []
    if count := seen_by(weights, recipe.data.dataset).num_trained_on(test):
        notes.append(f"{recipe.model.ckpt} was trained on {count:,} of the {len(test):,} test images")
    return notes


def _notes(train: Split, labels_N: np.ndarray, draws: Draws, recipe: Recipe) -> list[str]:
    """Note classes with fewer images than shots, and an l2 that one image per class cannot choose."""
    notes, names, all_shots = [], train.readable_class_names, next(iter(draws.values()))
    counts_K = np.bincount(labels_N, minlength=train.num_classes)
    for shots in all_shots:
        few = np.flatnonzero(counts_K < shots)
        if len(few):
            counts = text.first_few([f"{names[label]} {counts_K[label]}" for label in few])
            classes = "1 class has" if len(few) == 1 else f"{len(few)} classes have"
            notes.append(f"{classes} fewer than {shots} images, and all are used: {counts}")
    fewshot, rule = recipe.fewshot, recipe.data.group_column
    if rule:
        sizes = [np.bincount(labels_N[rows]) for by_shots in draws.values() for rows in by_shots.values()]
        smallest, largest = min(counts.min() for counts in sizes), max(counts.max() for counts in sizes)
        notes.append(f"draws are of whole groups of {rule}: {smallest} to {largest} images of a class")
    if 1 in all_shots and fewshot.classifier == "least-squares" and fewshot.l2 == "sweep":
        default = f"{least_squares.DEFAULT_L2:g}"
        notes.append(f"l2 is {default} with one image per class, where none can be left out to choose it")
    return notes


def _drop_undecodable(draws: Draws, support: ExtractedFeatures, train: Split) -> Draws:
    """Drop the rows whose image could not be decoded."""
    if not support.skipped:
        return draws
    decoded = {
        seed: {shots: rows[support.store.has(rows)] for shots, rows in by_shots.items()}
        for seed, by_shots in draws.items()
    }
    if not all(len(rows) for by_shots in decoded.values() for rows in by_shots.values()):
        raise DataError("no drawn image can be decoded", where=train.name, fix="check its files")
    return decoded


def _rows_of_curve(train: Split, labels_N: np.ndarray, recipe: Recipe) -> np.ndarray:
    """Return the rows that a forecast is made from; none without one."""
    if not recipe.fewshot.forecast:
        return np.arange(0)
    rows_N = forecast.sample_rows(labels_N, num_classes=train.num_classes)
    forecast.check_enough(len(rows_N), train.num_classes)
    return rows_N


def _problem(
    support: ExtractedFeatures,
    tests: ExtractedFeatures,
    labels_N: np.ndarray,
    *,
    num_classes: int,
    groups_N: np.ndarray | None,
) -> FewshotProblem:
    """Return features and labels of both splits, of the test split those of decodable rows."""
    rows_T = np.arange(tests.store.num_rows)
    rows_T = rows_T[tests.store.has(rows_T)]
    if not len(rows_T):
        raise DataError("no test image can be decoded", where="the test split", fix="check its files")
    # Records hold the features too, so labels are read in parts.
    chunks = np.array_split(rows_T, -(-len(rows_T) // 4096))
    return FewshotProblem(
        features_of=lambda rows: support.store.read(rows)["features"],
        labels_N=labels_N,
        tests_TD=StoredFeatures(tests.store, rows_T),
        test_labels_T=np.concatenate([tests.store.read(rows)["labels"][:, 0] for rows in chunks]),
        num_classes=num_classes,
        groups_N=groups_N,
    )


def _scores(
    extractor: FeatureExtractor,
    problem: FewshotProblem,
    draws: Draws,
    support: ExtractedFeatures,
    *,
    l2: float | str,
) -> dict[int, list[DrawScore]]:
    """Score every draw on the decodable rows of the test split."""
    fewshot, progress = extractor.recipe.fewshot, extractor.network.settings.progress
    how = {"classifier": fewshot.classifier, "l2": l2, "balance": fewshot.balance}
    try:
        with progress.bar("fit", sum(map(len, draws.values()))):
            return features_draws.score_draws(problem, draws, **how, on_draw=progress.update)
    except KeyboardInterrupt:
        kept = "; the same command reuses the features" if support.store.is_kept else ""
        raise Stopped(signal.SIGINT, f"stopped while fitting{kept}") from None


def _forecast(
    extractor: FeatureExtractor, problem: FewshotProblem, rows_N: np.ndarray, support: ExtractedFeatures
) -> dict[str, Any]:
    """Return what more images would bring, from nested draws of the decodable ones of these rows.

    Least squares choose l2 for each draw, whatever the recipe has: at a fixed l2 accuracy is not a power law.
    """
    draws = forecast.curve_draws(
        problem.labels_N,
        num_classes=problem.num_classes,
        rows_N=rows_N[support.store.has(rows_N)],
        groups_N=problem.groups_N,
    )
    points = forecast.curve_points(_scores(extractor, problem, draws, support, l2="sweep"))
    is_closed_form = extractor.recipe.fewshot.classifier == "least-squares"
    about = {"l2": "sweep" if is_closed_form else None}
    return forecast.forecast(points, num_tests=len(problem.test_labels_T)) | about


def _result(
    extractor: FeatureExtractor,
    train: Split,
    test: Split,
    scores: dict[int, list[DrawScore]],
    support: ExtractedFeatures,
    tests: ExtractedFeatures,
) -> dict[str, Any]:
    """Return the object of --json, as far as it follows from the features and scores."""
    recipe, skipped = extractor.recipe, [*support.skipped, *tests.skipped]
    network, is_closed_form = extractor.network, recipe.fewshot.classifier == "least-squares"
    # Accuracies by number of shots, then the facts they depend on.
    shots, num_tests = {}, len(test) - len(tests.skipped)
    for count, draw_scores in scores.items():
        runs, chosen = [score.top1 for score in draw_scores], [score.chosen for score in draw_scores]
        mean, std = features_draws.mean_and_std(runs)
        interval = interval_of(mean, num_tests)
        shots[str(count)] = ShotScores.written(
            {"mean": mean, "std": std, "interval": interval, "runs": runs, "chosen": chosen}
        )
    return {
        "command": "fewshot",
        "ckpt": recipe.model.ckpt,
        "model": network.arch.name,
        "numerics": network.weights.numerics,
        "dataset": recipe.data.dataset,
        "train_split": train.name,
        "eval_split": test.name,
        "eval_fingerprint": test.fingerprint,
        "num_classes": train.num_classes,
        "resolution": network.preprocessing.resolution,
        "preprocessing": network.preprocessing.summary(),
        "preprocessing_from": network.preprocessing_from,
        "layer": recipe.eval.layer,
        "feature_dim": support.store.width[0],
        "classifier": recipe.fewshot.classifier,
        "l2": recipe.fewshot.l2 if is_closed_form else None,
        "balance": recipe.fewshot.balance if is_closed_form else None,
        "seeds": [score.seed for score in next(iter(scores.values()))],
        "shots": shots,
        "num_test_examples": num_tests,
        "cached_rows": support.num_cached + tests.num_cached,
        "computed_rows": support.num_computed + tests.num_computed,
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        **(train.left_out | test.left_out).summary(),
        "precision": network.settings.precision,
        "num_processes": network.settings.runtime.world_size,
        "next": ["vit", "finetune", "--ckpt", str(recipe.model.ckpt), *data_words(recipe.data)],
    }


def _finished_result(out: Path, recipe: Recipe, draws: Draws) -> dict[str, Any] | None:
    """Return the summary of a finished run of the same recipe and draws in the folder, if there is one."""
    if (out / run_folder.RECIPE).exists():
        refuse_other_recipe(out, recipe)
    summary = run_folder.finished_summary(out)
    if summary is None or not (out / DRAWS).exists():
        return None
    if read_json(out / DRAWS) != features_draws.as_json(draws):
        refuse_other(out, "a run of other draws", [DRAWS])
    summaries.read(out / run_folder.SUMMARY, summaries.FewshotSummary)  # it is shown
    return summary | {"run_dir": str(out)}


def _open_run_folder(
    extractor: FeatureExtractor, run: RunSettings, arguments: Sequence[str]
) -> run_folder.RunFolder | None:
    """Open the run folder on the first process."""
    opened: list[run_folder.RunFolder] = []

    def open_folder() -> None:
        path = run.out or run_folder.new_folder(
            "fewshot", extractor.recipe.data.dataset, extractor.network.arch.name
        )
        opened.append(run_folder.open_run(path, extractor.recipe, arguments, overwrite=run.overwrite))

    extractor.network.settings.runtime.on_main(open_folder)
    return opened[0] if opened else None


def _write_run_folder(
    folder: run_folder.RunFolder,
    result: dict[str, Any],
    draws: Draws,
    draws_used: Draws,
    scores: dict[int, list[DrawScore]],
) -> dict[str, Any]:
    """Write metrics, draws, table and summary, and return the object of --json."""
    result["run_dir"] = str(folder.path)
    for shots, draw_scores in scores.items():
        for score in draw_scores:
            num_examples = len(draws_used[score.seed][shots])
            folder.log({"shots": shots, "num_examples": num_examples, **asdict(score)})
    folder.log_timing({"elapsed_s": result["elapsed_s"]})
    folder.write_text(DRAWS, json.dumps(features_draws.as_json(draws)) + "\n")
    folder.write_text(TABLE, as_text(result, verbose=True))
    if "forecast" in result:
        plots.save(folder.path / forecast.FIGURE, forecast.figure(result["forecast"]))
    folder.write_summary(FewshotSummary.written(result))
    folder.close()
    return result


def _write_statistics(
    folder: Path, extractor: FeatureExtractor, train: Split, problem: FewshotProblem, draws: Draws
) -> list[str]:
    """Write the closed form of the first draw with the most shots, which `vit teach` can change.

    Other classifiers, weighted rows and inner layers have none. Return a note where the features fit no sums.
    """
    fewshot, names = extractor.recipe.fewshot, train.readable_class_names
    is_plain = fewshot.classifier == "least-squares" and fewshot.balance == "none"
    if not is_plain or extractor.recipe.eval.layer != "pre_logits" or len({*names}) < len(names):
        return []
    _, by_shots = min(draws.items())
    _, rows_N = max(by_shots.items())
    try:
        statistics = ClosedFormStatistics.of(
            problem.features_of(rows_N),
            problem.labels_N[rows_N],
            digests_of(train, rows_N),
            class_names=names,
            groups_N=None if problem.groups_N is None else problem.groups_N[rows_N],
        )
    except DataError as error:
        return [f"vit teach cannot start from this run: {error.message}"]
    about = {"l2": fewshot.l2, "network": network_digest(extractor.network.model)}
    statistics.write(folder / run_folder.CLOSED_FORM, about)
    return []


def as_text(result: dict[str, Any], *, verbose: bool = False) -> str:
    """Return the result as a table for a terminal, with `verbose` all that is known of it."""
    rows = []
    for shots, score in result["shots"].items():
        std = "" if score["std"] is None else text.percent(score["std"])
        interval = score.get("interval") or interval_of(score["mean"], result["num_test_examples"])
        runs = "  ".join(map(text.percent, score["runs"]))
        rows.append((shots, text.percent(score["mean"]), text.interval_text(interval), std, runs))
    columns = dict.fromkeys(("shots", "top-1", "95 %", "std"), "number") | {"runs": "text"}
    table = simple_table(columns, rows).as_text()
    classifier = result["classifier"]
    if result["l2"] is not None:
        classifier += ", l2 " + (result["l2"] if result["l2"] == "sweep" else f"{result['l2']:g}")
    if result.get("balance", "none") not in (None, "none"):
        classifier += f", balance {result['balance']}"
    rows = [
        ("classifier", f"{classifier}, {result['feature_dim']} features ({result['layer']})"),
        ("scored on", f"{text.count_of(result['num_test_examples'], 'image')}, {result['eval_split']}"),
    ]
    forecasted = forecast.as_pairs(result["forecast"]) if "forecast" in result else []
    if not verbose:
        notes = [note for note in result["notes"] if not note.startswith("scored on")]  # a row of its own
        rows += forecasted + [("note", text.Folded(note)) for note in notes]
        return table + "\n" + text.brief([*rows, *text.skipped(result)], [result["next"]])
    rows += [
        ("model", text.model_text(result)),
        ("pixels", f"{result['preprocessing']}, {result['preprocessing_from']}"),
        ("features", f"computed {result['computed_rows']}, from cache {result['cached_rows']}"),
    ]
    rows += [*forecasted, *text.skipped(result), *(("note", note) for note in result["notes"])]
    rows += [("run folder", result["run_dir"]), *text.commands(result["next"])]
    return table + "\n" + text.pairs(rows)
