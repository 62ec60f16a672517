"""`vit report` end to end: run folders in, tables out; what it refuses and what it leaves out."""

import csv
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time

import pytest

from tests import report_runs as made
from tests.cli.test_app import check_error
from tests.conftest import run
from vitcli.output.leases import Cells
from vitcli.report import report as reports
from vitcli.report.grouping import compute_column


@pytest.fixture
def runs(tmp_path):
    """Two networks on two data sets, one cell missing; the better one differs by data set."""
    made.finetuned(tmp_path / "b-pets", 0.9431, top1s=(0.942, 0.944, 0.9433), std=0.00101)
    made.finetuned(tmp_path / "l-pets", 0.9512, model="ViT-L/16", ckpt="timm/l16")
    made.finetuned(tmp_path / "b-cifar", 0.9899, dataset="/data/cifar10", exaflops=0.5)
    return tmp_path


def table(result: dict, key: str) -> dict:
    (found,) = [one for one in result["tables"] if one["table"] == key]
    return found


def texts(result: dict, key: str) -> list[list[str]]:
    """The rows of a table: name, detail, then what its cells say."""
    return [
        [row["name"], row["detail"], *(cell and (cell["text"] or cell["note"]) for cell in row["cells"])]
        for row in table(result, key)["rows"]
    ]


def test_rows_are_data_sets_and_columns_networks_as_in_table_2(runs):
    result = run("report", runs, "--json").json
    accuracy = table(result, "accuracy")

    assert [(one["name"], one["detail"]) for one in accuracy["columns"]] == [
        ("ViT-B/16", "384 px"),
        ("ViT-L/16", "384 px"),
    ]
    assert texts(result, "accuracy") == [
        ["cifar10", "test, 3,669 images", "98.99", None],
        ["oxford_pets", "test, 3,669 images", "94.31 ± 0.10", "95.12"],
    ]
    assert table(result, "accuracy")["rows"][1]["cells"][1]["note"] == "94.1 to 96.1"  # the 95 % interval
    bold = [[bool(cell and cell["is_best"]) for cell in row["cells"]] for row in accuracy["rows"]]
    assert bold == [[False, False], [False, True]]
    assert accuracy["rows"][1]["cells"][0]["value"] == 0.9431  # a fraction, and not the percent of the text
    assert accuracy["rows"][1]["cells"][0]["count"] == 3


def test_networks_with_their_compute_as_in_table_6(runs):
    result = run("report", runs, "--json").json

    assert [one["name"] for one in table(result, "compute")["columns"]] == [
        "cifar10",
        "oxford_pets",
        "exaFLOPs",
    ]
    assert texts(result, "compute") == [
        ["ViT-B/16", "384 px", "98.99", "94.31 ± 0.10", "0.5125"],
        ["ViT-L/16", "384 px", None, "95.12", "0.0125"],
    ]


def test_pre_training_compute_stands_beside_when_its_run_is_reported_too(tmp_path):
    before = made.pretrained(tmp_path / "before", model="ViT-B/16")
    made.finetuned(tmp_path / "after", 0.9, ckpt=f"{before}/../before")

    result = run("report", tmp_path, "--json").json

    assert texts(result, "compute") == [["ViT-B/16", "384 px", "90.00", "0.0125", "55"]]
    assert texts(result, "pretraining")[0][0] == "before"
    assert texts(result, "pretraining")[0][2:] == ["71.00", "0.4100", "64.00", "500", "32,000", "55"]


def test_masked_patch_runs_tell_their_own_accuracy(tmp_path):
    made.pretrained(tmp_path / "mpp", None)

    (row,) = table(run("report", tmp_path, "--json").json, "pretraining")["rows"]

    assert (row["cells"][0]["text"], row["cells"][0]["note"]) == ("31.00", "of patch colours")


def test_a_selection_is_one_run_with_its_choices_and_its_seeds(tmp_path):
    by_lr = {0.003: 0.91, 0.03: 0.94, 0.01: 0.93}
    made.selected(tmp_path / "select", by_lr, 0.03, (0.95, 0.96, 0.97))

    result = run("report", tmp_path, "--json").json

    assert result["runs"] == [str(tmp_path / "select")]  # and neither its arms nor its seeds
    assert texts(result, "runs")[0][2:5] == ["96.00 ± 1.00", "95.0 to 97.0", "3,669"]
    assert [one["name"] for one in table(result, "selection")["columns"]] == [
        "lr 0.003",
        "lr 0.01",
        "lr 0.03",
    ]
    (row,) = table(result, "selection")["rows"]
    assert [cell["value"] for cell in row["cells"]] == [0.91, 0.93, 0.94]
    assert [cell["is_best"] for cell in row["cells"]] == [False, False, True]
    assert texts(result, "runs")[0][-1] == "95.00 (seed 0), 96.00 (seed 1), 97.00 (seed 2)"


