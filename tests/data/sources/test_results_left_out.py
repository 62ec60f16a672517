"""Results of ours among photographs: their figures are no images, and their folder is no class."""

from pathlib import Path

from PIL import Image

from tests.conftest import run

RESULTS = {
    "run": ("recipe.toml", "summary.json"),
    "comparison": ("summary.json", "table.txt"),
    "evaluation": ("evaluation.json",),
    "inspection": ("inspection.json",),
}


def write_photos(folder: Path) -> Path:
    for name in ("cat", "dog"):
        (folder / name / "more").mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 9, 9)).save(folder / name / f"{number}.png")
    Image.new("RGB", (8, 8)).save(folder / "dog" / "more" / "3.png")
    return folder


def write_results(folder: Path) -> None:
    for name, files in RESULTS.items():
        (folder / name / "figures").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / name / "figures" / "loss.png")
        for file in files:
            (folder / name / file).write_text("{}")


def checked(folder: Path) -> dict:
    return run("datasets", "check", folder, "--json").json


def test_a_folder_of_runs_beside_class_folders_is_no_class_and_is_said(tmp_path):
    photos = write_photos(tmp_path / "photos")
    before = checked(photos)["splits"]
    write_results(photos / "runs")
    write_results(photos / "cat")  # where the command was typed

    after = checked(photos)
    assert after["splits"] == before and after["splits"][0]["num_images"] == 7
    figures = {f"{place}/{name}/figures/loss.png" for place in ("runs", "cat") for name in RESULTS}
    assert set(after["left_out_files"]) == figures
    assert "left out: 8 figures in folders of results: " in run("datasets", "check", photos).err


def test_a_result_itself_beside_class_folders_is_no_class(tmp_path):
    photos = write_photos(tmp_path / "photos")
    write_results(photos)

    labels = checked(photos)["splits"][0]["labels"]
    assert labels["images_per_class"] == {"cat": 3, "dog": 4}


def test_folders_with_one_of_the_files_are_read_as_before(tmp_path):
    photos = write_photos(tmp_path / "photos")
    (photos / "cat" / "summary.json").write_text("{}")
    (photos / "dog" / "more" / "recipe.toml").write_text("")

    assert checked(photos)["splits"][0]["num_images"] == 7
