"""`vit interpolate-posemb`: grids, formats and refusals, end to end."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import SHARED, run
from vitcli import load_model
from vitcli.models.build import TransformerOptions, architecture, build
from vitcli.models.pos_embed import resample_posemb, similarity_at_landmarks
from vitcli.weights.describe import WeightsInfo
from vitcli.weights.interpolate import _geometry
from vitcli.weights.io import read_weights, write_weights

REAL = SHARED / "data" / "checkpoints"


@pytest.fixture
def checkpoint(tmp_path):
    """A function that writes a run folder with a network of random numbers and gives its path."""

    def write(name: str = "ViT-demo/8", *, image_size=(56, 56), **options) -> Path:
        torch.manual_seed(0)
        arch = architecture(name, image_size=image_size, num_classes=5, options=TransformerOptions(**options))
        state = {key: torch.randn_like(t) * 0.1 for key, t in build(arch, dropout=0.0).state_dict().items()}
        preprocessing = PREPROCESSING | {"image_size": list(image_size)}
        write_weights(
            tmp_path / "run",
            state,
            WeightsInfo(
                arch,
                preprocessing=preprocessing,
                class_names=tuple("abcde"),
                metadata={"top1": 0.5, "top5": 0.9, "loss": 1.5, "steps": 7},
            ),
        )
        return tmp_path / "run"

    return write


def test_7x7_becomes_16x16_and_all_else_stays(checkpoint, tmp_path):
    out = tmp_path / "out.safetensors"
    result = run("interpolate-posemb", str(checkpoint()), str(out), "--res", "128", "--json").json
    before, after = read_weights(str(tmp_path / "run")), read_weights(str(out))

    assert (result["before"]["patch_grid"], result["after"]["patch_grid"]) == ([7, 7], [16, 16])
    assert (result["before"]["tokens"], result["after"]["tokens"]) == (50, 257)
    assert result["similarity"]["corners"] == pytest.approx(1)
    assert result["resampled"] == ["pos_embed"]
    assert after.architecture.image_size == (128, 128)
    assert after.preprocessing == before.preprocessing | {"image_size": [128, 128]}
    # What was measured was measured at the other resolution.
    assert (after.class_names, after.metadata["steps"]) == (
        tuple("abcde"),
        7,
    ) and not after.metadata.keys() & {"top1", "top5", "loss"}
    assert torch.equal(after.state["pos_embed"], resample_posemb(before.state["pos_embed"], (7, 7), (16, 16)))
    same = [name for name in after.state if torch.equal(after.state[name], before.state[name])]
    assert set(after.state) - set(same) == {"pos_embed"}


def test_weights_without_their_head_lose_its_class_names_and_are_read_again(checkpoint, tmp_path):
    folder, out = checkpoint(), tmp_path / "out.safetensors"
    headless = {name: t for name, t in load_file(folder / "model.safetensors").items() if "head" not in name}
    save_file(headless, folder / "model.safetensors")  # its config.json still names five classes
    outcome = run("interpolate-posemb", str(folder), str(out), "--res", "128")

    assert outcome.code == 0, outcome.err
    assert read_weights(str(out)).architecture.num_classes == 0 and read_weights(str(out)).class_names is None


def test_the_names_of_imagenets_classes_are_known_of_the_result_too(tmp_path):
    if not REAL.is_dir():
        pytest.skip("the real checkpoint (VIT_TEST_DATA) is not here")
    ckpt, once, out = (
        REAL / "vit_ti16_augreg_in1k.npz",
        tmp_path / "1.safetensors",
        tmp_path / "2.safetensors",
    )
    for before, after, size in ((ckpt, once, "96"), (once, out, "64")):
        assert run("interpolate-posemb", str(before), str(after), "--res", size).code == 0

    assert read_weights(str(out)).readable_class_names == read_weights(str(ckpt)).readable_class_names
    assert read_weights(str(out)).readable_class_names[0].startswith("tench")


def test_a_grid_of_the_same_number_of_tokens_but_another_shape_changes(checkpoint, tmp_path):
    ckpt, out = checkpoint(image_size=(16, 64)), tmp_path / "out.safetensors"
    result = run("interpolate-posemb", str(ckpt), str(out), "--res", "32x32", "--json").json

    assert (result["before"]["patch_grid"], result["after"]["patch_grid"]) == ([2, 8], [4, 4])
    before, after = read_weights(str(ckpt)).state["pos_embed"], read_weights(str(out)).state["pos_embed"]
    assert before.shape == after.shape and not torch.equal(before, after)
    assert torch.equal(before[:, 0], after[:, 0])


def test_timms_method_is_timms(checkpoint, tmp_path):
    from timm.layers import resample_abs_pos_embed

    ckpt, out = checkpoint(), tmp_path / "out.safetensors"
    run("interpolate-posemb", str(ckpt), str(out), "--res", "64x128", "--method", "timm")
    expected = resample_abs_pos_embed(read_weights(str(ckpt)).state["pos_embed"], [8, 16], [7, 7])

    assert torch.equal(read_weights(str(out)).state["pos_embed"], expected)


@pytest.mark.slow
def test_registers_are_kept_before_the_patches(checkpoint, tmp_path):
    arch = architecture("vit_tiny_patch16_224", image_size=(64, 64), num_classes=3)
    arch.model_args["reg_tokens"] = 4
    state = {name: torch.randn_like(t) for name, t in build(arch, dropout=0.0).state_dict().items()}
    save_file(state, tmp_path / "reg.safetensors")
    out = tmp_path / "out.safetensors"
    result = run(
        "interpolate-posemb", str(tmp_path / "reg.safetensors"), str(out), "--res", "96x64", "--json"
    ).json

    assert (result["prefix_tokens"], result["after"]["tokens"]) == (5, 5 + 6 * 4)
    assert torch.equal(load_file(out)["pos_embed"][:, :5], state["pos_embed"][:, :5])


def test_tables_of_rows_and_columns_are_resampled_too(checkpoint, tmp_path):
    out = tmp_path / "out.safetensors"
    ckpt = checkpoint(posemb="2d", posemb_at="every_layer")
    result = run("interpolate-posemb", str(ckpt), str(out), "--res", "64x56", "--json").json

    assert result["resampled"] == [f"blocks.{i}.positions.rows" for i in range(6)]
    assert result["similarity"] is None
    assert load_model(out).model(torch.zeros(1, 3, 64, 56)).shape == (1, 5)


def test_smaller_patches_see_the_same_image(checkpoint, tmp_path):
    out = tmp_path / "out.safetensors"
    ckpt = checkpoint(image_size=(32, 32))
    result = run(
        "interpolate-posemb", str(ckpt), str(out), "--patch-size", "16", "--res", "64", "--json"
    ).json
    small, large = load_model(ckpt).model, load_model(out).model
    image = torch.randn(1, 3, 32, 32)
    # each patch of 8x8 enlarged on its own, as the pseudo-inverse is made for
    patches = image.unfold(2, 8, 8).unfold(3, 8, 8).reshape(1, 48, 8, 8)
    enlarged = torch.nn.functional.interpolate(patches, size=(16, 16), mode="bilinear", align_corners=False)
    big = enlarged.reshape(1, 3, 4, 4, 16, 16).permute(0, 1, 2, 4, 3, 5).reshape(1, 3, 64, 64)

    assert (result["after"]["patch_size"], result["after"]["patch_grid"]) == (16, [4, 4])
    torch.testing.assert_close(large(big), small(image), atol=1e-4, rtol=1e-4)


def test_an_official_file_in_gives_an_official_file_out(tmp_path):
    if not REAL.is_dir():
        pytest.skip("the real checkpoint (VIT_TEST_DATA) is not here")
    ckpt, large, back = REAL / "vit_ti16_augreg_in1k.npz", tmp_path / "384.npz", tmp_path / "224.npz"
    assert run("interpolate-posemb", str(ckpt), str(large), "--res", "384").code == 0
    assert run("interpolate-posemb", str(large), str(back), "--res", "224").code == 0
    given, returned = np.load(ckpt), np.load(back)

    assert given.files == returned.files or set(given.files) == set(returned.files)
    name = "Transformer/posembed_input/pos_embedding"
    assert all(np.array_equal(given[key], returned[key]) for key in given.files if key != name)
    difference = np.abs(given[name] - returned[name])
    assert (
        difference[0, 0].max() == 0 and difference[0, [1, 14, -14, -1]].max() < 1e-6
    )  # class row and corners
    assert 0 < difference.max() < 0.5 * np.abs(given[name]).max()  # the rest is smoothed on the way


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["out.safetensors"], 2, "neither another image size nor another patch size"),
        (["out.txt", "--res", "64"], 2, ".safetensors or .npz"),
        (["out.safetensors", "--res", "60"], 2, "56 or 64"),
        (["out.safetensors", "--res", "64", "--method", "cubic"], 2, "paper, timm"),
        (["out.safetensors", "--res", "0"], 2, "not a size in pixels"),
        (["out.npz", "--res", "64x56"], 2, "fix:   end OUT in .safetensors, or give a square --res"),
        (["there.safetensors", "--res", "64"], 2, "exists"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    checkpoint, tmp_path, monkeypatch, arguments, code, words
):
    ckpt = checkpoint()
    monkeypatch.chdir(tmp_path)
    Path("there.safetensors").write_bytes(b"precious")
    outcome = run("interpolate-posemb", str(ckpt), *arguments)

    assert (outcome.code, outcome.out) == (code, "") and words in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "there.safetensors"]
    assert Path("there.safetensors").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("name", "options", "arguments", "words"),
    [
        ("resnet10t", {}, ["--res", "64"], "no position embeddings"),
        ("ViT-demo/8", {"posemb": "none"}, ["--res", "64"], "no position embeddings"),
        ("ViT-demo/8", {"posemb": "relative"}, ["--res", "64"], "another displacement"),
        ("R+ViT-Ti/16", {}, ["--patch-size", "4"], "not cut from pixels"),
    ],
)
def test_networks_that_have_nothing_to_resample_are_refused(tmp_path, name, options, arguments, words):
    arch = architecture(name, image_size=(32, 32), num_classes=2, options=TransformerOptions(**options))
    description = WeightsInfo(arch, PREPROCESSING, class_names=None, metadata={})
    write_weights(tmp_path, build(arch, dropout=0.0).state_dict(), description)
    outcome = run("interpolate-posemb", str(tmp_path), str(tmp_path / "out.safetensors"), *arguments)

    assert outcome.code in (2, 4) and words in outcome.err
    assert not (tmp_path / "out.safetensors").exists()


PREPROCESSING = {
    "image_size": [32, 32], "resize": "square", "crop_fraction": 1.0, "interpolation": "bilinear",
    "antialias": True, "mean": [0.5] * 3, "std": [0.5] * 3, "decoder": "any",
}  # fmt: skip


def test_the_similarity_is_that_of_the_table_that_suffers_most(tmp_path):
    options = TransformerOptions(posemb="1d", posemb_at="every_layer")
    arch = architecture("ViT-demo/8", image_size=(40, 40), num_classes=2, options=options)
    model = build(arch, dropout=0.0)
    tables = [name for name, _ in model.named_parameters() if name.endswith("positions.table")]
    described = {
        "preprocessing": PREPROCESSING | {"image_size": [40, 40]},
        "class_names": None,
        "metadata": {},
    }
    write_weights(tmp_path, model.state_dict(), WeightsInfo(arch, **described))
    out = tmp_path / "out.safetensors"
    result = run("interpolate-posemb", str(tmp_path), str(out), "--res", "64", "--json").json

    after = read_weights(str(out)).state
    each = [
        similarity_at_landmarks(model.state_dict()[name], (5, 5), after[name], (8, 8), num_prefix=1)
        for name in tables
    ]
    assert len({of_table["midpoints"] for of_table in each}) == 6
    assert result["similarity"] == pytest.approx(
        {place: min(of_table[place] for of_table in each) for place in each[0]}
    )


def test_the_tokens_and_operations_of_a_network_are_counted_by_hand():
    """Of 2 x 3 patches of 16 pixels and a class token, 192 wide, in twelve layers with three heads."""
    arch = architecture("Ti/16", image_size=(32, 48), num_classes=0)
    tokens, width = 2 * 3 + 1, 192
    of_layer = 4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * 4 * width

    found = _geometry(arch, 1)

    assert found["gmacs"] == round((6 * 3 * 16 * 16 * width + 12 * of_layer) / 1e9, 3)
    assert (found["tokens"], found["patch_grid"], found["image_size"]) == (7, [2, 3], [32, 48])