def test_the_settings_of_a_run_have_the_rate_that_it_was_trained_with(tmp_path):
    """The summary knows what the recipe left to be chosen; of an older version it has no rate."""
    made.finetuned(tmp_path / "a", 0.9, lr=0.03, chosen={"optimizer.lr": 0.01})
    made.finetuned(tmp_path / "b", 0.9, lr=0.02, chosen={"optimizer.lr": None})

    settings = [row[5:10] for row in texts(run("report", tmp_path, "--json").json, "runs")]

    assert settings == [["b16", "384", "500", "64", rate] for rate in ("0.01", "0.02")]


def test_a_choice_whose_loss_was_not_finite_says_so(tmp_path):
    choices = [
        {"optimizer.lr": 0.01, "dev_top1": 0.8, "dev_loss": 0.5},
        {"optimizer.lr": 1.0, "dev_top1": None, "dev_loss": None},
    ]
    made.finetuned(tmp_path / "run", 0.9, choices=choices, chosen={"optimizer.lr": 0.01})

    assert texts(run("report", tmp_path, "--json").json, "selection")[0][2:] == ["80.00", "not finite"]


def test_one_recipe_run_with_three_seeds_is_one_cell(tmp_path):
    for seed, top1 in enumerate((0.91, 0.93, 0.95)):
        made.finetuned(tmp_path / str(seed), top1, seed=seed)

    result = run("report", tmp_path, "--json").json

    assert texts(result, "accuracy") == [["oxford_pets", "test, 3,669 images", "93.00 ± 2.00"]]


def test_a_run_under_way_tells_its_step(tmp_path):
    made.finetuned(tmp_path / "going", is_finished=False, step=180)

    result = run("report", tmp_path, "--json").json

    assert result["num_unfinished"] == 1
    assert texts(result, "progress")[0][2:5] == [
        "step 180 of 500",
        "running",
        "80 s",
    ]  # 320 steps of 0.25 s
    assert re.fullmatch(r"\d\.\d{4}", texts(result, "progress")[0][5])
    assert table(result, "progress")["rows"][0]["cells"][0]["value"] == 180 / 500
    assert {one["table"] for one in result["tables"]} == {"progress"}  # it has no result yet


def test_a_selection_under_way_tells_its_part(tmp_path):
    folder = made.finetuned(
        tmp_path / "select", lr=[0.001, 0.003, 0.01], is_finished=False, step=0, top1s=(0, 0)
    )
    made.write_lines(
        folder / "metrics.jsonl", [{"arm": {"optimizer.lr": 0.001}, "dev_top1": 0.8, "dev_loss": 1.0}]
    )
    made.finetuned(folder / "arms" / "lr-0.001", 0.8)
    made.finetuned(folder / "arms" / "lr-0.003", 0.8, is_finished=False, step=250)

    result = run("report", tmp_path, "--json").json
    (row,) = table(result, "progress")["rows"]

    assert row["cells"][0]["text"] == "step 250 of 500"
    assert row["cells"][0]["note"] == "lr-0.003, part 2 of 5"  # three arms and two seeds
    assert texts(result, "selection")[0][2] == "80.00"


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        (f"pid 4194304 on {socket.gethostname()}", "stopped"),
        ("pid 1 on elsewhere", "unknown"),
        ("", "unknown"),
    ],
)
def test_whether_a_run_lives_is_told_by_its_lock_file_on_this_machine(tmp_path, owner, told):
    folder = made.finetuned(tmp_path / "going", is_finished=False, step=180)
    (folder / ".vit.lock").write_text(owner)

    row = texts(run("report", folder, "--json").json, "progress")[0]
    assert row[3] == told and row[4] == (None if told == "stopped" else "80 s")  # until when nobody can say


@pytest.mark.parametrize(
    ("logged", "saved", "says"),
    [
        (1, 4, "step 4 of 12"),
        (7, 4, "step 7 of 12, checkpoint at step 4"),
        (4, 4, "step 4 of 12"),
        (7, None, "step 7 of 12"),
    ],
)
def test_an_unfinished_run_has_the_step_that_it_resumes_at(tmp_path, logged, saved, says):
    folder = made.finetuned(tmp_path / "going", is_finished=False, steps=12, step=logged)
    (folder / ".vit.lock").write_text(f"pid 4194304 on {socket.gethostname()}")
    for step in [2, saved] if saved else []:
        (folder / "checkpoints" / f"step_{step:07d}").mkdir(parents=True)
    (folder / "checkpoints" / ".tmp-9").mkdir(parents=True)  # being written, or what a crash has left

    assert texts(run("report", folder, "--json").json, "progress")[0][2] == says
    assert f"stopped, {says}" in run("report", folder, "--list").out


