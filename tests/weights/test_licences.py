"""The licence of weights: from whoever states it, into everything that is made of them."""

import json
from pathlib import Path

import pytest
import timm
from huggingface_hub import ModelCard

from tests.conftest import run
from tests.evaluation.test_pixels_of_weights import save_as_timm
from vitcli.conversion.model_card import weights_card
from vitcli.weights import licences
from vitcli.weights.io import read_weights
from vitcli.weights.licences import in_card, is_non_commercial, licence_of_name
from vitcli.weights.locate import WeightsSource

TINY = dict(depth=1, embed_dim=32, num_heads=2, img_size=32)
QUIET = ("--json", "-q")


def folder_of(place: Path, name: str) -> Path:
    save_as_timm(place, name, TINY)
    return place


def licence_of(place: Path, config: str | None, card: bytes | None) -> str:
    """Return the licence of a folder with this statement in its config.json, and this card."""
    if card is not None:
        (place / "README.md").write_bytes(card)
    stated = {"tag": "augreg_in21k"} | ({"license": config} if config is not None else {})
    whole = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": stated}
    file = place / "model.safetensors"
    return licences.licence_of(
        WeightsSource(file, whole, {}, "timm folder", "", card=place / "README.md"), {}
    )


@pytest.mark.parametrize(
    ("config", "card", "expected"),
    [
        ("CC-BY-NC-4.0", "---\nlicense: mit\n---\n", "cc-by-nc-4.0"),  # beside the numbers counts first
        (None, "---\nlicense: mit\n---\n# mine\n", "mit"),
        (None, "---\nlicense: other\nlicense_name: dinov3-license\n---\n", "dinov3-license"),
        (None, "---\nlicense: other\n---\n", "other"),
        (None, "---\nlicense: [mit, apache-2.0]\n---\n", "mit and apache-2.0"),
        (None, None, "apache-2.0"),  # as timm's registry has it for the tag
        # What says nothing, or is damaged, is passed over: the registry remains.
        (None, "---\nlicense: [mit\n---\n", "apache-2.0"),
        (None, "---\nlicense: {a: 1}\n---\n", "apache-2.0"),
        (None, "---\nlicense: 7\n---\n", "apache-2.0"),
        (None, "no front matter", "apache-2.0"),
        (None, "---\nlicense: '<script>'\n---\n", "apache-2.0"),
        (None, "\xff\x00---", "apache-2.0"),
        (None, f"---\nlicense: {'x' * 101}\n---\n", "apache-2.0"),
        (None, "---\nlicense: mit\n---\n" + " " * 2**20, "apache-2.0"),
        ("two\nlines", None, "apache-2.0"),
        ("", None, "apache-2.0"),
        ("unknown", None, "apache-2.0"),
    ],
)
def test_the_licence_is_that_of_whoever_states_it_first(config, card, expected, tmp_path):
    assert licence_of(tmp_path, config, card and card.encode("latin-1")) == expected


def test_a_run_of_vit_is_asked_first_then_its_start_then_the_files_beside_the_weights(tmp_path):
    """Of statements that differ, those that are left after the first, the second, ... is taken away."""
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    metadata = {"license": "gpl-3.0", "from": "timm/vit_base_patch16_224.mae"}  # that is cc-by-nc-4.0
    config = {"pretrained_cfg": {"license": "bsd-3-clause", "tag": "augreg_in21k"}}
    config |= {"architecture": "vit_tiny_patch16_224"}
    source = WeightsSource(tmp_path / "x", config, {}, "timm folder", "", card=tmp_path / "README.md")
    found = []
    for taken in (None, "license", "from"):
        metadata.pop(taken, None)
        found.append(licences.licence_of(source, metadata))
    config["pretrained_cfg"].pop("license")
    found.append(licences.licence_of(source, metadata))
    (tmp_path / "README.md").unlink()
    found.append(licences.licence_of(source, metadata))
    # Weights that vit has trained are others than those of timm's name.
    found.append(licences.licence_of(source, {"trained_by": "vit"}))

    assert found == ["gpl-3.0", "cc-by-nc-4.0", "bsd-3-clause", "mit", "apache-2.0", "unknown"]


def test_names_of_weights_have_the_licence_of_timms_registry():
    for name in (
        "vit_base_patch16_224.mae",
        "vit_small_patch16_dinov3.lvd1689m",
        "deit_tiny_patch16_224.fb_in1k",
    ):
        stated = timm.models.get_pretrained_cfg(name).license
        assert licence_of_name(f"timm/{name}") == licence_of_name(name) == stated
    assert licence_of_name("timm/vit_base_patch16_224.mae") == "cc-by-nc-4.0"  # by the eye
    assert (
        licence_of_name("https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz") == "apache-2.0"
    )
    for ours in (
        "gs://vit_models/augreg/x.npz",
        "https://storage.googleapis.com/bit_models/BiT-M.npz",
        "demo",
    ):
        assert licence_of_name(ours) == "apache-2.0"
    for nothing in (None, 3, "", "photos", "timm/no_such.tag", "/home/ann/x.npz", "https://host/vit.npz"):
        assert licence_of_name(nothing) == ""


