"""`vit export --fastest`: candidates, the screening, tests in a fixed order, and ten sabotaged files."""

import copy
import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.text import Text

from tests.conftest import run
from tests.conversion.test_export import network, vit
from vitcli.conversion import comparison, export, fastest, fastest_text, images
from vitcli.conversion.comparison import NotFinite, divergence, highest_drop
from vitcli.conversion.export import ExportOptions
from vitcli.conversion.fastest import FastestSearch, TriedFile, Variation
from vitcli.data.dataset import DataSet
from vitcli.data.image_files import find_images
from vitcli.data.seen_images import SeenImages, digests_of
from vitcli.errors import CheckFailed, DataError, VitError, WeightsError
from vitcli.output import run_folder
from vitcli.output.progress import Progress
from vitcli.weights import onnx
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.io import Weights, read_weights, write_weights_file
from vitcli.weights.load import load, num_blocks, with_first_blocks


def weights_of(arch, model=None, **changes) -> Weights:
    state = (model or network(arch)).state_dict()
    stored = dict(state=state, architecture=arch, preprocessing=None, class_names=tuple("abcde"))
    return Weights(**stored | dict(source="ckpt", format="", numerics="", metadata={}) | changes)


def trial(name: int, ratio: float, divergence: float, **of_candidate) -> TriedFile:
    candidate = Variation(None, (name, name), **of_candidate)
    return TriedFile(candidate, Path(str(name)), ratio, 1 / ratio, divergence=divergence)


def test_the_divergence_is_that_of_torch():
    torch.manual_seed(0)
    a, b = torch.randn(2, 7, 5)
    expected = torch.nn.functional.kl_div(b.log_softmax(1), a.softmax(1), reduction="batchmean")

    assert divergence(a, b) == pytest.approx(float(expected), rel=1e-5) and divergence(a, a + 3) < 1e-6


def test_the_front_is_what_no_other_beats_in_steps_of_five_percent():
    rng = np.random.default_rng(0)
    for _ in range(50):
        trials = [trial(k, *rng.uniform(0.1, 1, 2).tolist()) for k in range(12)]
        kept = fastest.front(trials)

        unbeaten = [
            a
            for a in trials
            if not any(b.latency_ratio < a.latency_ratio and b.divergence < a.divergence for b in trials)
        ]
        assert {each.name for each in kept} <= {each.name for each in unbeaten}
        assert kept[0] is max(unbeaten, key=lambda each: each.latency_ratio)
        ratios = [each.latency_ratio for each in kept]
        assert all(b <= 0.95 * a for a, b in pairwise(ratios))
        assert all(bool(each.why) == (each not in kept) for each in trials)
        lost = [each for each in trials if each.why.startswith("less than 5% faster")]
        assert {each.name for each in lost} == {a.name for a in unbeaten} - {each.name for each in kept}


def outputs_of(lost: int = 0, gained: int = 0) -> torch.Tensor:
    """Return logits on 600 images, all of class 0: of the checkpoint, which has 500 right, or of a file."""
    is_right_N = torch.arange(600) < 500
    is_right_N[:lost], is_right_N[500 : 500 + gained] = False, True
    return torch.eye(2)[(~is_right_N).long()]


def judged(trials: list[TriedFile], *outputs: torch.Tensor | None, max_drop: float = 0.01) -> SimpleNamespace:
    """Judge trials by their outputs, None for outputs that are not finite, and return the search."""

    def outputs_of_trial(tried: TriedFile, _: object) -> torch.Tensor:
        outputs_NK = outputs[trials.index(tried)]
        if outputs_NK is None:
            raise NotFinite
        return outputs_NK

    options = ExportOptions(max_drop=max_drop)
    search = SimpleNamespace(options=options, trials=trials, outputs_of=outputs_of_trial, latency_ms=10.0)
    search.prepared = lambda candidate: SimpleNamespace(format="onnx", arch=vit())
    fastest.judge(trials, search, None, outputs_of(), torch.zeros(600, dtype=torch.int64), z=comparison.Z)
    return search