def test_few_shot_rows_are_data_and_shots(tmp_path):
    made.few_shot(tmp_path / "b", {5: 0.66, 10: 0.70})
    made.few_shot(tmp_path / "l", {5: 0.71}, model="ViT-L/16")

    assert texts(run("report", tmp_path, "--json").json, "fewshot") == [
        ["cifar100", "test, 5-shot", "66.00 ± 1.00", "71.00 ± 1.00"],
        ["cifar100", "test, 10-shot", "70.00 ± 1.00", None],
    ]


def test_runs_scored_on_different_images_share_neither_a_row_nor_a_star(tmp_path):
    """Five held-out images, twenty-one, and other twenty-one: nobody can say which run is the best."""
    for name, top1, count, mark in (("a", 0.8, 5, "x"), ("b", 0.48, 21, "y"), ("c", 0.5, 21, "z")):
        counted = dict(num_eval_examples=count, eval_fingerprint=mark * 32, lr=top1 / 10)
        made.finetuned(tmp_path / name, top1, dataset="my photos", **counted)
    made.finetuned(
        tmp_path / "d", 0.52, dataset="my photos/", num_eval_examples=21, eval_fingerprint="z" * 32
    )
    made.finetuned(tmp_path / "e", 0.9, dataset="pets")  # another data set, so that there is Table 2

    result = run("report", tmp_path, "--json").json

    names = [f"{row[0]}, {row[1]}" for row in texts(result, "accuracy")]
    assert names == [
        "my photos, test, 5 images",
        "my photos, test, 21 images (set yyyyyy)",
        "my photos, test, 21 images (set zzzzzz)",
        "pets, test, 3,669 images",
    ]
    stars = {
        cell["text"]
        for row in table(result, "accuracy")["rows"]
        for cell in row["cells"]
        if cell and cell["is_best"]
    }
    assert stars == {"52.00"}  # of c and d, which were scored on the same images
    stars = [row["name"] for row in table(result, "runs")["rows"] if row["cells"][0]["is_best"]]
    assert stars == ["d"]
    for row in table(result, "runs")["rows"]:
        top1, interval, count = (cell["text"] for cell in row["cells"][:3])
        assert top1 and " to " in interval and count


def test_a_run_whose_checkpoint_had_seen_the_held_out_images_has_a_note_and_no_star(tmp_path):
    for name, top1, seen in (("a", 0.8, 0), ("b", 0.9, None), ("c", 0.99, 5)):
        made.finetuned(
            tmp_path / name, top1, ckpt=f"timm/{name}", num_held_out_seen=seen, num_choice_seen=seen
        )
    made.finetuned(tmp_path / "d", 0.7, dataset="pets")

    result = run("report", tmp_path, "--json").json
    text = run("report", tmp_path).out

    stars = [row["name"] for row in table(result, "runs")["rows"] if row["cells"][0]["is_best"]]
    assert stars == ["b"]
    cells = [cell for row in table(result, "accuracy")["rows"] for cell in row["cells"] if cell]
    assert [cell["text"] for cell in cells if cell["is_best"]] == ["90.00"]
    assert [cell["text"] for cell in cells if "5 trained on before" in cell["note"]] == ["99.00"]
    assert "5 of 3,669 held-out images had been trained on" in text and "5 dev images" in text


def test_of_one_data_set_the_runs_are_one_table_and_not_three(tmp_path):
    for name, lr in (("a", 0.01), ("b", 0.03)):
        made.finetuned(tmp_path / name, lr=lr, exaflops=9.018e-8)

    result = run("report", tmp_path, "--json").json

    assert [one["table"] for one in result["tables"]] == ["runs", "costs"]
    assert "GFLOPs" in [one["name"] for one in table(result, "costs")["columns"]]
    assert "90.18" in texts(result, "costs")[0]  # and not 9.018e-08 exaFLOPs


