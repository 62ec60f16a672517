"""`vit fewshot` with several checkpoints or layers: which backbone, layer and pooling suits the images.

Every combination is scored by leave-one-out of the closed form; McNemar's test says which of them tie.

N rows, D features, T test rows, E inputs of the closed form, K classes.
"""

import signal
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitcli.data.image_cache import ImageCache
from vitcli.data.parts.splitting import groups_to_divide
from vitcli.data.split import Split
from vitcli.distributed.runtime import autocast, peak_memory, reset_peaks
from vitcli.errors import DataError, Stopped, VitError
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.intervals import interval_of, mcnemar
from vitcli.evaluation.setup import RunSettings, eval_settings, read_checkpoint, seen_by
from vitcli.features import compare_backbones_text
from vitcli.features.extract import FeatureExtractor, open_extractor
from vitcli.features.fewshot import check_has_fewshot, open_splits
from vitcli.features.layers import Combination, LayerFeatures, combinations, extract_layers, sampled_rows
from vitcli.features.least_squares import SWEEP, Solution, at_best_l2, has_others, left_out_hits, parts, solve
from vitcli.models.blocks import LayerLayout, layout_of, reading
from vitcli.models.flops import num_params
from vitcli.models.kernels import dense_layers
from vitcli.output import plots, run_folder
from vitcli.output.atomic import replace_file, write_json
from vitcli.output.progress import Progress
from vitcli.output.result_folder import ResultFolder
from vitcli.recipe import Recipe
from vitcli.recipe.reading import data_words, size_words
from vitcli.weights.io import read_description
from vitcli.weights.licences import is_non_commercial

MOST_ROWS = 20_000  # of the training split; of more, this many are drawn at random
TABLE, FIGURE = "table.txt", "accuracy_by_speed"
FOLDER = ResultFolder(
    "comparison",
    run_folder.SUMMARY,
    (run_folder.SUMMARY, TABLE, *(f"{FIGURE}.{ending}" for ending in plots.ENDINGS)),
)
# Options of the paper's protocol that a comparison has no use for.
NOT_TAKEN = {
    "fewshot.shots": "--shots",
    "fewshot.seeds": "--seeds",
    "fewshot.forecast": "--forecast",
    "eval.layer": "--layer",
}
LEVEL = 0.05  # p below which a difference from the best is not a tie
MOST_BATCH = {"cpu": 8}  # images of a pass; elsewhere the batch size of the command
PASSES = 5  # timed ones; the first two are for warming up and are not


@dataclass(frozen=True)
class Speed:
    """What a network takes.

    Attributes:
        images_per_s: up to a layer, by its number; 0 stands for a network whose layers are not read.
        peak_memory_gib: of the GPU during these passes, else of this process.
    """

    images_per_s: Mapping[int, float]
    peak_memory_gib: float


@dataclass(frozen=True, eq=False)
class LeftOutProblem:
    """Labels and groups of the rows that are scored; `strengths` of l2 to choose from."""

    labels_N: np.ndarray
    groups_N: np.ndarray
    num_classes: int
    strengths: tuple[float, ...] = SWEEP

    def part(self, which_N: np.ndarray) -> "LeftOutProblem":
        """Return the problem of some of the rows."""
        return replace(self, labels_N=self.labels_N[which_N], groups_N=self.groups_N[which_N])


@dataclass(frozen=True, eq=False)
class LeftOutScore:
    """A combination of one checkpoint and the images that it has right when they are left out.

    Attributes:
        ckpt: its number in the command.
        l2: chosen.
        scored_N, hits_N: which rows are scored, and which of these are right.
    """

    ckpt: int
    combination: Combination
    num_features: int
    l2: float
    scored_N: np.ndarray
    hits_N: np.ndarray

    @property
    def accuracy(self) -> float:
        return int(self.hits_N.sum()) / int(self.scored_N.sum())


@dataclass(frozen=True, eq=False)
class Backbone:
    """A checkpoint and what it costs; its network and tensors are dropped once the features are there.

    Attributes:
        recipe: to read it again.
        features, speed: on the first process.
        about: of the JSON.
    """

    recipe: Recipe
    layout: LayerLayout
    features: LayerFeatures | None
    speed: Speed | None
    about: dict[str, Any]


