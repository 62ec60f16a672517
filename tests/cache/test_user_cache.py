"""The user's cache folder: its bound, and what is deleted from it."""

import json
import os
import time
from types import SimpleNamespace

import pytest

from tests.cli.test_app import check_error
from tests.conftest import run
from vitcli.cache import listing, user_cache
from vitcli.cache.listing import ClearOptions
from vitcli.errors import VitError
from vitcli.features.feature_store import open_cached

DAY = 86400


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vit"


def put(kind: str, number: int, *, size: int = 8192, days: float = 0.0):
    """Make an entry of a kind, last used some days ago."""
    path = user_cache.cache_folder(kind) / (f"{number:016x}" if kind == "weights" else f"{number:032x}")
    path.mkdir(parents=True)
    (path / ("vit.npz" if kind == "weights" else "rows-0")).write_bytes(os.urandom(size))
    (path / "lock").touch()
    if kind == "decoded":
        (path / "about.json").write_text(json.dumps({"name": f"photos {number}"}))
    for each in (path, *path.glob("*")):
        os.utime(each, (time.time() - days * DAY,) * 2)
    return path


def cleared(*kinds, **options) -> set[str]:
    return {entry["path"] for entry in listing.clear_cache(ClearOptions(kinds, **options))["deleted"]}


def paths(*entries) -> set[str]:
    return {str(path) for path in entries}


def test_the_list_has_every_entry_with_its_size_and_time(folder):
    put("decoded", 1, size=100_000, days=3)
    put("weights", 2)
    result = listing.list_cache()

    decoded, features, _, shards, weights = result["kinds"]
    assert (decoded["entries"], features["entries"], shards["entries"], weights["entries"]) == (1, 0, 0, 1)
    assert 100_000 <= decoded["bytes"] <= 120_000
    assert result["bounded_bytes"] == decoded["bytes"] and result["folder"] == str(folder)
    assert [entry["about"] for entry in result["entries"]] == ["vit.npz", "photos 1"]
    text = listing.list_as_text(result)
    assert "photos 1" in text and "downloaded weights" in text and max(map(len, text.split("\n"))) < 170


def test_a_file_with_holes_counts_what_it_takes():
    path = put("decoded", 1)
    os.truncate(path / "rows-0", 2**30)

    assert user_cache.all_entries(["decoded"])[0].num_bytes < 50_000


def test_what_was_used_longest_ago_makes_room(monkeypatch):
    old, middle, young = put("decoded", 1, days=9), put("features", 2, days=5), put("shards", 3, days=1)
    weights = put("weights", 4, days=99)
    monkeypatch.setenv("VIT_CACHE_LIMIT", "40 kB")

    assert user_cache.make_room(12_000)
    assert [old.exists(), middle.exists(), young.exists(), weights.exists()] == [False, True, True, True]
    assert not user_cache.make_room(41_000)  # in vain, so nothing is deleted
    assert middle.exists() and young.exists()
    assert user_cache.make_room(40_000)
    assert not (middle.exists() or young.exists())


