"""A network gets the pixels its weights state, in every command: measured where they enter the network.

The folders are written by timm itself, with the statistics of timm's registry; the truth of a photograph is
timm's own transform.
"""

import json
import tomllib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models._hub import save_for_hf
from torch.nn.modules.module import register_module_forward_pre_hook

from tests.conftest import run
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.setup import settle_pixels
from vitcli.recipe import load as load_recipe
from vitcli.recipe.schema import Data
from vitcli.recipe.validation import contradictions
from vitcli.weights.io import read_description, read_weights

SMALL = dict(depth=1, embed_dim=32, num_heads=2)
FAMILIES = {
    "dinov2": ("vit_small_patch14_dinov2.lvd142m", SMALL | dict(img_size=28)),
    "deit3": ("deit3_small_patch16_224.fb_in1k", SMALL | dict(img_size=32)),
    "deit": ("deit_tiny_patch16_224.fb_in1k", SMALL | dict(img_size=32)),
    "dinov3": ("vit_small_patch16_dinov3.lvd1689m", SMALL | dict(img_size=32)),
    "clip": ("vit_base_patch16_clip_224.openai", SMALL | dict(img_size=32)),
    "siglip": ("vit_base_patch16_siglip_224.webli", SMALL | dict(img_size=32)),
    "siglip-squashed": ("vit_base_patch16_siglip_gap_224.v2_webli", SMALL | dict(img_size=32)),
    "eva02": ("eva02_tiny_patch14_224.mim_in22k", SMALL | dict(img_size=28)),
    "mae": ("vit_base_patch16_224.mae", SMALL | dict(img_size=32)),
    "beit": ("beit_base_patch16_224.in22k_ft_in22k_in1k", SMALL | dict(img_size=32)),
    "beitv2": ("beitv2_base_patch16_224.in1k_ft_in22k_in1k", SMALL | dict(img_size=32)),
    "naflex": ("naflexvit_base_patch16_gap.e300_s576_in1k", SMALL),
    "pe-core": ("vit_pe_core_tiny_patch16_384.fb", SMALL | dict(img_size=32)),
    "flexivit": ("flexivit_small.1200ep_in1k", SMALL | dict(img_size=48)),
    "swin": (
        "swin_tiny_patch4_window7_224.ms_in1k",
        dict(img_size=56, embed_dim=8, depths=(1, 1), num_heads=(1, 2)),
    ),
    "convnext": ("convnext_tiny.in12k_ft_in1k", dict(depths=(1, 1, 1, 1), dims=(8, 8, 8, 8))),
    "aimv2": ("aimv2_large_patch14_224.apple_pt", SMALL | dict(img_size=28)),
    "cait": ("cait_xxs24_224.fb_dist_in1k", SMALL | dict(img_size=32)),
    "mobilevit": ("mobilevit_xxs.cvnets_in1k", {}),
}
SIDE_WITHOUT_POSITIONS = 64  # of networks that take images of any size
QUIET = ("--json", "-q")