def three_trials() -> list[TriedFile]:
    return [trial(64, 1, 0), trial(56, 0.8, 0.1), trial(48, 0.6, 0.2)]


def test_no_file_that_loses_too_much_is_accepted_more_often_than_in_one_of_twenty_searches():
    """One candidate is good, eight lose what just is not allowed; judged one by one, any often passes."""
    rng, num_wrong, num_naive = np.random.default_rng(0), 0, 0
    for _ in range(300):
        fractions = [(0.005, 0.005, 0.99), *[(0.04, 0.02, 0.94)] * 8]
        counts = [rng.multinomial(600, each)[:2].tolist() for each in fractions]
        sequence = [trial(k, 0.9**k, 0.1 * k) for k in range(9)]
        judged(sequence, *(outputs_of(*each) for each in counts), max_drop=0.02)

        accepted = [each.is_accepted for each in sequence]
        assert accepted == sorted(accepted, reverse=True)
        num_wrong += any(accepted[1:])
        num_naive += any(highest_drop(*each, 600) <= 0.02 for each in counts[1:])
    assert num_wrong <= 300 * 0.05 + 2 * math.sqrt(300 * 0.05 * 0.95)
    assert num_naive > 45


def test_a_file_whose_outputs_are_not_finite_is_refused():
    trials = three_trials()
    search = judged(trials, outputs_of(), None, outputs_of())

    assert [each.why for each in trials[1:]] == [
        "refused: its outputs are not finite", "not judged: fp32, 56 px was refused",
    ]  # fmt: skip
    assert fastest.choose(search, None) is trials[0]
    with pytest.raises(CheckFailed, match="are not finite numbers"):
        fastest.choose(judged(three_trials(), None), None)


def test_a_file_in_fp32_that_fails_ends_the_search_and_any_other_has_lost(monkeypatch):
    def failing(search, tried):
        search.baseline = "opened"
        raise CheckFailed("out of memory", where="", fix="")

    monkeypatch.setattr(FastestSearch, "_try", failing)
    search = FastestSearch(None, None, None, None, (8, 8), Path(), "x.onnx", Progress(quiet=True))
    with pytest.raises(CheckFailed, match="out of memory"):
        search.try_all([Variation(None, (8, 8))])
    search.trials[:] = [trial(8, 1, 0)]
    search.try_all([Variation(None, (7, 7))])
    assert search.trials[1].why == "cannot be exported: out of memory"


def test_a_file_in_fp32_whose_outputs_are_not_finite_ends_the_search(tmp_path, monkeypatch):
    def not_finite(*_):
        raise NotFinite

    prepared = SimpleNamespace(format="onnx", arch=vit(), form=None)
    prepared.write = lambda path, samples, *, fp32: path.touch()
    monkeypatch.setattr(FastestSearch, "prepared", lambda *_: prepared)
    monkeypatch.setattr(FastestSearch, "outputs_of", not_finite)
    monkeypatch.setattr(fastest, "ProgramNetwork", Path)
    search = FastestSearch(None, None, range(9), None, (8, 8), tmp_path, "x.onnx", Progress(quiet=True))
    with pytest.raises(CheckFailed, match="are not finite numbers"):
        search.try_all([Variation(None, (8, 8))])


def test_a_file_whose_memory_cannot_be_measured_is_not_lost(monkeypatch):
    """A large photograph may need more than the limits of a process, which grow with it."""
    given = []

    def too_small(path, *, num_bytes):
        given.append(num_bytes)
        raise CheckFailed("more memory", where="", fix="")

    monkeypatch.setattr(fastest, "OnnxProcess", too_small)
    monkeypatch.setattr(FastestSearch, "_measure_latency", lambda *_: None)
    monkeypatch.setattr(comparison, "medians", lambda sides, images: dict.fromkeys(sides, 0.5))
    options = ExportOptions()
    search = FastestSearch(None, options, None, None, (30, 40), Path(), "x.onnx", Progress(quiet=True))
    tried = trial(8, 1, 0)
    tried.num_bytes = 1000
    search._measure(tried, None)

    assert (tried.peak_memory_mb, tried.images_per_s, tried.batch_size) == (None, 64, 32)
    assert given == [1000 + 4 * 30 * 40 * 3]


