"""`vit fewshot` of several checkpoints or layers: the choice, its scores, its cache, what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vitcli
from tests.conftest import run, vit
from tests.figures import drawn_figures, points_of
from vitcli.api import load_model
from vitcli.data import loader
from vitcli.evaluation.intervals import mcnemar
from vitcli.features import compare_backbones, compare_backbones_text, feature_store, layers
from vitcli.features.compare_backbones import LeftOutProblem, LeftOutScore, Speed
from vitcli.features.layers import Combination
from vitcli.features.least_squares import left_out_scores, solve
from vitcli.models import blocks

WORDS = ("fewshot", "--json", "-q", "--ckpt", "demo")
DEMO = Path(vitcli.__file__).parent / "demo_weights"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        compare_backbones, "measure_speed", lambda extractor: speed_of(extractor.layout.num_layers)
    )
    monkeypatch.chdir(tmp_path)  # runs/ comes into being there
    return tmp_path / "cache" / "vit" / "features"


def speed_of(num_layers: int):
    """Rates of which every layer takes as long."""
    return Speed({0: 60.0 / max(1, num_layers)} | {k: 60.0 / k for k in range(1, num_layers + 1)}, 0.5)


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """How many images pass through a network in each batch, without the blank ones that fill it up."""
    sizes, whole = [], blocks.read_layers

    def counted(model, images_BCHW, **more):
        pixels_BX = images_BCHW.flatten(1)
        sizes.append(int((pixels_BX != pixels_BX[:, :1]).any(dim=1).sum()))
        return whole(model, images_BCHW, **more)

    monkeypatch.setattr("vitcli.features.extract.read_layers", counted)
    return sizes


@pytest.fixture
def copies(tmp_path) -> list[Path]:
    """Copies of the demo network: one with another last block, one that states another normalisation."""
    damaged, shifted = tmp_path / "weights" / "damaged", tmp_path / "weights" / "shifted"
    for folder in (damaged, shifted):
        shutil.copytree(DEMO, folder)
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    file = damaged / "model.safetensors"
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    state = load_file(file)
    for name in [name for name in state if name.startswith("blocks.5.") and state[name].ndim > 1]:
        state[name] = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(0))
    save_file(state, file, metadata)
    config = json.loads((shifted / "config.json").read_text())
    text = json.dumps(config).replace('"mean": [0.5, 0.5, 0.5]', '"mean": [0.1, 0.1, 0.1]')
    (shifted / "config.json").write_text(text)
    return [damaged, shifted]


def test_every_combination_is_scored_as_by_really_leaving_each_image_out(photos):
    result = run(*WORDS, "--dataset", photos, "--layers", "2,6", "--l2", "3").json

    model, transform, _ = load_model("demo")
    files = sorted((photos / "train").rglob("*.png"))
    labels = np.array([int(file.parent.name == "red") for file in files])
    with torch.no_grad():
        images = torch.stack([transform(file) for file in files])
        taken = model.forward_intermediates(
            images, [1, 5], norm=True, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )
    pooled = {}
    for layer, (patches, prefix) in zip((2, 6), taken, strict=True):
        pooled[(layer,), "token"], pooled[(layer,), "mean"] = prefix[:, 0], patches.mean(dim=1)
        pooled[(layer,), "both"] = torch.cat([prefix[:, 0], patches.mean(dim=1)], dim=1)
    pooled[(2, 6), "fused"] = torch.cat([pooled[(2,), "both"], pooled[(6,), "both"]], dim=1)
    found = {(tuple(entry["layers"]), entry["pooling"]): entry for entry in result["candidates"]}

    assert found.keys() == pooled.keys()
    for key, features in pooled.items():
        hits = refitted(features.numpy(), labels, np.arange(len(labels)), 2, 3.0).argmax(axis=1) == labels
        assert (found[key]["top1"], found[key]["num_features"]) == (hits.mean(), features.shape[1])
    assert result["candidates"][0] == result["best"]
    assert result["next"] == ["vit", "finetune", "--ckpt", "demo", "--dataset", str(photos)]


def refitted(features, labels, groups, num_classes, l2):
    """Scores (N, K) of each row by a fit to the rows of other groups, standardised by all rows."""
    inputs = solve(features, labels, num_classes=num_classes, l2=[1.0], groups_N=None).inputs_NE
    targets = 2.0 * np.eye(num_classes)[labels] - 1
    scores = np.empty((len(labels), num_classes))
    for group in np.unique(groups):
        here = groups == group
        x, y = inputs[~here], targets[~here]
        if len(x) < x.shape[1]:
            weights = x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(len(x)), y)
        else:
            weights = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)
        scores[here] = inputs[here] @ weights
    return scores


@pytest.mark.parametrize("size_of_groups", [1, 3])
def test_scores_and_hits_are_those_of_refits_in_many_small_cases(size_of_groups):
    rng, num_cases = np.random.default_rng(size_of_groups), 0
    while num_cases < 150:
        num_rows, width, num_classes = rng.integers(6, 15), rng.integers(2, 18), rng.integers(2, 4)
        features, labels = rng.normal(size=(num_rows, width)), rng.integers(0, num_classes, num_rows)
        groups = rng.integers(0, num_rows, num_rows) if size_of_groups > 1 else np.arange(num_rows)
        l2 = 10 ** rng.uniform(-1, 3)
        problem = LeftOutProblem(labels, groups, num_classes, (l2,))
        if len(np.unique(groups)) < 2:
            continue
        num_cases += 1
        expected = refitted(features, labels, groups, num_classes, l2)
        solution = compare_backbones.fitted(features, problem)
        scores = left_out_scores(solution)
        assert np.abs(scores - expected).max() < 1e-9 * np.abs(expected).max()

        _, hits = compare_backbones.left_out(features, problem)
        others = [np.any((labels == label) & (groups != group)) for label, group in zip(labels, groups)]  # noqa: B905
        assert hits.tolist() == ((expected.argmax(axis=1) == labels) & others).tolist()


def test_l2_has_the_most_rows_right_and_is_the_largest_of_equals():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    features = rng.normal(size=(40, 60)) + labels[:, None] * 0.3
    strengths = (1e-2, 1.0, 1e2, 1e4, 1e6)
    l2, hits = compare_backbones.left_out(features, LeftOutProblem(labels, np.arange(40), 3, strengths))

    of_each = {
        strength: refitted(features, labels, np.arange(40), 3, strength).argmax(axis=1) == labels
        for strength in strengths
    }
    most = max(right.sum() for right in of_each.values())
    assert l2 == max(strength for strength, right in of_each.items() if right.sum() == most)
    assert hits.tolist() == of_each[l2].tolist()


def test_of_strengths_that_have_all_rows_right_the_largest_is_chosen():
    labels, groups = np.arange(30) % 3, np.arange(30)
    features = np.eye(3)[labels] * 50 + np.random.default_rng(0).normal(size=(30, 3))

    for strengths in ((0.1, 1.0, 10.0), (10.0, 0.1, 1.0)):
        l2, hits = compare_backbones.left_out(features, LeftOutProblem(labels, groups, 3, strengths))
        assert (l2, hits.sum()) == (10.0, 30)


def test_a_choice_is_scored_on_tests_by_a_fit_to_all_rows_with_its_own_strength():
    rng = np.random.default_rng(4)
    labels, tests = rng.integers(0, 2, 20), rng.integers(0, 2, 30)
    features, features_of_tests = rng.normal(size=(20, 3)) + labels[:, None], rng.normal(size=(30, 3))
    features_of_tests[::2] += tests[::2, None]
    train = SimpleNamespace(read=lambda combination: features)
    new = SimpleNamespace(read=lambda combination: features_of_tests)

    def hits(l2: float) -> list[bool]:
        nothing = np.zeros(20, bool)
        chosen = LeftOutScore(0, Combination("token", (1,)), 3, l2, nothing, nothing)
        problem = LeftOutProblem(labels, np.arange(20), 2)
        return compare_backbones.hits_on(chosen, train, problem, new, tests).tolist()

    # By hand.
    mean, std = features.mean(axis=0), features.std(axis=0)
    inputs, inputs_of_tests = (
        np.hstack([(each - mean) / std, np.full((len(each), 1), 100.0)])
        for each in (features, features_of_tests)
    )
    found = {l2: hits(l2) for l2 in (1.0, 1e4)}
    for l2, right in found.items():
        gram = inputs.T @ inputs + l2 * np.eye(inputs.shape[1])
        weights = np.linalg.solve(gram, inputs.T @ (2.0 * np.eye(2)[labels] - 1))
        assert right == ((inputs_of_tests @ weights).argmax(axis=1) == tests).tolist()
    assert found[1.0] != found[1e4]


def test_layers_are_fused_from_the_last_down_until_there_are_few_enough_features():
    def fused(num_layers: int, width: int) -> tuple[int, ...]:
        numbers = tuple(range(1, num_layers + 1))
        parts = [(name, layer, width) for layer in numbers for name in ("token", "mean")]
        return layers._fused(SimpleNamespace(layers=numbers, parts=[*parts, ("head", num_layers, 7)]))

    assert fused(12, 192) == tuple(range(1, 13))  # 4,608 of 6,144
    assert fused(12, 768) == (3, 6, 9, 12)  # 1,536 each
    assert fused(24, 1024) == (8, 16, 24) and fused(8, 384) == tuple(range(1, 9))


@pytest.mark.parametrize("most", [1, 30, 99])
def test_rows_are_drawn_once_each_and_in_ascending_order(most):
    drawn = layers.sampled_rows(100, most)

    assert len(drawn) == most and (np.diff(drawn) > 0).all() and set(drawn) <= set(range(100))
    assert drawn.tolist() == layers.sampled_rows(100, most).tolist() != list(range(most))
    for all_of_them in (100, 101):
        assert layers.sampled_rows(100, all_of_them).tolist() == list(range(100))


def test_ties_are_what_mcnemars_test_does_not_tell_from_the_best():
    everything = np.ones(40, dtype=bool)
    hits = np.arange(40) < 30

    def score(hits, scored=everything):
        return LeftOutScore(0, Combination("token", (1,)), 4, 1.0, scored, hits)

    best, close, far = score(hits), score(hits & (np.arange(40) != 3)), score(np.arange(40) < 22)
    assert compare_backbones.best_of([far, close, best]) is best
    assert compare_backbones.against(best, close) == mcnemar(1, 0) == 1.0
    assert compare_backbones.against(best, far) == mcnemar(8, 0) == pytest.approx(2 / 2**8)
    some = np.arange(40) >= 20  # 10 and 2 of these right: the other rows say nothing
    assert compare_backbones.against(best, score(far.hits_N & some, some)) == mcnemar(8, 0)
    assert score(hits & some, some).accuracy == 0.5


@pytest.mark.parametrize(("num_lost", "is_tie"), [(5, True), (6, False)])
def test_a_layer_that_loses_five_images_alone_is_a_tie_and_one_that_loses_six_is_none(num_lost, is_tie):
    """By tosses of a coin: all five on one side have a p of 2 / 2^5, 0.0625, and all six of 0.03125."""
    everything = np.ones(40, dtype=bool)

    def score(layer: int, lost: int) -> LeftOutScore:
        return LeftOutScore(0, Combination("token", (layer,)), 4, 1.0, everything, np.arange(40) >= lost)

    backbone = SimpleNamespace(
        about={"ckpt": "demo"}, layout=SimpleNamespace(num_layers=6), speed=speed_of(6)
    )
    best, other = score(6, 0), score(2, num_lost)
    advice = compare_backbones._layer_advice([backbone], [best, other], best)

    assert (advice is not None) == is_tie
    assert compare_backbones.against(best, other) == pytest.approx(2 / 2**num_lost)


def test_the_advice_is_the_shallowest_tie_of_the_best_checkpoint_and_how_much_faster_it_is():
    everything, layout = np.ones(40, dtype=bool), SimpleNamespace(num_layers=6)
    rates = {0: 11.0, 1: 70.0, 2: 44.0, 4: 22.0, 6: 12.5}  # 0: the whole network
    backbones = [
        SimpleNamespace(about={"ckpt": name}, layout=layout, speed=Speed(rates, 1.0)) for name in "ab"
    ]

    def score(layers: tuple[int, ...], lost: int, pooling: str = "token", ckpt: int = 0) -> LeftOutScore:
        hits = np.arange(40) >= lost
        return LeftOutScore(ckpt, Combination(pooling, layers), 4 * len(layers), 8.0, everything, hits)

    best, tie_of_best, deep = score((6,), 0), score((2, 6), 1, "fused"), score((4,), 1)
    worse, better, other = score((2,), 4), score((2,), 3, "mean"), score((1,), 1, ckpt=1)
    scores = [best, tie_of_best, deep, worse, better, other, score((1,), 9)]

    advice = compare_backbones._layer_advice(backbones, scores, best)
    assert advice == {"layer": 2, "pooling": "mean", "num_layers": 6, "speed_up": 44.0 / 11.0}
    assert compare_backbones._layer_advice(backbones, [best, tie_of_best, other], best) is None

    entries = [compare_backbones._entry(backbones, each, best) for each in scores]
    assert [entry["images_per_s"] for entry in entries] == [11.0, 11.0, 22.0, 44.0, 44.0, 70.0, 70.0]
    assert [entry["is_tie"] for entry in entries] == [False, True, True, True, True, True, False]
    assert [entry["mcnemar_p"] for entry in entries[-2:]] == [1.0, mcnemar(9, 0)]
    assert [entry["top1"] for entry in entries] == [1, 39 / 40, 39 / 40, 36 / 40, 37 / 40, 39 / 40, 31 / 40]
    assert (entries[5]["ckpt"], entries[1]["layers"], entries[1]["num_features"]) == ("b", [2, 6], 8)


def test_images_are_decoded_once_for_all_checkpoints_and_pass_each_network_once(
    photos, copies, read, monkeypatch
):
    rows, opened = [], loader.open_example

    def counted(split, row, *more, **options):
        rows.append((split.name, row))
        return opened(split, row, *more, **options)

    monkeypatch.setattr(loader, "open_example", counted)
    result = run(*WORDS, "--ckpt", copies[0], "--ckpt", copies[1], "--dataset", photos).json

    names = [name for name, _ in rows]
    assert sorted(row for name, row in rows if "train" in name) == list(range(24))
    assert len(names) == 24 + 10  # and the test images once, for what was chosen
    # Two have the same weights, and share their features.
    assert sum(read) == 2 * 24 + 10 and result["computed_rows"] == 48
    assert {entry["ckpt"] for entry in result["candidates"]} == {"demo", *map(str, copies)}


def test_a_second_call_computes_nothing_and_a_stopped_one_is_resumed(photos, read, monkeypatch):
    words = (*WORDS, "--dataset", photos, "--layers", "all", "--batch-size", "4")
    append, blocks_kept = feature_store.FeatureStore.append, []

    def stop(store, rows_N, *more, **named):
        if len(blocks_kept) == 3:
            raise KeyboardInterrupt
        blocks_kept.append(rows_N)
        append(store, rows_N, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(feature_store.FeatureStore, "append", stop)
        stopped = run(*words, "--out", "a")
    assert stopped.code == 130 and "computes only the rest" in stopped.json["error"]["message"]
    assert not Path("a", "summary.json").exists()
    read.clear()

    with drawn_figures() as figures:
        first = run(*words, "--out", "a").json
    assert (first["cached_rows"], first["computed_rows"], sum(read)) == (12, 12, 12 + 10)
    read.clear()
    again = run(*words, "--out", "a").json

    best_of_depth = {}
    for entry in first["candidates"]:
        best_of_depth.setdefault(entry["layers"][-1], (entry["images_per_s"], 100 * entry["top1"]))
    assert points_of(figures["accuracy_by_speed.png"]) == [
        best_of_depth[depth] for depth in sorted(best_of_depth)
    ]
    chosen = first["best"]["images_per_s"], 100 * first["best"]["top1"]
    assert points_of(figures["accuracy_by_speed.png"], 2) == [chosen]
    assert sum(read) == 0 and (again["cached_rows"], again["computed_rows"]) == (24, 0)
    for key in ("candidates", "best", "test", "layer_advice"):
        assert again[key] == first[key]
    assert sorted(file.name for file in Path("a").iterdir() if not file.name.startswith(".")) == [
        "accuracy_by_speed.png", "accuracy_by_speed.svg", "summary.json", "table.txt",
    ]  # fmt: skip
    assert json.loads(Path("a", "summary.json").read_text())["best"] == first["best"]


def test_layers_are_fused_in_steps_where_all_are_too_many_features(photos, monkeypatch):
    monkeypatch.setattr(layers, "MOST_FUSED", 2 * 96 * 3)

    result = run(*WORDS, "--dataset", photos, "--layers", "all").json

    found = {entry["pooling"]: entry for entry in result["candidates"]}
    assert found["token"]["num_scored"] == 24
    assert (found["fused"]["layers"], found["fused"]["num_features"]) == ([2, 4, 6], 576)
    assert result["computed_rows"] == 24
    text = compare_backbones_text.as_text(result, verbose=True)
    assert "of 3 layers: demo 100.00=\n" in text


def test_rows_of_many_are_drawn_at_random_and_that_is_stated(photos, monkeypatch):
    monkeypatch.setattr(compare_backbones, "MOST_ROWS", 16)

    result = run(*WORDS, "--dataset", photos, "--layers", "last").json

    assert (result["num_examples"], result["num_train_examples"]) == (16, 24)
    assert result["notes"][0].startswith("16 of 24 images") and result["test"]["num_examples"] == 10


def test_groups_are_left_out_together(photos, tmp_path):
    data = tmp_path / "data"
    for file in sorted(photos.rglob("*.png")):
        place = data / file.relative_to(photos).with_name(f"g{int(file.stem) // 4}_{file.name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    rule = ("--set", "data.group_column=name:^(g[0-9])")
    grouped = run(*WORDS, "--dataset", data, "--layers", "1", "--l2", "1", *rule)

    assert grouped.json["group_column"] == "name:^(g[0-9])" and grouped.json["num_scored"] == 24
    model, transform, _ = load_model("demo")
    files = sorted((data / "train").rglob("*.png"))
    labels = np.array([int(file.parent.name == "red") for file in files])
    groups = np.unique([file.name[:2] for file in files], return_inverse=True)[1]
    with torch.no_grad():
        images = torch.stack([transform(file) for file in files])
        (patches,) = model.forward_intermediates(
            images, [0], norm=True, output_fmt="NLC", intermediates_only=True
        )
    scores = refitted(patches.mean(dim=1).numpy(), labels, groups, 2, 1.0)
    found = next(entry for entry in grouped.json["candidates"] if entry["pooling"] == "mean")
    assert found["top1"] == (scores.argmax(axis=1) == labels).mean()


def test_the_table_says_what_is_best_what_ties_and_what_to_type_next(photos, copies):
    words = ("fewshot", "--ckpt", "demo", "--ckpt", f"{copies[0].parent}/*", "--layers", "all", "-q")
    outcome = run(*words, "--dataset", photos, "--out", "a", "-v")

    lines = outcome.out.splitlines()
    assert lines[0].split()[:1] == ["checkpoint"] and {"demo", "damaged", "shifted"} <= {
        line.split()[0] for line in lines[1:4]
    }
    assert sum("best" in line.split() for line in lines[1:4]) == 1 and "tie (p " in outcome.out
    assert "each left out" in outcome.out and lines[-1].startswith("next        vit finetune --ckpt ")
    assert outcome.out.rstrip() == Path("a", "table.txt").read_text().rstrip()
    assert all(ord(character) < 128 for character in outcome.out)


def test_what_loading_changed_is_noted_once(photos):
    outcome = run("fewshot", "--ckpt", "demo", "--layers", "all", "--res", 32, "--dataset", photos)

    assert outcome.err.count("resampled: pos_embed") == 1, outcome.err
    assert outcome.out.endswith(f" --dataset {photos} --res 32\n")  # what was judged is what is trained


def test_the_pareto_front_has_what_nothing_beats_in_both():
    points = [(10, 90), (20, 80), (15, 70), (30, 60), (10, 85), (30, 50), (5, 90)]
    assert compare_backbones_text.pareto(points) == [(10, 90), (20, 80), (30, 60)]


def test_one_checkpoint_without_layers_is_the_papers_protocol(photos, copies):
    one = run(*WORDS, "--dataset", photos, "--shots", "2", "--seeds", "1").json
    by_pattern = run(
        *("fewshot", "--json", "-q", "--ckpt", f"{copies[0].parent}/sh*"),
        *("--dataset", photos, "--shots", "2", "--seeds", "1"),
    ).json

    assert list(one["shots"]) == list(by_pattern["shots"]) == ["2"]
    assert by_pattern["ckpt"] == str(copies[1])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--layers", "0"), 2, "numbers of layers"),
        (("--layers", "first"), 2, "numbers of layers"),
        (("--layers", "4,,8"), 2, "numbers of layers"),
        (("--layers", "7"), 2, "no layer 7: the network has 6"),
        (("--layers", "all", "--shots", "5"), 2, "compared on all training images"),
        (("--layers", "all", "--layer", "gap"), 2, "compared on all training images"),
        (("--layers", "all", "--seeds", "2"), 2, "compared on all training images"),
        (("--layers", "all", "--forecast"), 2, "compared on all training images"),
        (("--layers", "all", "--draws", "draws.json"), 2, "without draws"),
        (("--ckpt", "demo", "--draws", "draws.json"), 2, "without draws"),  # demo once more
        (("--layers", "all", "--classifier", "knn"), 2, "classifier = least-squares"),
        (("--layers", "all", "--set", "fewshot.balance=full"), 2, "balance = none"),
        (("--layers", "all", "--l2", "0"), 2, "l2"),
        (("--ckpt", "none/*.safetensors"), 4, "match the pattern"),
        (("--ckpt", "timm/no_such_network*"), 4, "match the pattern"),
        (("--ckpt", "timm/*"), 4, "more than 64"),
        (("--ckpt", "nothing.safetensors"), 4, "nothing.safetensors"),
        (("--layers", "last", "--dataset", "one"), 3, "a single image or group"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_any_image_is_read(photos, tmp_path, words, code, says, read):
    for split in ("train", "test"):
        for name in ("red", "green"):
            (tmp_path / "one" / split / name).mkdir(parents=True)
            shutil.copy(photos / "train" / name / "00.png", tmp_path / "one" / split / name)
    data = () if "--dataset" in words else ("--dataset", photos)

    outcome = run(*WORDS, *data, "--out", "a", *words)

    assert outcome.code == code and read == []
    error = outcome.json["error"]
    assert says in error["message"] and error["where"] and error["fix"]
    assert not Path("runs").exists() and not Path("a", "summary.json").exists()


def test_another_comparison_in_the_folder_is_kept(photos):
    run(*WORDS, "--dataset", photos, "--layers", "1", "--out", "a")
    before = Path("a", "summary.json").read_bytes()

    other = run(*WORDS, "--dataset", photos, "--layers", "2", "--out", "a")

    assert other.code == 2 and Path("a", "summary.json").read_bytes() == before
    assert run(*WORDS, "--dataset", photos, "--layers", "2", "--out", "a", "--overwrite").code == 0


@pytest.mark.slow
def test_numbers_are_the_same_on_two_processes(photos, copies, tmp_path, monkeypatch):
    words = (*WORDS, "--ckpt", copies[0], "--dataset", photos, "--layers", "all", "--batch-size", "5")
    alone = json.loads(vit(*words).stdout)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))

    together = vit(*words, "--num-processes", 2)

    assert together.returncode == 0, together.stderr
    result = json.loads(together.stdout)
    assert result["num_processes"] == 2 and result["computed_rows"] == 48

    def accuracies(result):
        entries = [{**entry, "images_per_s": 0} for entry in result["candidates"]]
        return sorted(entries, key=lambda entry: (entry["ckpt"], entry["layers"], entry["pooling"]))

    assert accuracies(result) == accuracies(alone) and result["test"] == alone["test"]


def test_of_equal_accuracies_the_earliest_layer_and_then_the_fewest_features_are_best():
    def score(layers: tuple[int, ...], num_features: int, num_right: int) -> LeftOutScore:
        hits, every = np.arange(40) < num_right, np.ones(40, dtype=bool)
        return LeftOutScore(0, Combination("token", layers), num_features, 1.0, every, hits)

    early, late, wide = score((3,), 8, 30), score((5,), 4, 30), score((1, 3), 16, 30)

    assert compare_backbones.best_of([late, wide, early]) is early
    assert compare_backbones.best_of([early, score((9,), 99, 31)]).accuracy == 31 / 40
