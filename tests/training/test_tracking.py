"""Experiment trackers: what each is sent, once, and what happens when one fails."""

import json
import os
import sys
from contextlib import closing
from itertools import count
from types import ModuleType, SimpleNamespace

import pytest

from tests.conftest import run
from tests.training.test_finetune import SMALL
from vitcli import recipe as recipes
from vitcli.errors import MachineError, VitError
from vitcli.output.run_folder import METRICS, RunFolder
from vitcli.training.tracking import TRACKERS, Tracking, check_tracker, flat_numbers, run_name

RECIPE = recipes.load("finetune/demo", (), {"data.dataset": "hf://user:secretword@host/set"}, training=False)
RECORDS = [
    {"step": 1, "loss": 2.5, "lr": 0.1, "grad_norm": None},
    {"step": 2, "loss": 2.0, "lr": 0.1, "grad_norm": 1.0},
    {"step": 2, "eval": {"top1": 0.5, "loss": 1.5}},
    {"step": 3, "loss": 1.5, "lr": 0.1, "grad_norm": 2.0},
    {"step": 4, "probe": {"5": {"mean": 0.25, "std": None, "runs": [0.2, 0.3]}}},
]
SENT = [  # by hand
    (1, {"loss": 2.5, "lr": 0.1}),
    (2, {"loss": 2.0, "lr": 0.1, "grad_norm": 1.0}),
    (2, {"eval/top1": 0.5, "eval/loss": 1.5}),
    (3, {"loss": 1.5, "lr": 0.1, "grad_norm": 2.0}),
    (4, {"probe/5/mean": 0.25}),
]


class Call:
    """One call of a command that logs records: from those a checkpoint has kept to where it is killed."""

    def __init__(self, kind, path, notes=()):
        self.kind, self.path, self.notes = kind, path, notes

    def log(self, kept: int, until: int = len(RECORDS), track: bool = True, overwrite: bool = False) -> None:
        with closing(RunFolder(self.path, overwrite=overwrite)) as folder:
            lines = [json.dumps(record).encode() + b"\n" for record in RECORDS[:kept]]
            folder.rewind_metrics(sum(map(len, lines)))
            notes = list(self.notes)
            tracking = track and Tracking(self.kind, folder, RECIPE, note=notes.append, quiet=True)
            folder.also_log = tracking.log if tracking else folder.also_log
            for record in RECORDS[kept:until]:
                folder.log(record)
            if tracking and until == len(RECORDS):
                tracking.close()
            self.notes = notes


def events(path) -> list[tuple[str, int, float]]:
    """All scalars that TensorBoard shows of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(path), size_guidance={"scalars": 0})
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return sorted((tag, event.step, event.value) for tag in tags for event in reader.Scalars(tag))


ALL_EVENTS = sorted((name, step, value) for step, values in SENT for name, value in values.items())


class Service:
    """The state of W&B, Trackio or MLflow: the records of each run by its id."""

    def __init__(self):
        self.runs, self.given, self.finished, self.fails_at = {}, [], [], None

    def open(self, run_id, **given) -> str:
        self.given.append(given)
        run_id = run_id or f"id{len(self.runs)}"
        self.runs.setdefault(run_id, [])
        return run_id

    def log(self, run_id, step, values) -> None:
        if step == self.fails_at:
            raise ConnectionError("the network is down\nsecond line")
        self.runs[run_id].append((step, values))


def run_of(service, run_id):
    return SimpleNamespace(
        id=run_id,
        log=lambda values, step: service.log(run_id, step, values),
        finish=lambda: service.finished.append(run_id),
    )


def fake_wandb(service):
    def init(*, id, **given):
        print("wandb: syncing run")
        return run_of(service, service.open(id, **given))

    return {"init": init, "Settings": lambda **settings: settings}


def fake_trackio(service):
    def init(*, project, name, resume, config):
        exists = resume == "allow" and name in service.runs
        run_id = service.open(name if exists else f"{name}", project=project, name=name, resume=resume)
        print("* Trackio project initialized")
        return run_of(service, run_id)

    return {"init": init}


def fake_mlflow(service):
    class Client:
        def __init__(self, tracking_uri):
            self.uri = tracking_uri

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name, artifacts):
            service.given.append({"experiment": name, "artifacts": artifacts, "uri": self.uri})
            return "7"

        def create_run(self, experiment, *, run_name):
            run_id = service.open(None, run_name=run_name)
            return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

        def update_run(self, run_id, *, status):
            assert run_id in service.runs and status == "RUNNING"

        def log_param(self, run_id, key, value):
            service.given[-1].setdefault("params", {})[key] = value

        def log_batch(self, run_id, *, metrics):
            service.log(run_id, metrics[0].step, {metric.key: metric.value for metric in metrics})

        def set_terminated(self, run_id):
            service.finished.append(run_id)

    def metric(key, value, timestamp, step):
        assert timestamp > 10**12  # milliseconds
        return SimpleNamespace(key=key, value=value, step=step)

    return {"MlflowClient": Client, "entities": SimpleNamespace(Metric=metric)}


FAKES = {"wandb": fake_wandb, "trackio": fake_trackio, "mlflow": fake_mlflow}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("WANDB_", "TRACKIO_", "MLFLOW_")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A second between any two looks at it: TensorBoard reads its files in the order of their seconds."""
    seconds = count(2 * 10**9)
    monkeypatch.setattr("time.time", lambda: next(seconds))


