"""`vit predict --why`: influences, patches and the page, from few-shot and fine-tuned runs."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from tests.conftest import run
from tests.folders import flat
from tests.pages import assert_fetches_nothing
from vitcli.data import loader
from vitcli.data.dataset import DataSet
from vitcli.errors import VitError
from vitcli.evaluation import setup
from vitcli.evaluation.predict import PredictOptions
from vitcli.features.least_squares import solve
from vitcli.inspection import why
from vitcli.inspection.attention import (
    attention_layers,
    patch_relevance,
    probe_attention_layout,
    record_attention,
)
from vitcli.inspection.why import overlay, put_head
from vitcli.models.build import TransformerOptions, architecture, build, put_last_layer
from vitcli.models.features import outputs
from vitcli.weights.io import read_weights
from vitcli.weights.load import load

SHORT = ("--steps", "3", "--batch-size", "8", "--quiet")


@pytest.fixture(scope="module")
def home(tmp_path_factory, photos):
    """A folder with a copy of the photos, a few-shot run and a fine-tuned run of them."""
    folder = tmp_path_factory.mktemp("why")
    shutil.copytree(photos, folder / "photos")
    data = ("--ckpt", "demo", "--dataset", folder / "photos", "--quiet")
    fewshot = run("fewshot", *data, "--shots", "1,4", "--seeds", "2", "--out", folder / "fewshot", "--json")
    assert fewshot.code == 0, fewshot.err
    tuned = run("finetune", *data[:4], *SHORT, "--out", folder / "tuned")
    assert tuned.code == 0, tuned.err
    return folder


@pytest.fixture(scope="module")
def images(home):
    return sorted((home / "photos" / "test").rglob("*.png"))


def test_relevance_is_the_rollout_of_attention_times_its_numerical_gradient():
    torch.manual_seed(0)
    sizes = TransformerOptions(layers=2, hidden=12, heads=3, mlp=8)
    arch = architecture("ViT-Ti/16", image_size=(32, 48), num_classes=2, options=sizes)
    model = build(arch, dropout=0.0).double().eval().requires_grad_(False)
    for parameter in model.parameters():  # its head is zero, and attention nearly uniform
        parameter.copy_(torch.randn_like(parameter) / 2)
    layout, image = probe_attention_layout(model.float(), arch), torch.randn(1, 3, 32, 48).double()
    model.double()

    found = patch_relevance(model, layout, image, lambda logits: logits[:, 1])[0]

    # Each attention weight is moved up and down, and the network run again.
    recorded, expected, step = {}, torch.eye(7, dtype=torch.float64), 1e-6
    with torch.no_grad(), record_attention(model, recorded.__setitem__):
        model(image)
    for layer, part in enumerate(attention_layers(model)):
        slopes = torch.zeros(3, 7, 7, dtype=torch.float64)
        for index in np.ndindex(3, 7, 7):
            scores = []
            for moved in (step, -step):
                change = torch.zeros(1, 3, 7, 7, dtype=torch.float64)
                change[(0, *index)] = moved
                hook = part.attn_drop.register_forward_hook(lambda _, __, out, change=change: out + change)
                with torch.no_grad(), record_attention(model, lambda *_: None):
                    scores.append(float(model(image)[0, 1]))
                hook.remove()
            slopes[index] = (scores[0] - scores[1]) / (2 * step)
        raised = (recorded[layer][0] * slopes).clamp_min(0).mean(dim=0)
        expected = expected + raised @ expected
    assert found.shape == (2, 3) and found.max() > 0
    torch.testing.assert_close(found.flatten(), expected[0, 1:], atol=1e-7, rtol=1e-5)


def test_the_overlay_keeps_what_counts_and_darkens_the_rest():
    image = np.full((32, 32, 3), 200, dtype=np.uint8)
    shown = overlay(image, [[0.0, 0.0], [0.0, 5.0]])
    assert shown[-1, -1].tolist() == [200] * 3 and shown[0, 0].tolist() == [30] * 3


def test_the_head_of_a_few_shot_run_has_the_scores_of_the_closed_form(monkeypatch):
    rng, weights = np.random.default_rng(0), read_weights("demo", quiet=True)
    model, arch, _ = load(weights)
    width = model.num_features
    labels, features = np.arange(30) % 3, rng.standard_normal((30, width)) + 2 * (np.arange(30) % 3)[:, None]
    solution = solve(features, labels, num_classes=3, l2=[8.0], groups_N=None)

    put_head(model, solution, name=arch.name)

    images = torch.from_numpy(rng.standard_normal((4, 3, *arch.image_size))).float()
    with torch.no_grad():
        both = outputs(model.eval(), images, layer="pre_logits", with_logits=True).double().numpy()
    scores, logits = solution.inputs(both[:, :width]) @ solution.weights(0), both[:, width:]
    scale = logits[0, 0] / scores[0, 0]
    assert scale > 0 and logits.shape == (4, 3)
    np.testing.assert_allclose(logits, scale * scores, atol=1e-4 * np.abs(logits).max())

    # The runner-up is the likeliest of the other classes, and the lead that over it.
    influences_of = []
    monkeypatch.setattr(why, "_reasons", lambda values_N, *_: influences_of.append(values_N))
    training = SimpleNamespace(layer="pre_logits", solution=solution)
    for answer in range(3):
        others = [k for k in range(3) if k != answer]
        second = max(others, key=lambda k: logits[0, k])
        found = why._why(model, images[:1], answer, training, ("a", "b", "c"), None)
        assert (found["class"], found["runner_up"]) == ("abc"[answer], "abc"[second])
        lead = scores[0, answer] - scores[0, second]
        assert found["closed_form"] == {
            "class": "abc"[scores[0].argmax()],
            "lead": pytest.approx(lead, rel=1e-5, abs=1e-6),
        }


def test_a_few_shot_run_answers_with_the_influences_of_refits(home, images):
    page = home / "fewshot.html"
    outcome = run("predict", "--ckpt", home / "fewshot", *images[:3], "--why", page, "--json", "--quiet")
    assert outcome.code == 0 and outcome.err == "", outcome.err
    result = outcome.json

    assert result["ckpt"] == str(home / "fewshot")
    assert result["why"]["draw"] == {"seed": 0, "shots": 4} and result["why"]["num_training_images"] == 8
    drawn = json.loads((home / "fewshot" / "draws.json").read_text())["0"]["4"]
    for one in result["predictions"]:
        why = one["why"]
        assert {one["top"][0]["class"], why["runner_up"]} == {"green", "red"} or len(one["top"]) > 1
        assert why["class"] == one["top"][0]["class"] == why["closed_form"]["class"]
        assert [reason["row"] in drawn for reason in why["reasons"]] == [True] * 3
        influences = [reason["influence"] for reason in why["reasons"]]
        assert influences == sorted(influences, reverse=True)
        assert np.shape(why["patches"])[0] > 1
    text = page.read_text()
    assert "the two can differ" not in text  # the closed form is the last layer
    assert_fetches_nothing(text)
    assert text.count("<img") == 3 * 5 and "the patches that carry" in text.lower()

    without = run("predict", "--ckpt", home / "fewshot", images[0], "--json", "--quiet")
    assert without.code == 4 and "a few-shot run keeps none" in without.json["error"]["fix"]
    shown = run("predict", "--ckpt", home / "fewshot", images[0], "--why", home / "again.html")
    assert shown.out.count("reason") == 3 and "runner-up" in shown.out
    reasons = [line for line in shown.out.splitlines() if line.startswith("reason")]
    assert all(" of a lead of " in line and "/" not in line for line in reasons)  # short names, no paths


def test_a_group_is_one_reason_with_the_influence_of_all_its_images(home, images):
    """Groups are the last digits of the file names, of two or four images; the truth are refits."""
    data = ("--ckpt", "demo", "--dataset", home / "photos", "--quiet")
    drawn = ("--shots", "12", "--seeds", "1", "--l2", "8", "--set", r"data.group_column=name:(\d)\.png$")
    assert run("fewshot", *data, *drawn, "--out", home / "grouped").code == 0
    embedded = {}
    for split in ("train", "test"):
        out = home / f"{split}.safetensors"
        assert run("embed", *data, "--split", split, "--layer", "pre_logits", "--out", out).code == 0
        embedded[split] = load_file(out)

    words = ("predict", "--ckpt", home / "grouped", images[0], "--why", home / "grouped.html")
    why = run(*words, "--json", "--quiet").json["predictions"][0]["why"]

    features, labels = embedded["train"]["features"].astype(np.float64), embedded["train"]["labels"].ravel()
    groups = np.array([int(path[-5]) for path in sorted_paths(home / "photos/train")])
    mean, std = features.mean(axis=0), features.std(axis=0) + 1e-5
    inputs, image = (np.c_[(rows - mean) / std, np.full(len(rows), 100.0)]
                     for rows in (features, embedded["test"]["features"][:1]))  # fmt: skip
    targets = 2.0 * (labels[:, None] == np.arange(2)) - 1

    def lead(rows: np.ndarray) -> float:
        square = inputs[rows].T @ inputs[rows] + 8 * np.eye(inputs.shape[1])
        green, red = (image @ np.linalg.solve(square, inputs[rows].T @ targets[rows]))[0]
        return green - red if why["class"] == "green" else red - green

    of_groups = {group: lead(groups >= 0) - lead(groups != group) for group in range(10)}
    best = sorted(of_groups, key=of_groups.get, reverse=True)[:3]
    assert [int(reason["place"][-5]) for reason in why["reasons"]] == best
    assert [reason["num_images"] for reason in why["reasons"]] == [4 if group < 2 else 2 for group in best]
    found = [reason["influence"] for reason in why["reasons"]]
    assert found == pytest.approx([of_groups[group] for group in best], rel=1e-3)
    others = "3 other images" if best[0] < 2 else "1 other image"
    assert f"(with {others} of its group)" in (home / "grouped.html").read_text()


def sorted_paths(folder) -> list[str]:
    return sorted(map(str, folder.rglob("*.png")))


def test_a_fine_tuned_run_answers_as_without_why(home, images):
    words = ("predict", "--ckpt", home / "tuned", images[0], images[-1], "--json", "--quiet")
    plain, page = run(*words).json, home / "tuned.html"

    outcome = run(*words, "--why", page, "--out", home / "tuned.csv")

    assert outcome.code == 0, outcome.err
    assert [{k: v for k, v in one.items() if k != "why"} for one in outcome.json["predictions"]] == plain[
        "predictions"
    ]
    assert outcome.json["why"]["num_training_images"] == 24 and page.exists()
    assert outcome.json["predictions"][0]["why"]["reasons"][0]["place"].endswith(".png")
    assert (home / "tuned.csv").exists()
    text = " ".join(page.read_text().split())
    assert "1 for its own class and -1 for every other, so that a perfect lead is 2" in text
    assert "the two can differ" in text


def test_a_run_with_folds_is_explained_by_all_images_that_it_was_trained_on(home):
    photos = home / "photos" / "train"
    data = ("--ckpt", "demo", "--dataset", photos, "--folds", "2", "--set", "model.head=refit")
    tuned = run("finetune", *data, *SHORT, "--out", home / "folds")
    assert tuned.code == 0, tuned.err
    image = sorted_paths(photos)[0]

    for place in ("folds", "folds/runs/seed-0"):
        words = ("--ckpt", home / place, image, "--why", home / f"{place.replace('/', '-')}.html")
        result = run("predict", *words, "--json", "--quiet")

        about = result.json["why"]
        assert about["num_training_images"] == len(sorted_paths(photos)), result.err
        assert "(" not in about["what"]  # 22 of 24 images would be named
        summary = json.loads((home / "folds/summary.json").read_text())
        assert summary["num_train_examples"] == about["num_training_images"]


def test_a_copy_of_a_training_image_under_a_wrong_label_is_the_first_reason(home, images):
    folder = home / "mixed"
    shutil.copytree(home / "photos", folder)
    wrong = images[0]
    other = next(each for each in sorted((folder / "train").iterdir()) if each.name != wrong.parent.name)
    shutil.copy(wrong, other / "planted.png")
    data = ("--ckpt", "demo", "--dataset", folder, "--quiet", "--shots", "13", "--seeds", "1", "--l2", "1")
    assert run("fewshot", *data, "--out", home / "mixed_run").code == 0

    result = run("predict", "--ckpt", home / "mixed_run", wrong, "--why", home / "mixed.html", "--json", "-q")

    why = result.json["predictions"][0]["why"]
    places = [reason["place"] for reason in why["reasons"]]
    assert why["class"] == other.name and places[0].endswith("planted.png")
    first, second = (reason["influence"] for reason in why["reasons"][:2])
    assert first > why["closed_form"]["lead"] > second  # without it the answer is another one


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--ckpt", "demo"), 2, "which images it was trained on"),
        (("--ckpt", "{home}/nowhere"), 4, "nowhere"),
        (("--ckpt", "{home}/fewshot", "--tta"), 2, "--tta"),
        (("--ckpt", "{home}/fewshot", "--sort-into", "{home}/sorted"), 2, "--sort-into"),
        (("--ckpt", "{home}/fewshot", "--every", "2"), 2, "--every"),
        (("--ckpt", "{home}/fewshot", "--why", "{home}/page.txt"), 2, "does not end in .html"),
        (("--ckpt", "{home}/fewshot", "--why", "{home}/kept.html"), 2, "exists"),
        (("--ckpt", "{home}/fewshot", "--set", "data.label_colum=x"), 2, "data.label_colum"),
        (("--ckpt", "{home}/one",), 2, "two images per class"),
        (("--ckpt", "{home}/gone",), 3, "there is no data set"),
        (("--ckpt", "{home}/other",), 3, "draws"),
        (("--ckpt", "{home}/knn",), 2, "exact influences"),
        (("--ckpt", "{home}/knn", "--why", "{home}/kept.html"), 2, "exact influences"),
    ],
)  # fmt: skip
def test_what_has_no_reasons_is_refused_in_three_lines(home, images, words, code, says):
    (home / "kept.html").write_text("kept")
    for name in ("one", "gone", "other", "knn"):
        if not (home / name).exists():
            shutil.copytree(home / "fewshot", home / name)
            recipe, draws = home / name / "recipe.toml", home / name / "draws.json"
            if name == "one":
                rows = json.loads(draws.read_text())
                draws.write_text(json.dumps({seed: {"1": of["1"]} for seed, of in rows.items()}))
            if name == "gone":
                (home / name / "environment.json").unlink()
                recipe.write_text(recipe.read_text().replace(str(home / "photos"), str(home / "no_photos")))
            if name == "other":
                draws.write_text('{"0": {"4": [0, 100000]}}')
            if name == "knn":
                recipe.write_text(recipe.read_text().replace('"least-squares"', '"knn"'))
    words = [word.format(home=home) for word in words]
    why = () if "--why" in words else ("--why", home / "new.html")

    outcome = run("predict", images[0], *words, *why, "--json", "--quiet")

    assert {"message", "where", "fix"} <= set(outcome.json["error"]), outcome
    assert (outcome.code, says in json.dumps(outcome.json["error"])) == (code, True), outcome.json
    assert (home / "kept.html").read_text() == "kept" and not (home / "new.html").exists()


def test_a_group_is_shown_by_its_image_of_most_influence():
    solution = SimpleNamespace(groups_N=np.array([7, 7, 3, 9]), labels_N=np.array([0, 0, 1, 1]))
    training = why.TrainingImages(
        DataSet("demo").open("test"), np.array([5, 6, 8, 9]), solution, "pre_logits", {}
    )

    reasons = why._reasons(np.array([0.1, 0.5, 0.2, -1.0]), training, ("ant", "bee"))

    keys = ("row", "label", "influence", "num_images")
    found = [tuple(reason[key] for key in keys) for reason in reasons]
    assert found == [(6, "ant", pytest.approx(0.6), 2), (8, "bee", 0.2, 1), (9, "bee", -1.0, 1)]


def test_fifty_images_are_explained_and_one_more_is_refused(tmp_path):
    flat(tmp_path, 1)
    for number in range(1, 51):
        (tmp_path / f"{number}.png").hardlink_to(tmp_path / "0.png")

    with pytest.raises(VitError):
        why._open_images([str(tmp_path)], PredictOptions())
    (tmp_path / "50.png").unlink()
    assert len(why._open_images([str(tmp_path)], PredictOptions())) == 50


def test_a_network_is_built_once_and_each_image_is_decoded_once(home, images, monkeypatch):
    built, opened = [], []
    load, read = setup.load_for_inference, loader.open_example

    def counted_load(*words, **more):
        built.append(words)
        return load(*words, **more)

    def counted_read(split, row, *more, **options):
        opened.append(split.where_is(row))
        return read(split, row, *more, **options)

    monkeypatch.setattr(setup, "load_for_inference", counted_load)
    monkeypatch.setattr(loader, "open_example", counted_read)
    for name in ("tuned", "fewshot"):
        built.clear(), opened.clear()
        words = ("--ckpt", home / name, *images[:2], "--why", home / f"once_{name}.html", "--quiet")
        assert run("predict", *words).code == 0
        assert len(built) == 1
        assert [opened.count(str(image)) for image in images[:2]] == [1, 1]


def test_a_last_layer_that_reads_something_else_is_not_replaced():
    layer = torch.zeros(3, 8), torch.zeros(3)
    for model in (
        nn.Sequential(),
        SimpleNamespace(head=nn.Linear(7, 3)),
        SimpleNamespace(head=nn.Conv2d(8, 3, 1)),
    ):
        with pytest.raises(VitError, match="cannot be replaced"):
            put_last_layer(model, *layer, name="x", option="--why")
