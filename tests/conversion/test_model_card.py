"""What a run's card says: the numbers of its summary, nothing of the machine, only loading that works."""

import json
from dataclasses import replace

import pytest
import yaml
from huggingface_hub import ModelCard

from vitcli.conversion.model_card import how_to_load, model_card, on_the_hub, replace_section
from vitcli.models.architecture import Architecture
from vitcli.models.build import TransformerOptions, architecture
from vitcli.output.redaction import public_name, public_toml, public_values

SUMMARY = {
    "command": "finetune", "run_dir": "/home/ann/runs/this", "model": "ViT-demo/8", "dataset": "pets",
    "num_classes": 37, "resolution": 64, "ckpt": None, "top1": 0.9, "top5": 0.99, "loss": 1.25, "steps": 3,
    "top1_std": None, "runs": [{"seed": 0, "top1": 0.9, "top5": 0.99, "loss": 1.25}], "batch_size": 4,
    "intervals": {"top1": [0.881, 0.918], "top5": [0.983, 0.995]},
    "num_eval_examples": 1000, "eval_split": "pets, split test", "train_split": "pets, split train",
    "num_train_examples": 3680, "lr": 0.01, "precision": "fp32", "preprocessing": "64x64, as it is",
    "num_skipped_images": 0, "elapsed_s": 2.0, "num_processes": 1, "exaflops": None, "images_per_s": None,
}  # fmt: skip
SEVERAL = {
    "runs": [{"seed": seed, "top1": top1, "top5": 1.0, "loss": 0.5}
             for seed, top1 in ((0, 0.88), (1, 0.9), (2, 0.92))],
    "top1": 0.9, "top1_std": 0.02,
    "choices": [{"optimizer.lr": 0.001, "dev_top1": 0.5, "dev_loss": 2.0},
                {"optimizer.lr": 0.003, "dev_top1": 0.75, "dev_loss": 1.0},
                {"optimizer.lr": 0.03, "dev_top1": None, "dev_loss": None}],
    "chosen": {"optimizer.lr": 0.003},
}  # fmt: skip


ARCH = architecture("ViT-demo/8", image_size=(64, 64), num_classes=37)


def card(recipe_toml: str = 'x = "{}"\n', *, arch: Architecture = ARCH, **changes) -> str:
    return model_card(SUMMARY | changes, recipe_toml, arch)