def compare_backbones(
    each_recipe: Sequence[Recipe], run: RunSettings, *, layers: str | Sequence[int]
) -> dict[str, Any]:
    """Return the leave-one-out accuracy of each combination; {} on all processes but the first.

    Args:
        each_recipe: one for each checkpoint, equal otherwise.
        layers: "all", "last", or numbers from 1.

    The test split is not used for the choice; it is scored with what was chosen.
    """
    # Everything is named and opened before the processes join: a long download would stall a collective.
    recipe = each_recipe[0]
    for one in each_recipe:
        _check(one)
    for one in each_recipe:
        read_description(one.model.ckpt, model_name=one.model.name, quiet=run.quiet)
    starts = [(one.model.ckpt, one.model.name) for one in each_recipe]
    train, test = open_splits(recipe, starts)
    rows_N = sampled_rows(len(train), MOST_ROWS)
    problem = _problem(train, recipe, rows_N)
    settings = eval_settings(recipe, run)
    runtime = settings.runtime
    images = ImageCache(recipe.data.cache, processes_here=runtime.processes_here, num_runs=len(each_recipe))
    notes = _notes(train, rows_N)
    for line in [*train.lines, *test.lines, *(f"note: {note}" for note in notes)]:
        settings.progress.detail(line)

    asked = _asked(each_recipe, train, test, layers)
    with ExitStack() as opened:
        out = run.out or run_folder.new_folder("fewshot", recipe.data.dataset, "comparison")
        runtime.on_main(lambda: FOLDER.claim(opened, out, [asked], overwrite=run.overwrite))
        began_at = time.perf_counter()
        # All processes extract features; the first one alone fits.
        backbones = []
        for number, one in enumerate(each_recipe, start=1):
            if len(each_recipe) > 1:
                settings.progress.note(f"{number} of {len(each_recipe)}: {one.model.ckpt}")
            extractor = open_extractor(read_checkpoint(one, quiet=True), one, run, settings)
            backbones.append(_backbone(extractor, train, rows_N, images, layers=layers))
            if backbones[-1].features:
                opened.callback(backbones[-1].features.store.close)
        if line := images.line():
            settings.progress.detail(line)
        runtime.shutdown()
        if not runtime.is_main:
            return {}
        try:
            scores = _scores(backbones, problem, rows_N, settings.progress)
        except KeyboardInterrupt:
            raise Stopped(
                signal.SIGINT, "stopped while fitting; the same command reuses the features"
            ) from None
        best = best_of(scores)
        result = _result(backbones, scores, best, train)
        result |= {"l2": "sweep" if problem.strengths == SWEEP else problem.strengths[0]}
        result |= {"group_column": recipe.data.group_column, "notes": notes + _seen_notes(backbones)}
        result |= {"asked": asked, "num_processes": runtime.world_size, "precision": settings.precision}
        alone = replace(settings, runtime=runtime.alone())  # the other processes have ended
        tested = _tested(backbones[best.ckpt], best, problem, rows_N, test, run=run, settings=alone)
        result |= {"test": tested, "elapsed_s": time.perf_counter() - began_at}
        return _write(out, result)


def _check(recipe: Recipe) -> None:
    """Refuse what a comparison would ignore."""
    check_has_fewshot(recipe)
    for key, option in NOT_TAKEN.items():
        if key in recipe.given:
            raise VitError(
                "several checkpoints or layers are compared on all training images",
                where=f"{option} (recipe key {key})",
                fix="leave it out, or name one --ckpt and no --layers for the paper's protocol",
            )
    for key, only in (("classifier", "least-squares"), ("balance", "none")):
        if (value := getattr(recipe.fewshot, key)) != only:
            raise VitError(
                f"layers are compared by the closed form with fewshot.{key} = {only}, not {value}",
                where=f"recipe key fewshot.{key}",
                fix="leave it out",
            )


def _problem(train: Split, recipe: Recipe, rows_N: np.ndarray) -> LeftOutProblem:
    """Return labels and groups of the rows.

    Raises:
        DataError: there is one class, or no image of which its class has another one.
    """
    labels_N, groups_N = train.read_labels()[rows_N], groups_to_divide(train)
    groups_N = np.arange(len(rows_N)) if groups_N is None else groups_N[rows_N]
    if len(np.unique(labels_N)) < 2:
        fix = "take data of two classes or more; data.label_column names another column of labels"
        raise DataError(
            f"{train.name} has one class, so there is nothing to classify", where=train.name, fix=fix
        )
    if not has_others(labels_N, groups_N).any():
        raise DataError(
            "each class has a single image or group, so none can be left out",
            where=train.name,
            fix="take at least two images per class",
        )
    l2 = recipe.fewshot.l2 if "fewshot.l2" in recipe.given else "sweep"
    return LeftOutProblem(labels_N, groups_N, train.num_classes, SWEEP if l2 == "sweep" else (float(l2),))


