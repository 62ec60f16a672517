"""`vit models --weights`: every name in it is one that --ckpt takes, and what is on this machine is found."""

from functools import cache

import pytest
import timm
import torch

from tests.conftest import run
from vitcli.errors import VitError
from vitcli.models.variants import VARIANTS
from vitcli.weights import names
from vitcli.weights.catalog import _named_weights, _papers_name, as_table, list_weights
from vitcli.weights.download import cached_path

CONFIGS = cache(timm.models.get_pretrained_cfg)  # timm copies them deeply, once for each of 1,900 names


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("timm.models.get_pretrained_cfg", CONFIGS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_listed_name_is_one_of_weights_at_the_listed_place(place):
    known = [weights for weights in _named_weights() if _papers_name(weights) in VARIANTS]

    assert len({weights.name for weights in known}) == len(known) > 90
    for weights in known[1:]:
        assert names.resolve(weights.name).place.endswith(weights.source.removeprefix("gs://"))


def test_sizes_are_those_of_the_whole_file(place):
    rows = [row for name in ("ViT-B/16", "BiT-R50x1") for row in list_weights(name)["weights"]]
    # Sizes by hand: the 86,567,656 parameters of ViT-B/16 with 1,000 classes (the paper's Table 1: 86M)
    by_name = {row["name"]: row for row in rows}
    assert by_name["ViT-B/16@in21k_ft_in1k_224"]["params"] == 86_567_656
    # Its pre-training head: 768 x 768 + 768, then 768 x 21,843 + 21,843
    assert by_name["ViT-B/16@in21k"]["params"] == 85_798_656 + 590_592 + 16_797_267
    with torch.device("meta"):
        resnet = timm.create_model("resnetv2_50x1_bit", num_classes=21843)
    expected = sum(parameter.numel() for parameter in resnet.parameters())
    assert (
        by_name["BiT-R50x1@in21k"]["params"] == by_name["resnetv2_50x1_bit.goog_in21k"]["params"] == expected
    )
    assert by_name["vit_base_patch16_224.orig_in21k_ft_in1k"]["pretraining"] == "in21k+in1k"


def test_what_is_on_this_machine_is_marked(place):
    file = cached_path(names.resolve("ViT-B/16@in21k").place)
    snapshot = place / "hub" / "models--timm--vit_base_patch16_224.mae" / "snapshots" / ("1" * 40)
    for folder in (file.parent, snapshot, snapshot.parents[1] / "refs", place / "vit_base_patch16_224.dino"):
        folder.mkdir(parents=True)
    file.write_bytes(b"x")
    (snapshot / "model.safetensors").write_bytes(b"x")
    (snapshot.parents[1] / "refs" / "main").write_text("1" * 40)

    here = {row["name"]: row["here"] for row in list_weights("ViT-B/16")["weights"] if row["here"]}
    assert here == {
        "ViT-B/16@in21k": "cached",
        "vit_base_patch16_224.mae": "cached",
        "vit_base_patch16_224.dino": "local",
    }


def test_a_pattern_finds_timms_other_networks(place, monkeypatch):
    monkeypatch.setattr("vitcli.weights.catalog.MOST_COUNTED", 3)
    few, many = list_weights("test_vit*"), list_weights("dinov3")
    text = as_table(few)

    assert [row["name"] for row in few["weights"]] == [n for n in timm.list_pretrained("test_vit*")]
    assert "test_vit3.r160_in1k" in text and "MB: not counted" not in text
    assert all(row["params"] is None for row in many["weights"])
    assert "narrow PATTERN" in as_table(many)
    monkeypatch.setattr("vitcli.weights.catalog.MOST_SHOWN", 5)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    num_hidden = len(many["weights"]) - 5
    assert f"and {num_hidden} more: narrow PATTERN, or read all of them in a pipe\n" in as_table(many)
    assert len(as_table(many).splitlines()) < 16 and as_table(few) == text
    with pytest.raises(
        VitError, match="no known weights match 'vit_bas_patch16_224', did you mean 'vit_base"
    ):
        list_weights("vit_bas_patch16_224")


def test_the_command_prints_the_table_the_page_or_the_object(place):
    outcome = run("models", "L/16", "--weights", "--json")
    assert [row["name"] for row in outcome.json["weights"]][:2] == [
        "ViT-L/16@in21k",
        "ViT-L/16@in21k_ft_in1k",
    ]
    table = run("models", "L/16", "--weights").out
    assert "ViT-L/16:\n" in table and max(map(len, table.splitlines())) <= 81
    assert run("models", "L/16", "--weights", "--format", "markdown").out.startswith(
        "| --ckpt | trained on |"
    )
    assert run("models", "--weights", "--res", "384").code == 2
