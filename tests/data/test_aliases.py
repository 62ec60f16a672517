"""Where an alias is looked up: in $VIT_DATA, without it as a path; anything else is a path always."""

from pathlib import Path

import pytest

from vitcli.data.aliases import hub_source, local_copy


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIT_DATA", raising=False)


def test_an_alias_is_its_copy_in_vit_data_and_nowhere_else(tmp_path, monkeypatch):
    for place in ("cifar10", "shelf/oxford_pets", "shelf/photos"):
        Path(place).mkdir(parents=True)
    monkeypatch.setenv("VIT_DATA", str(tmp_path / "shelf"))

    assert local_copy("oxford_pets") == tmp_path / "shelf/oxford_pets"
    assert local_copy("cifar10") is None
    assert local_copy("photos") is None  # no alias, and not in the working folder


@pytest.mark.parametrize("name", ["cifar10", "photos", "vtab/dtd"])
def test_without_vit_data_every_name_is_a_path(name):
    assert local_copy(name) is None
    Path(name).mkdir(parents=True)

    assert local_copy(name) == Path(name)


def test_the_hub_name_of_an_alias_carries_its_configuration_and_revision():
    assert hub_source({"hub": "a/b"}) == "a/b"
    assert hub_source({"hub": "a/b", "config": "c", "revision": "main"}) == "a/b:c@main"
