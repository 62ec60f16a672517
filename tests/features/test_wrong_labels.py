"""`vit datasets check --labels` from the command line, with the embedded network and drawn images."""

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import run
from vitcli.data import demo
from vitcli.data.dataset import DataSet

PLANTED = {"plain star/000.png": "striped ring", "dotted ring/004.png": "plain star"}
NAMES = ("plain star", "dotted ring", "striped ring")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    """Twelve images of each of four classes of the demo, in class folders; two labels are wrong."""
    root = tmp_path_factory.mktemp("shapes") / "shapes"
    names = demo.SETS["demo"].class_names
    for row in range(12 * len(names)):
        image, label = demo.draw("demo", "train", row)
        if label < 4:
            folder, file = names[label], f"{row:03}.png"
            if row in (0, 25):  # of class 0 and of class 1
                folder, file = names[(label + 2) % 4], f"wrong{row}.png"
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / folder / file)
    return root


def check(*words: object) -> dict:
    outcome = run("datasets", "check", *words, "--labels", "--ckpt", "demo", "--json", "-q")
    assert outcome.err == "" and outcome.code == (3 if "error" in outcome.json else 0), outcome.out
    return outcome.json


def test_wrong_labels_come_first_in_every_form_of_labels(shapes, tmp_path):
    by_folder = check(shapes)["suspects"]
    table = [(str(file.relative_to(shapes)), file.parent.name) for file in sorted(shapes.rglob("*.png"))]
    listed = tmp_path / "listed"
    shutil.copytree(shapes, listed / "images")
    lines = ["file,label", *(f"images/{file},{name}" for file, name in table)]
    (listed / "labels.csv").write_text("\n".join(lines))
    parquet = tmp_path / "parquet"
    write_parquet(shapes, table, parquet)

    first = {Path(each["place"]).name for each in by_folder["listed"][:2]}
    assert first == {"wrong0.png", "wrong25.png"} and by_folder["num_checked"] == 48
    assert by_folder["num_named"] >= 1 and by_folder["top1"] > 0.8 and by_folder["ckpt"] == "demo"
    for other in (listed, parquet):
        suspects = check(other)["suspects"]
        assert [round(each["probability"], 6) for each in suspects["listed"]] == [
            round(each["probability"], 6) for each in by_folder["listed"]
        ]
        assert [each["label"] for each in suspects["listed"]] == [
            each["label"] for each in by_folder["listed"]
        ]


def write_parquet(root: Path, table: list[tuple[str, str]], out: Path) -> None:
    import datasets

    names = sorted({name for _, name in table})
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    rows = {
        "image": [{"bytes": (root / file).read_bytes(), "path": None} for file, _ in table],
        "label": [names.index(name) for _, name in table],
    }
    out.mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(out / "train.parquet")


def test_the_files_have_every_label_and_the_images(shapes, tmp_path):
    out = tmp_path / "suspects.csv"
    suspects = check(shapes, "--out", out)["suspects"]
    page = (tmp_path / "suspects.html").read_text()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert (suspects["out"], suspects["page"]) == (str(out), str(tmp_path / "suspects.html"))
    assert len(rows) == 48 and sum(int(row["named"]) for row in rows) == suspects["num_named"]
    assert [int(row["row"]) for row in rows[:20]] == [each["row"] for each in suspects["listed"]]
    assert all(Path(row["place"]).is_file() for row in rows)
    assert [float(row["probability"]) for row in rows] == sorted(float(row["probability"]) for row in rows)
    # Each of the 20 with its five neighbours; nothing is loaded from elsewhere.
    assert page.count("data:image/jpeg;base64,/9j/") == 20 * 6
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page) and "<script" not in page
    assert "wrong0.png" in page and "wrong25.png" in page
    again = run("datasets", "check", shapes, "--labels", "--ckpt", "demo", "--out", out, "-q")
    assert (again.code, again.err.splitlines()[0]) == (2, f"error: {out} already exists")
    out.unlink()
    page_is_kept = run("datasets", "check", shapes, "--labels", "--ckpt", "demo", "--out", out, "-q")
    assert page_is_kept.code == 2 and "suspects.html already exists" in page_is_kept.err
    assert not out.exists()


