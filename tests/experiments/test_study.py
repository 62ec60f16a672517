"""`vit study`: a grid of runs in one folder, gone on with, refused, planned and drawn."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.test_app import check_error
from tests.conftest import locked, run, vit
from tests.faulty_disk import script
from tests.figures import drawn_figures
from vitcli import recipe as recipes
from vitcli.errors import Stopped, VitError
from vitcli.experiments import study, study_folder
from vitcli.experiments.study import StudyActions

GRID = """# two networks, two sizes
command = "pretrain"
recipe = "pretrain/demo"
[grid]
models = ["ViT-demo/8", "ViT-Ti/16"]
num_examples = [24, 96]
steps = [10]
seeds = [0, 1]
[score]
by = "fewshot"
dataset = "demo"
shots = 5
"""
TINY = """
command = "pretrain"
recipe = "pretrain/demo"
set.data.image_size = 16
set.data.eval_resize = "square"
set.data.eval_split = "test[:48]"
set.train.batch_size = 8
set.train.log_every = 1
set.precision.compute = "fp32"
set.eval.every = 0
[grid]
num_examples = [24, 48]
steps = [2]
[[variants]]
name = "tiny"
set.model.name = "ViT-demo/8"
set.model.layers = 1
set.model.hidden = 16
"""
HELD_OUT = TINY + '[score]\nby = "eval"\n'


@dataclass
class Bench:
    """Runs that take no time: accuracy is log(images) / 10 + seed / 100, and every step is written down."""

    done: list[str] = field(default_factory=list)
    stop_at: str = ""

    def plan(self, recipe) -> dict:
        self.done.append("plan")
        name, count = recipe.model.name, recipe.data.num_examples
        cost = {"ViT-demo/8": 1.0, "ViT-Ti/16": 3.0}[name]
        return {"model": name, "params": 5, "num_examples": count, "total_steps": 10, "images_seen": 640,
                "exaflops": cost}  # fmt: skip

    def train(self, recipe, run_dir: Path) -> None:
        if self.stop_at and self.stop_at in run_dir.name:
            raise Stopped(15, "stopped", out=run_dir)
        self.done.append(run_dir.name)
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "recipe.toml").write_text(recipes.to_toml(recipe))
        (run_dir / "summary.json").write_text(json.dumps({"dataset": "demo:pretrain", "top1": 0.0}))

    def score(self, run_dir: Path, dataset: str, out: Path) -> float:
        recipe = recipes.load(str(run_dir / "recipe.toml"))
        accuracy = math.log(recipe.data.num_examples) / 10 + recipe.train.seed / 100
        out.mkdir()
        (out / "summary.json").write_text(
            json.dumps({"shots": {shots: {"mean": accuracy} for shots in "15"}})
        )
        return accuracy

    @property
    def work(self) -> StudyActions:
        return StudyActions(lambda: None, lambda recipe: recipe, self.plan, self.train, self.score)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(GRID)
    return path


def go(file: Path, bench: Bench, view: str = "data-size", overwrite: bool = False, set_: tuple = ()) -> dict:
    prepared = study.prepare(view, str(file), set_)
    return study.run(prepared, bench.work, out=file.parent / "out", overwrite=overwrite, quiet=True)


def test_every_run_is_made_once_and_the_object_has_them_all(file):
    bench = Bench()

    found = go(file, bench)

    assert [name for name in bench.done if name != "plan"] == [one["name"] for one in found["cells"]]
    assert bench.done.count("plan") == 4  # seeds of a point share it
    assert (found["command"], found["num_cells"], found["num_finished"]) == ("study data-size", 8, 8)
    last = found["cells"][-1]
    assert (last["model"], last["seed"], last["num_examples"]) == ("ViT-Ti/16", 1, 96)
    assert (last["images_seen"], last["epochs"], last["exaflops"]) == (640, 640 / 96, 3.0)
    assert (last["families"], found["score"]["name"]) == (["ViT"], "5-shot accuracy on demo")
    assert last["score"] == pytest.approx(math.log(96) / 10 + 0.01)
    small = found["points"][0]
    assert small["mean"] == pytest.approx(math.log(24) / 10 + 0.005)
    assert small["std"] == pytest.approx(0.01 / math.sqrt(2)) and small["n"] == 2
    assert found["pareto"] == ["ViT-demo-8-96-images-10-steps"]  # as good as the dearer one


def test_a_finished_study_leaves_its_tables_pictures_and_file(file):
    with drawn_figures():
        found = go(file, Bench())

    out = Path(found["run_dir"])
    assert json.loads((out / "summary.json").read_text()) == found
    assert {path.read_bytes()[1:4] for path in (out / "figures").glob("data-size.*")} == {b"PNG", b"?xm"}
    assert len((out / "table.csv").read_text().splitlines()) == 5
    assert (out / "table.md").read_text().startswith("| network | images |")
    assert run("study", "data-size", out / "study.toml", "--out", out, "--json", "-q").json == found | {
        "study": "study"
    }


def test_the_same_call_again_makes_no_run(file):
    first = go(file, Bench())
    bench = Bench()

    assert go(file, bench) == first and bench.done == []


def test_a_stopped_study_goes_on_with_what_is_missing(file):
    with pytest.raises(Stopped) as stopped:
        go(file, Bench(stop_at="Ti-16-24-images-10-steps-seed-1"))
    assert stopped.value.note.endswith(f"--out {file.parent / 'out'} resumes from there")
    halfway = json.loads((file.parent / "out/summary.json").read_text())
    assert (halfway["num_finished"], halfway["cells"][-1]["score"]) == (6, None)
    bench = Bench()

    found = go(file, bench)

    assert bench.done == ["ViT-Ti-16-24-images-10-steps-seed-1", "ViT-Ti-16-96-images-10-steps-seed-1"]
    assert found["num_finished"] == 8
    assert (file.parent / "out/cells/ViT-demo-8-24-images-10-steps-seed-0/summary.json").exists()


def test_a_run_that_was_trained_and_not_scored_is_scored(file):
    first = go(file, Bench())
    cell = Path(first["cells"][0]["run_dir"])
    (cell / "score/summary.json").unlink()
    (cell / "score").rmdir()

    assert go(file, Bench()) == first


def test_a_worker_that_waits_takes_the_results_of_another_once_the_claims_are_gone(tmp_path):
    (tmp_path / ".vit-cells").mkdir()
    (tmp_path / "summary.json").write_text('{"num_finished": 8}')
    assert study_folder.written_by_another(tmp_path) is None  # it may be an earlier one

    (tmp_path / ".vit-cells").rmdir()
    assert study_folder.written_by_another(tmp_path) == {"num_finished": 8}


def test_another_study_in_the_folder_is_refused_with_what_differs(file):
    go(file, Bench())
    file.write_text(GRID.replace("[0, 1]", "[0]").replace("= 5", "= 1"))

    with pytest.raises(VitError) as refused:
        go(file, Bench())

    assert "grid.seeds: [0, 1] against [0]; score.shots: 5 against 1" in refused.value.message
    assert go(file, Bench(), overwrite=True)["num_cells"] == 4
    assert len(list((file.parent / "out/cells").iterdir())) == 4


def test_keys_from_the_command_line_are_part_of_the_study(file):
    go(file, Bench())

    with pytest.raises(VitError, match=r"set.optimizer.lr: none against 0.3"):
        go(file, Bench(), set_=("optimizer.lr=0.3",))


def test_a_run_of_another_recipe_in_a_cell_is_refused(file):
    found = go(file, Bench())
    stale = Path(found["cells"][0]["run_dir"], "recipe.toml")
    stale.write_text(stale.read_text().replace("lr = 0.05", "lr = 0.5"))

    with pytest.raises(VitError, match=r"optimizer.lr: 0.5 against 0.05"):
        go(file, Bench())


@pytest.mark.parametrize("name", ["recipe.toml", "notes.txt"])
def test_a_folder_of_something_else_is_left_alone(file, name):
    other = file.parent / "out" / name
    other.parent.mkdir()
    other.write_text("mine")

    with pytest.raises(VitError, match="the folder"):
        go(file, Bench(), overwrite=True)

    assert [path.name for path in other.parent.iterdir()] == [name] and other.read_text() == "mine"


def test_a_second_process_is_refused_while_one_writes_the_study(file):
    first = go(file, Bench())
    out = Path(first["run_dir"])
    before = (out / "summary.json").stat().st_mtime_ns

    with locked(out / ".vit-study.lock"):
        outcome = run("study", "data-size", out / "study.toml", "--out", out, "-q")

    check_error(outcome, 5, "another study is writing this folder: pid 1 on elsewhere", f"--out {out}")
    assert (out / "summary.json").stat().st_mtime_ns == before


def test_the_lock_of_a_killed_study_does_not_block_and_goes_when_the_study_ends(file):
    out = file.parent / "out"
    code = "import os; from contextlib import ExitStack; from pathlib import Path; "
    code += "from vitcli.experiments.study_folder import owned; "
    code += f"owned(Path({str(out)!r})).claim(ExitStack()); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert [path.name for path in out.iterdir()] == [".vit-study.lock"]

    go(file, Bench())

    assert (out / "summary.json").exists() and not (out / ".vit-study.lock").exists()


def test_both_pictures_come_from_the_same_runs(file):
    go(file, Bench())
    bench = Bench()

    found = go(file, bench, view="compute")

    assert bench.done == [] and found["command"] == "study compute"
    names = {path.name for path in (file.parent / "out/figures").iterdir()}
    assert names == {"data-size.png", "data-size.svg", "compute.png", "compute.svg"}


def test_an_accuracy_over_several_data_sets_is_their_mean(file):
    file.write_text(GRID.replace('"demo"\nshots', '["demo", "cifar10"]\nshots').replace("[0, 1]", "[0]"))

    found = go(file, Bench(), view="compute")

    assert found["cells"][0]["scores"].keys() == {"demo", "cifar10"}
    assert found["score"]["name"] == "5-shot accuracy, mean of 2 data sets"
    assert (Path(found["cells"][0]["run_dir"]) / "score-cifar10/summary.json").exists()
    assert found["points"][0]["means"]["demo"] == pytest.approx(found["points"][0]["mean"])
    assert "demo, %" in (file.parent / "out/table.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "view", "words"),
    [
        ("[24, 96]", "[24]", "data-size", ("train on the same images", "vit study compute")),
        ("steps =", "step =", "compute", ("grid.step", "did you mean 'steps'?")),
        ("[grid]", "set.optimizer.lr = -1\n[grid]", "compute", ("optimizer.lr is -1", "two.toml, set")),
        ("shots = 5", 'shots = 5\nset.data.flip = "no"', "compute", ("data.flip", "score.set")),
        ("shots = 5", "shots = 5\nset.fewshot.l2 = 0", "compute", ("fewshot.l2 is 0",)),
        ("shots = 5", 'shots = 5\nrecipe = "evaluate/default"', "compute", ("has no section [fewshot]",)),
        ('"fewshot"\ndataset = "demo"\nshots = 5', '"eval"', "compute", ("no top-1", "score.by")),
        ("[24, 96]", "[24, 96_000]", "data-size", ("data.num_examples is 96000",)),
        ('"demo"', '"./nowhere"', "compute", ("there is no data set './nowhere'",)),
    ],
)
def test_mistakes_are_told_before_anything_is_made(tmp_path, file, old, new, view, words):
    assert old in GRID
    text = GRID.replace("pretrain/demo", "pretrain/b16-masked-patch") if "eval" in new[:6] else GRID
    file.write_text(text.replace(old, new))

    outcome = run("study", view, file, "--out", tmp_path / "out")

    code = 3 if "nowhere" in new or "000" in new else 2
    check_error(outcome, code, *words)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_every_run_costs_and_makes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(HELD_OUT)

    outcome = run("study", "data-size", "tiny.toml", "--dry-run", "--set", "train.batch_size=16")

    assert outcome.code == 0, outcome.err
    first, second = (line.split() for line in outcome.out.splitlines()[1:3])
    # 2 steps of 16 images, of 24 and of 48
    assert first[0] == "tiny-24-images-2-steps" and first[2:6] == ["24", "1.333", "2", "32"]
    assert second[0] == "tiny-48-images-2-steps" and second[2:6] == ["48", "0.6667", "2", "32"]
    # 4 patches of 8 pixels and a class token, D = 16, M = 64:
    # 192 * 4 * 16 + 5 * (4 * 256 + 2 * 1024) + 2 * 25 * 16 multiply-adds
    assert float(first[6]) == pytest.approx(6 * 28_448 * 32 / 1e18, rel=0.01)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


@pytest.mark.slow
def test_real_runs_are_scored_on_their_held_out_pictures(tmp_path):
    (tmp_path / "tiny.toml").write_text(HELD_OUT)

    outcome = run("study", "data-size", tmp_path / "tiny.toml", "--out", tmp_path / "out", "--json", "-q")

    assert outcome.code == 0, outcome.err + outcome.out
    for one in outcome.json["cells"]:
        summary = json.loads(Path(one["run_dir"], "summary.json").read_text())
        assert one["score"] == summary["top1"] and one["exaflops"] == summary["exaflops"]
        assert one["images_seen"] == summary["steps"] * summary["batch_size"]
        assert (
            json.loads(Path(one["run_dir"], "plan.json").read_text())["num_examples"] == one["num_examples"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("by", ["fewshot", "finetune"])
def test_real_runs_are_scored_by_transfer_and_a_stopped_one_goes_on(tmp_path, by):
    text = f'{TINY}[score]\nby = "{by}"\ndataset = "demo"\n' + ("shots = 2\n" if by == "fewshot" else "")
    text += "set.schedule.steps = 2\nset.data.image_size = 16\n" if by == "finetune" else ""
    (tmp_path / "tiny.toml").write_text(text)
    words = ("study", "data-size", tmp_path / "tiny.toml", "--out", tmp_path / "out", "--json", "-q")

    first = run(*words)
    assert first.code == 0, first.err + first.out
    weights = {path: path.read_bytes() for path in (tmp_path / "out/cells").glob("*/model.safetensors")}
    assert len(weights) == 2
    cell = Path(first.json["cells"][1]["run_dir"])
    (cell / "score/summary.json").unlink()
    (cell / "summary.json").unlink()
    again = run(*words)

    assert again.json == first.json
    assert all(path.read_bytes() == held for path, held in weights.items())
    summary = json.loads((cell / "score/summary.json").read_text())
    score = summary["shots"]["2"]["mean"] if by == "fewshot" else summary["top1"]
    assert again.json["cells"][1]["score"] == score


@pytest.mark.slow
def test_two_processes_make_the_same_study(tmp_path):
    (tmp_path / "tiny.toml").write_text(f'{TINY}[score]\nby = "fewshot"\ndataset = "demo"\nshots = 2\n')
    words = ("study", "data-size", tmp_path / "tiny.toml", "--json", "--quiet", "--per-device-batch", 4)

    outcome = vit(*words, "--out", tmp_path / "two", "--num-processes", 2)

    assert outcome.returncode == 0, outcome.stderr
    two, one = json.loads(outcome.stdout), run(*words, "--out", tmp_path / "one").json
    assert [cell["score"] for cell in two["cells"]] == pytest.approx([cell["score"] for cell in one["cells"]])


@pytest.mark.slow
def test_the_demo_study_rises_with_the_data(tmp_path):
    points = run("study", "data-size", "demo", "--out", tmp_path / "demo", "--json", "-q").json["points"]

    assert [point["num_examples"] for point in points] == [30, 100, 300, 48_000]
    for fewer, more in pairwise(points):
        assert more["mean"] > fewer["mean"] - max(fewer["std"], more["std"])
    assert points[0]["mean"] < 0.25 and points[-1]["mean"] > 0.5


@pytest.mark.slow
def test_the_exaflops_of_figure_5_are_those_of_table_6():
    cells = run("study", "compute", "figure5-jft", "--dry-run", "--json", "-q").json["cells"]

    printed = [55, 224, 196, 783, 1567, 4262, 50, 199, 96, 141, 563, 1126, 3306, 106, 274, 246, 859, 1668]
    assert [cell["exaflops"] for cell in cells] == pytest.approx(printed, rel=0.042)


@pytest.mark.slow
def test_a_finished_study_of_a_recipe_that_asks_the_weights_is_read_and_not_made_again(photos, tmp_path):
    """Its recipes say "weights", those of its runs have the numbers of the demo's."""
    study = tmp_path / "photos.toml"
    study.write_text(
        f"""recipe = "finetune/default"
command = "finetune"
set."data.dataset" = "{photos}"
set."schedule.steps" = 1
set."train.batch_size" = 4
grid.models = ["demo"]
grid.num_examples = [8, "all"]
score.by = "eval"
"""
    )
    words = ("study", "data-size", study, "--out", tmp_path / "out", "--json", "--quiet")
    first = run(*words)
    weights = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/cells").glob("*/model.safetensors")}
    again = run(*words)

    assert first.code == 0, first.err + first.out
    assert again.json == first.json
    assert {path: path.stat().st_mtime_ns for path in weights} == weights and len(weights) == 2
    for cell in first.json["cells"]:
        assert "image_size = 64\n" in Path(cell["run_dir"], "recipe.toml").read_text()


def test_the_compute_of_a_plan_is_that_of_all_runs_that_are_counted(monkeypatch):
    cells = [{"exaflops": 2.0}, {"exaflops": None}, {"exaflops": 0.5}]
    monkeypatch.setattr(study, "_plans", lambda prepared, actions: None)
    monkeypatch.setattr(study, "_planned", lambda prepared, plans: cells)
    monkeypatch.setattr(study, "_scoring", lambda score: None)
    prepared = SimpleNamespace(view="mine", name="mine", study=SimpleNamespace(score=None))

    assert study.plan(prepared, None)["exaflops"] == 2.5


@pytest.mark.slow
def test_workers_that_are_killed_asleep_full_or_cut_off_make_the_study_of_one_undisturbed_worker(tmp_path):
    strikes = os.environ.get("VIT_STRIKES", "50")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = json.loads(script(cache, "tests.shared_work", strikes, tmp_path))

    print({key: value for key, value in found.items() if key != "problems"})
    assert found["problems"] == [] and sum(found["strikes"].values()) == int(strikes)
