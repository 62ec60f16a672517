"""`vit export --push-to-hub` against a stand-in for the Hub: what arrives, what does not, every refusal."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard, constants

from tests.cli.test_app import check_error
from tests.conftest import run, vit
from tests.model_hub import TOKEN, ModelHub, Repository, stand_in
from vitcli import load_model
from vitcli.conversion.hub import _as_vit_error
from vitcli.conversion.model_card import BLOCK
from vitcli.errors import MachineError

SENT = ["README.md", "config.json", "metrics.jsonl", "model.safetensors", "recipe.toml", "summary.json"]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The stand-in in the place of the Hub, for this process."""
    with stand_in() as hub:
        told = {"ENDPOINT": hub.address, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        told |= {"HUGGINGFACE_CO_URL_TEMPLATE": hub.address + "/{repo_id}/resolve/{revision}/{filename}"}
        told |= {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_TOKEN_PATH": str(tmp_path / "token")}
        for name, value in told.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub
    huggingface_hub.close_session()


def push(*arguments: object):
    return run("export", *arguments, "--quiet")


def on(hub: ModelHub, at: str = "main", name: str = "ann/pets") -> dict[str, bytes]:
    return hub.repositories[name].files(at)


def test_a_run_is_uploaded_in_one_commit_and_nothing_else(hub, trained):
    outcome = push(trained, "--push-to-hub", "ann/pets", "--json")
    files, result = on(hub), outcome.json

    assert outcome.code == 0 and sorted(files) == SENT
    for name in ("model.safetensors", "config.json", "metrics.jsonl"):
        assert files[name] == (trained / name).read_bytes()
    assert result["files"] == {name: len(contents) for name, contents in files.items()}
    assert (result["command"], result["repo"]) == ("export", "ann/pets")
    assert result["url"] == f"{hub.address}/ann/pets" and result["commit"] == f"{1:040x}"
    assert hub.requests.count("commit") == hub.requests.count("put") == 1
    assert hub.tokens["put"] == {None}, "the token is for the Hub, not for where large files lie"
    assert TOKEN not in outcome.out + outcome.err
    assert not any(TOKEN.encode() in contents for contents in files.values())


def test_no_uploaded_file_holds_a_local_path(hub, trained, photos):
    assert push(trained, "--push-to-hub", "ann/pets").code == 0
    files = on(hub)

    for place in (str(photos), str(trained), str(trained.parent), str(Path.home())):
        assert not [name for name in SENT if place.encode() in files[name]], place
    summary, ours = (
        json.loads(text) for text in (files["summary.json"], (trained / "summary.json").read_text())
    )
    assert summary["dataset"] == photos.name and summary["run_dir"] == "run"
    assert {key for key in ours if ours[key] != summary[key]} == {
        "run_dir", "weights", "ckpt", "dataset", "train_split", "eval_split", "findings",
    }  # fmt: skip
    for line in (f'dataset = "{photos.name}"', 'ckpt = "start.safetensors"'):
        assert f"{line}\n".encode() in files["recipe.toml"]


def test_the_card_names_the_repository_and_keeps_what_its_owner_wrote(hub, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "copy")
    ours = "---\nlicense: mit\n" + (folder / "README.md").read_text().removeprefix("---\n")
    (folder / "README.md").write_text(ours)

    assert push(folder, "--push-to-hub", "ann/pets").code == 0
    card = on(hub)["README.md"].decode()

    assert ModelCard(card).data.license == "mit" and len(ModelCard(card).data.eval_results) == 1
    assert "vit predict --ckpt hf-hub:ann/pets IMAGES" in card and "local-dir" not in card
    assert BLOCK.sub("", card) == BLOCK.sub("", ours)


def test_a_card_without_vits_section_is_uploaded_unchanged_a_lost_one_made_again(hub, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "copy")
    (folder / "README.md").write_text("# mine\n")
    outcome = run("export", folder, "--push-to-hub", "ann/pets")
    assert (outcome.code, on(hub)["README.md"]) == (0, b"# mine\n")
    assert "is uploaded unchanged" in outcome.err

    (folder / "README.md").unlink()
    assert push(folder, "--push-to-hub", "ann/pets").code == 0
    assert on(hub)["README.md"].count(b"hf-hub:ann/pets") == 5


def test_what_was_uploaded_is_a_checkpoint_that_gives_the_same_logits(hub, trained):
    assert push(trained, "--push-to-hub", "ann/pets").code == 0
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    here, there = (load_model(place).model(images) for place in (trained, "hf-hub:ann/pets"))

    assert torch.equal(here, there)


def test_the_same_again_changes_nothing(hub, trained):
    first, second = (push(trained, "--push-to-hub", "ann/pets", "--json").json for _ in range(2))

    assert second["commit"] == first["commit"] and second["files"] == first["files"]
    assert hub.requests.count("commit") == hub.requests.count("put") == 1


OTHER_ROUTES = ("create", "validate", "preupload", "batch", "verify", "paths")


@pytest.mark.parametrize(
    "route", ["put", "commit", *(pytest.param(route, marks=pytest.mark.slow) for route in OTHER_ROUTES)]
)
def test_an_upload_interrupted_anywhere_is_completed_by_the_same_command(hub, trained, route):
    hub.faults[route] = 418
    broken = push(trained, "--push-to-hub", "ann/pets")
    check_error(broken, 5)
    there = hub.repositories.get("ann/pets", Repository()).files()
    assert sorted(there) in ([], SENT), "a commit is whole or not there"
    assert "hunter2" not in broken.err and TOKEN not in broken.err

    hub.faults.clear()
    assert push(trained, "--push-to-hub", "ann/pets").code == 0
    assert sorted(on(hub)) == SENT and hub.repositories["ann/pets"].messages == ["ViT-demo/8, by vit export"]


def test_a_branch_is_made_and_named_in_the_card(hub, trained):
    result = push(trained, "--push-to-hub", "ann/pets", "--revision", "v2", "--json").json

    assert on(hub) == {} and sorted(on(hub, "v2")) == SENT
    assert b"--ckpt hf-hub:ann/pets@v2" in on(hub, "v2")["README.md"]
    assert result["url"].endswith("ann/pets/tree/v2")
    assert push(trained, "--push-to-hub", "ann/pets", "--revision", "v2").code == 0


def test_private_is_private_or_refused(hub, trained):
    assert push(trained, "--push-to-hub", "ann/pets", "--private").code == 0
    assert hub.repositories["ann/pets"].private
    assert push(trained, "--push-to-hub", "ann/pets", "--private").code == 0

    hub.repositories["ann/open"] = Repository()
    check_error(push(trained, "--push-to-hub", "ann/open", "--private"), 2, "already exists and is public")
    assert on(hub, name="ann/open") == {}


def test_a_checkpoint_that_is_no_run_is_uploaded_as_a_timm_folder(hub, trained, tmp_path):
    lone = shutil.copy(trained / "model.safetensors", tmp_path / "lone.safetensors")
    result = push(lone, "--push-to-hub", "ann/pets", "--json").json
    card = on(hub)["README.md"].decode()

    assert sorted(on(hub)) == ["README.md", "config.json", "model.safetensors"]
    assert ModelCard(card).data.pipeline_tag == "image-classification"
    assert "No accuracy was measured" in card and "`lone.safetensors`" in card and str(tmp_path) not in card
    assert "hf-hub:ann/pets" in card and "OWNER" not in card
    assert result["top1_agreement"] == 1.0 and "out" not in result


def test_a_folder_out_is_kept_and_uploaded_without_the_numbers_of_the_run(hub, trained, tmp_path):
    outcome = push(trained, tmp_path / "wide", "--res", "16x32", "--push-to-hub", "ann/pets", "--json")

    assert outcome.code == 0, outcome.err
    assert on(hub)["config.json"] == (tmp_path / "wide/config.json").read_bytes()
    assert sorted(path.name for path in (tmp_path / "wide").iterdir()) == ["config.json", "model.safetensors"]
    assert b"top-1" not in on(hub)["README.md"] and b"16x32" in on(hub)["README.md"]


@pytest.mark.slow
def test_an_onnx_file_goes_with_the_run_its_golden_file_and_a_section_of_the_card(hub, trained, tmp_path):
    pytest.importorskip("onnxruntime")
    outcome = push(trained, tmp_path / "pets.onnx", "--push-to-hub", "ann/pets", "--json")

    assert outcome.code == 0, outcome.err
    sent, card = on(hub), on(hub)["README.md"].decode()
    assert sorted(sent) == sorted([*SENT, "pets.golden.json", "pets.onnx"])
    assert sent["pets.onnx"] == (tmp_path / "pets.onnx").read_bytes()
    assert "### pets.onnx" in card and "InferenceSession('pets.onnx')" in card
    assert str(tmp_path) not in card and len(BLOCK.findall(card)) == 1
    assert outcome.json["onnx"]["precision"] == "fp32"
    for name in ("pets.onnx", "pets.golden.json"):
        (tmp_path / name).write_bytes(sent[name])
    assert run("export", "--check", tmp_path / "pets.onnx").code == 0
    # Again without it: the card is that of the run alone
    (tmp_path / "pets.onnx").unlink()
    assert push(trained, "--push-to-hub", "ann/pets").code == 0
    assert "pets.onnx" not in on(hub)["README.md"].decode()


REFUSALS = {
    "a name without an owner": (["--push-to-hub", "pets"], 2, "OWNER/NAME"),
    "a name with a space": (["--push-to-hub", "ann/my pets"], 2, "is not the name"),
    "a name of three parts": (["--push-to-hub", "ann/my/pets"], 2, "is not the name"),
    "an empty name": (["--push-to-hub", ""], 2, "is not the name"),
    "a branch without a name": (["--push-to-hub", "ann/pets", "--revision", " "], 2, "--revision"),
    "an address": (["--push-to-hub", "https://huggingface.co/ann/pets"], 2, "is not the name"),
    "another's name": (["--push-to-hub", "others/pets"], 5, "others's repositories"),
    "a file OUT": (["{tmp}/pets.npz", "--push-to-hub", "ann/pets"], 2, "not npz"),
    "another format": (["{tmp}/pets", "--to", "npz", "--push-to-hub", "ann/pets"], 2, "npz"),
    "another resolution": (["--res", "32", "--push-to-hub", "ann/pets"], 2, "--res"),
    "no head": (["--no-head", "--push-to-hub", "ann/pets"], 2, "--no-head"),
    "neither OUT nor the Hub": ([], 2, "--push-to-hub"),
    "private without the Hub": (["{tmp}/out", "--private"], 2, "belongs to --push-to-hub"),
    "a branch without the Hub": (["{tmp}/out", "--revision", "v2"], 2, "belongs to --push-to-hub"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_an_impossible_command_line_is_refused_before_any_upload(hub, trained, tmp_path, kind):
    words, code, said = REFUSALS[kind]

    check_error(push(trained, *(word.format(tmp=tmp_path) for word in words)), code, said)
    assert hub.repositories == {} and not (tmp_path / "pets").exists()


def test_an_unfinished_run_and_a_folder_of_something_else_are_refused(hub, trained, tmp_path):
    unfinished = shutil.copytree(trained, tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    half = shutil.copytree(trained, tmp_path / "half")
    (half / "summary.json").write_text("[]")
    (tmp_path / "empty").mkdir()
    damaged = shutil.copytree(trained, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((trained / "model.safetensors").read_bytes()[:-9])

    for folder in (unfinished, half):
        check_error(push(folder, "--push-to-hub", "ann/pets"), 2, "has not finished")
    for folder in ("empty", "none", "damaged"):
        check_error(push(tmp_path / folder, "--push-to-hub", "ann/pets"), 4, folder)
    assert hub.repositories == {}


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_what_a_link_in_the_folder_points_to_is_not_published(hub, trained, tmp_path, kind):
    secret = tmp_path / "secret"
    shared = ["config.json", "model.safetensors"] if kind == "hard link" else []  # by the runs of a selection
    for name in (*(name for name in SENT if name not in shared), "card of weights"):
        folder = shutil.copytree(trained, tmp_path / name)
        if name == "card of weights":
            name = "README.md"
            (folder / "recipe.toml").unlink()
            (folder / ".vit.lock").unlink()
        shutil.copy(trained / name, secret)
        (folder / name).unlink()
        (folder / name).symlink_to(secret) if kind == "link" else os.link(secret, folder / name)
        check_error(push(folder, "--push-to-hub", "ann/pets"), 5, f"{name} is a {kind}")
        if folder.name in ("metrics.jsonl", "README.md"):
            check_error(
                push(folder, tmp_path / "a.onnx", "--push-to-hub", "ann/pets"), 5, f"{name} is a {kind}"
            )
        secret.unlink()
    assert hub.repositories == {} and not (tmp_path / "a.onnx").exists()


def test_no_token_a_wrong_one_and_no_network_are_errors_with_advice(hub, trained, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    check_error(push(trained, "--push-to-hub", "ann/pets"), 5, "does not accept the token", "hf auth login")
    monkeypatch.delenv("HF_TOKEN")
    check_error(push(trained, "--push-to-hub", "ann/pets"), 5, "no token", "hf auth login", "HF_TOKEN")

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_error(push(trained, "--push-to-hub", "ann/pets"), 5, "offline", "unset HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    check_error(push(trained, "--push-to-hub", "ann/pets"), 5, "the upload failed", "check the network")


def test_a_file_that_the_hub_leaves_out_is_noticed(hub, trained):
    hub.ignored = {"model.safetensors"}

    check_error(push(trained, "--push-to-hub", "ann/pets"), 8, "model.safetensors", ".gitignore")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_other_bytes_on_the_hub_are_noticed(hub, trained, name):
    hub.altered = {name}

    check_error(push(trained, "--push-to-hub", "ann/pets"), 8, f"{name} on the Hub differs")


def test_signatures_of_addresses_are_not_printed():
    error = RuntimeError("no answer from https://store.example/ab/cd?X-Signature=hunter2&x=1 in time")

    with (
        pytest.raises(MachineError, match=r"no answer from https://store\.example/ab/cd in time"),
        _as_vit_error("a/b"),
    ):
        raise error


def test_a_card_that_the_hub_cannot_read_is_refused_before_the_weights_go(hub, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "copy")
    (folder / "README.md").write_text("---\nlicense: [mit\n---\n# mine\n")

    check_error(push(folder, "--push-to-hub", "ann/pets"), 2, "refuses the card", "README.md")
    (folder / "README.md").write_bytes("été".encode("latin-1"))
    check_error(push(folder, "--push-to-hub", "ann/pets"), 2, "not UTF-8", "README.md")
    assert "put" not in hub.requests and on(hub) == {}


FROM_THE_HUB = """
import timm, torch
from transformers import AutoModelForImageClassification
from vitcli import load_model
images = torch.randn(2, 3, 16, 16)
with torch.no_grad():
    ours = load_model("hf-hub:ann/pets").model(images)
    assert torch.equal(timm.create_model("hf-hub:ann/pets", pretrained=True).eval()(images), ours)
    theirs = AutoModelForImageClassification.from_pretrained("ann/pets").eval()
    assert torch.equal(theirs(images).logits, ours)
"""


@pytest.mark.slow
def test_configured_by_the_environment_alone_timm_and_transformers_load_the_upload(trained, tmp_path):
    with stand_in() as hub:
        environment = {**os.environ, **hub.environment(tmp_path)}
        sent = vit("export", trained, "--push-to-hub", "ann/pets", env=environment)
        assert sent.returncode == 0 and f"{hub.address}/ann/pets" in sent.stdout, sent.stderr
        assert sorted(on(hub)) == SENT and TOKEN not in sent.stdout + sent.stderr
        words = [sys.executable, "-c", FROM_THE_HUB]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)

        assert done.returncode == 0, done.stderr