def test_an_unfinished_run_has_the_command_line_that_resumes_it(tmp_path):
    folder = made.finetuned(tmp_path / "my run", dataset="my photos", is_finished=False, step=180)
    (folder / ".vit.lock").write_text(f"pid 4194304 on {socket.gethostname()}\n")
    words = ["vit", "finetune", "--dataset", "my photos"]

    result = run("report", folder, "--json").json
    assert table(result, "progress")["title"] == "Unfinished"
    assert texts(result, "progress")[0][1] == "finetune, b16, my photos"  # of an earlier version
    made.write_json(folder / "plan.json", {"total_steps": 500, "model": "ViT-B/16"})
    assert "finetune, ViT-B/16, my photos" in run("report", folder).out
    command = table(result, "progress")["rows"][0]["cells"][-1]["text"]
    assert shlex.split(command) == [*words, "--out", str(folder)]
    # On a terminal it stands on a line of its own, to be copied.
    assert f"\n  {command}\n" in run("report", folder).out
    # The folder is named once; of a running process there is no command.
    made.write_json(folder / "environment.json", {"command_line": [*words, "--out", "here"]})
    assert " --out here" in run("report", folder).out
    (folder / ".vit.lock").write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")
    assert "--out" not in run("report", folder).out


def test_without_names_the_runs_are_those_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_error(run("report"), 2, "no runs", "RUN")
    made.finetuned(tmp_path / "runs" / "a")

    assert run("report", "--json").json["runs"] == ["runs/a"]


def test_a_list_keeps_to_a_line_a_run_in_a_terminal_by_clipping_the_name_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("urlaub/evaluation", "old"):
        made.finetuned(tmp_path / name, dataset="my photographs of the summer of 2024")
    lines = run("report", tmp_path, "--list").out.splitlines()

    assert len(lines) == 4 and max(map(len, lines)) <= 80
    assert any(line.startswith("urlaub/evaluation  finished") for line in lines)


def test_a_list_has_a_line_for_each_run_the_newest_first(tmp_path):
    made.finetuned(tmp_path / "old", 0.9)
    made.evaluated(tmp_path / "scored", made.evaluation())
    made.finetuned(tmp_path / "new", is_finished=False, step=180, evaluated=0)
    for age, name in ((7200, "old/summary.json"), (600, "scored/evaluation.json"), (30, "new/metrics.jsonl")):
        os.utime(tmp_path / name, (time.time() - age,) * 2)

    result = run("report", tmp_path, "--list", "--json").json

    rows = texts(result, "list")
    assert [row[0] for row in rows] == ["new", "scored", "old"]
    assert rows[0][2:5] == ["running, step 180 of 500", None, None]
    assert rows[1][2:6] == ["finished", "90.00", "88.0 to 92.0", "40"]
    assert rows[2][2:] == ["finished", "90.00", "89.0 to 91.0", "3,669", "oxford_pets", "2 h 00 min"]
    assert len(run("report", tmp_path, "--list").out.splitlines()) == 5  # title, header and three lines

    # A few-shot run has its accuracy of the most images per class; notes on it are for the report.
    made.few_shot(tmp_path / "shots", {5: 0.6, 10: 0.7, 1: 0.4}, notes=["a note"])
    assert "a note" not in run("report", tmp_path, "--list").out
    assert "a note" in run("report", tmp_path).out
    rows = texts(run("report", tmp_path, "--list", "--json").json, "list")
    assert [row[3] for row in rows if row[0] == "shots"] == ["70.00"]


def test_a_list_has_a_line_for_each_part_of_work_that_workers_share(tmp_path):
    sweep, cells = tmp_path / "sweep", Cells(tmp_path / "sweep")
    made.finetuned(sweep, is_finished=False, step=180, evaluated=0)
    cells.begin(["arms/lr-0.01", "arms/lr-0.02", "arms/lr-0.03", "arms/lr-0.04", "elsewhere"])
    with cells.claim(["arms/lr-0.01"], [sweep]):
        pass
    with pytest.raises(KeyError), cells.claim(["arms/lr-0.02"], [sweep]):
        raise KeyError
    cells.claim(["arms/lr-0.03"], [sweep])
    other = cells.claim(["elsewhere"], [sweep]).claim / "owner.json"
    other.write_text(json.dumps({"host": "node07", "pid": 12, "at": time.time() - 7200, "place": "another"}))

    rows = texts(run("report", tmp_path, "--list", "--json").json, "list")

    states = {row[0].removeprefix("sweep/"): row[2] for row in rows}
    assert list(states.values()) == [
        "running, step 180 of 500",
        "done",
        "failed",
        f"running on {socket.gethostname()}, pid {os.getpid()}",
        "waiting",
        "running on node07, pid 12",
    ]
    assert rows[-1][-1] == "2 h 00 min"