def _notes(train: Split, rows_N: np.ndarray) -> list[str]:
    if len(rows_N) == len(train):
        return []
    return [f"{len(rows_N):,} of {len(train):,} images of {train.name} are used, drawn at random (seed 0)"]


def _asked(
    each_recipe: Sequence[Recipe], train: Split, test: Split, layers: str | Sequence[int]
) -> dict[str, Any]:
    """Return all that the result depends on, by option or recipe key."""
    given = each_recipe[0].asked | {"model.ckpt": [one.given.get("model.ckpt") for one in each_recipe]}
    splits = {"train": [train.name, train.fingerprint], "test": [test.name, test.fingerprint]}
    return {**given, **splits, "--layers": layers if isinstance(layers, str) else list(layers)}


def _backbone(
    extractor: FeatureExtractor,
    train: Split,
    rows_N: np.ndarray,
    images: ImageCache,
    *,
    layers: str | Sequence[int],
) -> Backbone:
    """Measure what a checkpoint costs, and extract its features of the training rows."""
    arch, weights, ckpt = extractor.network.arch, extractor.network.weights, extractor.recipe.model.ckpt
    layout = layout_of(extractor.network.model, arch.image_size, layers, ckpt=ckpt)
    extractor = replace(extractor, layout=layout, images=images)
    settings = extractor.network.settings
    settings.progress.detail(
        f"{arch.name}: {extractor.network.preprocessing.summary()}, {extractor.network.preprocessing_from}"
    )
    speed = measure_speed(extractor) if settings.runtime.is_main else None
    features = extract_layers(extractor, train, rows_N)
    about = {
        "ckpt": ckpt,
        "model": arch.name,
        "numerics": weights.numerics,
        "resolution": extractor.network.preprocessing.resolution,
        "preprocessing": extractor.network.preprocessing.summary(),
        "preprocessing_from": extractor.network.preprocessing_from,
        "num_layers": layout.num_layers,
        "params": num_params(arch.with_head(0)),
        "license": weights.licence,
        "non_commercial": is_non_commercial(weights.licence),
        "num_images_seen": seen_by(weights, extractor.recipe.data.dataset).num_trained_on(train),
    }
    return Backbone(extractor.recipe, layout, features, speed, about)


def _scores(
    backbones: Sequence[Backbone], problem: LeftOutProblem, rows_N: np.ndarray, progress: Any
) -> list[LeftOutScore]:
    """Score every combination of every checkpoint on the images that could be decoded."""
    of_each = [combinations(backbone.layout) for backbone in backbones]
    scores: list[LeftOutScore] = []
    with progress.bar("fit", sum(map(len, of_each))):
        for ckpt, (backbone, found) in enumerate(zip(backbones, of_each, strict=True)):
            features = backbone.features
            if not len(features.rows_N):
                raise DataError("no image can be decoded", where="the training split", fix="check its files")
            of_rows = problem.part(np.isin(rows_N, features.rows_N))
            for combination in found:
                scores.append(score_of(features, combination, of_rows, ckpt=ckpt))
                progress.update(len(scores))
    return scores


def _result(
    backbones: Sequence[Backbone], scores: Sequence[LeftOutScore], best: LeftOutScore, train: Split
) -> dict[str, Any]:
    """Return the object of --json, as far as it follows from the training images."""
    features = backbones[0].features
    entries = [_entry(backbones, score, best) for score in scores]
    order = sorted(range(len(scores)), key=lambda i: (scores[i] is not best, -scores[i].accuracy))
    skipped = sorted({place for backbone in backbones for place in backbone.features.skipped})
    return {
        "command": "fewshot",
        "dataset": backbones[0].recipe.data.dataset,
        "train_split": train.name,
        "num_classes": train.num_classes,
        "num_train_examples": len(train),
        "num_examples": len(features.rows_N),
        "num_scored": int(best.scored_N.sum()),
        "ckpts": [backbone.about | asdict(backbone.speed) for backbone in backbones],
        "candidates": [entries[i] for i in order],
        "best": entries[order[0]],
        "layer_advice": _layer_advice(backbones, scores, best),
        "next": _next(backbones[best.ckpt]),
        "cached_rows": sum(backbone.features.num_cached for backbone in backbones),
        "computed_rows": sum(backbone.features.num_computed for backbone in backbones),
        "num_skipped_images": len(skipped),
        "skipped_images": skipped[:100],
        **train.left_out.summary(),
    }