def test_what_follows_a_refusal_is_not_judged_and_says_so():
    search = judged(three_trials(), outputs_of(), outputs_of(9, 2), outputs_of())
    first, refused, last = search.trials

    assert (first.is_accepted, refused.is_accepted, last.verdict) == (True, False, None)
    points = math.ceil(1000 * highest_drop(9, 2, 600)) / 10
    assert refused.why == f"refused: may lose {points:g} points"
    assert last.why == "not judged: fp32, 56 px was refused"
    assert fastest.choose(search, 10.5) is first and not first.why
    with pytest.raises(VitError, match="fp32, 64 px, takes 10 ms") as error:
        fastest.choose(search, 9.0)
    assert error.value.exit_code == 8 and "--budget 11ms keeps it" in error.value.fix
    assert fastest.choose(search, 11) is first


def test_the_fastest_of_the_accepted_is_kept():
    trials = three_trials()

    assert fastest.choose(judged(trials, outputs_of(), outputs_of(), outputs_of(9, 2)), None) is trials[1]
    assert trials[0].why == "accepted, but fp32, 56 px is faster" and not trials[1].why


def test_a_network_without_its_last_blocks_computes_what_the_first_do():
    arch = vit(args=vit().model_args | {"depth": 3})
    model = network(arch)
    cut = with_first_blocks(weights_of(arch, model), 1)
    shorter = load(cut)[0].eval()

    assert num_blocks(weights_of(arch, model)) == 3 and num_blocks(cut) == 1
    pixels = torch.randn(2, 3, 32, 32)
    expected = copy.deepcopy(model)
    expected.blocks = expected.blocks[:1]
    with torch.no_grad():
        assert torch.equal(shorter(pixels), expected(pixels))
        assert not torch.equal(shorter(pixels), model(pixels))
    assert num_blocks(weights_of(replace(arch, head_layers=2), model)) == 0


def test_candidates_are_made_of_sizes_that_patches_divide_and_of_precisions_that_are_faster():
    arch = vit((224, 224), args=vit().model_args | {"patch_size": 16, "depth": 2})
    first = Variation(weights_of(arch), (224, 224))
    names = [each.name for each in fastest.singles(first)]

    assert {"fp16, 224 px", "int8, 224 px", "fp32, 192 px", "fp32, 176 px", "fp32, 144 px", "fp32, 96 px",
            "fp32, 224 px, 1 of 2 blocks"} <= {*names}  # fmt: skip
    trials = [
        TriedFile(each, Path(), 0.7 if each.precision == "int8" else 1.1) for each in fastest.singles(first)
    ]
    names = [each.name for each in fastest.products([TriedFile(first, Path(), 1.0), *trials])]
    assert {"int8, 192 px", "int8, 96 px", "int8, 192 px, 1 of 2 blocks"} <= {*names}
    assert not any("fp16" in name for name in names)
    wide = Variation(weights_of(vit((32, 64))), (32, 64))
    assert fastest.smaller_sizes(wide) == [(24, 56), (24, 48), (24, 40), (16, 40), (16, 24)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "10"), "invalid latency '10': use 10ms or 0.5s"),
        (("--budget", "0ms"), "invalid latency"),
        (("--budget", ""), "invalid latency ''"),
        (("--precision", "int8"), "--fastest chooses the file: leave --precision out"),
        (("--res", "160"), "leave --res out"),
        (("--no-head",), "leave --no-head out"),
        (("--push-to-hub", "a/b"), "leave --push-to-hub out"),
        (("--max-drop", "0"), "no number of images shows a drop of 0"),
        (("--to", "pt2"), "leave --to out"),
        ((), "cannot show a drop of at most 1 points: 268 are needed even if no answer changes"),
        (("--gate", "demo"), "different classes"),
        (("--max-drop", "50", "--student", "demo"), "demo has other classes"),
    ],
)
def test_what_cannot_be_chosen_is_refused(trained, tmp_path, words, message):
    outcome = run("export", trained, tmp_path / "fast.onnx", "--fastest", "--quiet", *words)

    assert outcome.code in (2, 3, 4) and message in outcome.err, outcome.err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["fast.pt2", "fast.npz", "fast.safetensors", "fast"])