def test_copies_of_an_image_do_not_vouch_for_its_label(shapes, tmp_path):
    copies = tmp_path / "copies"
    for file in sorted(shapes.rglob("*.png")):
        (copies / file.parent.name).mkdir(parents=True, exist_ok=True)
        for letter in "abc":
            shutil.copy(file, copies / file.parent.name / f"{file.stem}_{letter}.png")
    grouped = check(copies, "--set", r"data.group_column=name:^(\w+)_")["suspects"]
    alone = check(copies, "--set", r"data.group_column=name:^(\w+)\.")["suspects"]  # a group each

    named = {Path(each["place"]).name[:-6] for each in grouped["listed"][: grouped["num_named"]]}
    assert grouped["num_named"] >= 3 and named <= {"wrong0", "wrong25"} and alone["num_named"] == 0
    assert alone["top1"] == 1 > grouped["top1"] > 0.8
    for each in grouped["listed"]:
        own = Path(each["place"]).name[:-6]
        assert own not in {Path(neighbour["place"]).name[:-6] for neighbour in each["neighbours"]}


def test_copies_that_the_check_finds_do_not_vouch_for_each_other_by_default(shapes, tmp_path):
    """A wrong label and its exact copy in the same folder are both named, as with near_duplicates."""
    root = tmp_path / "shapes"
    shutil.copytree(shapes, root)
    wrong = next(root.rglob("wrong0.png"))
    shutil.copy(wrong, wrong.with_name("wrong0 (1).png"))
    each_alone = ("--set", "data.group_column=name:(.*)")
    by_default, alone = check(root)["suspects"], check(root, *each_alone)["suspects"]
    grouped = check(root, "--set", "data.group_column=near_duplicates")["suspects"]

    def named(suspects: dict) -> set[str]:
        return {Path(each["place"]).name for each in suspects["listed"][: suspects["num_named"]]}

    both = {"wrong0.png", "wrong0 (1).png"}
    assert both <= named(by_default) == named(grouped) and not both & named(alone)
    margins = [[each["margin"] for each in some["listed"]] for some in (by_default, grouped)]
    np.testing.assert_allclose(*margins, rtol=1e-9)
    told = "by leave-one-out, copies left out together"
    screens = [
        " ".join(run("datasets", "check", root, "--labels", "--ckpt", "demo", "-q", *words).out.split())
        for words in ((), each_alone, ("--distance", "0"))
    ]
    assert [told in screen for screen in screens] == [True, False, True]  # an exact copy is at distance 0


def test_images_without_copies_are_each_left_out_alone(tmp_path):
    rng = np.random.default_rng(0)
    for row in range(12):
        folder = tmp_path / "noise" / "ab"[row % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{row}.png")
    assert not check(tmp_path / "noise")["suspects"]["leaves_copies_out"]

    # Where nothing but copies is left, none of them is left out.
    for folder in (tmp_path / "noise").iterdir():
        first, *others = sorted(folder.iterdir())
        for other in others:
            shutil.copy(first, other)
    suspects = check(tmp_path / "noise")["suspects"]
    assert not suspects["leaves_copies_out"] and suspects["num_checked"] == 12


def test_neighbours_are_others_and_have_their_own_labels(shapes):
    for each in check(shapes)["suspects"]["listed"]:
        assert len(each["neighbours"]) == 5 and each["row"] not in {n["row"] for n in each["neighbours"]}
        assert all(Path(n["place"]).parent.name == n["label"] for n in each["neighbours"])
        assert each["label"] == Path(each["place"]).parent.name != each["other"]


def test_the_screen_is_one_page_with_the_next_command(shapes):
    outcome = run("datasets", "check", shapes, "--labels", "--ckpt", "demo", "-q")
    lines = outcome.out.splitlines()

    assert outcome.code == 0 and len(lines) < 40
    named = [line for line in lines if "contradicted by the others" in line]
    assert lines[0].startswith("look at") and len(named) == 1 and "(--out suspects.csv writes" in named[0]
    assert any(line.startswith("classes     4: ") for line in lines)
    train = f"--dataset {shapes} --set data.group_column=near_duplicates"  # drawn shapes look alike
    assert lines[-1] == f"next        vit finetune --ckpt demo {train}"
    at_96 = ("--set", "data.image_size=96")
    large = run("datasets", "check", shapes, "--labels", "--ckpt", "demo", "-q", *at_96).out.splitlines()
    assert f"vit finetune --ckpt demo --dataset {shapes} --res 96 " in large[-1]
    plain = run("datasets", "check", shapes, "-q").out.splitlines()
    check = f"vit datasets check {shapes} --labels --ckpt WEIGHTS --out suspects.csv"
    assert plain[-2:] == [f"next        {check}", f"            vit finetune --ckpt WEIGHTS {train}"]


def test_labels_are_judged_by_named_weights_alone_that_know_the_classes(shapes, tmp_path):
    unnamed = run("datasets", "check", shapes, "--labels", "-q")
    assert unnamed.code == 2 and "none are named" in unnamed.err and "--ckpt FILE" in unnamed.err

    # Class folders of nothing but chance: no weights can know them.
    files = sorted(shapes.rglob("*.png"))
    for number, file in enumerate(files):
        folder = tmp_path / "chance" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / f"{number}.png")
    of_chance = check(tmp_path / "chance")
    suspects = of_chance["suspects"]
    assert suspects["top1"] < 0.8 and (suspects["are_classes_known"], suspects["num_named"]) == (False, 0)
    (finding,) = (each for each in of_chance["findings"] if each["name"] == "unknown_classes")
    assert "know these classes badly" in finding["text"] and finding["fix"] == "--ckpt names other weights"