def test_a_terminal_has_the_runs_first_and_says_once_what_all_of_them_share(tmp_path):
    for name, lr in (("a", 0.01), ("b", 0.03)):
        made.finetuned(tmp_path / name, lr=lr, ckpt="weights/vit_ti16_augreg_in1k.safetensors")
    made.evaluated(tmp_path / "a" / "evaluation", made.evaluation())
    made.few_shot(tmp_path / "shots", {5: 0.6})
    report = reports.read([str(tmp_path)])

    lines = reports.rendered(report, "text", base=tmp_path).splitlines()

    assert lines[0].startswith("Training runs: finetune, ViT-B/16, oxford_pets")
    assert [line.split()[0] for line in lines[2:4]] == ["a", "b"]
    assert " vit_ti16_augreg_in1k " in lines[2]
    assert any(line.startswith("a/evaluation, evaluate") for line in lines)


def test_costs_of_what_trains_nothing_have_no_column_of_compute(tmp_path):
    made.few_shot(tmp_path / "shots", {5: 0.6})

    (table,) = [one for one in reports.read([str(tmp_path)]).tables if one.key == "costs"]

    names = [column.name for column in table.columns]
    assert names == ["images/s", "time", "memory", "processes", "precision"]
    assert all(len(row.cells) == len(names) for row in table.rows)


@pytest.mark.parametrize("width", [60, 80, 99])
def test_no_word_is_broken_on_a_narrow_terminal(tmp_path, width):
    long = "vit_ti16_augreg_in1k.safetensors"
    for name, lr in (("fewshot-my-photos-ViT-Ti-16-20261122-060011", 0.01), ("b", 0.03)):
        made.finetuned(tmp_path / name, lr=lr, ckpt=f"weights/{long}", dataset="my photos")
    made.evaluated(tmp_path / "scored", made.evaluation(f"weights/{long}"))
    report = reports.read([str(tmp_path)])

    for one in report.tables:
        lines = one.as_text(width=width).splitlines()
        assert max(map(len, lines)) <= width
        texts = [row.head.line for row in one.rows]
        texts += [cell.line for row in one.rows for cell in row.cells]
        words = {word for text in texts for word in re.findall("[A-Za-z0-9]+", text)}
        assert words <= set(re.findall("[A-Za-z0-9]+", " ".join(lines)))


def test_vtab_is_one_row_and_its_tasks_a_table(tmp_path):
    made.vtab(
        tmp_path / "vtab",
        {"dtd": ("natural", 0.7), "eurosat": ("specialized", 0.9), "svhn": ("natural", None)},
    )

    result = run("report", tmp_path, "--json").json

    assert result["runs"] == [str(tmp_path / "vtab")]
    assert texts(result, "accuracy") == [["VTAB", "19 tasks", "2 of 19 tasks"]]
    assert texts(result, "vtab")[:3] == [
        ["dtd", "natural", "70.00"],
        ["eurosat", "specialized", "90.00"],
        ["svhn", "natural", None],
    ]
    assert texts(result, "vtab")[3:] == [["VTAB", "mean of 19 tasks", "2 of 19 tasks"]]
    assert texts(result, "compute")[0][-1] == "0.025"  # of both tasks that ran

    # Of all tasks the score is their mean, and not that of a group.
    summary = json.loads((tmp_path / "vtab/summary.json").read_text())
    whole = {"top1": 0.8123, "groups": {"natural": 0.7, "specialized": 0.9}}
    (tmp_path / "vtab/summary.json").write_text(json.dumps(summary | whole))
    assert texts(run("report", tmp_path, "--json").json, "vtab")[3:] == [
        ["natural", "mean of the group", "70.00"],
        ["specialized", "mean of the group", "90.00"],
        ["VTAB", "mean of 19 tasks", "81.23"],
    ]


def test_predicted_numbers_have_a_table_with_intervals_and_no_accuracy(tmp_path):
    made.of_numbers(tmp_path / "a", 2.0)
    made.of_numbers(tmp_path / "b", 1.5, lr=0.01)
    made.of_numbers(tmp_path / "c", 1.4, runs=3)
    evaluation = {
        "command": "evaluate", "ckpt": str(tmp_path / "a"), "model": "ViT-B/16", "dataset": "faces",
        "eval_split": "faces, split test", "resolution": 384, "mae": 1.234, "rmse": 2.0, "r2": None,
        "num_eval_examples": 40, "intervals": {"mae": [1.0, 1.5], "rmse": [1.5, 2.5]}, "tta": "mirror",
        "target": {"name": "age", "mean": 30.0, "std": 9.0},
    }  # fmt: skip
    made.write_json(tmp_path / "scored/evaluation.json", evaluation)
    made.evaluated(tmp_path / "both", made.evaluation(), {**evaluation, "mae": 1.3, "per_class": None})

    result = run("report", tmp_path, "--json").json
    rows = table(result, "numbers")["rows"]
    maes = [row["cells"][1] for row in rows]
    assert [cell["text"] for cell in rows[2]["cells"][:5]] == ["age", "1.4", "2.1", "0.8", "3,669"]
    assert [cell["note"] for cell in maes[:3]] == ["1.8 to 2.2", "1.35 to 1.65", "mean of 3 runs"]
    assert [cell["is_best"] for cell in maes] == [False, False, True, False, True]
    assert [cell["value"] for cell in maes] == [2.0, 1.5, 1.4, 1.3, 1.234] and not result["left_out"]
    # No accuracy is claimed of them, anywhere.
    assert not {each["table"] for each in result["tables"]} & {"runs", "accuracy"}
    assert len(table(result, "evaluations")["rows"]) == 1
    assert "MAE 1.5" in run("report", tmp_path, "--list").out
    page = run("report", tmp_path, "--out", tmp_path / "page.html", "--json")
    text = (tmp_path / "page.html").read_text()
    assert page.code == 0 and "with mirror images" in text
    assert "training loss" in text and "loss in nats" not in text  # it is a squared error


