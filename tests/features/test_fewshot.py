"""`vit fewshot` from the command line: what is computed, what is kept, what is written, what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import vitcli
from tests.conftest import run, vit
from vitcli.api import load_model
from vitcli.features import least_squares
from vitcli.models import features as models_features

WORDS = ("fewshot", "--ckpt", "demo", "--json", "-q")
DEMO_WEIGHTS = Path(vitcli.__file__).parent / "demo_weights" / "model.safetensors"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)  # runs/ comes into being there
    return tmp_path / "cache" / "vit" / "features"


@pytest.fixture
def looked_at(monkeypatch) -> list[int]:
    """How many pictures pass through a network in each batch, without the blank ones that fill it up."""
    sizes, whole = [], models_features.outputs

    def counted(model, images_BCHW, **more):
        pixels_BX = images_BCHW.flatten(1)
        sizes.append(int((pixels_BX != pixels_BX[:, :1]).any(dim=1).sum()))
        return whole(model, images_BCHW, **more)

    monkeypatch.setattr(models_features, "outputs", counted)
    return sizes


@pytest.mark.slow
def test_without_options_it_is_the_demo(looked_at):
    result = run("fewshot", "--shots", "5", "--json", "-q").json

    assert result["command"] == "fewshot" and result["dataset"] == "demo"
    assert list(result["shots"]) == ["5"] and len(result["shots"]["5"]["runs"]) == 3
    assert result["shots"]["5"]["mean"] > 0.9
    assert (result["l2"], result["feature_dim"], result["num_test_examples"]) == (1024.0, 96, 600)
    assert sum(looked_at) == result["computed_rows"]
    assert result["run_dir"].startswith("runs/fewshot-demo-ViT-demo-8-")
    assert (Path(result["run_dir"]) / "draws.json").exists()


def test_the_numbers_are_those_of_features_computed_by_hand(photos):
    result = run(*WORDS, "--dataset", photos, "--shots", "1,3", "--seeds", "2").json

    model, transform, _ = load_model("demo")
    files = [sorted((photos / split).rglob("*.png")) for split in ("train", "test")]
    with torch.no_grad():
        features = [
            model.forward_head(
                model.forward_features(torch.stack([transform(file) for file in of])), pre_logits=True
            ).numpy()
            for of in files
        ]
    labels = [np.array([int(file.parent.name == "red") for file in of]) for of in files]
    for shots in (1, 3):
        runs = []
        for seed in (0, 1):
            rows = least_squares.draw_shots(labels[0], num_classes=2, shots=[shots], seed=seed)[shots]
            solution = least_squares.solve(
                features[0][rows], labels[0][rows], num_classes=2, l2=[1024.0], groups_N=None
            )
            runs.append(least_squares.accuracies(solution, features[1], labels[1])[0])
        assert result["shots"][str(shots)]["runs"] == runs
        assert result["shots"][str(shots)]["mean"] == pytest.approx(np.mean(runs))
        assert result["shots"][str(shots)]["std"] == pytest.approx(np.std(runs, ddof=1))


def test_a_second_call_computes_nothing_and_more_shots_the_missing_rows(photos, looked_at):
    first = run(*WORDS, "--dataset", photos, "--shots", "1", "--seeds", "1").json
    assert sum(looked_at) == 12 == first["computed_rows"]
    looked_at.clear()

    again = run(*WORDS, "--dataset", photos, "--shots", "1", "--seeds", "1", "--classifier", "knn").json
    assert looked_at == [] and (again["computed_rows"], again["cached_rows"]) == (0, 12)

    more = run(*WORDS, "--dataset", photos, "--shots", "1,5", "--seeds", "1").json
    assert sum(looked_at) == 8 == more["computed_rows"]
    assert more["shots"]["1"] == first["shots"]["1"]


@pytest.mark.parametrize(
    "change",
    [
        ("--set", "data.interpolation=bicubic"),
        ("--layer", "gap"),
        ("--precision", "bf16"),
        ("--res", "32"),
        ("--set", "model.gelu=erf"),
    ],
)
@pytest.mark.slow
def test_whatever_features_depend_on_has_its_own(photos, looked_at, change):
    run(*WORDS, "--dataset", photos, "--shots", "1", "--seeds", "1")
    looked_at.clear()

    run(*WORDS, "--dataset", photos, "--shots", "1", "--seeds", "1", *change)

    assert sum(looked_at) == 12


def test_a_picture_that_has_changed_is_looked_at_again(photos, tmp_path, looked_at):
    shutil.copytree(photos, tmp_path / "data")
    words = (*WORDS, "--dataset", tmp_path / "data", "--shots", "1", "--seeds", "1")
    run(*words)
    looked_at.clear()
    file = tmp_path / "data" / "test" / "red" / "03.png"
    Image.fromarray(255 - np.array(Image.open(file))).save(file)

    run(*words)

    assert sum(looked_at) == 12


def test_a_damaged_cache_is_noticed_and_computed_again(photos, cache, looked_at):
    words = ("fewshot", "--ckpt", "demo", "--json", "--dataset", photos, "--shots", "5", "--seeds", "1")
    whole = run(*words).json
    looked_at.clear()
    for file in cache.glob("*/rows-*"):
        content = bytearray(file.read_bytes())
        content[100] ^= 1
        file.write_bytes(content)

    outcome = run(*words)

    assert outcome.json["shots"] == whole["shots"]
    assert sum(looked_at) == outcome.json["computed_rows"] == 2
    assert run(*words).json["computed_rows"] == 0


def test_without_a_cache_it_works_and_says_so(photos, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    outcome = run("fewshot", "--ckpt", "demo", "--json", "--dataset", photos, "--shots", "1")

    assert outcome.code == 0 and outcome.json["cached_rows"] == 0
    assert outcome.err.count("cannot be written") == 1


def test_a_run_folder_holds_the_draws_and_repeats_itself(photos, tmp_path, looked_at):
    out = tmp_path / "run"
    words = (*WORDS, "--dataset", photos, "--seeds", "2")
    first = run(*words, "--shots", "2,4", "--out", out).json
    draws = json.loads((out / "draws.json").read_text())
    labels = np.array([0] * 12 + [1] * 12)

    for seed in (0, 1):
        expected = least_squares.draw_shots(labels, num_classes=2, shots=[2, 4], seed=seed)
        assert draws[str(seed)] == {str(shots): rows.tolist() for shots, rows in expected.items()}
    assert json.loads((out / "summary.json").read_text()) == first
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [(one["shots"], one["seed"], one["num_examples"]) for one in metrics] == [
        (2, 0, 4), (2, 1, 4), (4, 0, 8), (4, 1, 8)
    ]  # fmt: skip
    assert [one["top1"] for one in metrics[2:]] == first["shots"]["4"]["runs"]
    assert "top-1" in (out / "table.txt").read_text()
    assert run(*words, "--shots", "2,4", "--out", out).json == first
    assert "fewshot.shots" in run(*words, "--shots", "2", "--out", out).json["error"]["message"]

    fed_back = run("fewshot", "--recipe", out / "recipe.toml", "--json", "-q").json
    by_file = run(*WORDS, "--dataset", photos, "--draws", out / "draws.json").json
    assert fed_back["shots"] == first["shots"] == by_file["shots"]
    assert fed_back["computed_rows"] == 0
    assert by_file["draws_from"] == str(out / "draws.json")


def test_other_rows_of_a_file_are_the_rows_that_are_fitted(photos, tmp_path, looked_at):
    (tmp_path / "theirs.json").write_text('{"7": {"2": [0, 11, 12, 23]}}')

    result = run(*WORDS, "--dataset", photos, "--draws", tmp_path / "theirs.json").json

    assert result["seeds"] == [7] and list(result["shots"]) == ["2"]
    assert result["shots"]["2"]["std"] is None and result["computed_rows"] == 14


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1, 2", "is not JSON"),
        ("[]", "not an object of seeds"),
        ('{"0": []}', "no object of shots"),
        ('{"x": {"1": [0, 12]}}', "seeds are whole numbers from 0, shots from 1"),
        ('{"0": {"0": [0, 12]}}', "seeds are whole numbers from 0, shots from 1"),
        ('{"0": {"1": 5}}', "no list of row numbers"),
        ('{"0": {"1": [0, true]}}', "no list of row numbers"),
        ('{"0": {"1": [0, 24]}}', "row 24 is not one of the 24 rows"),
        ('{"0": {"1": [0, -1]}}', "row -1"),
        ('{"0": {"2": [0, 0, 12]}}', "row 0 twice"),
        ('{"0": {"1": [0]}}', "1 classes have no row in this draw: red"),
        ('{"0": {"1": [0, 1, 12]}}', "more than 1 rows"),
        ('{"0": {"1": [0, 12]}, "1": {"2": [0, 12]}}', "different shots for different seeds"),
    ],
)
def test_a_broken_file_of_draws_is_refused_with_its_place(photos, tmp_path, text, says, looked_at):
    (tmp_path / "draws.json").write_text(text)

    outcome = run(*WORDS, "--dataset", photos, "--draws", tmp_path / "draws.json")

    assert outcome.code == 3 and looked_at == []
    assert says in outcome.json["error"]["message"] and "draws.json" in outcome.json["error"]["where"]


def test_fewer_images_than_shots_are_all_taken_and_that_is_said(photos):
    outcome = run("fewshot", "--ckpt", "demo", "--dataset", photos, "--shots", "25", "--json", "-v")

    assert outcome.code == 0
    assert "2 classes have fewer than 25 images, and all are used: green 12, red 12" in outcome.err
    runs = outcome.json["shots"]["25"]["runs"]
    assert len(set(runs)) == 1  # every draw is the whole split


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--shots", "0"), 2, "--shots: '0' is not a number"),
        (("--shots", "5,x"), 2, "--shots: '5,x' is not a number"),
        (("--seeds", "0"), 2, "fewshot.seeds"),
        (("--classifier", "ncm", "--l2", "5"), 2, "the classifier is ncm"),
        (("--l2", "-1"), 2, "fewshot.l2"),
        (("--l2", "sweeep"), 2, "fewshot.l2"),
        (("--classifier", "svm"), 2, "--classifier"),
        (("--layer", "head"), 2, "--layer"),
        (("--draws", "nowhere.json"), 3, "cannot be read"),
        (("--draws", "d.json", "--shots", "5"), 2, "has its own shots"),
        (("--draws", "d.json", "--set", "fewshot.seeds=2"), 2, "has its own shots"),
        (("--classifier", "knn", "--set", "fewshot.l2=5"), 2, "the classifier is knn"),
        (("--recipe", "evaluate/default"), 2, "[fewshot]"),
    ],
)
def test_what_cannot_be_is_refused_in_three_lines(photos, words, code, says, looked_at):
    outcome = run(*WORDS, "--dataset", photos, *words)

    assert outcome.code == code and looked_at == []
    assert {"message", "where", "fix"} <= set(outcome.json["error"])
    assert says in outcome.json["error"]["message"]


def parquet(folder: Path, name: str, labels: list[int], names: list[str]) -> None:
    import datasets

    pixels = [Image.fromarray(np.full((8, 8, 3), 20 * label, np.uint8)) for label in labels]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    table = datasets.Dataset.from_dict({"image": pixels, "label": labels}, features=features)
    folder.mkdir(exist_ok=True)
    table.to_parquet(folder / f"{name}.parquet")


def test_a_class_that_is_missing_from_train_is_named(tmp_path, looked_at):
    parquet(tmp_path / "data", "train", [0, 2, 2], ["a", "b", "c"])
    parquet(tmp_path / "data", "test", [0, 1, 2], ["a", "b", "c"])

    outcome = run(*WORDS, "--dataset", tmp_path / "data", "--shots", "1")

    assert outcome.code == 3 and looked_at == []
    assert outcome.json["error"]["where"] == "b" and "1 of 3 classes" in outcome.json["error"]["message"]


def test_labels_of_test_that_train_does_not_have_are_refused(tmp_path, looked_at):
    parquet(tmp_path / "data", "train", [0, 1], ["a", "b"])
    parquet(tmp_path / "data", "test", [0, 1, 2], ["a", "b", "c"])

    outcome = run(*WORDS, "--dataset", tmp_path / "data", "--shots", "1")

    assert outcome.code == 3 and looked_at == []
    assert "only in the second: c" in outcome.json["error"]["where"]


def test_one_class_is_nothing_to_tell_apart(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "data")
    for split in ("train", "test"):
        shutil.rmtree(tmp_path / "data" / split / "green")

    outcome = run(*WORDS, "--dataset", tmp_path / "data", "--shots", "1")

    assert outcome.code == 3 and "has one class" in outcome.json["error"]["message"]


def test_a_data_set_without_a_test_split_is_scored_on_a_tenth_of_each_class(photos):
    outcome = run(*WORDS, "--dataset", photos / "train", "--shots", "1").json
    cut = run(*WORDS, "--dataset", photos / "train", "--shots", "1", "--set", "data.dev_fraction=0.25")

    assert (outcome["num_test_examples"], outcome["eval_split"].rpartition(", ")[2]) == (2, "dev part")
    assert cut.json["num_test_examples"] == 6
    assert cut.json["notes"][0] == "scored on 6 images held out from train (data.dev_fraction)"


def test_test_images_that_the_weights_were_trained_on_are_counted(photos, tmp_path):
    shutil.copytree(photos / "train", tmp_path / "photos")
    (tmp_path / "photos" / "blue").mkdir()
    shutil.copy(photos / "test" / "red" / "00.png", tmp_path / "photos" / "blue")
    words = (
        "finetune --recipe finetune/default --ckpt random --model ViT-demo/8 --set model.layers=1 --res 16"
    )
    words += " --steps 1 --batch-size 4 --lr 0.01 -q"
    run(*words.split(), "--dataset", tmp_path / "photos", "--out", tmp_path / "run")
    request = ("--ckpt", tmp_path / "run", "--dataset", tmp_path / "photos", "--shots", "1")

    same = run("fewshot", *request, "--json", "-q").json
    for file in (tmp_path / "photos" / "red").iterdir():
        file.rename(file.with_name(f"{99 - int(file.stem):02}.png"))
    changed = run("fewshot", *request, "--json", "-q").json

    cut = "scored on 2 images held out from train (data.dev_fraction)"
    assert same["notes"] == changed["notes"] == [cut, "no test image of: blue"]

    for split in ("train", "test"):
        shutil.copytree(tmp_path / "photos", tmp_path / "split" / split)
    leaking = run(
        *["fewshot", "--shots", "1", "--json", "-q", "--ckpt"],
        tmp_path / "run",
        "--dataset",
        tmp_path / "split",
    )
    count = leaking.json["num_test_examples"]
    assert f"was trained on {count - 2} of the {count} test images" in leaking.json["notes"][0]


def test_an_undecodable_picture_stops_it_or_is_left_out(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "data")
    (tmp_path / "data/test/red/broken.png").write_bytes(b"no picture")
    words = (*WORDS, "--dataset", tmp_path / "data", "--shots", "3")

    stopped = run(*words)
    assert not Path("runs").exists()  # nothing that a report would call unfinished
    skip = ("--skip-bad", "--out", tmp_path / "run")
    skipped, again = (run(*words, *skip, *more).json for more in ((), ("--overwrite",)))
    whole = run(*WORDS, "--dataset", photos, "--shots", "3").json
    (tmp_path / "data/test/red/phone.heic").write_bytes(b"no picture")
    shown = run("fewshot", "--ckpt", "demo", *words[-4:], "--skip-bad")

    assert stopped.code == 3 and "broken.png" in stopped.json["error"]["where"]
    assert "left out: 1 file (HEIC: install pillow-heif, or convert)\n" in shown.err
    assert (skipped["num_skipped_images"], skipped["num_test_examples"]) == (1, 10)
    assert skipped["shots"] == again["shots"] == whole["shots"]
    assert again["computed_rows"] == 0  # the bad one alone is looked at again


@pytest.mark.parametrize("classifier", ["knn", "ncm", "logistic"])
@pytest.mark.slow
def test_every_classifier_tells_two_colours_apart(photos, classifier):
    if classifier == "logistic":
        pytest.importorskip("sklearn")

    result = run(*WORDS, "--dataset", photos, "--shots", "1,5", "--classifier", classifier).json

    assert result["classifier"] == classifier and result["l2"] is None
    assert result["shots"]["5"]["mean"] > 0.8


def test_layers_are_what_they_say():
    torch.manual_seed(0)
    model, _, _ = load_model("demo")
    images = torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        tokens = model.forward_features(images)
        found = {
            layer: models_features.outputs(model, images, layer=layer, with_logits=True)
            for layer in ("pre_logits", "token", "gap")
        }

        assert torch.equal(found["token"][:, :96], tokens[:, 0])
        assert torch.equal(found["gap"][:, :96], tokens[:, 1:].mean(dim=1))
        assert torch.equal(found["pre_logits"][:, :96], tokens[:, 0])
        for both in found.values():
            assert torch.equal(both[:, 96:], model(images))


def test_a_network_that_pools_has_a_gap_and_no_token():
    model = timm.create_model("resnet10t", num_classes=5).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        found = models_features.outputs(model, images, layer="gap", with_logits=False)
        assert torch.allclose(found, model.forward_features(images).mean(dim=(2, 3)), atol=1e-6)
    with pytest.raises(Exception, match="no class token"):
        models_features.check_layer(model, "token")


def test_the_table_shows_percent_and_what_was_done(photos):
    table = run("fewshot", "--ckpt", "demo", "--dataset", photos, "--shots", "1,5", "-q").out

    assert "%" in table and "least-squares, l2 1024" in table and "10 images" in table
    assert table.splitlines()[0].split() == ["shots", "top-1", "95", "%", "std", "runs"] and " to " in table
    assert "held out from train" not in table


def test_pixels_of_raw_weights_are_the_evaluator_s(photos, tmp_path):
    """A square of 256/224 of the side, then the centre: big_vision's resize(256)|central_crop(224)."""
    words = ("fewshot", "--recipe", "fewshot/default", "--ckpt", "demo", "--res", "56", "--dataset", photos)
    result = run(*words, "--shots", "1", "--json", "-q").json

    assert (
        result["preprocessing"]
        == "56x56, whole image resized to 64x64, centre crop, bilinear, mean 0.5, std 0.5"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "batch_size"), [(2, "3"), (3, "3"), (2, "64")])
