"""`vit models --pretrained`: what timm's registry offers of the ViT family, before timm is loaded."""

import csv
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import timm
import torch

from tests.conftest import run
from vitcli.errors import VitError
from vitcli.weights import catalog, names
from vitcli.weights.catalog import (
    FAMILIES,
    TABLE,
    KnownWeights,
    _of_registry,
    known_weights,
    list_pretrained,
)


def rows_of(pattern: str | None) -> list[dict]:
    return list_pretrained(pattern)["pretrained"]


def write_table() -> None:
    """Write the table of the installed timm; after an update of timm."""
    catalog.MOST_COUNTED = 10_000
    rows = [
        (one.name, *one.image_size, one.num_classes, "" if one.params is None else one.params, one.licence)
        for one in _of_registry({})
    ]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# timm {timm.__version__}\n")
        columns = ("name", "height", "width", "classes", "parameters", "licence")
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def test_the_table_is_what_the_installed_timm_says():
    if TABLE.read_text().splitlines()[0] != f"# timm {timm.__version__}":
        pytest.skip("the table is of another version of timm, and is not used with this one")
    known = known_weights()
    params = {weights.network: weights.params for weights in known}

    of_registry = [weights._replace(source="") for weights in _of_registry(params)]
    assert known == of_registry, "run tests.weights.test_pretrained.write_table()"
    assert len(known) > 500 and sum(weights.params is None for weights in known) == 0


@pytest.mark.slow
def test_parameters_are_those_that_timm_builds():
    params = {weights.network: weights.params for weights in known_weights()}
    for network, count in params.items():
        with torch.device("meta"):
            model = timm.create_model(network, num_classes=0)
        assert sum(parameter.numel() for parameter in model.parameters()) == count, network
    print(f"{len(params)} networks")


def test_numbers_by_hand():
    by_name = {row["name"]: row for row in rows_of(None)}
    # The paper's Table 1: 86M; its licence, sizes and data as their pages say
    assert by_name["vit_base_patch16_224.augreg_in21k"]["params"] == 85_798_656
    row = by_name["vit_small_patch16_dinov3.lvd1689m"]
    assert (row["license"], row["pretraining"], row["family"]) == ("dinov3-license", "lvd1689m", "DINOv3")
    row = by_name["vit_base_patch16_224.mae"]
    assert (row["license"], row["non_commercial"], row["num_classes"]) == ("cc-by-nc-4.0", True, 0)
    row = by_name["vit_large_patch14_clip_336.openai_ft_in12k_in1k"]
    assert (row["pretraining"], row["resolution"]) == ("wit400m+in12k+in1k", [336, 336])


def test_weights_stand_by_family_and_size_and_every_name_is_one_that_ckpt_takes():
    rows = rows_of(None)
    families = list(dict.fromkeys(row["family"] for row in rows))

    assert families == [family for family in FAMILIES if family in families] and len(families) > 30
    for family in families:
        sizes = [row["params"] for row in rows if row["family"] == family]
        assert sizes == sorted(sizes) and len(sizes) > 1
    for row in rows[::40]:
        config = timm.models.get_pretrained_cfg(row["name"])
        assert names.resolve(row["name"]).place in (config.hf_hub_id, config.url)


def test_patterns_are_families_networks_of_the_paper_parts_and_globs():
    assert {row["family"] for row in rows_of("siglip 2")} == {"SigLIP 2"} != set()
    assert {row["family"] for row in rows_of("DEIT-III")} == {"DeiT III"}
    assert {row["name"].split(".")[0] for row in rows_of("ViT-B/16")} == {
        "vit_base_patch16_224", "vit_base_patch16_384",
    }  # fmt: skip
    assert [row["name"] for row in rows_of("timm/vit_base_patch16_224.mae")] == ["vit_base_patch16_224.mae"]
    parts, glob = rows_of("dinov3"), rows_of("vit_*dinov3*")
    assert parts == glob and len(glob) == len(timm.list_pretrained("vit_*dinov3*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("vit_base_patch16_223",), "did you mean 'vit_base_patch16_224'"),
        (("dinov4",), "did you mean 'dinov"),
        (("vit_base_patch16_224.maee",), "did you mean 'vit_base_patch16_224.mae'"),
        (("timm/vit_base_patch16_224.maee",), "did you mean 'vit_base_patch16_224.mae'"),
        (("resnet50.a1_in1k",), "vit models PATTERN --weights"),
        (("resnet*",), "no weights of the ViT family"),
        (("",), "match ''"),
        (("[",), "match '['"),
        (("\x1b[31mred",), "no weights of the ViT family"),
        (("*" * 300 + "q",), "no weights of the ViT family"),
        (("naïve-日本",), "no weights of the ViT family"),
        (("ViT-H/14", "--res", "224"), "--res"),
        (("ViT-H/14", "--weights"), "--weights"),
        (("a", "b"), "b"),
        (("dinov2", "--format", "html"), "html"),
    ],
)
def test_bad_input_is_refused_in_three_lines(words, message):
    outcome = run("models", *words, "--pretrained")

    assert outcome.code == 2 and not outcome.out
    assert message in " ".join(outcome.err.split()) and "\x1b" not in outcome.err
    lines = outcome.err.splitlines()
    assert "Traceback" not in outcome.err and len([line for line in lines if line.startswith("error:")]) == 1