def test_a_selection_of_a_regression_shows_its_errors_and_of_several_labels_the_precision(tmp_path):
    runs = [{"optimizer.lr": 0.01, "dev_mae": 3.25, "dev_loss": 0.5}]
    runs += [{"optimizer.lr": 0.1, "dev_mae": None, "dev_loss": None}]
    made.of_numbers(tmp_path / "a", 2.0, choices=runs, chosen={"optimizer.lr": 0.01})
    (lines,) = texts(run("report", tmp_path / "a", "--json").json, "selection")
    assert lines[2:] == ["3.25", "not finite"]

    runs = [
        {"optimizer.lr": lr, "dev_mean_ap": 0.5 + lr, "dev_top1": 0.9, "dev_loss": 0.5} for lr in (0.1, 0.2)
    ]
    made.finetuned(tmp_path / "b", mean_ap=0.6125, choices=runs, chosen={"optimizer.lr": 0.2})
    result = run("report", tmp_path / "b", "--json").json
    assert texts(result, "selection")[0][2:] == ["60.00", "70.00"]
    columns = [column["name"] for column in table(result, "runs")["columns"]]
    assert texts(result, "runs")[0][2 + columns.index("mAP")] == "61.25"


AVERAGE = {
    "delivered": "greedy",
    "accepted": True,
    "top1": 0.95,
    "runs": [{"weight": w} for w in (0.5, 0, 0.5)],
}


def test_averages_are_marked_and_are_no_repeated_run(tmp_path):
    for seed, top1 in enumerate((0.9, 0.92)):
        made.finetuned(tmp_path / f"seed-{seed}", top1, seed=seed)
    made.finetuned(tmp_path / "soup", 0.95, seed=2, average=AVERAGE)
    record = AVERAGE | {"delivered": "run", "accepted": False}
    made.finetuned(tmp_path / "all", 0.93, seed=5, top1s=(0.92, 0.93, 0.94), std=0.01, average=record, lr=0.1)
    result = run("report", tmp_path, "--json").json

    columns = [column["name"] for column in table(result, "runs")["columns"]]
    delivered = {
        row["name"]: row["cells"][columns.index("delivered")] for row in table(result, "runs")["rows"]
    }
    assert delivered["soup"]["text"] == "mean of 2 of 3 runs, 95.00"
    assert delivered["all"]["text"] == "best of 3 runs, no average, 95.00" and delivered["seed-0"] is None
    # Its accuracy is in no mean of runs with other seeds.
    headers = [column["detail"] for column in table(result, "accuracy")["columns"]]
    (row,) = texts(result, "accuracy")
    assert any("average greedy" in header for header in headers)
    assert any(cell.startswith("91.00 ± 1.41") for cell in row)
    assert "finished, mean of 2 of 3 runs" in run("report", tmp_path, "--list").out


def test_evaluations_of_one_and_of_several(tmp_path):
    real = made.evaluation(
        "runs/l",
        0.88,
        real_top1=0.91,
        num_real_examples=38,
        dataset="imagenet",
        eval_split="imagenet, split val",
    )
    made.evaluated(tmp_path / "one", made.evaluation("runs/b", 0.9, num_classes=12, num_eval_examples=40))
    made.evaluated(tmp_path / "two", real, made.evaluation("runs/l", 0.93))

    result = run("report", tmp_path, "--json").json

    assert texts(result, "evaluated") == [
        ["imagenet", "val, 40 images", None, "88.00"],
        ["imagenet", "val, ReaL, 38 images", None, "91.00"],
        ["oxford_pets", "test, 40 images", "90.00", "93.00"],
    ]
    assert [one["name"] for one in table(result, "evaluated")["columns"]] == [
        "b",
        "l",
    ]  # not one network twice
    assert "no reliability diagram" in table(result, "evaluations")["caption"]  # of 40 images
    names = [one["name"] for one in table(result, "evaluations")["columns"]]
    assert names == ["images", "top-1", "95 %", "top-5", "ReaL", "loss", "ECE", "Brier"]
    assert texts(result, "evaluations")[0][2:] == [
        "40",
        "90.00",
        "88.0 to 92.0",
        "99.00",
        None,
        "0.3100",
        "2.10",
        "0.1200",
    ]
    assert texts(result, "evaluations")[1][5:7] == ["-", "91.00"]  # top-5 of four classes says nothing