def metadata(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


@pytest.mark.parametrize(
    ("options", "unsupported"),
    [({}, None), ({"pre_logits": True}, "representation layer"), ({"posemb": "2d"}, "position embeddings")],
)
def test_timm_and_transformers_are_named_where_they_can_load_it(options, unsupported):
    arch = architecture(
        "ViT-demo/8", image_size=(64, 64), num_classes=37, options=TransformerOptions(**options)
    )

    text = card(arch=arch)

    assert ('timm.create_model("local-dir:."' in text) == (unsupported is None)
    assert ('AutoModelForImageClassification.from_pretrained(".")' in text) == (unsupported is None)
    assert unsupported is None or unsupported in text
    assert metadata(text)["library_name"] == ("vitcli" if unsupported else "timm")
    assert ("transformers" in metadata(text)["tags"]) == (unsupported is None)
    assert 'load_model(".")' in text and 'x = "{}"' in text


def test_an_accuracy_comes_with_its_interval():
    """900 of 1000 right: the normal approximation 0.9 ± 1.96 sqrt(0.09/1000) is 88.14 to 91.86."""
    (line,) = [line for line in card().splitlines() if line.startswith("| top-1")]
    _, _, share, interval, _ = (cell.strip() for cell in line.split("|"))
    low, high = map(float, interval.split(" to "))

    assert share == "90.00%" and "| top-5 | 99.00% |" in card()
    assert abs(low - 88.14) < 0.2 and abs(high - 91.86) < 0.2


def test_a_threshold_comes_with_what_it_answers_and_how_much_of_that_is_right():
    points = [(0.0, 200, 180), (0.5, 200, 180), (0.8, 150, 149), (0.99, 0, 0)]
    keys = ("threshold", "answered", "right")
    calibration = {"thresholds": [dict(zip(keys, point, strict=True)) for point in points]}
    text = card(belief=calibration | {"num_images": 200, "fingerprint": "abc"})

    said = " ".join(text.split())
    assert "at --threshold 0.8: 75.0% answered, 99.3% of these right (95 %: 96.3 to 100.0; 200 dev" in said
    rows = [line for line in text.splitlines() if line.startswith("| 0")]
    assert rows == ["| 0 | 100.0% | 90.0% | 85.5 to 94.0 |", "| 0.8 | 75.0% | 99.3% | 96.3 to 100.0 |"]
    assert "--threshold" not in card(belief=None) + card()


def test_top_5_of_five_classes_is_no_result():
    text = card(num_classes=5, top5=1.0)

    assert "top-5" not in text


def test_several_runs_are_a_mean_a_deviation_and_every_run():
    text = card(**SEVERAL)

    assert "**90.00% ± 2.00** top-1: mean and standard deviation (n - 1) of 3 runs" in text
    for seed, top1 in ((0, "88.00%"), (1, "90.00%"), (2, "92.00%")):
        assert f"| {seed} | {top1} |" in text
    assert metadata(text)["model-index"][0]["results"][0]["metrics"][0]["name"] == "top-1, mean of 3 runs"


def test_a_selection_is_a_table_of_what_was_tried_and_what_was_taken():
    text = card(**SEVERAL)

    assert "| `0.001` | 50.00% | 2.0000 |  |" in text
    assert "| `0.003` | 75.00% | 1.0000 | chosen |" in text
    assert "| `0.03` | - | - |  |" in text
    assert "had no part in it" in text and "Nothing was selected" not in text
    assert "had no part in it" not in card(**SEVERAL, eval_split="pets, split train, dev part")
    assert "Nothing was selected" in card()


def test_masked_patches_have_colours_and_no_classes():
    colours = {"patch_accuracy": 0.25, "most_frequent_color": 0.125, "command": "pretrain"}
    summary = {key: value for key, value in SUMMARY.items() if key not in ("top1", "top5")} | colours

    text = model_card(summary, "", replace(ARCH, num_classes=0))

    assert "**25.00% of the colors of corrupted patches**" in text and "12.50%" in text
    assert metadata(text)["pipeline_tag"] == "image-feature-extraction" and "model-index" not in metadata(
        text
    )
    assert "vit predict" not in text and "AutoModel.from_pretrained" in text
    assert "section 4.6" in text


ODD_NAMES = [
    "pets", "owner/name:config@main", "a|b", "a`b``c", 'a"b\'c', "a: b # c", "- a", "{a}", "[a]", "---",
    "été 犬", "a\n---\nb", "!!python/object:os.system", "*a", "true", "1e3", "a\\b", "<script>", "@a",
    "\x1b[31m",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_the_hub_reads_the_card_whatever_the_data_set_is_called(name):
    found = ModelCard(card(dataset=name, eval_split=f"{name}, split test"))
    (top1, top5) = found.data.eval_results
    shown = "".join(c if c.isprintable() else "�" for c in name)

    assert (top1.dataset_name, top1.dataset_split) == (shown, "test")
    assert (top1.task_type, top1.metric_type, top1.metric_value) == ("image-classification", "accuracy", 0.9)
    assert (top5.metric_name, top5.metric_value) == ("top-5", 0.99)
    assert found.text.lstrip().startswith("# ViT-demo/8 on ") and "## Recipe" in found.text


@pytest.mark.parametrize(
    ("ckpt", "base"),
    [
        ("timm/vit_base_patch16_224.augreg_in21k", "timm/vit_base_patch16_224.augreg_in21k"),
        ("hf-hub:google/vit-base-patch16-224@main", "google/vit-base-patch16-224"),
        ("hf://google/vit-base-patch16-224", "google/vit-base-patch16-224"),
        ("vit_base_patch16_224.augreg_in21k", "timm/vit_base_patch16_224.augreg_in21k"),
        ("ViT-B/16@in21k", None),
        ("photos/run-that-is-gone", None),
        ("/home/ann/vit_b16.npz", None),
        ("demo", None),
        (None, None),
    ],
)
def test_a_start_on_the_hub_is_the_base_model(ckpt, base):
    assert ModelCard(card(ckpt=ckpt)).data.base_model == base


def test_no_path_of_the_machine_is_in_the_card():
    places = {
        "dataset": "/home/ann/pets",
        "eval_split": "/home/ann/pets, split test",
        "ckpt": "~/vit_b16.npz",
    }
    places |= {"train_split": "/home/ann/pets, split train"}
    recipe_toml = '[model]\nckpt = "~/vit_b16.npz"\n\n[data]\ndataset = "/home/ann/pets"\nflip = true\n'

    text = card(recipe_toml, **places)

    assert "/home" not in text and "ann" not in text and "~/" not in text
    assert 'dataset = "pets"\nflip = true' in text and 'ckpt = "vit_b16.npz"' in text
    assert "--dataset PATH/TO/pets" in text and "/home" not in text, "nobody else has the path"


def test_a_data_set_of_the_hub_is_named_in_the_metadata():
    found = ModelCard(card(dataset="cifar10")).data

    assert found.datasets == ["uoft-cs/cifar10"] and found.eval_results[0].dataset_type == "uoft-cs/cifar10"


def test_a_recipe_with_backticks_stays_in_its_block():
    text = card('dataset = "````"\n')

    assert '`````toml\ndataset = "````"\n`````' in text


def test_other_names_change_the_section_on_loading_and_nothing_else():
    before = card().replace("No licence is stated here", "Licence: MIT")
    section = how_to_load(on_the_hub("ann/pets", "v2"), ARCH, dataset="pets")
    after = replace_section(before, section)
    heads = [text.split("<!--")[0] for text in (before, after)]

    assert heads[0] == heads[1] and before.split("-->")[-1] == after.split("-->")[-1] and "MIT" in after
    assert "vit predict --ckpt hf-hub:ann/pets@v2 IMAGES" in after
    assert 'timm.create_model("hf-hub:ann/pets@v2", pretrained=True)' in after
    assert 'from_pretrained("ann/pets", revision="v2")' in after and "local-dir" not in after
    assert replace_section("# my own card\n", section) is None


def test_paths_become_names_and_names_stay():
    kept = [
        "demo",
        "owner/name",
        "timm/vit_base.x",
        "hf-hub:a/b@c",
        "s3://bucket/pets",
        "ViT-B/16",
        "10%",
        "",
    ]

    assert [public_name(name) for name in kept] == kept
    assert (
        public_name("/home/ann/pets/") == "pets" and public_name("../pets, split test") == "pets, split test"
    )
    assert public_name("/") == "local" and public_name("~/ann.npz") == "ann.npz"
    assert public_name("https://ann:secret@host/x.tar") == "https://host/x.tar"
    assert public_name("https://host/x.npz?X-Goog-Signature=secret&y=1") == "https://host/x.npz"
    assert public_name("gs://bucket/x-00?.tar") == "gs://bucket/x-00?.tar"
    assert public_values({"a": ["/b/c", 1, None], "d": {"e": "/f"}}) == {"a": ["c", 1, None], "d": {"e": "f"}}
    line = f'ckpt = {json.dumps("/a/été")}  # "quoted" remark\n'
    assert public_toml(line) == 'ckpt = "été"  # "quoted" remark\n'


@pytest.mark.parametrize(
    ("keys", "cell"),
    [
        ({}, "not recorded"),
        ({"num_left_out_files": 0, "left_out_files": []}, "none"),
        ({"num_left_out_files": 7, "left_out_files": ["a.HEIC", "b|.txt", "c", "d"]}, "7: `a.HEIC`, "),
    ],
)
def test_files_that_were_not_read_are_counted_in_the_card(keys, cell):
    card = model_card(SUMMARY | keys, "", ARCH)

    assert f"| files left out | {cell}" in card