def test_unreadable_files_and_copies_are_named_beside_the_suspects(shapes, tmp_path):
    root = tmp_path / "shapes"
    shutil.copytree(shapes, root)
    folder = next(root.iterdir())
    for number in range(3):
        (folder / f"broken{number}.jpg").write_bytes(b"\xff\xd8\xff no image")
    files = sorted(folder.glob("*.png"))[:10]
    for file in files:
        shutil.copy(file, folder / f"copy of {file.name}")
    result = check(root)

    assert sorted(Path(place.partition(": ")[0]).name for place in result["unreadable"]) == [
        "broken0.jpg", "broken1.jpg", "broken2.jpg",
    ]  # fmt: skip
    pairs = [(Path(pair["place"]).name, Path(pair["against_place"]).name) for pair in result["pairs"][:10]]
    assert {min(pair, key=len) for pair in pairs} == {file.name for file in files}
    assert all(f"copy of {min(pair, key=len)}" in pair for pair in pairs) and result["num_same_file"] == 10
    names = [finding["name"] for finding in result["findings"]]
    assert names[:3] == ["unreadable_images", "near_copies_with_other_labels", "copies_within"]
    assert "broken0.jpg" in result["findings"][0]["text"] and result["error"]["code"] == 3
    assert result["suspects"]["num_checked"] == 48 + 10 and result["suspects"]["num_only_of_class"] == 0
    # Rows are those of the split, of which the broken files are some.
    split = DataSet(str(root)).open("train")
    for each in result["suspects"]["listed"]:
        for record in (each, *each["neighbours"]):
            assert split.where_is(record["row"]).endswith(record["place"])


@pytest.mark.parametrize(
    ("kind", "words", "code", "told"),
    [
        ("flat", (), 3, "no class folders"),
        ("several", (), 3, "fix:   name a column of one label with --set data.label_column=NAME"),
        ("number", (), 3, "fix:   leave --labels and --ckpt out: they compare classes"),
        ("one class", (), 3, "say nothing about a label"),
        ("good", ("--ckpt", "gone.safetensors"), 4, "gone.safetensors"),
        ("good", ("--out", "x.html"), 2, "does not end in .csv"),
        ("good", ("--out", "/proc/none/x.csv"), 5, "--out"),
        ("good", ("--split", "tset"), 3, "has no split 'tset'"),
        ("good", ("--set", "data.label_column=nope"), 3, "nope"),
        ("good", ("--set", "data.lable_column=nope"), 2, "label_column"),
        ("good", ("--ckpt", ""), 2, "empty"),
        ("good", ("--device", "tpu"), 2, "tpu"),
    ],
)
def test_what_has_no_labels_to_check_is_refused_in_three_lines(
    shapes, photos, tmp_path, monkeypatch, kind, words, code, told
):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    files = sorted(shapes.rglob("*.png"))[:8]
    for number, file in enumerate(files):
        shutil.copy(file, data / f"{number}.png")
    labels = {"several": "{n}.png,a|b{n}", "number": "{n}.png,{n}.5"}.get(kind)
    if labels:
        rows = (labels.format(n=number) for number in range(8))
        column = "age" if kind == "number" else "label"
        (data / "labels.csv").write_text("\n".join([f"file,{column}", *rows]))
    if kind == "one class":
        shutil.move(data, tmp_path / "cats")
        (tmp_path / "data").mkdir()
        shutil.move(tmp_path / "cats", data / "cats")
    outcome = run(
        "datasets", "check", shapes if kind == "good" else data, "--labels", "--ckpt", "demo", *words, "-q"
    )

    assert (outcome.code, outcome.out) == (code, ""), outcome.err
    assert len(outcome.err.splitlines()) == 3 and told in outcome.err, outcome.err
    assert not list(tmp_path.glob("x.*"))


def test_options_of_the_network_need_labels(shapes):
    outcome = run("datasets", "check", shapes, "--ckpt", "demo")

    assert outcome.code == 2 and "only --labels runs a network" in outcome.err