def test_an_evaluation_inside_a_run_folder_is_found_and_checkpoints_are_not_looked_into(runs):
    made.evaluated(runs / "b-pets" / "evaluation", made.evaluation())
    made.finetuned(runs / "b-pets" / "checkpoints" / "step_1", 0.1)

    assert len(run("report", runs, "--json").json["runs"]) == 4


def test_a_folder_that_is_named_twice_or_linked_to_is_reported_once(runs):
    (runs / "again").symlink_to(runs / "b-pets")
    (runs / "round").symlink_to(runs)

    result = run("report", runs, runs / "b-pets", "--json").json

    assert len(result["runs"]) == 3


def test_text_marks_the_best_and_says_what_the_deviation_is_of(runs):
    told = run("report", runs).out

    assert "Transfer accuracy, mean ± standard deviation of 3" in told
    assert "94.31 ± 0.10" in told and "95.12*" in told and "* the best" in told


def test_csv_has_a_line_for_each_value_as_it_is(runs):
    rows = list(csv.DictReader(io.StringIO(run("report", runs, "--format", "csv").out)))
    (cell,) = [
        one for one in rows if one["table"] == "accuracy" and one["row"] == "oxford_pets" and one["std"]
    ]

    assert (cell["column"], cell["value"], cell["std"], cell["num_runs"]) == (
        "ViT-B/16",
        "0.9431",
        "0.00101",
        "3",
    )


def test_markdown_has_bold_and_links_that_start_from_the_file(runs):
    out = runs / "notes" / "report.md"

    assert run("report", runs, "--out", out).code == 0
    told = out.read_text()
    assert "| oxford_pets, test, 3,669 images | 94.31 ± 0.10 (93.3 to 95.3, 3 runs) | **95.12** (" in told
    assert "[b-pets](./../b-pets)" in told and (out.parent / "./../b-pets").is_dir()


def test_json_prints_one_object_and_writes_the_file_beside(runs):
    out = runs / "report.csv"
    result = run("report", runs, "--out", out, "--json").json

    assert (result["out"], result["num_bytes"]) == (str(out), out.stat().st_size)
    assert json.loads(run("report", runs, "--format", "json").out)["tables"] == result["tables"]


@pytest.mark.parametrize("ending", ["html", "md", "csv", "json"])
def test_a_report_is_written_again_and_another_file_never(runs, ending):
    out = runs / f"report.{ending}"
    assert run("report", runs / "b-cifar", "--out", out).code == 0
    first = out.read_bytes()
    assert run("report", runs / "b-cifar", "--out", out).code == 0

    out.write_text("my own notes")
    check_error(run("report", runs, "--out", out), 2, "already exists", "--overwrite")
    assert out.read_text() == "my own notes"
    assert run("report", runs / "b-cifar", "--out", out, "--overwrite").code == 0
    assert len(out.read_bytes()) == len(first)


def test_a_file_that_cannot_be_read_is_not_taken_for_a_report(runs):
    unreadable = "/proc/self/mem"  # for root, too: nothing is mapped at its start

    refused = run("report", runs, "--out", unreadable, "--format", "html")

    check_error(refused, 2, "already exists", "--overwrite")


def test_a_run_is_never_written_over(runs):
    summary = runs / "b-pets" / "summary.json"
    before = summary.read_bytes()

    check_error(run("report", runs, "--out", summary), 2, "already exists")
    assert summary.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 2, ["nowhere does not exist", "RUN"]),
        (["."], 2, ["no run in", "vit finetune"]),
        (["file.txt"], 2, ["file.txt is a file"]),
        ([], 2, ["no runs are named"]),
        (["run", "--out", "report.pdf"], 2, ["unknown ending .pdf", ".html"]),
        (["run", "--out", "report"], 2, ["has no ending", "--format"]),
        (["run", "--format", "markdwn"], 2, ["did you mean 'markdown'"]),
        (["run", "--out", "folder.html"], 5, ["folder.html is a folder", "--out"]),
        (["run", "--out", "file.txt/report.html"], 5, ["file.txt is a file", "--out"]),
        (["run", "--port", "80"], 2, ["--port belongs to --serve"]),
        (["run", "--serve", "--out", "a.html"], 2, ["--serve shows a page"]),
        (["run", "--list", "--out", "a.html"], 2, ["--list is one table"]),
        (["run", "--list", "--serve"], 2, ["leave --list out"]),
        (["run", "--serve", "--port", "70000"], 2, ["--port"]),
    ],
)
def test_what_cannot_be_done_is_refused_in_three_lines(tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "folder.html").mkdir()
    if "run" in arguments:
        made.finetuned(tmp_path / "run")

    check_error(run("report", *arguments), code, *words)