def test_the_cache_never_takes_more_than_a_quarter_of_the_free_space(monkeypatch):
    usage = type("Usage", (), {"free": 10_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    put("decoded", 1, size=90_000, days=1)

    used = user_cache.all_entries()[0].num_bytes
    assert user_cache.limit_bytes(used) == int(0.25 * (10_000 + used))
    assert user_cache.make_room(100)
    assert user_cache.all_entries() == []


def test_features_stay_within_the_limit_and_one_that_is_open_stays(monkeypatch):
    old = put("features", 1, size=30_000, days=2)
    monkeypatch.setenv("VIT_CACHE_LIMIT", "20kB")
    store = open_cached({"weights": "w"}, 5)

    assert not old.exists() and store.is_kept
    assert cleared("features") == set()
    store.close()
    assert len(cleared("features")) == 1
    monkeypatch.setenv("VIT_CACHE_LIMIT", "0")
    store = open_cached({"weights": "w"}, 5)
    assert not store.is_kept and "VIT_CACHE_LIMIT is 0" in store.notes[0]


def test_clear_deletes_the_kinds_and_ages_and_sizes_that_are_named():
    old, young = put("decoded", 1, days=40), put("decoded", 2, days=10)
    features, weights = put("features", 3, days=50), put("weights", 4, days=60)

    assert cleared("decoded", dry_run=True) == paths(old, young) and old.exists()
    assert cleared("decoded", older_than="30d") == paths(old)
    assert cleared(keep="20kB") == paths(weights, features)
    assert cleared("weights") == set()
    assert cleared("all") == paths(young)


def test_nothing_in_use_or_foreign_is_deleted_and_no_link_is_followed(folder, tmp_path):
    in_use, entry = put("decoded", 1), put("decoded", 2)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "photo.jpg").write_text("mine")
    (entry / "link").symlink_to(outside)
    (folder / "decoded" / f"{3:032x}").symlink_to(outside)
    (folder / "decoded" / "notes.txt").write_text("mine")
    (folder / "features").symlink_to(outside)
    (outside / f"{4:032x}").write_text("mine")
    (folder / "shards").mkdir()
    (folder / "shards" / f"{5:032x}").write_text("mine")
    lock = user_cache.lock_use(in_use)

    result = listing.clear_cache(ClearOptions(("all",)))
    assert {entry["path"] for entry in result["deleted"]} == paths(entry)
    assert {entry["path"] for entry in result["in_use"]} == paths(in_use)
    assert "in use" in listing.clear_as_text(result)
    assert sorted(path.name for path in outside.iterdir()) == [f"{4:032x}", "photo.jpg"]
    assert (folder / "shards" / f"{5:032x}").exists()
    assert sorted(path.name for path in (folder / "decoded").iterdir()) == [
        in_use.name, f"{3:032x}", "notes.txt"
    ]  # fmt: skip
    lock.close()
    assert cleared("all") == paths(in_use)


def test_what_a_killed_process_left_half_deleted_goes_after_an_hour(folder):
    grave = folder / "decoded" / ".tmp-0123"
    grave.mkdir(parents=True)
    (grave / "rows-0").write_bytes(b"x" * 5000)

    assert user_cache.all_entries() == []
    os.utime(grave, (time.time() - 2 * 3600,) * 2)
    assert cleared("decoded") == paths(grave)


@pytest.mark.parametrize(("text", "size"), [
    ("0", 0), ("20GB", 20 * 10**9), ("1.5 GiB", 3 * 2**29), ("500mb", 5 * 10**8), ("7", 7), ("2k", 2000),
    ("3 TiB", 3 * 2**40),
])  # fmt: skip
def test_sizes_are_read_as_people_write_them(text, size):
    assert user_cache.parse_size(text, where="--keep") == size


@pytest.mark.parametrize("text", ["", "big", "-1", "1e9", "5 XB", "GB", "1,5GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(VitError, match="is not a size"):
        user_cache.parse_size(text, where="--keep")


@pytest.mark.parametrize(("words", "what"), [
    (["clear"], "nothing is named"),
    (["clear", "decodd"], "did you mean 'decoded'?"),
    (["clear", "all", "--older-than", "yesterday"], "is not an age"),
    (["clear", "all", "--keep", "much"], "is not a size"),
    (["clear", "../.."], "there is no kind"),
])  # fmt: skip
def test_mistakes_in_the_command_are_named(words, what):
    entry = put("decoded", 1)

    check_error(run("cache", *words), 2, what)
    assert entry.exists()


def test_the_commands_print_text_and_json(folder):
    put("decoded", 1)

    assert "photos 1" in run("cache", "list").out
    assert json.loads(run("cache", "list", "--json").out)["entries"][0]["about"] == "photos 1"
    assert "would delete 1 entry" in run("cache", "clear", "decoded", "--dry-run").out
    assert json.loads(run("cache", "clear", "decoded", "--json").out)["freed_bytes"] > 8000
    assert run("cache", "clear", "decoded").out.startswith("deleted 0 entries")


def test_nothing_is_kept_in_a_folder_of_another_user(monkeypatch):
    folder = user_cache.make_own_folder(user_cache.cache_folder("decoded"))
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(OSError, match="belongs to another user"):
        user_cache.make_own_folder(user_cache.cache_folder("decoded"))


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_kept_is_what_was_there_without_what_went(monkeypatch, dry_run):
    def entry(name: str, num_bytes: int) -> SimpleNamespace:
        return SimpleNamespace(kind="decoded", about=name, num_bytes=num_bytes, last_used=1e9, path=name)

    entries = [entry("old", 10), entry("used", 200), entry("new", 3000)]
    monkeypatch.setattr(user_cache, "all_entries", lambda kinds: entries)
    monkeypatch.setattr(user_cache, "choose", lambda entries, **limits: entries[:2])
    monkeypatch.setattr(user_cache, "is_in_use", lambda path: path == "used")
    monkeypatch.setattr(user_cache, "delete", lambda path: path != "used")

    result = listing.clear_cache(ClearOptions(kinds=("decoded",), dry_run=dry_run))
    assert (result["freed_bytes"], result["kept_bytes"]) == (10, 3200)


@pytest.mark.parametrize(("keep_bytes", "deleted"), [(600, []), (500, [3]), (499, [3, 2]), (0, [3, 2, 1])])
def test_no_more_is_deleted_than_what_is_too_much(keep_bytes, deleted):
    entries = [SimpleNamespace(num_bytes=100 * (4 - age), last_used=10 - age, age=age) for age in (1, 2, 3)]

    assert [entry.age for entry in user_cache.choose(entries, keep_bytes=keep_bytes)] == deleted


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("2m", 120), ("12h", 43_200), ("30d", 2_592_000), ("2w", 1_209_600), (" 1.5 D ", 129_600)],
)
def test_ages_as_people_write_them(text, seconds):
    assert user_cache.parse_age(text, where="--older-than") == seconds