def test_numbers_are_the_same_on_any_number_of_processes(
    photos, processes, batch_size, tmp_path, monkeypatch
):
    words = (*WORDS, "--dataset", photos, "--shots", "1,5", "--batch-size", batch_size)
    alone = run(*words).json
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))

    together = vit(*words, "--num-processes", processes)

    assert together.returncode == 0, together.stderr
    result = json.loads(together.stdout)
    assert result["shots"] == alone["shots"] and result["num_processes"] == processes
    assert result["computed_rows"] == alone["computed_rows"]


@pytest.mark.slow
def test_the_real_weights_learn_flowers_from_a_few(shared):
    words = ("fewshot", "--ckpt", shared / "data/checkpoints/vit_ti16_augreg_in1k.npz", "--json", "-q")
    result = run(*words, "--dataset", shared / "data/flowers17", "--shots", "1,5,10,25").json

    means = [scored["mean"] for scored in result["shots"].values()]
    assert means == sorted(means) and means[-1] >= 0.93


def test_a_finished_run_is_shown_again_though_a_drawn_picture_was_bad(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "data")
    (tmp_path / "data/train/red/00.png").write_bytes(b"no picture")
    words = (*WORDS, "--dataset", tmp_path / "data", "--shots", "12", "--out", tmp_path / "run")

    first, again = (run(*words, "--set", "data.on_bad_image=skip").json for _ in range(2))

    assert first["num_skipped_images"] == 1 and first == again
    drawn = json.loads((tmp_path / "run/draws.json").read_text())
    assert all(len(by_shots["12"]) == 24 for by_shots in drawn.values())


def test_features_need_no_head(photos, tmp_path):
    with_head, without = DEMO_WEIGHTS, tmp_path / "headless.safetensors"
    with safe_open(with_head, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = file.metadata()
    save_file({n: t for n, t in tensors.items() if not n.startswith("head.")}, without, about)
    words = ("--dataset", photos, "--json", "-q")

    told = [run("fewshot", "--ckpt", ckpt, "--shots", "3", *words).json for ckpt in (with_head, without)]
    assert told[0]["shots"] == told[1]["shots"]
    embedded = run("embed", "--ckpt", without, "--out", tmp_path / "o.safetensors", *words).json
    assert embedded["num_logits"] == 0