def test_another_format_than_onnx_is_refused(trained, tmp_path, name):
    outcome = run("export", trained, tmp_path / name, "--fastest", "--quiet")

    assert outcome.code == 2 and "--fastest writes an ONNX file: end OUT in .onnx" in outcome.err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("option", ["--images", "--gate"])
def test_damaged_images_that_are_named_are_refused_before_the_search(
    trained, photos, tmp_path, monkeypatch, option
):
    shutil.copytree(photos, tmp_path / "photos")
    damaged = next((tmp_path / "photos" / "test").rglob("*.*"))
    damaged.write_bytes(damaged.read_bytes()[:200])
    named = damaged if option == "--images" else tmp_path / "photos"
    monkeypatch.setattr(FastestSearch, "try_all", lambda *_: pytest.fail("too late"))
    words = ("--fastest", "--max-drop", "50", "--quiet", "--calibrate", photos / "train")
    outcome = run("export", trained, tmp_path / "fast.onnx", *words, option, named)

    assert outcome.code == 3 and damaged.name in outcome.err, outcome.err


def test_images_of_the_verdict_are_not_compared_on_first(photos):
    """Neither of a folder that is named, nor where the run has cut them from what it trained on."""
    weights = SimpleNamespace(source="demo")
    judged = find_images([str(photos / "train")], where="").part(0, 5, name="")
    both = images.open_for_screening(weights, [str(photos / "train")], judged, most=100)
    digests = [digests_of(split) for split in (judged, both)]

    assert len(both) == len(find_images([str(photos / "train")], where="")) - 5
    assert not np.isin(*digests).any()
    with pytest.raises(VitError, match="are among those that the verdict is based on"):
        images.open_for_screening(
            weights, [str(photos / "train")], find_images([str(photos)], where=""), most=9
        )
    with pytest.raises(VitError, match="training images of these weights are not here") as error:
        images.open_for_screening(weights, [], judged, most=9)
    assert error.value.where == "--fastest" and "--calibrate FOLDER" in error.value.fix


def test_images_that_the_weights_were_trained_on_judge_nothing(trained, photos, tmp_path):
    weights = read_weights(str(trained))
    with pytest.raises(DataError, match="was trained on all images of"):
        images.open_labelled(str(photos), "train", weights)
    both = shutil.copytree(photos / "test", tmp_path / "both")
    shutil.copy(photos / "train/red/03.png", both / "red/seen.png")
    split = images.open_labelled(str(both), "train", weights)
    assert len(split) == 10 and "1 of these 11 images was trained on" in split.notes[0]


def test_a_table_of_the_run_is_read_as_the_run_did(trained, photos, tmp_path):
    copied = shutil.copytree(photos / "test", tmp_path / "images")
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in sorted(copied.glob("*/*.png"))]
    for name in ("own.csv", "other.csv"):
        (tmp_path / name).write_text("\n".join(["image,kind", *rows]))
    folder = shutil.copytree(trained, tmp_path / "run")
    recipe = (folder / "recipe.toml").read_text().replace(str(photos), str(tmp_path / "own.csv"))
    (folder / "recipe.toml").write_text(recipe.replace("[data]", '[data]\nlabel_column = "kind"'))
    (folder / "environment.json").unlink()
    weights = read_weights(str(folder))

    assert len(images.open_labelled(str(tmp_path / "own.csv"), "auto", weights)) == 10
    with pytest.raises(DataError, match="no column of labels") as error:
        images.open_labelled(str(tmp_path / "other.csv"), "auto", weights)
    assert error.value.fix == "call it label"  # an export takes no recipe keys


def test_with_students_each_of_the_two_sequences_has_half_of_the_error():
    assert [round(fastest.quantile(has_students), 4) for has_students in (False, True)] == [1.6449, 1.96]