def _entry(backbones: Sequence[Backbone], score: LeftOutScore, best: LeftOutScore) -> dict[str, Any]:
    """Return the object of one combination."""
    backbone, combination = backbones[score.ckpt], score.combination
    num_scored = int(score.scored_N.sum())
    p = 1.0 if score is best else against(best, score)
    return {
        "ckpt": backbone.about["ckpt"],
        "layers": list(combination.layers),
        "pooling": combination.pooling,
        "num_features": score.num_features,
        "top1": score.accuracy,
        "interval": interval_of(score.accuracy, num_scored),
        "num_scored": num_scored,
        "l2": [score.l2],
        "mcnemar_p": p,
        "is_tie": score is not best and p >= LEVEL,
        "images_per_s": _rate(backbone, combination),
    }


def _rate(backbone: Backbone, combination: Combination) -> float:
    """Return images per second up to the layer; the last one's is that of the whole network."""
    rates, depth = backbone.speed.images_per_s, combination.depth
    return rates[0 if depth == backbone.layout.num_layers else depth]


def _layer_advice(
    backbones: Sequence[Backbone], scores: Sequence[LeftOutScore], best: LeftOutScore
) -> dict[str, Any] | None:
    """Return the shallowest layer of the best checkpoint that a paired test does not tell from the best."""
    backbone = backbones[best.ckpt]
    last = backbone.layout.num_layers
    same = [
        score
        for score in scores
        if score.ckpt == best.ckpt and score.combination.depth < last and against(best, score) >= LEVEL
    ]
    if not same:
        return None
    first = min(same, key=lambda score: (score.combination.depth, -score.accuracy))
    return {
        "layer": first.combination.depth,
        "pooling": first.combination.pooling,
        "num_layers": last,
        "speed_up": _rate(backbone, first.combination) / backbone.speed.images_per_s[0],
    }


def _next(backbone: Backbone) -> list[str]:
    """Return the command that fine-tunes the chosen checkpoint, as a list of words."""
    words = [*data_words(backbone.recipe.data), *size_words(backbone.recipe.given)]
    return ["vit", "finetune", "--ckpt", str(backbone.recipe.model.ckpt), *words]


def _seen_notes(backbones: Sequence[Backbone]) -> list[str]:
    """Note checkpoints that were trained on the images: to leave one out does not make it new to them."""
    return [
        f"{backbone.about['ckpt']} was trained on {count:,} of these images; its accuracy is biased"
        for backbone in backbones
        if (count := backbone.about["num_images_seen"])
    ]


def _tested(
    backbone: Backbone,
    best: LeftOutScore,
    problem: LeftOutProblem,
    rows_N: np.ndarray,
    test: Split,
    *,
    run: RunSettings,
    settings: EvalSettings,
) -> dict[str, Any]:
    """Score the chosen combination on the test split, fitted to the training images."""
    silent = replace(settings, progress=Progress(quiet=True))  # the notes on the weights were shown
    extractor = open_extractor(read_checkpoint(backbone.recipe, quiet=True), backbone.recipe, run, silent)
    network = replace(extractor.network, settings=settings)
    extractor = replace(extractor, network=network, layout=backbone.layout)
    tests = extract_layers(extractor, test, sampled_rows(len(test), MOST_ROWS))
    with closing(tests.store):
        of_rows = problem.part(np.isin(rows_N, backbone.features.rows_N))
        labels_T = test.read_labels()[tests.rows_N]
        hits_T = hits_on(best, backbone.features, of_rows, tests, labels_T)
        top1 = float(hits_T.mean())
        interval = interval_of(top1, len(hits_T))
        return {"split": test.name, "top1": top1, "interval": interval, "num_examples": len(hits_T)}


