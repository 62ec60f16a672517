"""Passwords and signatures in addresses reach what opens them, and nothing that is written or printed."""

import json
import os

import pytest

from tests.conftest import run
from tests.data.shards.test_faulty_servers import contents, web  # noqa: F401, fixtures
from tests.training.test_finetune import SMALL
from vitcli import recipe
from vitcli.credentials import hide_credentials, with_credentials, without_credentials
from vitcli.output import run_folder
from vitcli.recipe.request import RecipeRequest
from vitcli.recipe.toml import to_toml

ADDRESS = "https://me:canary@host/{train,test}.parquet?X-Amz-Signature=canary&sig=canary"
PUBLIC = "https://host/{train,test}.parquet"


@pytest.fixture(autouse=True)
def _apart(monkeypatch):
    monkeypatch.setenv("VIT_ADDRESSES", "{}")


def test_an_address_is_known_by_its_public_form_also_to_processes_that_are_started():
    assert without_credentials(ADDRESS) == PUBLIC and with_credentials(PUBLIC) == ADDRESS
    assert json.loads(os.environ["VIT_ADDRESSES"]) == {PUBLIC: ADDRESS}
    renewed = ADDRESS.replace("canary", "renewed")
    assert without_credentials(renewed) == PUBLIC and with_credentials(PUBLIC) == renewed
    for name in ("photos/*?.tar", "them/pets@v2", "hf://datasets/them/pets@v2/a.parquet", PUBLIC):
        assert without_credentials(name) == name
    assert with_credentials("photos") == "photos"


def test_a_recipe_holds_no_credentials():
    words = {"data.dataset": ADDRESS, "model.ckpt": "https://host/x.npz?token=canary"}
    loaded = recipe.load("evaluate/default", (), words, training=False)

    assert (loaded.data.dataset, loaded.model.ckpt) == (PUBLIC, "https://host/x.npz")
    assert "canary" not in to_toml(loaded) and with_credentials(loaded.data.dataset) == ADDRESS


def test_a_request_that_is_written_down_holds_no_credentials():
    asked = RecipeRequest(overrides=(f"model.ckpt={ADDRESS}",), shorthands={"data.dataset": ADDRESS}).given
    assert asked == {"data.dataset": PUBLIC, "model.ckpt": PUBLIC}


def test_no_credentials_are_printed_or_written_into_the_environment_of_a_run(tmp_path):
    without_credentials(ADDRESS)
    text = f"GET {ADDRESS} failed: me:canary@, X-Amz-Signature=canary&sig=canary"
    assert "canary" not in hide_credentials(text)
    assert "canary" not in json.dumps(run_folder.environment(["vit", "--dataset", ADDRESS]))
    for words in (("recipes", "show"), ("report", "--debug"), ("compare", "b"), ("datasets", "show")):
        outcome = run(*words, ADDRESS)
        assert outcome.code and "canary" not in outcome.out + outcome.err


@pytest.mark.slow
def test_canaries_in_the_environment_and_in_addresses_are_in_no_output(web, tmp_path, monkeypatch, photos):  # noqa: F811
    """Every command on data behind a password, with tokens in the environment, also where it fails."""
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "hf_canaryCANARYcanary")
    monkeypatch.chdir(tmp_path)
    place = web.address.replace("http://", "http://me:canary@")
    data = f"{place}/{{train-0,test-0}}.parquet?X-Amz-Signature=canary&token=canary"
    train = [*SMALL, "--steps", 2, "--batch-size", 4]
    commands = [
        (0, *train, "--dataset", data, "--out", "run"),
        (0, *train, "--dataset", data.replace("canary", "canary2"), "--out", "run"),
        (0, *train, "--dataset", data, "--out", "tracked", "--track", "tensorboard"),
        (0, *train, "--dataset", data, "--out", "sweep", "--set", "train.runs=2"),
        (0, *train, "--dataset", data, "--out", "plan", "--dry-run"),
        (0, "evaluate", "--ckpt", "run", "--dataset", data, "--out", "ev", "--save-predictions", "p.parquet"),
        (0, "evaluate", "--ckpt", "run", "--dataset", data, "--json"),
        (0, "fewshot", "--ckpt", "run", "--dataset", data, "--shots", 1, "--out", "few"),
        (0, "embed", "--ckpt", "run", "--dataset", data, "--out", "e.safetensors"),
        (0, "inspect", "--ckpt", "run", "--dataset", data, "--out", "inside"),
        (0, "datasets", "check", data),
        (0, "report", "run", "sweep", "--out", "page.html"),
        (0, "export", "run", "folder"),
        (2, *train, "--dataset", data, "--out", "run", "--seed", 9),
        (3, *train, "--dataset", f"{place}/gone.parquet?sig=canary", "--out", "gone", "--debug"),
        (4, "evaluate", "--ckpt", f"{place}/x.npz?sig=canary", "--dataset", data, "--debug"),
        (4, "evaluate", "--ckpt", f"{web.address}/x.npz?sig=canary", "--dataset", data, "--debug"),
        (3, "predict", data, "--ckpt", "run"),
        (2, "report", data),
        (2, *train, "--set", f"data.datasets={data}", "--out", "wrong"),
    ]
    for expected, *words in commands:
        outcome = run(*words)
        assert outcome.code == expected, (words, outcome)
        assert "canary" not in (outcome.out + outcome.err).lower(), (words, outcome)
        for path in tmp_path.rglob("*"):
            assert "canary" not in str(path)
            assert not path.is_file() or b"canary" not in path.read_bytes().lower(), (words, path)
    print(f"{len(commands)} commands, no canary")