def test_the_advice_of_too_few_images_is_enough():
    for count in (18, 100, 267):
        split = type("Few", (), {"name": "pets", "__len__": lambda _, count=count: count})()
        with pytest.raises(VitError) as error:
            fastest._check_enough(split, 0.01, comparison.Z)
        points = float(error.value.fix.rpartition(" ")[2])
        fastest._check_enough(split, points / 100, comparison.Z)
        assert highest_drop(0, 0, count) <= points / 100 <= highest_drop(0, 0, count) + 0.001


def test_outputs_of_a_student_come_in_the_order_of_the_classes_of_the_checkpoint():
    arch = vit()
    student = weights_of(arch, class_names=("c", "a", "e", "b", "d"))
    order = fastest.order_of(student, weights_of(arch))

    assert torch.tensor([[0.3, 0.1, 0.5, 0.2, 0.4]])[:, order].tolist() == [
        pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    ]


def test_students_beside_a_run_are_those_whose_recipe_names_it(tmp_path, monkeypatch):
    """By any path, and although a folder beside them may not be read."""
    for name in ("locked", "run", "student", "unrelated"):
        (tmp_path / name).mkdir()
        for file in (run_folder.RECIPE, run_folder.WEIGHTS):
            (tmp_path / name / file).write_text("")
    teachers = {"student": (str(tmp_path / "run" / run_folder.WEIGHTS), "demo"), "unrelated": ("demo",)}

    def recipe_of(folder):
        if folder.name == "locked":
            raise PermissionError(folder)
        return SimpleNamespace(teachers=teachers.get(folder.name, ())), True

    monkeypatch.setattr(run_folder, "recipe_of", recipe_of)
    monkeypatch.chdir(tmp_path)

    assert fastest._distilled_from("run") == [tmp_path / "student"]
    assert fastest._distilled_from(str(tmp_path / "student")) == []
    monkeypatch.setattr(Path, "iterdir", lambda _: (_ for _ in ()).throw(PermissionError))
    assert fastest._distilled_from("run") == []


@pytest.fixture
def students_of(tmp_path, monkeypatch):
    """Two students beside a checkpoint, a damaged one among them, and the notes on them."""
    arch, notes = vit(), []

    def read(name: str, *, quiet: bool) -> Weights:
        if Path(name).name == "damaged":
            raise WeightsError("the file is damaged", where=name, fix="")
        return weights_of(arch, source=name)

    def names_of(named: list[str], num_judged: int) -> list[str]:
        progress = SimpleNamespace(note=notes.append, is_silent=True)
        students = fastest._students(weights_of(arch), named, range(num_judged), 0.01, progress)
        return [each.student for each in students]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fastest, "read_weights", read)
    monkeypatch.setattr(fastest, "_distilled_from", lambda _: [tmp_path / "a", tmp_path / "damaged"])
    return names_of, notes


def test_a_student_that_is_named_and_beside_the_checkpoint_is_tried_once(students_of):
    names_of, _ = students_of
    assert names_of(["a"], 381) == ["a"]
    assert len(names_of([f"a/{run_folder.WEIGHTS}"], 381)) == 1


def test_a_damaged_student_is_left_out_unless_it_is_named(students_of):
    names_of, notes = students_of
    assert names_of([], 381) == ["a"] and "damaged is left out: the file is damaged" in notes[-1]
    with pytest.raises(WeightsError, match="the file is damaged"):
        names_of(["damaged"], 381)


def test_a_student_that_was_trained_on_images_that_judge_it_is_left_out_unless_it_is_named(
    students_of, monkeypatch
):
    names_of, notes = students_of
    monkeypatch.setattr(SeenImages, "num_trained_on", lambda seen, split: 7)
    assert names_of([], 381) == []
    assert "a is left out: a was trained on 7 of the 381 evaluation images" in notes[0].replace(
        str(Path.cwd()) + "/", ""
    )
    with pytest.raises(WeightsError, match="evaluation images"):
        names_of(["a"], 381)


def test_students_that_nobody_named_make_no_images_too_few(students_of):
    """Of 381 that two sequences need, 268 are enough for the checkpoint alone."""
    names_of, notes = students_of
    assert names_of([], 380) == []
    assert notes == ["note: no student is tried (a, damaged): with them 381 labelled images are needed"]
    assert names_of(["a"], 380) == ["a"]