def _write(out: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Write table, figure and summary, and return the object of --json."""
    FOLDER.begin(out, [result["asked"]])
    result["run_dir"] = str(out)
    table = compare_backbones_text.as_text(result, verbose=True)
    replace_file(out / TABLE, lambda path: Path(path).write_text(table, encoding="utf-8"))
    figure = compare_backbones_text.accuracy_by_speed(result)
    for ending in plots.ENDINGS:
        plots.save(out / f"{FIGURE}.{ending}", figure)
    write_json(out / run_folder.SUMMARY, result)
    return result


def score_of(
    features: LayerFeatures, combination: Combination, problem: LeftOutProblem, *, ckpt: int
) -> LeftOutScore:
    """Fit the closed form to the rows, and score each without itself or its group."""
    features_ND = features.read(combination)
    l2, hits_N = left_out(features_ND, problem)
    scored_N = has_others(problem.labels_N, problem.groups_N)
    return LeftOutScore(ckpt, combination, features_ND.shape[1], l2, scored_N, hits_N)


def left_out(features_ND: np.ndarray, problem: LeftOutProblem) -> tuple[float, np.ndarray]:
    """Return the l2 with the most rows right, the largest of equals, and which rows (N,) it has right."""
    solution = at_best_l2(fitted(features_ND, problem))
    return solution.l2[0], left_out_hits(solution)[:, 0]


def fitted(features_ND: np.ndarray, problem: LeftOutProblem) -> Solution:
    """Return the closed form of all rows."""
    return solve(
        features_ND,
        problem.labels_N,
        num_classes=problem.num_classes,
        l2=problem.strengths,
        groups_N=problem.groups_N,
    )


def hits_on(
    chosen: LeftOutScore,
    train: LayerFeatures,
    problem: LeftOutProblem,
    tests: LayerFeatures,
    labels_T: np.ndarray,
) -> np.ndarray:
    """Fit a combination to all rows of `train`, and return whether it has each row of `tests` right, (T,)."""
    features_ND, features_TD = train.read(chosen.combination), tests.read(chosen.combination)
    solution = fitted(features_ND, replace(problem, strengths=(chosen.l2,)))
    weights_EK = solution.weights(0)
    best = [
        (solution.inputs(features_TD[rows], rows.start) @ weights_EK).argmax(axis=1)
        for rows in parts(len(labels_T), len(weights_EK))
    ]
    return np.concatenate(best) == labels_T


def best_of(scores: Sequence[LeftOutScore]) -> LeftOutScore:
    """Return the most accurate; of equals the one of the shallowest layer, then with the fewest features."""
    return min(scores, key=lambda s: (-s.accuracy, s.combination.depth, s.num_features))


def against(best: LeftOutScore, other: LeftOutScore) -> float:
    """Return the p-value of the exact McNemar test of two scores, on the rows that both have."""
    both_N = best.scored_N & other.scored_N
    only_best = int((best.hits_N & ~other.hits_N & both_N).sum())
    return mcnemar(only_best, int((other.hits_N & ~best.hits_N & both_N).sum()))


def measure_speed(extractor: FeatureExtractor) -> Speed:
    """Time forward passes of noise, with a look at the clock after each layer; the shortest time counts.

    Other work on the machine only adds to a time: equal networks have nearly equal shortest ones.
    Decoding is not part of it: one decoded image serves all networks. Heads are not, either.
    """
    model, settings, layout = extractor.network.model, extractor.network.settings, extractor.layout
    device = settings.device
    batch_size = min(settings.batch_size, MOST_BATCH.get(device.type, settings.batch_size))
    shape = (batch_size, 3, *extractor.network.preprocessing.image_size)
    images_BCHW = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)
    layers, elapsed_s = range(1, layout.num_layers + 1), defaultdict(list)
    began_at = 0.0

    def note(layer: int, _: torch.Tensor) -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        elapsed_s[layer].append(time.perf_counter() - began_at)

    model.eval()
    reset_peaks()
    with torch.no_grad(), dense_layers(model, device, settings.precision):
        for number in range(PASSES + 2):
            if number == 2:
                elapsed_s.clear()
            began_at = time.perf_counter()
            with autocast(device, settings.precision), reading(model, layers, note):
                encoded = model.forward_features(images_BCHW)
            note(0, encoded)
    peaks = peak_memory()
    rates = {layer: batch_size / min(times) for layer, times in sorted(elapsed_s.items())}
    return Speed(rates, peaks["device_peak_memory_gib"] or peaks["host_peak_memory_gib"])