@pytest.fixture
def service_of(monkeypatch):
    def install(kind: str) -> Service:
        service, module = Service(), ModuleType(kind)
        vars(module).update(FAKES[kind](service))
        monkeypatch.setitem(sys.modules, kind, module)
        if kind == "mlflow":
            monkeypatch.setitem(sys.modules, "mlflow.entities", module.entities)
        return service

    return install


def test_tensorboard_has_every_record_of_a_run_with_a_probe(photos, tmp_path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    words = (*SMALL, "--dataset", photos, "--batch-size", 8, "--steps", 2, "--out", out)
    probe = ("--set", f"eval.probe={photos}", "--set", "eval.probe_shots=1", "--set", "eval.every=1")
    ended = run(*words, *probe, "--track", "tensorboard", "--set", "train.log_every=1")

    assert ended.code == 0, ended.err
    records = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    numbers = [(record["step"], flat_numbers({**record, "step": None})) for record in records]
    kept = sorted(
        (name, step, pytest.approx(value)) for step, values in numbers for name, value in values.items()
    )
    assert events(out / "tensorboard") == kept
    assert any(name.startswith("probe/") for name, _, _ in kept) and any(
        name == "eval/top1" for name, _, _ in kept
    )


@pytest.mark.parametrize("kept", range(len(RECORDS)))
def test_a_resumed_run_shows_every_event_once_in_tensorboard(kept, tmp_path):
    pytest.importorskip("tensorboard")
    call = Call("tensorboard", tmp_path / "run")
    call.log(0, until=4)
    assert len(events(tmp_path / "run/tensorboard")) == 10
    kept = min(kept, 4)
    call.log(kept, until=kept)  # killed before it logs anything: what it repeats is gone
    assert {step for _, step, _ in events(tmp_path / "run/tensorboard")} == {
        r["step"] for r in RECORDS[:kept]
    }
    call.log(kept)

    assert events(tmp_path / "run/tensorboard") == [pytest.approx(event) for event in ALL_EVENTS]
    assert not call.notes


def test_records_from_before_the_tracker_are_sent_and_an_overwritten_run_leaves_none(tmp_path, service_of):
    pytest.importorskip("tensorboard")
    call = Call("tensorboard", tmp_path / "run")
    call.log(0, until=3, track=False)
    call.log(3)
    assert events(tmp_path / "run/tensorboard") == [pytest.approx(event) for event in ALL_EVENTS]

    call.log(0, until=1, overwrite=True)
    assert [event[1] for event in events(tmp_path / "run/tensorboard")] == [1, 1]
    service = service_of("mlflow")  # another tracker than before starts with the first record
    Call("mlflow", tmp_path / "run").log(1)
    assert service.runs["id0"] == SENT


@pytest.mark.parametrize("kind", FAKES)
def test_a_resumed_run_goes_to_the_same_run_of_a_service_each_record_once(kind, tmp_path, service_of, capsys):
    service, call = service_of(kind), Call(kind, tmp_path / "run")
    calls = ((0, 3), (1, 2), (1, 4), (0, 1), (1, 5))  # some repeat less than was sent before
    for kept, until in calls:
        call.log(kept, until=until)

    assert list(service.runs.values()) == [SENT]
    assert service.finished == list(service.runs)
    assert not capsys.readouterr().out  # which is the result's
    assert "secretword" not in json.dumps(service.given) + (tmp_path / "run/tracking.json").read_text()

    call.log(0, overwrite=True)
    assert list(service.runs.values()) == [SENT] * 2 or kind == "trackio"
    assert service.given[-1].get("resume") in (None, "never")


@pytest.mark.parametrize("kind", FAKES)
def test_a_tracker_that_fails_is_given_up_with_one_note(kind, tmp_path, service_of):
    service, call = service_of(kind), Call(kind, tmp_path / "run")
    service.fails_at = 2
    call.log(0)

    assert list(service.runs.values()) == [SENT[:1]]
    (note,) = call.notes
    assert note.startswith(
        f"note: {kind} is given up for the rest of this run: the network is down; metrics.jsonl"
    )
    service.fails_at = None
    call.log(0, until=len(RECORDS))  # a later call sends what is missing
    assert list(service.runs.values()) == [SENT]


def test_project_name_and_folder_come_from_the_environment(tmp_path, service_of, monkeypatch):
    path = tmp_path / "run"
    of_wandb, of_trackio, of_mlflow = (service_of(kind) for kind in FAKES)
    for kind in FAKES:
        Call(kind, path).log(0, until=1, overwrite=True)
    assert {key: of_wandb.given[0][key] for key in ("project", "name", "dir", "resume")} == {
        "project": "vit", "name": "run", "dir": str(path), "resume": None,
    }  # fmt: skip
    assert of_trackio.given == [{"project": "vit", "name": "run", "resume": "never"}]
    assert of_mlflow.given[0]["uri"] == f"sqlite:///{path}/mlflow/mlflow.db"
    assert of_mlflow.given[0]["experiment"] == "vit" and of_mlflow.given[1]["run_name"] == "run"

    names = {name: "flowers" for name in ("WANDB_PROJECT", "TRACKIO_PROJECT", "MLFLOW_EXPERIMENT_NAME")}
    names |= {name: "first" for name in ("WANDB_NAME", "TRACKIO_NAME", "MLFLOW_RUN_NAME")}
    names |= {"WANDB_DIR": "/there", "MLFLOW_TRACKING_URI": "http://server"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    for kind in FAKES:
        Call(kind, path).log(0, until=1, overwrite=True)
    assert [of_wandb.given[1][key] for key in ("project", "name", "dir")] == ["flowers", "first", "/there"]
    assert of_trackio.given[1] == {"project": "flowers", "name": "first", "resume": "never"}
    assert of_mlflow.given[2] == {"experiment": "flowers", "artifacts": None, "uri": "http://server"}
    assert of_mlflow.given[3]["run_name"] == "first" and not (path / "mlflow").exists()


def test_a_tracker_that_does_not_start_is_an_error_of_three_lines(tmp_path, service_of, monkeypatch):
    service_of("wandb")

    def refuse(**_):
        raise RuntimeError("No API key configured. Use `wandb login` to log in.\nmore")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(MachineError, match="wandb does not start: No API key configured") as caught:
        Call("wandb", tmp_path / "run").log(0)
    assert "WANDB_MODE=offline" in caught.value.fix


def test_trackers_that_are_unknown_or_not_installed_are_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, part in (
        ("tensorbord", "did you mean 'tensorboard'"),
        *((kind, "is not installed") for kind in TRACKERS),
    ):
        with pytest.raises(VitError, match=part):
            check_tracker(name)


def test_a_run_of_a_sweep_is_named_after_both(tmp_path):
    (tmp_path / "runs/photos/arms/lr-0.1").mkdir(parents=True)

    assert run_name(tmp_path / "runs/photos") == "photos"
    assert run_name(tmp_path / "runs/photos/arms/lr-0.1") == "lr-0.1"
    (tmp_path / "runs/photos/recipe.toml").touch()
    assert run_name(tmp_path / "runs/photos/arms/lr-0.1") == "photos/lr-0.1"