def sabotaged() -> dict:
    """Ten ways in which a file of the demo network may be wrong."""

    def broken(change):
        def of(model):
            other = copy.deepcopy(model)
            with torch.no_grad():
                change(other)
            return other

        return of

    def rolled(tensor, shift=1, dim=0):
        tensor.copy_(tensor.roll(shift, dim))

    def sharpen(attention):
        attention.qkv.weight[: attention.qkv.in_features] *= 16

    def in_3_bits(model):
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                step = module.weight.abs().amax() / 3
                module.weight.copy_((module.weight / step).round() * step)

    def seeing(function):
        def of(model):
            return torch.nn.Sequential(Before(function), copy.deepcopy(model)).eval()

        return of

    return {
        "rows of the head moved": broken(lambda m: rolled(m.head.weight)),
        "one class preferred": broken(lambda m: m.head.bias[0].add_(8)),
        "a block of zeros": broken(lambda m: [p.zero_() for p in m.blocks[2].mlp.parameters()]),
        "weights in 3 bits": broken(in_3_bits),
        "positions moved": broken(lambda m: rolled(m.pos_embed, 7, 1)),
        "queries and keys exchanged with values": broken(
            lambda m: [rolled(block.attn.qkv.weight, block.attn.qkv.in_features) for block in m.blocks]
        ),
        "attention that is too sharp": broken(lambda m: [sharpen(block.attn) for block in m.blocks]),
        "negatives": seeing(lambda x: -x),
        "another normalisation": seeing(lambda x: (x - 0.5) * 2),
        "blurred": seeing(lambda x: torch.nn.functional.avg_pool2d(x, 7, 1, 3)),
    }


class Before(torch.nn.Module):
    """What a sabotaged file does to its images."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, images):
        return self.function(images)


def test_ten_sabotaged_files_are_refused_and_the_network_itself_is_accepted():
    weights = read_weights("demo")
    model = load(weights)[0].eval()
    split = DataSet("demo:pretrain").open("test[:270]")
    preprocessing, _ = export.preprocessing_of(weights, None)

    breaks = sabotaged()
    networks = [model, copy.deepcopy(model), *(break_(model) for break_ in breaks.values())]
    *outputs, labels_N = comparison.outputs_of_all(
        networks, split, preprocessing, Progress(quiet=True), title=""
    )
    outputs_NK, same_NK, *broken = outputs
    assert float((outputs_NK.argmax(1) == labels_N).double().mean()) > 0.8
    assert comparison.judge(outputs_NK, same_NK, labels_N, max_drop=0.01).is_accepted
    verdicts = [comparison.judge(outputs_NK, each_NK, labels_N, max_drop=0.01) for each_NK in broken]
    assert [name for name, each in zip(breaks, verdicts, strict=True) if not each.is_accepted] == [*breaks]


@pytest.fixture
def few_candidates(monkeypatch):
    """Of all candidates the file in int8, which is made in seconds."""
    monkeypatch.setattr(comparison, "ENOUGH_S", 0.0)
    monkeypatch.setattr(fastest, "ENOUGH_S", 0.0)
    monkeypatch.setattr(fastest, "singles", lambda first: [replace(first, precision="int8")])
    monkeypatch.setattr(fastest, "products", lambda trials: [])


@pytest.fixture
def shallow(trained, tmp_path_factory) -> Path:
    """A run with the first block of the network alone: torch's exporter takes a second for each."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("shallow") / "run")
    first = with_first_blocks(read_weights(str(trained)), 1)
    about = WeightsInfo(first.architecture, first.preprocessing, first.class_names, first.metadata)
    write_weights_file(folder / run_folder.WEIGHTS, first.state, about)
    return folder


