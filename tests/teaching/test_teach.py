"""`vit teach` and `vit forget` from the command line: the set of images decides, to the last bit."""

import base64
import os
import shutil
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from tests.conftest import run
from vitcli.cache import user_cache
from vitcli.data.image_files import find_images
from vitcli.data.seen_images import SeenImages, digests_of
from vitcli.evaluation.setup import RunSettings
from vitcli.features import least_squares
from vitcli.features.statistics import STEP, ClosedFormStatistics
from vitcli.output import atomic
from vitcli.output.html import thumbnail
from vitcli.output.run_folder import CLOSED_FORM, WEIGHTS
from vitcli.teaching import taught as taught_folders
from vitcli.teaching import traces
from vitcli.teaching.taught import claim, open_taught
from vitcli.weights.io import read_description, write_weights_file

COLOURS = {"blue": (40, 60, 200), "green": (50, 180, 60), "red": (200, 50, 40), "white": (220, 220, 220)}
QUIET = ("--json", "-q")
FEWSHOT = ("fewshot", "--ckpt", "demo", "--shots", "2", "--seeds", "1")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for number, (name, colour) in enumerate(COLOURS.items()):
        rng = np.random.default_rng(number)
        Path("all", name).mkdir(parents=True)
        for k in range(5):
            pixels = np.clip(rng.normal(colour, 60, (40, 36, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(Path("all", name, f"{name}-{k}.png"))
    return tmp_path / "cache" / "vit"


def teach(start: object, *words: object) -> dict:
    return run("teach", start, *words, *QUIET).json


def part(name: str, *classes: str) -> str:
    for each in classes:
        shutil.copytree(Path("all", each), Path(name, each))
    return name


def files_of(folder: object) -> tuple[bytes, bytes]:
    return Path(folder, CLOSED_FORM).read_bytes(), Path(folder, WEIGHTS).read_bytes()


def test_classes_that_come_one_after_the_other_end_in_the_bytes_of_one_fit():
    whole = teach("demo", "--add", "all", "--out", "whole")
    for number, order in enumerate([("red", "blue", "white", "green"), ("green", "white", "blue", "red")]):
        folder = f"steps-{number}"
        teach("demo", "--add", f"all/{order[0]}", "--class", order[0], "--out", folder)
        for name in order[1:3]:
            teach(folder, "--add", f"all/{name}", "--class", name, "--in-place")
        last = teach(folder, "--add", part(f"p{number}", order[3]), "--in-place")

        assert files_of(folder) == files_of("whole")
        assert (last["statistics"], last["classes"]) == (whole["statistics"], dict.fromkeys(COLOURS, 5))
    assert whole["left_out_top1"] > 0.5
    answers = run("predict", "--ckpt", "whole", "all/red/red-0.png", *QUIET).json["predictions"]
    assert answers[0]["top"][0]["class"] == "red"


def test_the_layer_is_the_closed_form_of_the_features():
    summary = teach("demo", "--add", "all", "--out", "whole")
    statistics, _ = ClosedFormStatistics.read(Path("whole", CLOSED_FORM))
    solution = least_squares.solve(
        statistics.features_ND * STEP, statistics.labels_N, num_classes=4, l2=[summary["l2"]], groups_N=None
    )
    left_out = least_squares.left_out_accuracies(solution)[0]
    weights, _ = least_squares.as_layer(solution, solution.weights(0), scale=summary["temperature"])
    state = load_file(Path("whole", WEIGHTS))

    np.testing.assert_allclose(state["head.weight"].numpy(), weights.T, rtol=1e-5, atol=1e-6)
    assert summary["left_out_top1"] == left_out


def test_what_is_forgotten_was_never_there():
    teach("demo", "--add", "all", "--out", "whole")
    gone = ["all/red/red-1.png", "all/white/white-4.png"]
    result = run("forget", "whole", *gone, "--in-place", *QUIET).json
    for file in gone:
        Path(file).unlink()
    teach("demo", "--add", "all", "--out", "never")

    assert files_of("whole") == files_of("never")
    assert (result["num_removed"], result["num_examples"], result["search"]["traces"]) == (2, 18, [])


def test_a_class_is_forgotten_with_all_its_images():
    teach("demo", "--add", "all", "--out", "whole")
    run("forget", "whole", "--class", "red", "--in-place", *QUIET)
    teach("demo", "--add", part("rest", "blue", "green", "white"), "--out", "never")

    assert files_of("whole") == files_of("never")


def test_remove_and_add_in_one_command_correct_a_label():
    shutil.move("all/red/red-0.png", "all/blue/red-0.png")
    teach("demo", "--add", "all", "--out", "whole")
    right = Path("right.png")
    shutil.move("all/blue/red-0.png", right)
    teach("whole", "--remove", right, "--add", right, "--class", "red", "--in-place")
    shutil.move(right, "all/red/red-0.png")
    teach("demo", "--add", "all", "--out", "never")

    assert files_of("whole") == files_of("never")


def test_a_command_killed_before_any_of_its_files_is_finished_by_the_next(monkeypatch, whole):
    image = Path("all/red/red-1.png")
    teach("whole", "--remove", image, "--out", "expected")
    replaced, before, num_states = os.replace, files_of("whole"), 0
    for last in count():
        shutil.copytree("whole", f"killed-{last}")
        calls = iter(range(last))

        def killed(*names, calls=calls) -> None:
            if next(calls, None) is None:
                raise KeyboardInterrupt
            replaced(*names)

        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, "replace", killed)
            ended = run("forget", f"killed-{last}", image, "--in-place", *QUIET)
        if ended.code == 0:
            break
        num_states += files_of(f"killed-{last}") not in (before, files_of("expected"))
        assert run("predict", "--ckpt", f"killed-{last}", "all/red/red-0.png", *QUIET).code == 0
        assert run("forget", f"killed-{last}", image, "--check", *QUIET).code == 8
        run("forget", f"killed-{last}", image, "--in-place", *QUIET)

        assert files_of(f"killed-{last}") == files_of("expected")
        assert Path(f"killed-{last}/README.md").read_text() == Path("expected/README.md").read_text()
    assert last >= 4 and num_states == 1  # new statistics beside old weights


def test_a_fewshot_run_is_a_start_and_its_own_images_are_there():
    for name in COLOURS:
        Path("few/test", name).mkdir(parents=True)
        shutil.copytree(f"all/{name}", f"few/train/{name}")
        shutil.move(f"few/train/{name}/{name}-4.png", f"few/test/{name}/{name}-4.png")
    run("fewshot", "--ckpt", "demo", "--dataset", "few", "--shots", "4", "--seeds", "1", "--l2", "7",
        "--out", "run", *QUIET)  # fmt: skip
    started = teach("run", "--out", "from-run")
    again = teach("run", "--add", "few/train", "--out", "again")
    taught = teach("run", "--add", "few/test", "--out", "more")

    assert (started["num_examples"], started["l2"], again["num_already_there"]) == (16, 7.0, 16)
    assert files_of("again") == files_of("from-run")
    assert (taught["num_added"], taught["num_examples"]) == (4, 20)


def test_a_training_run_is_a_start_with_the_features_of_its_images(plain_run):
    started = teach(plain_run, "--out", "from-run")
    seen = SeenImages.of(read_description("from-run").metadata)

    assert started["num_examples"] == len(seen.trained_on) > 0
    refused = run(
        "forget", "from-run", *sorted(map(str, Path("all/red").iterdir()))[:1], "--in-place", *QUIET
    )
    assert refused.code == 3 and "was not taught" in refused.json["error"]["message"]


def test_an_image_that_the_network_itself_was_trained_on_is_not_forgotten(plain_run, photos):
    teach(plain_run, "--out", "from-run")
    image = next(iter(sorted((photos / "train" / "red").iterdir())))
    for words in ((image,), ("--class", "red")):
        refused = run("forget", "from-run", *words, "--in-place", *QUIET)

        assert refused.code == 3 and "the network itself was trained on" in refused.json["error"]["message"]


def test_each_kind_of_trace_is_found_where_it_is_and_the_cache_is_emptied_of_it(cache):
    teach("demo", "--add", "all", "--out", "whole")
    run("embed", "--ckpt", "demo", "--dataset", "all", "--out", "e.safetensors", *QUIET)
    run(*FEWSHOT, "--dataset", "all", "--out", "few", *QUIET)
    image = Path("all/red/red-1.png")
    taught, split = open_taught("whole", RunSettings(quiet=True)), find_images([str(image)], where="")
    pixels = np.asarray(Image.open(image))
    features = taught.features(split, "", np.arange(1))[1][0]
    encoded = base64.b64encode(int(digests_of(split)[0]).to_bytes(8, "little")[:6])
    planted = {
        "file": image.read_bytes(),
        "pixels": pixels.tobytes(),
        "features": features.tobytes(),
        "digest": encoded,
        "thumbnail": thumbnail(pixels).encode(),
        "name": b"predicted red-1.png as red",
    }
    pieces = traces.pieces_of(split, taught)
    for kind, content in planted.items():
        Path("whole", kind).write_bytes(b"x" * 1001 + content + b"y" * 77)
    found = traces.search(pieces, Path("whole"))
    where = {(trace.kind, Path(trace.path).name) for trace in found.traces}
    assert where >= {(kind, kind) for kind in planted}
    assert {("features", CLOSED_FORM), ("digest", WEIGHTS)} <= where
    assert {Path(trace.path).parts[-3] for trace in found.traces if "vit" in Path(trace.path).parts} == {
        "features"
    }
    for kind in planted:
        Path("whole", kind).unlink()

    shutil.copy("e.safetensors", "whole/left")
    left = run("forget", "whole", image, "--in-place", *QUIET)
    assert left.code == 8 and {trace["path"] for trace in left.json["search"]["traces"]} == {"whole/left"}
    Path("whole/left").unlink()
    assert run("forget", "whole", image, "--check", *QUIET).json["search"]["traces"] == []
    assert left.json["num_deleted_entries"] > 0 and not user_cache.all_entries(["features"])


def test_a_folder_below_a_fewshot_run_is_one_of_its_own_and_its_weights_stand_for_it():
    run(*FEWSHOT, "--dataset", "all", "--out", "few", *QUIET)
    started = teach("few", "--out", "few/taught")
    result = run("forget", "few/taught", "--class", "red", "--in-place", *QUIET).json
    again = teach("few/taught/model.safetensors", "--add", "all/red", "--class", "red", "--out", "again")

    assert (result["num_examples"], again["num_examples"]) == (started["num_examples"] - 2, 11)


def test_an_out_that_is_the_run_itself_is_in_place():
    teach("demo", "--add", "all", "--out", "whole")
    result = run("forget", "whole", "all/red/red-1.png", "--out", "./whole", *QUIET).json

    assert result["is_still_in"] is None and result["num_examples"] == 19


def test_a_killed_change_of_a_class_is_finished_by_the_same_words(monkeypatch):
    teach("demo", "--add", "all", "--out", "whole")
    teach("whole", "--remove-class", "red", "--out", "expected")
    with monkeypatch.context() as killed:
        killed.setattr(taught_folders, "write_weights", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run("forget", "whole", "--class", "red", "--in-place", *QUIET)
    run("forget", "whole", "--class", "red", "--in-place", *QUIET)

    assert files_of("whole") == files_of("expected")


def test_what_cannot_be_decoded_is_named_as_not_searched():
    teach("demo", "--add", "all", "--out", "whole")
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    checked = run("forget", "whole", "broken.png", "all/red/red-1.png", "--check", *QUIET).json

    assert checked["search"]["unsearched"] == ["everything of broken.png"]


def test_a_refused_command_leaves_no_folder():
    run("teach", "demo", "--add", "no-folder", "--out", "new", *QUIET)

    assert not Path("new").exists()


def test_a_cache_in_use_refuses_to_forget_and_nothing_has_changed():
    teach("demo", "--add", "all", "--out", "whole")
    run(*FEWSHOT, "--dataset", "all", "--out", "few", *QUIET)
    before, (entry, *_) = files_of("whole"), user_cache.all_entries(["features"])
    with user_cache.lock_use(entry.path):
        refused = run("forget", "whole", "all/red/red-1.png", "--in-place", *QUIET)

    assert (refused.code, files_of("whole")) == (5, before)
    assert run("forget", "whole", "all/red/red-1.png", "--in-place", *QUIET).code == 0


def test_two_commands_on_one_folder_do_not_lose_what_the_other_did():
    teach("demo", "--add", "all", "--out", "whole")
    with ExitStack() as held:
        claim(Path("whole"), held)
        refused = run("forget", "whole", "all/red/red-1.png", "--in-place", *QUIET)

    assert refused.code == 5 and "another taught classifier is writing" in refused.json["error"]["message"]


def test_files_of_others_are_kept_whatever_is_to_be_overwritten():
    Path("mine").mkdir()
    Path("mine/README.md").write_text("mine")
    refused = run("teach", "demo", "--add", "all", "--out", "mine", "--overwrite", *QUIET)

    assert (refused.code, Path("mine/README.md").read_text()) == (2, "mine")


def test_an_image_that_cannot_be_read_is_skipped_each_time():
    Path("all/red/broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    first = teach("demo", "--add", "all", "--out", "whole")
    again = teach("whole", "--add", "all", "--in-place")

    assert (first["num_added"], first["num_skipped_images"]) == (20, 1)
    assert (again["num_already_there"], again["num_skipped_images"], again["num_examples"]) == (20, 1, 20)


def test_a_search_reads_over_the_borders_of_its_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(traces, "CHUNK", 64)
    piece = bytes(range(1, 49))
    for offset in range(0, 140, 7):
        (tmp_path / "f").write_bytes(b"\1\2" * (offset // 2) + piece + b"\0" * 30)
        assert traces.Pieces([("a", "file", piece)]).found_in(tmp_path / "f", names=True) == {("a", "file")}
        (tmp_path / "f").write_bytes(b"\1\2" * (offset // 2) + piece[:-1] + b"\0" * 30)
        assert not traces.Pieces([("a", "file", piece)]).found_in(tmp_path / "f", names=True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("teach", "nothing", "--add", "all"), 4, "called 'nothing'"),
        (("teach", "demo", "--add", "no-folder"), 3, "no-folder"),
        (("teach", "demo", "--add", "empty"), 3, "empty"),
        (("teach", "demo", "--add", "all/red"), 3, "all/red"),
        (("teach", "demo", "--add", "all", "--in-place"), 2, "not a folder that vit teach has made"),
        (("teach", "whole", "--in-place"), 2, "nothing is to be changed"),
        (("teach", "whole", "--add", "wrong", "--in-place"), 3, "of 'blue' here, and of 'red' already"),
        (("teach", "whole", "--add", "all", "--out", "all"), 2, "the folder holds other files"),
        (("teach", "demo", "--add", "two", "--out", "whole"), 2, "another taught classifier"),
        (("forget", "whole", "new.png", "--in-place"), 3, "was not taught new.png"),
        (("forget", "whole", "--class", "pink", "--in-place"), 3, "'pink' is not a class"),
        (("forget", "whole", "all", "--in-place"), 3, "no image would be left"),
        (("forget", "whole", "--in-place"), 2, "name images"),
        (("teach", "whole", "--class", "red", "--in-place"), 2, "name its images"),
        (("teach", "knn", "--add", "two", "--out", "x"), 4, "has no model.safetensors"),
        (("forget", "whole/model.safetensors", "new.png", "--check"), 2, "has no statistics"),
        (("teach", "whole", "--add", "two/red", "--class", " ", "--in-place"), 2, "name a class"),
        (("forget", "whole", "new.png", "--check", "--in-place"), 2, "it changes nothing"),
        (("teach", "damaged", "--add", "two", "--in-place"), 3, "cannot be read"),
        (("teach", "swapped", "--add", "two", "--in-place"), 3, "of another network"),
    ],
)  # fmt: skip
def test_what_cannot_be_taught_is_refused_and_nothing_changes(words, code, says, whole):
    before = files_of("whole")
    outcome = run(*words, *QUIET)

    assert outcome.code == code
    assert says in outcome.json["error"]["message"]
    assert files_of("whole") == before


@pytest.fixture
def whole(made_once, cache) -> None:
    """A taught folder, one with cut statistics, one with another network, and images of several kinds."""
    made = made_once(
        "taught", lambda folder: run("teach", "demo", "--add", "all", "--out", folder / "w", *QUIET)
    )
    for name in ("whole", "damaged", "swapped"):
        shutil.copytree(made / "w", name)
    Path("damaged", CLOSED_FORM).write_bytes(files_of("whole")[0][:-9])
    Path("empty").mkdir()
    part("two", "red", "blue")
    run(*FEWSHOT, "--dataset", "two", "--classifier", "knn", "--out", "knn", *QUIET)
    Path("wrong/blue").mkdir(parents=True)
    shutil.copy("all/red/red-0.png", "wrong/blue/x.png")
    shutil.copytree("all/green", "wrong/green")
    Image.fromarray(np.full((30, 30, 3), 77, np.uint8)).save("new.png")
    state = load_file(Path("whole", WEIGHTS))
    name = next(name for name in state if name.startswith("blocks.0") and name.endswith("weight"))
    state[name] = state[name] + 0.5
    write_weights_file(Path("swapped", WEIGHTS), state, read_description("whole"))