def test_with_json_a_mistake_is_an_object_too(runs):
    refused = run("report", runs, "--json", "--format", "csv")

    assert refused.code == 2 and "name one of them" in refused.json["error"]["message"]


DAMAGE = {
    "cut off": lambda text: text[: len(text) // 2],
    "not an object": lambda text: "[1, 2]",
    "empty": lambda text: "",
    "a share above 1": lambda text: text.replace('"top1": 0.9,', '"top1": 90.0,'),
    "a number as text": lambda text: text.replace('"top1": 0.9,', '"top1": "0.9",'),
    "not a number": lambda text: text.replace('"loss": 0.41', '"loss": NaN'),
    "deep": lambda text: "[" * 100_000,
    "without its model": lambda text: text.replace('"model"', '"modell"'),
    "a list of runs": lambda text: text.replace('"runs": [{', '"runs": [{"seed": "x"}, {'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_summary_is_an_error_where_it_is_named_and_left_out_where_it_is_met(tmp_path, damage):
    made.finetuned(tmp_path / "good", 0.9)
    file = made.finetuned(tmp_path / "bad", 0.9) / "summary.json"
    file.write_text(damage(file.read_text()))

    check_error(run("report", tmp_path / "bad"), 3, "summary.json is damaged", str(file))
    result = run("report", tmp_path, "--json").json
    assert result["runs"] == [str(tmp_path / "good")]
    assert [one["run_dir"] for one in result["left_out"]] == [str(tmp_path / "bad")]
    assert "left out" in run("report", tmp_path).out


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 10, "lo', "null", "[]", '{"step": [1], "loss": 2.0}', '{"step": 5, "loss": NaN}',
        '{"eval": 3, "step": 1}', '{"step": "x", "loss": {}}', "\udcff",
    ],
)  # fmt: skip
def test_a_line_of_metrics_that_is_cut_off_or_strange_does_no_harm(tmp_path, line):
    folder = made.finetuned(tmp_path / "run", 0.9, is_finished=False, step=180)
    with open(folder / "metrics.jsonl", "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line + "\n")

    assert texts(run("report", folder, "--json").json, "progress")[0][2] == "step 180 of 500"


def test_a_damaged_recipe_is_told_with_its_place(tmp_path):
    folder = made.finetuned(tmp_path / "run")
    (folder / "recipe.toml").write_text("[model\n")

    check_error(run("report", folder), 3, "recipe.toml is damaged", str(folder))


def test_too_many_folders_are_an_error_and_not_a_part_of_the_truth(tmp_path, monkeypatch):
    from vitcli.report import scan

    monkeypatch.setattr(scan, "MAX_FOLDERS", 20)
    for number in range(25):
        (tmp_path / str(number)).mkdir()
    made.finetuned(tmp_path / "run")

    check_error(run("report", tmp_path), 2, "more than 20 folders", "name the run folders")


def test_the_report_loads_neither_torch_nor_datasets(runs):
    code = (
        "import sys\n"
        "from vitcli.cli import main\n"
        "try:\n"
        f"    main(['report', {str(runs)!r}])\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code\n"
        "heavy = {'torch', 'datasets', 'timm', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize(
    ("exaflops", "unit", "texts"),
    [
        ([0.5, None, 12_345.678], "exaFLOPs", ["0", "", "12,346"]),
        ([0.0125, 0.002], "exaFLOPs", ["0.0125", "0.002"]),
        ([2.5e-7, 4e-6], "GFLOPs", ["250", "4,000"]),
        ([2.5e-7, 4e-5], "GFLOPs", ["250", "40,000"]),
        ([1.5e-5, 0.00099], "GFLOPs", ["15,000", "990,000"]),
        ([None, None], "exaFLOPs", ["", ""]),
    ],
)
def test_compute_has_the_unit_of_its_largest_value(exaflops, unit, texts):
    header, cells = compute_column(exaflops)

    assert (header.name, [cell.text for cell in cells]) == (unit, texts)