def test_which_licences_exclude_commercial_use():
    """By their texts: those of timm's registry, read by hand."""
    excluding = {"cc-by-nc-4.0", "CC-BY-NC-SA-4.0", "fair-noncommercial-research-license", "apple-amlr",
                 "seer-license", "my non-commercial licence"}  # fmt: skip
    allowing = {"apache-2.0", "mit", "bsd-3-clause", "cc-by-4.0", "dinov3-license", "apple-ascl", "gemma",
                "nvidia-open-model-license", "unknown", "ncsa", "fancy"}  # fmt: skip

    assert {name for name in excluding | allowing if is_non_commercial(name)} == excluding
    assert in_card("mit") == {"license": "mit"} and in_card("unknown") == in_card(None) == {}
    assert in_card("dinov3-license") == {"license": "other", "license_name": "dinov3-license"}


def test_the_licence_travels_into_a_run(photos, tmp_path):
    start = folder_of(tmp_path / "start", "vit_base_patch16_224.mae")
    words = ("--dataset", photos, "--steps", 1, "--batch-size", 2, "--precision", "fp32")
    first = run("finetune", "--ckpt", start, *words, "--out", tmp_path / "first", "--json")

    assert first.code == 0, first.err
    assert "note: the weights are licensed under cc-by-nc-4.0: non-commercial use only" in first.err
    assert json.loads((tmp_path / "first/summary.json").read_text())["license"] == "cc-by-nc-4.0"
    assert ModelCard((tmp_path / "first/README.md").read_text()).data.license == "cc-by-nc-4.0"
    assert read_weights(str(tmp_path / "first")).licence == "cc-by-nc-4.0"

    # A teacher's licence holds for what has learned of its predictions.
    taught = ("--ckpt", "random", "--model", "ViT-demo/8", "--set", f"distill.teacher={tmp_path / 'first'}")
    taught += ("--recipe", "modern/distill", "--set", "distill.compare=false", "--res", 16)
    student = run("finetune", *taught, *words, "--out", tmp_path / "student", "--json")
    assert student.code == 0 and student.json["license"] == "cc-by-nc-4.0", student.err + student.out
    assert ModelCard((tmp_path / "student/README.md").read_text()).data.license == "cc-by-nc-4.0"


@pytest.mark.slow
def test_the_licence_travels_through_a_run_into_what_is_made_of_it(photos, tmp_path):
    start = folder_of(tmp_path / "start", "vit_base_patch16_224.mae")
    words = ("--dataset", photos, "--steps", 1, "--batch-size", 2, "--precision", "fp32")
    first = run("finetune", "--ckpt", start, *words, "--out", tmp_path / "first", "--json")
    second = run("finetune", "--ckpt", tmp_path / "first", *words, "--out", tmp_path / "second", *QUIET)
    exported = run("export", tmp_path / "second", tmp_path / "timm", "--to", "timm", *QUIET)

    assert first.code == second.code == exported.code == 0, first.err + second.err + exported.err
    for folder in ("first", "second"):
        assert json.loads((tmp_path / folder / "summary.json").read_text())["license"] == "cc-by-nc-4.0"
        card = (tmp_path / folder / "README.md").read_text()
        assert ModelCard(card).data.license == "cc-by-nc-4.0"
        assert "licensed under `cc-by-nc-4.0`. It excludes commercial use." in " ".join(card.split())
    for folder in ("first", "second", "timm"):
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert config["pretrained_cfg"]["license"] == "cc-by-nc-4.0"
        assert read_weights(str(tmp_path / folder / "model.safetensors")).licence == "cc-by-nc-4.0"
    assert exported.json["license"] == "cc-by-nc-4.0"
    assert ModelCard(weights_card(exported.json, "")).data.license == "cc-by-nc-4.0"


@pytest.mark.slow
def test_unknown_is_said_plainly_and_fresh_weights_have_none(photos, tmp_path):
    words = ("--dataset", photos, "--steps", 1, "--batch-size", 2, "--precision", "fp32", *QUIET)
    of_nobody = folder_of(tmp_path / "start", "vit_tiny_patch16_224.augreg_in21k")
    config = of_nobody / "config.json"
    stated = json.loads(config.read_text())
    stated["pretrained_cfg"] |= {"tag": "mine", "license": None}  # which timm states of its own weights
    config.write_text(json.dumps(stated))
    fresh = ("--ckpt", "random", "--model", "Ti/16", "--set", "model.layers=1", "--res", 32)

    for name, given in (("unknown", ("--ckpt", of_nobody)), (None, fresh)):
        out = tmp_path / str(name)
        outcome = run("finetune", *given, *words, "--out", out)
        assert outcome.code == 0, outcome.err
        assert json.loads((out / "summary.json").read_text())["license"] == name
        assert "license" not in json.loads((out / "config.json").read_text())["pretrained_cfg"]
        card = " ".join((out / "README.md").read_text().split())
        assert ModelCard(card).data.get("license") is None
        assert ("is unknown to vit" in card) == (name == "unknown")
    assert licences.licence_of_name("demo") == "apache-2.0"