@pytest.mark.parametrize("input", ["pixels", pytest.param("images", marks=pytest.mark.slow)])
def test_the_file_that_is_kept_is_an_export_and_all_others_are_named_with_a_reason(
    shallow, photos, tmp_path, few_candidates, monkeypatch, input
):
    out, words = tmp_path / "fast.onnx", ("--fastest", "--max-drop", "50", "--quiet", "--input", input)
    outcome = run("export", shallow, out, *words, "--json")
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)

    rows = result["candidates"]
    assert [row["name"] for row in rows] == ["fp32, 16 px", "int8, 16 px"]
    (kept,) = [row for row in rows if row["kept"]]
    assert all(bool(row["why"]) != row["kept"] for row in rows)
    assert result["precision"] == kept["precision"] and result["gate"]["max_drop"] == 0.5
    assert all(row["num_bytes"] and row["latency_ms"] > 0 and row["peak_memory_mb"] > 10 for row in rows)
    assert rows[0]["top1_agreement"] == 1 and rows[0]["divergence"] < 1e-9 and rows[0]["speed_up"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(result["files"])
    assert {*result["files"]} == {"fast.onnx", "fast.golden.json", "fast.front.svg"}
    assert run("export", "--check", out).code == 0
    # A file that is there is not lost; one that takes too long is not kept
    before = out.read_bytes()
    assert run("export", shallow, out, "--fastest").code == 2
    monkeypatch.setattr(fastest, "singles", lambda first: [])
    as_before = SimpleNamespace(save=lambda path, external_data: path.write_bytes(before))
    monkeypatch.setattr(onnx, "_exported", lambda program, form: as_before)
    words = (*words, "--overwrite", "--calibrate", photos / "train", "--budget", "0.001ms")
    refused = run("export", shallow, out, *words)
    assert refused.code == 8 and "nothing was kept; --budget" in refused.err
    assert out.read_bytes() == before and len([*tmp_path.iterdir()]) == 3


def test_the_front_of_students_is_a_line_of_its_own():
    """Divergence tells little about a student, and neither beats nor continues the front of the run."""
    places = [("run", 30.0, 1e-6), ("run", 20.0, 0.01), ("student", 15.0, 0.2), ("run", 10.0, 1.0)]
    rows = [
        {"name": "x", "ckpt": ckpt, "latency_ms": ms, "divergence": nats, "top1": None, "on_front": True,
         "kept": False}
        for ckpt, ms, nats in places
    ]  # fmt: skip
    figure = fastest_text.front_of(rows, {"top1_checkpoint": 0.9, "max_drop": 0.01, "num_images": 500})

    lines = {line.get_label(): list(line.get_xdata()) for line in figure.axes[0].get_lines()}
    assert lines["Pareto front"] == [10.0, 20.0, 30.0]
    assert lines["Pareto front of students"] == [15.0]


def test_names_in_the_figure_touch_neither_each_other_nor_the_edge():
    """Eight files, two of them close to each other in both plots, as in a search on photographs."""
    front = {"fp32, 224 px": (38.1, 8e-9, 0.9950), "int8, 224 px": (30.1, 3e-8, 0.9950),
             "int8, 192 px": (25.5, 2e-6, 0.9950), "int8, 176 px": (24.8, 8e-6, 0.9948),
             "int8, 176 px, 11 of 12 blocks": (18.3, 1.5e-3, 0.9962),
             "small, int8, 160 px": (18.6, 1e-3, 0.9966),
             "int8, 128 px": (15.6, 0.01, 0.981), "int8, 96 px": (14.1, 1.3, 0.7)}  # fmt: skip
    rows = [
        {"name": name, "ckpt": "run", "latency_ms": ms, "divergence": nats, "top1": top1,
         "highest_drop": 0.018, "on_front": True, "kept": name.startswith("small")}
        for name, (ms, nats, top1) in front.items()
    ]  # fmt: skip
    figure = fastest_text.front_of(rows, {"top1_checkpoint": 0.995, "max_drop": 0.01, "num_images": 595})

    figure.draw_without_rendering()
    for axes in figure.axes:
        inside = [text for text in axes.texts if axes.bbox.contains(*axes.transData.transform(text.xy))]
        boxes = [(text.get_window_extent(), Text.get_window_extent(text))[1] for text in inside]
        assert len(boxes) > 5 and not any(box.count_overlaps(boxes) > 1 for box in boxes)
        assert all(axes.bbox.contains(*corner) for box in boxes for corner in box.corners())
