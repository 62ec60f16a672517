"""What an evaluation says in the terminal, from results written by hand."""

import pytest

from vitcli.evaluation.text import as_text, predictions_as_text

FIVE = ("blue-bell", "crocus_2019", "Lily of the valley!", "Pensée [wild]", "tulip")


def result(per_class: dict[str, tuple[int, int]], mistakes: int = 0, **more) -> dict:
    """The result of an evaluation with (right, images) of each class, and some mistakes."""
    count = sum(images for _, images in per_class.values())
    top1 = sum(right for right, _ in per_class.values()) / count
    wrong = [
        {
            "place": f"photos/tulip/été {n}.webp",
            "label": "tulip",
            "predicted": "rose",
            "probability": 0.9 - n / 10,
        }
        for n in range(mistakes)
    ]
    return {
        "top1": top1, "top5": 1.0, "intervals": {"top1": [0.4, 1.0], "top5": [0.48, 1.0]}, "num_classes": 5,
        "loss": 0.5, "ece": 0.1, "brier": 0.2, "num_eval_examples": count, "eval_split": "photos, split test",
        "per_class": {name: {"top1": r / n, "num_examples": n} for name, (r, n) in per_class.items()},
        "num_skipped_images": 0, "skipped_images": [], "model": "ViT-Ti/16", "numerics": "tanh GELU",
        "preprocessing": "96x96", "preprocessing_from": "stored",
        "images_per_s": 37.0, "elapsed_s": 0.14, "precision": "fp32",
        "num_processes": 1, "mistakes": wrong, **more,
    }  # fmt: skip


def line(text: str, name: str) -> str:
    """The value of a line by its name; empty if there is none."""
    return next((line[12:] for line in text.splitlines() if line.startswith(name)), "")


def test_five_images_say_so_and_what_has_no_meaning_says_why():
    text = as_text(result({"tulip": (2, 2), "blue-bell": (2, 3)}), verbose=True)

    assert line(text, "top-1") == "80.00%  (95 %: 40 to 100; 5 images)"
    assert line(text, "top-5") == "-  (5 classes)"
    assert line(text, "scored on") == "5 images of 2 of the 5 classes, photos, split test"
    assert line(text, "speed") == "37.0 images/s, 0.1 s, fp32, 1 process"
    assert "mistakes" not in text


@pytest.mark.parametrize(("temperature", "more"), [(1.0, ""), (1.75, " (3.00% at temperature 1.75)")])
def test_the_calibration_error_after_scaling_stands_beside_that_before_where_they_differ(temperature, more):
    stored = {"temperature": temperature, "ece_at_temperature": 0.03}
    text = as_text(result({"tulip": (2, 2)}, **stored), verbose=True)

    assert line(text, "calibration") == f"ECE 10.00%{more}, Brier 0.2000"


@pytest.mark.parametrize(
    ("per_class", "weakest"),
    [
        ({"a": (1, 3), "b": (2, 2), "c": (0, 1)}, "a 1 of 3 right"),  # of one image only the mistake is known
        ({"a": (0, 2), "b": (1, 4), "c": (0, 4), "d": (2, 3), "e": (1, 1)},
         "c 0 of 4 right, a 0 of 2 right, b 1 of 4 right"),
        ({"a": (2, 2), "b": (3, 3)}, ""),
        ({"a": (1, 2), "b": (1, 2)}, ""),  # none is worse than another
        ({name: (right, 10) for name, right in zip("abcde", (9, 5, 10, 10, 7), strict=True)},
         "b 50% of 10, e 70% of 10, a 90% of 10"),
    ],
)  # fmt: skip
def test_the_weakest_classes_are_named_where_they_are_worse_than_others(per_class, weakest):
    assert line(as_text(result(per_class), verbose=True), "weakest") == weakest


def test_the_most_confident_mistakes_are_listed_with_their_files_and_how_many_there_are():
    text = as_text(result({"tulip": (2, 10)}, mistakes=8), verbose=True)

    table = text.partition("most confident mistakes")[2].splitlines()
    assert table[0] == ", 5 of 8" and table[1].split() == ["image", "class", "predicted", "probability"]
    assert [row.split() for row in table[2:4]] == [
        ["tulip/été", "0.webp", "tulip", "rose", "90.00%"],
        ["tulip/été", "1.webp", "tulip", "rose", "80.00%"],
    ]
    assert len(table) == 7