def test_the_command_prints_families_or_their_weights():
    overview, listed = run("models", "--pretrained").out, run("models", "mae", "--pretrained").out
    assert "DINOv3" in overview and "vit models --pretrained FAMILY" in overview
    assert len(overview.splitlines()) < 60
    assert "MAE:" in listed and "cc-by-nc-4.0 (!)" in listed and "85.8M" in listed
    as_json = json.loads(run("models", "mae", "--pretrained", "--json").out)
    assert as_json["timm"] == timm.__version__ and as_json["pretrained"] == rows_of("mae")
    assert run("models", "mae", "--pretrained", "--format", "markdown").out.startswith("| --ckpt |")


def test_another_timm_is_asked_itself_and_the_table_gives_the_parameters(monkeypatch, tmp_path):
    by_table = known_weights()
    lines = TABLE.read_text().splitlines()[1:]
    other = tmp_path / "table.csv"
    # Another version, without the last two networks and with one that no timm has
    kept = [line for line in lines if not line.startswith(("xcit", "convit_tiny"))]
    other.write_text("\n".join(["# timm 0.0.1", *kept, "vit_of_old.tag,224,224,0,1,mit"]) + "\n")
    monkeypatch.setattr(catalog, "TABLE", other)
    monkeypatch.setattr(catalog, "_params_of", lambda network: 7)

    by_registry = known_weights()

    assert [one.name for one in by_registry] == [one.name for one in by_table]
    assert {one.params for one in by_registry if one.network == "convit_tiny"} == {7}
    monkeypatch.setattr(catalog, "TABLE", tmp_path / "no.csv")  # too many to count
    assert {one.params for one in known_weights()} == {None}
    with pytest.raises(VitError, match="no weights"):
        list_pretrained("vit_of_old")


@pytest.mark.slow
def test_the_list_is_there_before_torch_is_loaded():
    code = (
        "import sys; from vitcli.weights.catalog import list_pretrained; list_pretrained('dinov3'); "
        "print(sorted({'torch', 'timm', 'numpy', 'datasets'} & sys.modules.keys()))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert shown.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("vit_small_patch16_224.dino", "in1k"),  # Caron et al. 2021, without its labels
        ("vit_base_patch16_224.mae", "in1k"),  # He et al. 2022
        ("vit_base_patch16_224.augreg_in21k_ft_in1k", "in21k+in1k"),
        ("vit_base_patch16_224.nothing", "not in its name"),
    ],
)
def test_a_tag_tells_the_images_of_its_paper_in_the_order_of_training(name, images):
    assert KnownWeights.pretraining.fget(SimpleNamespace(name=name)) == images


def test_a_family_is_summed_up_with_the_network_nearest_to_25_million():
    def row(name: str, params: int | None, height: int, width: int, licence: str = "mit") -> dict:
        about = {"license": licence, "non_commercial": licence != "mit", "resolution": [height, width]}
        return {"name": name, "params": params} | about

    rows = [row("tiny", 5_710_000, 224, 224), row("b", 30_000_000, 256, 128), row("a", 20_000_000, 512, 512)]
    rows += [row("huge", 631_000_000, 378, 378, "cc-by-nc-4.0"), row("none", None, 224, 224)]

    assert catalog._cells_of_family(("MAE", rows)) == [
        "MAE", "5", "5.7M-631M", "224-512", "mit, cc-by-nc-4.0 (!)", "a",
    ]  # fmt: skip
    assert catalog._cells_of_family(("X", rows[-1:])) == ["X", "1", "-", "224", "mit", "none"]
