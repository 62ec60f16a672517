"""Passwords and signatures in addresses reach what opens them, and nothing that is written or printed."""

import json
import os

import pytest

from tests.conftest import run
from vitcli import recipe
from vitcli.credentials import hide_credentials, with_credentials, without_credentials
from vitcli.output import run_folder
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


def test_no_credentials_are_printed_or_written_into_the_environment_of_a_run(tmp_path):
    without_credentials(ADDRESS)
    text = f"GET {ADDRESS} failed: me:canary@, X-Amz-Signature=canary&sig=canary"
    assert "canary" not in hide_credentials(text)
    assert "canary" not in json.dumps(run_folder.environment(["vit", "--dataset", ADDRESS]))
    for words in (("recipes", "show"), ("report", "--debug"), ("compare", "b"), ("datasets", "show")):
        outcome = run(*words, ADDRESS)
        assert outcome.code and "canary" not in outcome.out + outcome.err