def test_mistakes_in_one_folder_keep_its_name_and_no_file_name_is_broken(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    mistaken = result({"tulip": (8, 10)}, mistakes=2)
    for number, mistake in enumerate(mistaken["mistakes"]):
        mistake |= {"place": f"/photos/val/Jonquille à fleurs/IMG é 0{number}.jpeg", "label": "Jonquille"}

    lines = as_text(mistaken, verbose=True).partition("most confident mistakes")[2].splitlines()

    assert sum("Jonquille à fleurs/IMG é 0" in line and ".jpeg" in line for line in lines) == 2


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    long = "96x96, short side 106, centre crop, bicubic with antialias, mean 0.5 0.5 0.5, std 0.5 0.5 0.5"
    per_class = {f"a class with a long name {n}": (n, 10) for n in range(5)}

    text = as_text(
        result(per_class, mistakes=8, preprocessing=long, eval_split="my photos, " * 12), verbose=True
    )

    assert max(map(len, text.splitlines())) <= columns


@pytest.mark.parametrize("columns", [60, 80])
def test_notes_stand_below_the_score_and_neither_they_nor_the_files_are_left_out(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    notes = [
        "162 of these 181 images were trained on",
        "this split has the images that were trained on, " * 3,
    ]
    sets = {"90": {"coverage": 0.9, "mean_size": 1.5}}
    more = {"dataset": "photos", "out": "evaluation", "prediction_sets": sets, "notes": notes}

    text = as_text(result({"tulip": (2, 10)}, mistakes=8, **more))

    names = [name for name in (line[:12].strip() for line in text.splitlines()) if name]
    assert names[:4] == ["top-1", "note", "note", "calibration"] and "files" in names
    assert all(note.strip() in " ".join(text.split()) for note in notes)


@pytest.mark.parametrize("columns", [80, 120])
def test_many_predictions_are_a_line_an_image_below_their_folder(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    names = [
        f"my photos/{folder}/été (10{n}).webp"
        for folder in ("Lily of the valley!", "tulip")
        for n in range(4)
    ]
    top = [
        {"class": name, "probability": share}
        for name, share in (("Lily of the valley!", 0.6), ("a" * 50, 0.4))
    ]
    predictions = [{"file": name, "top": top} for name in names]

    text = predictions_as_text({"predictions": predictions, "unreadable": []})

    first, second = text.split("\n\n")
    assert first.splitlines()[0] == "my photos/Lily of the valley!/" and len(first.splitlines()) == 6
    assert second.splitlines()[0] == "my photos/tulip/" and "été (103).webp" in second.splitlines()[-1]
    assert max(map(len, text.splitlines())) <= columns
    mixed = [predictions[row] for row in (0, 4, 1, 5, 2, 6, 3, 7)]
    assert predictions_as_text({"predictions": mixed, "unreadable": []}) == text  # each folder once


def test_what_speaks_against_each_of_many_predictions_takes_no_further_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["Flecken groß", "geflochten [alt]", "Höcker & Beulen", "seltene Muster"]
    top = [{"class": name, "probability": 0.25} for name in names]
    predictions = [
        {"file": f"neu {names[0]} {number}.jpg", "top": top, "in_distribution": number > 0}
        | {"prediction_set": names[:number], "unsure": number == 4}
        for number in range(5)
    ]

    lines = predictions_as_text({"predictions": predictions, "unreadable": []}).splitlines()

    assert len(lines) == 6 and max(map(len, lines)) <= 80
    assert [line.partition("  ")[0][-6:] for line in lines[1:]] == [f" {number}.jpg" for number in range(5)]
    sets = [f"one of {count} classes" for count in (2, 3)]
    endings = ["unlike training", "25.00%", *sets, "unsure, one of 4 classes"]
    assert [line.endswith(ending) for line, ending in zip(lines[1:], endings, strict=True)] == [True] * 5


def test_several_labels_have_their_own_probabilities_and_the_top_class_stands_where_none_is_given():
    top = [{"class": "normal", "probability": 0.6125}]
    two = {"file": "a.jpg", "labels": ["hell", "gross"], "label_probabilities": [0.405, 0.1], "top": top}
    none = {"file": "b.jpg", "labels": [], "label_probabilities": [], "top": top}

    lines = predictions_as_text({"predictions": [two, none]}).splitlines()

    assert lines[1:] == ["a.jpg  hell 40.50%, gross 10.00%", "b.jpg  none; top class: normal 61.25%"]


def test_the_seventh_folder_of_copies_is_one_more():
    entry = {"file": "a.jpg", "top": [{"class": "cat", "probability": 0.7}]}
    counts = {f"class-{number}": 1 for number in range(7)}
    result = {"predictions": [entry], "sorted_into": "there", "sorted_counts": counts}

    assert " and 1 more folder\n" in predictions_as_text(result | {"unreadable": []})


def test_notes_on_several_evaluations_of_numbers_follow_them():
    one = {key: value for key, value in result({"a": (1, 2)}).items() if key not in ("top1", "top5")}
    one |= {"mae": 2.0, "rmse": 3.0, "r2": 0.5, "mae_of_mean": 4.0, "target": {"name": "age"}}
    one |= {
        "intervals": {"mae": [1.0, 3.0], "rmse": [2.0, 4.0], "r2": [0.4, 0.6]},
        "notes": ["a note of one"],
    }
    text = as_text({"evaluations": [one, one], "notes": ["rows of ages are not comparable"]})

    assert text.count("note        a note of one") == 2
    assert text.endswith("\n\nnote        rows of ages are not comparable\n")