def save_as_timm(folder: Path, name: str, args: dict) -> SimpleNamespace:
    """Let timm save a small network of a family, with two classes; return its statistics."""
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=2, **args)
    side = args.get("img_size", SIDE_WITHOUT_POSITIONS)
    model.pretrained_cfg = model.pretrained_cfg | {"input_size": (3, side, side)}
    for parameter in model.get_classifier().parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    save_for_hf(model, folder, model_args=args, safe_serialization=True)
    stated = timm.data.resolve_data_config(pretrained_cfg=model.pretrained_cfg)
    return SimpleNamespace(
        folder=folder, side=side, transform=timm.data.create_transform(**stated, is_training=False), **stated
    )


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Black and white images, which show mean and std, and in the test split photographs of another shape."""
    root = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label, level in (("black", 0), ("white", 255)):
            folder = root / split / label
            folder.mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (90, 70), (level,) * 3).save(folder / f"{number}.png")
    noise = Image.fromarray(rng.integers(60, 200, (7, 9, 3)).astype(np.uint8))
    noise.resize((90, 70), Image.Resampling.BICUBIC).save(root / "test" / "black" / "photo.png")
    return root


@contextmanager
def entering():
    """Collect every image that enters a network, (3, H, W) each."""
    images: list[torch.Tensor] = []

    def keep(module, inputs):
        first = inputs[0] if inputs else None
        is_images = isinstance(first, torch.Tensor) and first.ndim == 4 and first.shape[1] == 3
        if is_images and first.device.type != "meta" and first.any():
            images.extend(first.detach().float().clone())

    handle = register_module_forward_pre_hook(keep)
    try:
        yield images
    finally:
        handle.remove()


def statistics_of(images: list[torch.Tensor]) -> tuple[list[float], list[float]]:
    """Mean and std per channel, from the black and the white image: -mean / std and (1 - mean) / std."""
    flat = [image for image in images if image.std(dim=(1, 2)).max() < 1e-4]
    colours = sorted({tuple(image[:, 0, 0].double().tolist()) for image in flat})
    black, white = (torch.tensor(colour) for colour in (colours[0], colours[-1]))
    std = 1 / (white - black)
    return (-black * std).tolist(), std.tolist()


def photo_in(images: list[torch.Tensor]) -> torch.Tensor:
    return next(image for image in images if image.std(dim=(1, 2)).min() > 0.01)


def check_entered(images: list[torch.Tensor], weights: SimpleNamespace, photo: Path, *, command: str) -> None:
    mean, std = statistics_of(images)
    assert mean == pytest.approx(weights.mean, abs=1e-5), command
    assert std == pytest.approx(weights.std, abs=1e-5), command
    assert {tuple(image.shape) for image in images} == {(3, weights.side, weights.side)}, command
    # Size, interpolation and crop: the photograph as timm prepares it, to one level of 255 and rounding.
    expected = weights.transform(Image.open(photo))
    levels = 255 * (photo_in(images) - expected).abs() * torch.tensor(weights.std).view(3, 1, 1)
    assert levels.max() <= 2.01, (command, levels.max())


def words_of(command: str, ckpt: Path, pictures: Path, out: Path) -> tuple:
    """A command line whose network sees black, white and the photograph."""
    data = ("--dataset", pictures)
    probe = ("--set", f"eval.probe={pictures}", "--set", "eval.probe_shots=1")
    return {
        "finetune": (
            *(*data, *probe, "--steps", 1, "--batch-size", 4, "--out", out / "run", "--precision", "fp32"),
        ),
        "evaluate": data,
        "predict": (pictures / "test",),
        "fewshot": (*data, "--shots", 1, "--seeds", 1, "--out", out / "fewshot"),
        "embed": (*data, "--out", out / "features.safetensors"),
        "inspect": ("--images", pictures / "test", "--out", out / "inspection"),
    }[command]


def enter(command: str, ckpt: Path, pictures: Path, out: Path) -> list[torch.Tensor]:
    with entering() as images:
        words = words_of(command, ckpt, pictures, out)
        named = (ckpt,) if command == "inspect" else ("--ckpt", ckpt)
        outcome = run(command, *named, *words, *QUIET)
    assert outcome.code == 0, (command, outcome.err)
    return images


def test_fine_tuning_takes_the_pixels_that_the_weights_state(pictures, tmp_path):
    weights = save_as_timm(tmp_path / "weights", *FAMILIES["dinov2"])

    for command in ("finetune", "evaluate"):
        entered = enter(command, weights.folder, pictures, tmp_path)
        check_entered(entered, weights, pictures / "test/black/photo.png", command=command)

    # The run states them in numbers, in its recipe and with its weights.
    data = tomllib.loads((tmp_path / "run/recipe.toml").read_text())["data"]
    assert (data["mean"], data["std"]) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert (data["image_size"], data["eval_crop_fraction"], data["interpolation"]) == (28, 1.0, "bicubic")
    assert "mean 0.485 0.456 0.406, std 0.229 0.224 0.225" in (tmp_path / "run/README.md").read_text()


@pytest.mark.slow
def test_the_probe_of_a_pretraining_sees_the_pixels_that_are_trained_on(pictures, tmp_path):
    imagenet = ("--set", "data.mean=0.485,0.456,0.406", "--set", "data.std=0.229,0.224,0.225")
    probe = ("--set", f"eval.probe={pictures}", "--set", "eval.probe_shots=1", "--set", "eval.every=0")
    small = ("--set", "model.layers=1", "--res", 16, "--steps", 1, "--batch-size", 4, "--precision", "fp32")
    for given, expected in (
        (imagenet, ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])),
        ((), ([0.5] * 3,) * 2),
    ):
        with entering() as images:
            words = ("pretrain", "--recipe", "modern/cifar10-laptop", "--dataset", pictures, *small, *probe)
            outcome = run(*words, *given, "--out", tmp_path / f"run-{len(given)}", *QUIET)

        assert outcome.code == 0, outcome.err
        assert len(images) > 4 + 7  # the probe's images besides those of training and evaluation
        flat = torch.stack([image[:, 0, 0] for image in images if image.std(dim=(1, 2)).max() < 1e-4])
        assert len(flat.round(decimals=3).unique(dim=0)) == 2  # one black and one white for all passes
        for values, wanted in zip(statistics_of(images), expected, strict=True):
            assert values == pytest.approx(wanted, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_command_and_export_sees_the_pixels_of_every_family(family, pictures, tmp_path):
    onnx = pytest.importorskip("onnx")
    weights = save_as_timm(tmp_path / "weights", *FAMILIES[family])
    photo = pictures / "test/black/photo.png"

    commands = ["finetune", "evaluate", "predict", "fewshot", "embed", "inspect"]
    if family in ("convnext", "mobilevit"):
        commands.remove("inspect")  # for transformers
    for command in commands:
        check_entered(enter(command, weights.folder, pictures, tmp_path), weights, photo, command=command)
    # The run of fine-tuning, and what is exported of it, state the same.
    run_dir, exported = tmp_path / "run", tmp_path / "exported"
    check_entered(enter("evaluate", run_dir, pictures, tmp_path), weights, photo, command="evaluate the run")
    assert run("export", run_dir, exported, "--to", "timm", *QUIET).code == 0
    config = json.loads((exported / "config.json").read_text())["pretrained_cfg"]
    resolved = timm.data.resolve_data_config(pretrained_cfg=config)
    for key in ("mean", "std", "interpolation", "crop_pct", "crop_mode", "input_size"):
        assert tuple(np.ravel(resolved[key])) == tuple(np.ravel(getattr(weights, key))), key
    if family not in ("dinov2", "siglip-squashed"):
        return  # the file of ONNX has the same source
    assert run("export", weights.folder, tmp_path / "net.onnx", *QUIET).code == 0
    stored = json.loads(
        {entry.key: entry.value for entry in onnx.load(tmp_path / "net.onnx").metadata_props}["preprocessing"]
    )
    assert (tuple(stored["mean"]), tuple(stored["std"])) == (weights.mean, weights.std)
    assert (stored["image_size"], stored["crop_fraction"]) == ([weights.side] * 2, weights.crop_pct)
    assert stored["resize"] == {"center": "short_side", "squash": "square"}[weights.crop_mode]


def settled(name: str, *overrides: str, command: str = "finetune", **shorthands: object) -> Data:
    """Return the [data] section of a recipe as a run of `command` gets it."""
    keys = {key.replace("__", "."): str(value) for key, value in shorthands.items()}
    return settle_pixels(load_recipe(name, overrides, keys), command).data


def plan(*words: object) -> tuple[dict, str]:
    """Return the [data] section of the recipe that a dry run prints, and its notes."""
    outcome = run(*words, "--dry-run", "--json")
    assert outcome.code == 0, outcome.err
    return tomllib.loads(outcome.json["recipe"])["data"], outcome.err


def test_a_recipe_with_numbers_keeps_them_and_one_line_says_what_the_weights_state(pictures, tmp_path):
    weights = save_as_timm(tmp_path / "weights", *FAMILIES["dinov2"])
    words = ("finetune", "--ckpt", weights.folder, "--dataset", pictures)

    data, notes = plan(*words, "--recipe", "finetune/table4", "--steps", 1, "--set", "schedule.warmup=0",
                       "--lr", 0.1, "--res", 28)  # fmt: skip
    _, quiet = plan(*words)
    _, half = plan(*words, "--set", "data.mean=0.485,0.456,0.406", "--set", "data.std=weights")

    assert data["mean"] == data["std"] == [0.5, 0.5, 0.5]
    assert [line for line in notes.splitlines() if "mean" in line] == [
        "note: mean 0.5, std 0.5, as the recipe says; the weights state mean 0.485 0.456 0.406, "
        "std 0.229 0.224 0.225 (--set data.mean=weights --set data.std=weights takes those)"
    ]
    assert "mean" not in quiet and "mean" not in half  # equal: nothing to say


@pytest.mark.slow
def test_the_file_of_a_run_repeats_it_byte_for_byte_and_the_command_finds_it_finished(pictures, tmp_path):
    weights = save_as_timm(tmp_path / "weights", *FAMILIES["dinov2"])
    words = ("finetune", "--ckpt", weights.folder, "--dataset", pictures, "--steps", 1, "--batch-size", 2)
    first = run(*words, "--out", tmp_path / "a", *QUIET)
    again = run(*words, "--out", tmp_path / "a", *QUIET)  # finished: compared with its stored recipe

    recipe = tmp_path / "a" / "recipe.toml"
    by_file = run("finetune", "--recipe", recipe, "--out", tmp_path / "b", *QUIET)

    assert first.code == again.code == by_file.code == 0, again.err + by_file.err
    assert again.json == first.json
    for name in ("recipe.toml", "model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("kind", ["folder", "safetensors", "pth"])
def test_what_weights_state_is_read_without_their_numbers(kind, tmp_path):
    """Not a number in every tensor: who reads the numbers refuses the file."""
    name, args = FAMILIES["deit"]
    weights = save_as_timm(tmp_path / "weights", name, args)
    state = load_file(weights.folder / "model.safetensors")
    ckpt, model_name = weights.folder, None
    if kind != "folder":
        ckpt, model_name = tmp_path / f"bare.{kind}", name.partition(".")[0]
        state = timm.create_model(model_name, num_classes=3).state_dict()
    state = {name: torch.full_like(tensor, torch.nan) for name, tensor in state.items()}
    if kind == "pth":
        torch.save({"model": state}, ckpt)
    else:
        save_file(state, weights.folder / "model.safetensors" if kind == "folder" else ckpt)

    info = read_description(str(ckpt), model_name=model_name)

    with pytest.raises(WeightsError, match="non-finite"):
        read_weights(str(ckpt), model_name=model_name)
    assert info.architecture.image_size == ((32, 32) if kind == "folder" else (224, 224))
    assert info.preprocessing["mean"] == [0.485, 0.456, 0.406]
    assert info.preprocessing["image_size"] == list(info.architecture.image_size)


def test_a_bare_file_gets_the_statistics_that_timm_knows_for_its_model(pictures, tmp_path):
    file = tmp_path / "bare.pth"
    torch.save(timm.create_model("test_vit", num_classes=2, img_size=32).state_dict(), file)
    known = timm.models.get_pretrained_cfg("test_vit")
    words = ("evaluate", "--ckpt", file, "--model", "test_vit", "--dataset", pictures)

    data = settled("finetune/default", model__ckpt=file, model__name="test_vit")
    result = run(*words, *QUIET).json

    assert (data.mean, data.std) == (known.mean, known.std)
    assert (data.image_size, data.eval_crop_fraction) == (32, known.crop_pct)
    assert result["preprocessing_from"] == f"as timm has it for test_vit ({known.tag})"
    assert (
        "32x32, short side 33" in result["preprocessing"] and "mean 0.5, std 0.5" in result["preprocessing"]
    )


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory) -> Path:
    """A bare file of the size of ViT-Ti/16, which DeiT-Ti has too."""
    file = tmp_path_factory.mktemp("bare") / "tiny.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=2).state_dict(), file)
    return file


def test_a_tag_names_other_weights_than_those_that_timm_loads_by_default(tiny_file):
    deit = read_description(str(tiny_file), model_name="deit_tiny_patch16_224.fb_in1k")
    augreg = read_description(str(tiny_file), model_name="vit_tiny_patch16_224.augreg_in21k")
    with pytest.raises(VitError, match="tagged 'augrge'") as mistyped:
        read_description(str(tiny_file), model_name="vit_tiny_patch16_224.augrge")

    assert (deit.preprocessing["mean"], deit.architecture.gelu) == ([0.485, 0.456, 0.406], "timm")
    # As in a folder of these weights, which come from the JAX code
    assert (augreg.preprocessing["mean"], augreg.architecture.gelu) == ([0.5] * 3, "tanh")
    assert "or with one of augreg_in21k, augreg_in21k_ft_in1k" in mistyped.value.fix


@pytest.mark.slow
def test_fine_tuning_says_whose_statistics_a_bare_file_gets(pictures, tiny_file):
    words = ("finetune", "--ckpt", tiny_file, "--dataset", pictures)
    unnamed, notes = plan(*words, "--verbose")
    of_paper, quiet = plan(*words, "--model", "Ti/16")
    of_deit, of_timm = plan(*words, "--model", "deit_tiny_patch16_224", "--verbose")
    shown = run("inspect", tiny_file, "--summary", "--model", "deit_tiny_patch16_224").out

    assert "note: mean 0.5, std 0.5: the weights store none; timm's by --model NAME.TAG" in " ".join(
        notes.split()
    )
    assert unnamed["mean"] == of_paper["mean"] == [0.5] * 3 and "mean 0.5" not in quiet
    line = "mean 0.485 0.456 0.406, std 0.229 0.224 0.225, as timm has it for deit_tiny_patch16_224"
    assert (
        of_deit["mean"] == [0.485, 0.456, 0.406]
        and line in " ".join(of_timm.split())
        and line in " ".join(shown.split())
    )


def test_fresh_networks_and_the_demo_s_get_what_the_recipes_said():
    fresh = settled("finetune/default", model__ckpt="random", model__name="Ti/16")
    demo = settled("finetune/default", model__ckpt="demo")
    larger = settled("finetune/default", model__ckpt="demo", data__image_size="96")
    flexible = settled("finetune/default", model__ckpt="random", model__name="flexivit_small")
    modern = settled("modern/cifar10-laptop", command="pretrain")
    modern_s16 = settled("modern/s16-imagenet-90ep", command="pretrain")

    assert (fresh.image_size, fresh.eval_resize, fresh.eval_crop_fraction) == (224, "short_side", 0.9)
    # Drawn at 64 px, and so never resized; of larger images the short side.
    assert (demo.image_size, demo.eval_resize, demo.eval_crop_fraction) == (64, "short_side", 1.0)
    assert larger == demo.model_copy(update={"image_size": 96}) and flexible.image_size == 240
    interpolations = [data.interpolation for data in (fresh, demo, modern, modern_s16)]
    assert interpolations == ["bicubic", "bilinear", "bilinear", "bilinear"]
    assert (modern_s16.image_size, modern_s16.antialias) == (224, False)
    assert {data.mean + data.std for data in (fresh, demo, flexible, modern, modern_s16)} == {(0.5,) * 6}


def test_the_authors_files_have_the_recipe_s_pixels_at_their_own_size(shared):
    folder = shared / "golden/checkpoints"
    for model in json.loads((folder / "models.json").read_text()).values():
        data = settled("finetune/default", model__ckpt=folder / model["checkpoint"])

        assert data.image_size == model["image_size"], model["checkpoint"]
        assert (data.eval_crop_fraction, data.interpolation, data.mean) == (0.9, "bicubic", (0.5,) * 3)


def test_a_description_is_that_of_the_whole_file(shared):
    files = shared.glob("golden/checkpoints/tiny*.npz")
    for ckpt in ["demo", *(str(file) for file in files if ".out." not in file.name)]:
        info, weights = read_description(ckpt), read_weights(ckpt)

        assert {name: getattr(weights, name) for name in info._fields} == info._asdict(), ckpt


@pytest.mark.slow
@pytest.mark.parametrize("has_biases", [True, False])
def test_a_folder_of_transformers_is_fine_tuned_on_the_pixels_of_its_processor(tmp_path, has_biases):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    config = transformers.ViTConfig(image_size=32, patch_size=8, qkv_bias=has_biases, **sizes)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    processor = transformers.ViTImageProcessor(
        size={"height": 32, "width": 32}, image_mean=mean, image_std=std, resample=3
    )
    processor.save_pretrained(tmp_path)

    data = settled("finetune/default", model__ckpt=tmp_path)

    assert (data.mean, data.std, data.image_size) == (mean, std, 32)
    assert (data.eval_resize, data.eval_crop_fraction, data.interpolation) == ("square", None, "bicubic")


@pytest.mark.slow
def test_each_checkpoint_of_a_sweep_decides_about_its_own_pixels(pictures, tmp_path):
    dino = save_as_timm(tmp_path / "dino", *FAMILIES["dinov2"])
    flexi = save_as_timm(tmp_path / "flexi", *FAMILIES["flexivit"])
    recipe = tmp_path / "both.toml"
    both = json.dumps([str(dino.folder), str(flexi.folder)])
    recipe.write_text(f'extends = "finetune/default"\n[model]\nckpt = {both}\n')

    outcome = run("finetune", "--recipe", recipe, "--dataset", pictures, "--steps", 1, "--batch-size", 2,
                  "--set", "data.dev_fraction=0.5", "--out", tmp_path / "out", *QUIET)  # fmt: skip

    assert outcome.code == 0, outcome.err
    read = [tomllib.loads(path.read_text()) for path in sorted((tmp_path / "out").glob("arms/*/recipe.toml"))]
    pixels = {arm["model"]["ckpt"]: (arm["data"]["image_size"], arm["data"]["mean"][0]) for arm in read}
    assert pixels == {str(dino.folder): (28, 0.485), str(flexi.folder): (48, 0.5)}
    chosen = tomllib.loads(next((tmp_path / "out").glob("runs/*/recipe.toml")).read_text())
    assert (chosen["data"]["image_size"], chosen["data"]["mean"][0]) == pixels[chosen["model"]["ckpt"]]


def test_evaluation_takes_weights_for_a_value_too(pictures, tmp_path):
    weights = save_as_timm(tmp_path / "weights", *FAMILIES["dinov2"])
    words = ("evaluate", "--ckpt", weights.folder, "--dataset", pictures, *QUIET)
    stored = run(*words).json
    by_recipe = run(*words, "--recipe", "finetune/default").json
    by_key = run(*words, "--set", "data.mean=weights", "--set", "data.image_size=weights").json
    other = run(*words, "--recipe", "evaluate/default", "--res", "28").json

    assert stored["preprocessing"] == by_recipe["preprocessing"] == by_key["preprocessing"]
    assert by_key["preprocessing_from"] == "as stored with the weights"
    assert other["preprocessing"].endswith("mean 0.5, std 0.5")
    assert other["preprocessing_from"].endswith(
        "the weights state mean 0.485 0.456 0.406, std 0.229 0.224 0.225"
    )


def test_pixels_that_contradict_the_recipe_are_refused_before_anything_is_made(pictures, tmp_path):
    weights = save_as_timm(tmp_path / "weights", *FAMILIES["flexivit"])
    outcome = run("finetune", "--ckpt", weights.folder, "--dataset", pictures, "--out", tmp_path / "run",
                  "--set", "data.train_crop=random", "--set", "data.resize=40", "-q")  # fmt: skip

    assert outcome.code == 2 and "data.resize is 40, smaller than data.image_size, 48" in outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("sequence", [list, tuple])
def test_contradictions_are_found_in_values_of_a_file_and_in_settled_ones(sequence):
    values = {"data.image_size": sequence([48, 32]), "data.resize": 40, "data.std": sequence([1, 0, 1])}

    assert [key for key, _, _ in contradictions(values)] == ["data.std", "data.resize"]


@pytest.mark.slow
def test_real_weights_folded_for_other_statistics_are_the_same_network(shared, tmp_path):
    """As benchmarks/pixels.py saves them: equal outputs on the pixels they state, others on the old ones."""
    from benchmarks.pixels import HALF, IMAGENET, save
    from vitcli import load_model

    npz = str(shared / "data/checkpoints/vit_ti16_augreg_in1k.npz")
    for name, statistics in (("half", HALF), ("imagenet", IMAGENET)):
        save(npz, tmp_path / name, statistics)
    picture = np.random.default_rng(0).integers(0, 256, (300, 260, 3)).astype(np.uint8)

    (half, half_pixels, _), (imagenet, imagenet_pixels, _) = (
        load_model(tmp_path / name) for name in ("half", "imagenet")
    )
    with torch.inference_mode():
        expected = half(half_pixels(picture)[None])
        same = imagenet(imagenet_pixels(picture)[None])
        wrong = imagenet(half_pixels(picture)[None])

    assert (same - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (wrong - expected).abs().max() > 0.1 * expected.abs().max()
