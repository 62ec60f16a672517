"""Starting processes, and telling which of them failed first and why."""

import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

from vitcli.distributed import launch
from vitcli.errors import DataError, NotFiniteError, ProcessError, VitError

STEP = {  # what srun says to task 5 of a step of 7 tasks on two nodes
    "SLURM_JOB_ID": "123456", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
}  # fmt: skip


@pytest.fixture
def environ(monkeypatch) -> dict[str, str]:
    """The environment, to be changed at will, without any launcher's words in it."""
    foreign = ("SLURM_", "MASTER_", "TORCH_ELASTIC", "TORCHELASTIC", "OMP_", "VIT_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    kept = {k: v for k, v in os.environ.items() if k not in names and not k.startswith(foreign)}
    monkeypatch.setattr("os.environ", kept)
    return kept


def failure(exitcode: int, told: dict | None = None, at: float = 1.0):
    return SimpleNamespace(
        exitcode=exitcode, pid=7, timestamp=at, error_file_data={"vit": told} if told else {}
    )


def told(code: int, message: str, at: float = 1.0) -> dict:
    return {"exit_code": code, "message": message, "where": "here", "fix": "this", "at": at}


def test_the_first_error_that_is_not_a_lost_connection_wins():
    given = {
        0: failure(7, told(7, "a peer is gone", at=1.0)),
        1: failure(3, told(3, "a bad image", at=2.0)),
    }

    with pytest.raises(DataError, match="a bad image") as raised:
        launch.first_failure(given, 2)
    assert raised.value.where == "here"


def test_a_killed_process_is_named_even_if_its_peers_complain():
    given = {0: failure(7, told(7, "a peer is gone")), 1: failure(-9)}

    with pytest.raises(ProcessError, match="process 1 of the run was killed by SIGKILL") as killed:
        launch.first_failure(given, 2)
    assert "out of memory" in killed.value.fix
    with pytest.raises(ProcessError, match="process 0 of the run was killed by SIGABRT") as aborted:
        launch.first_failure({0: failure(-6)}, 1)
    assert "collective of GPUs" in aborted.value.fix


def test_of_an_error_of_all_processes_the_first_one_has_the_word():
    given = {1: failure(6, told(6, "the loss is not finite", at=1.0))}
    given[0] = failure(
        6, told(6, "the loss is not finite", at=2.0) | {"where": "last good checkpoint: step 2"}
    )

    with pytest.raises(NotFiniteError) as raised:
        launch.first_failure(given, 2)
    assert raised.value.where == "last good checkpoint: step 2"


def test_of_different_errors_the_first_in_time_is_the_cause_whatever_its_rank():
    given = {
        0: failure(6, told(6, "the loss is not finite", at=9.0)),
        1: failure(7, told(7, "a peer is gone", at=1.0)),
        2: failure(3, told(3, "a bad image", at=8.5)),
        3: failure(5, told(5, "the disk is full", at=10.0)),
    }

    with pytest.raises(DataError, match="a bad image"):
        launch.first_failure(given, 4)


LOST = failure(7, told(7, "a peer is gone", at=10.0))


def test_of_processes_that_ended_by_themselves_the_one_with_the_highest_code_is_named():
    with pytest.raises(ProcessError, match="process 1 of the run ended too early, with exit code 5"):
        launch.first_failure({0: failure(3), 1: failure(5), 2: failure(1)}, 3)


@pytest.mark.parametrize(
    ("silent", "message"),
    [
        (failure(-9, at=11.0), "process 1 of the run was killed by SIGKILL"),
        (failure(-9, at=40.0), "process 1 of the run stalled"),  # by the launcher, after 30 s
        (failure(7, told(7, "a peer is gone", at=30.0)), "process 1 of the run stalled"),
        (failure(143, at=11.0), "process 1 of the run stalled"),  # asked to stop by the launcher
        (failure(3), "process 1 of the run ended too early, with exit code 3"),
        (None, "process 1 of the run ended too early, with exit code 0"),
    ],
)
def test_the_process_that_the_others_waited_for_is_named(silent, message):
    given = {0: LOST, 2: failure(7, told(7, "a peer is gone", at=10.5))} | ({1: silent} if silent else {})

    with pytest.raises(ProcessError, match=message) as raised:
        launch.first_failure(given, 3)
    assert raised.value.where == "here" or "SIGKILL" in message


def test_a_process_that_ends_by_itself_is_an_error_though_the_others_have_been_asked_to_stop():
    with pytest.raises(ProcessError, match="process 1 of the run ended too early, with exit code 3"):
        launch.first_failure({0: failure(143), 1: failure(3)}, 2)
    assert launch.first_failure({0: failure(143)}, 2) == 143  # the other one was at its end


def test_processes_that_stopped_after_saving_give_their_exit_code():
    assert launch.first_failure({0: failure(143), 1: failure(143)}, 2) == 143


def test_an_error_within_a_result_that_is_printed_is_the_exit_code_alone():
    printed = told(8, "top1 is 0.5: top1>=0.9 does not hold") | {"is_printed": True}

    assert launch.first_failure({0: failure(8, printed)}, 2) == 8
    assert launch.first_failure({0: failure(8, printed), 1: failure(143)}, 2) == 8


def test_the_launcher_raises_the_reported_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv(launch.LAUNCHED, "1")

    assert launch.report_to_launcher(DataError("bad", where="row 3", fix="mend it"))

    left = json.loads((tmp_path / "error.json").read_text())
    with pytest.raises(DataError, match="bad"):
        launch.first_failure({0: SimpleNamespace(exitcode=3, pid=1, error_file_data=left)}, 1)


def test_a_bug_in_a_process_is_reported_as_it_was_and_exits_1():
    bug = told(1, "a bug in vit: KeyError: 'x'") | {"where": "the traceback is in /run/vit-crash-7.txt"}

    with pytest.raises(VitError, match="a bug in vit: KeyError") as raised:
        launch.first_failure({0: failure(7, told(7, "a peer is gone", at=0.5)), 1: failure(1, bug)}, 2)
    assert raised.value.exit_code == 1
    assert raised.value.where == "the traceback is in /run/vit-crash-7.txt"
    assert VitError.exit_code == 2


def test_without_our_launcher_a_process_prints_its_own_error(monkeypatch):
    monkeypatch.delenv(launch.LAUNCHED, raising=False)

    assert not launch.report_to_launcher(VitError("x", where="y", fix="z"))


def test_another_number_of_processes_than_the_launchers_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")

    assert not launch.must_launch(4)
    with pytest.raises(VitError, match="2 processes are asked for, the launcher has started 4"):
        launch.must_launch(2)


def test_srun_needs_no_wrapper(environ):
    environ.update(STEP)

    launch.adopt_slurm()

    assert (environ["RANK"], environ["WORLD_SIZE"]) == ("5", "7")
    assert (environ["LOCAL_RANK"], environ["LOCAL_WORLD_SIZE"]) == ("1", "3")
    assert environ["MASTER_ADDR"] == "gpu07"
    assert environ["MASTER_PORT"] == "23456"
    assert not launch.must_launch(7)


def test_an_address_that_is_given_is_kept(environ):
    environ.update(STEP, MASTER_ADDR="10.1.1.1", MASTER_PORT="4321")

    launch.adopt_slurm()

    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("10.1.1.1", "4321")


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"SLURM_NTASKS": "4"}, id="a shell of salloc"),
        pytest.param({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, id="an sbatch script"),
        pytest.param({**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, id="a step of one task"),
    ],
)
def test_outside_a_step_of_several_tasks_nothing_is_launched_yet(environ, said):
    environ.update(said, SLURM_JOB_ID="9")

    launch.adopt_slurm()

    assert "RANK" not in environ
    assert launch.must_launch(4)


@pytest.mark.parametrize(
    ("node_list", "host"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("gpu[7-9]", "gpu7"),
        ("n[01,03]-ib", "n01-ib"),
        ("node[01-03,7],x", "node01"),
        ("x,node[01-03]", "x"),
        ("my-node-3", "my-node-3"),
        ("rack[1-2]n[10-12]", "rack1n10"),
    ],
)
def test_the_first_host_of_a_node_list(node_list, host):
    assert launch.first_host(node_list) == host


@pytest.mark.parametrize(
    ("said", "counts"), [("4", [4]), ("4(x2),3", [4, 4, 3]), ("2,8(x3)", [2, 8, 8, 8]), ("16(x2)", [16, 16])]
)
def test_the_tasks_of_every_node(said, counts):
    assert [launch.tasks_on_node(said, node) for node in range(len(counts))] == counts


@pytest.mark.parametrize(
    ("asked", "exit_code"), [(signal.SIGUSR1, 143), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_processes_have_time_to_save_whatever_signal_stops_the_launcher(
    environ, monkeypatch, asked, exit_code
):
    from torch.distributed.elastic.multiprocessing import SignalException

    configs = []

    def stopped(config, program):
        configs.append(config)
        raise SignalException("stopped", sigval=asked)

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", stopped)
    monkeypatch.setattr("logging.disable", lambda level: None)

    assert launch.launch(2, ["finetune"]) == exit_code
    (config,) = configs
    assert getattr(config, "shutdown_timeout", 600) == 600  # torch 2.11 has no such setting
    assert asked.name in config.signals_to_handle.split(",")


def test_processes_of_a_run_are_never_started_again_and_listen_to_this_machine_alone(environ, monkeypatch):
    configs = []
    monkeypatch.setattr(
        "torch.distributed.launcher.api.elastic_launch",
        lambda config, program: configs.append(config) or (lambda *arguments: {}),
    )
    monkeypatch.setattr("logging.disable", lambda level: None)
    launch.launch(3, ["finetune"])

    (config,) = configs
    assert (config.max_restarts, config.min_nodes, config.max_nodes, config.nproc_per_node) == (0, 1, 1, 3)
    assert config.rdzv_endpoint == "127.0.0.1:0" and config.local_addr == "127.0.0.1"
    assert environ[launch.LAUNCHED] == str(os.getpid())


def test_a_process_whose_launcher_is_gone_ends_as_one_that_was_asked_to(environ, monkeypatch):
    asked = []
    library = SimpleNamespace(prctl=lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(launch.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(launch.sys, "platform", "linux")
    launch.end_with_the_launcher()
    assert asked == []  # no launcher of ours

    environ[launch.LAUNCHED] = str(os.getppid())
    launch.end_with_the_launcher()
    assert asked == [(1, signal.SIGTERM)]
    environ[launch.LAUNCHED] = "1234567"
    with pytest.raises(SystemExit) as ended:
        launch.end_with_the_launcher()
    assert ended.value.code == 143


def test_what_may_not_be_interrupted_ignores_sigterm_and_no_longer():
    before = signal.getsignal(signal.SIGTERM)

    with launch.handling({signal.SIGTERM: signal.SIG_IGN}):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_error_names_the_process_and_what_it_did(environ):
    launch.enter("step 5")
    environ["RANK"] = "3"
    assert launch.place() == "process 3, step 5" and launch.place(0) == "process 0, step 5"
    reason = "[/gloo/x.cc:9] Timed out waiting. This is typically caused by a slow peer"
    assert launch.lost_peer(reason).where == "process 3, step 5: Timed out waiting"
    launch.enter("the start")


def test_another_grace_period_than_ours_is_kept(environ, monkeypatch):
    environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "45"
    configs = []
    monkeypatch.setattr(
        "torch.distributed.launcher.api.elastic_launch",
        lambda config, program: configs.append(config) or (lambda *arguments: {}),
    )
    monkeypatch.setattr("logging.disable", lambda level: None)

    assert launch.launch(2, ["finetune"]) == 0
    assert getattr(configs[0], "shutdown_timeout", 45) == 45


def test_cores_are_counted_with_and_without_affinity(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 10)
    assert launch.cpu_count() == 3

    monkeypatch.delattr("os.sched_getaffinity")  # as on macOS
    assert launch.cpu_count() == 10
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert launch.cpu_count() == 1


@pytest.mark.parametrize(
    ("here", "parts"),
    [
        ([range(12)] * 5, [2] * 5),
        ([range(2)] * 5, [1] * 5),
        ([range(4), range(4, 16)], [4, 12]),
        ([range(4), range(4), range(4, 16)], [2, 2, 12]),
        ([range(1), range(16)], [1, 8]),
    ],
)
def test_processes_divide_the_cores_that_they_share(here, parts):
    here = [frozenset(cores) for cores in here]

    assert [launch.part_of_cores(own, here) for own in here] == parts


def test_a_lost_connection_is_an_error_of_the_run_and_others_are_not():
    assert launch.as_process_error(RuntimeError("... Connection closed by peer [127.0.0.1]:1"))
    assert launch.as_process_error(RuntimeError("shapes do not match")) is None


def test_the_memory_of_a_container_counts_by_its_bound(tmp_path):
    assert launch._free_in_container(str(tmp_path)) == float("inf")
    files = {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 500\ninactive_file 150\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert launch._free_in_container(str(tmp_path)) == 1000 - 700 + 150
    (tmp_path / "memory.current").write_text("1300")  # a limit that was lowered
    assert launch._free_in_container(str(tmp_path)) == 0
    (tmp_path / "memory.max").write_text("max")
    assert launch._free_in_container(str(tmp_path)) == float("inf")


def test_an_older_container_names_its_bound_otherwise(tmp_path):
    (tmp_path / "memory").mkdir()
    files = {"limit_in_bytes": "5000", "usage_in_bytes": "4000"}
    for name, text in files.items():
        (tmp_path / f"memory/memory.{name}").write_text(text)
    (tmp_path / "memory/memory.stat").write_text("inactive_file 7\ntotal_inactive_file 300\n")

    assert launch._free_in_container(str(tmp_path)) == 5000 - 4000 + 300


@pytest.mark.parametrize(("available", "in_container", "free"), [(30, 20, 20), (30, 40, 30)])
def test_free_memory_is_what_is_available_here_and_in_the_container(
    monkeypatch, available, in_container, free
):
    memory = SimpleNamespace(available=available, total=100, free=10)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr(launch, "_free_in_container", lambda: in_container)

    assert launch.free_bytes() == free


@pytest.mark.parametrize(("given", "threads"), [(None, "3"), ("5", "5")])
def test_the_cores_are_shared_by_the_processes_unless_their_threads_are_given(
    environ, monkeypatch, given, threads
):
    if given:
        environ["OMP_NUM_THREADS"] = given
    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *_: lambda *words: {})
    monkeypatch.setattr("logging.disable", lambda level: None)
    monkeypatch.setattr(launch, "cpu_count", lambda: 10)

    assert launch.launch(3, ["finetune"]) == 0
    assert environ["OMP_NUM_THREADS"] == threads
    if not given:
        del environ["OMP_NUM_THREADS"]
        launch.launch(16, ["finetune"])
        assert environ["OMP_NUM_THREADS"] == "1"


def test_processes_that_vit_starts_run_no_file_of_the_working_folder(environ, tmp_path, monkeypatch):
    (tmp_path / "typer.py").write_text("raise SystemExit('a file of the working folder was run')")
    environ.pop("PYTHONPATH", None)
    options = {"cwd": tmp_path, "env": environ, "capture_output": True, "text": True}

    shown = subprocess.run([*launch.program(), "--version"], **options)

    assert (shown.returncode, shown.stdout.split()[0]) == (0, "vit"), shown.stderr
    given = []
    monkeypatch.setattr("logging.disable", lambda level: None)
    monkeypatch.setattr(
        "torch.distributed.launcher.api.elastic_launch", lambda *started: lambda *words: given.extend(words)
    )
    launch.launch(2, ["finetune"])
    assert given == [*launch.program()[1:], "finetune"]


def test_a_launched_process_has_begun_with_its_launcher(environ):
    """So that --max-time counts the launcher, too; a variable of another command counts for nothing."""
    environ[launch.BEGAN_AT] = "12.5"
    before = time.monotonic()
    assert before <= launch.began_at() <= time.monotonic()
    environ[launch.LAUNCHED] = "7"
    assert launch.began_at() == 12.5


def test_a_run_that_ctrl_c_has_stopped_ends_with_130_whichever_process_got_it():
    assert launch.first_failure({0: failure(143), 1: failure(130)}, 2) == 130
    assert launch.first_failure({0: failure(130), 1: failure(143)}, 2) == 130


def test_of_two_killed_processes_the_first_is_named():
    with pytest.raises(ProcessError, match="process 1 of the run was killed by SIGKILL"):
        launch.first_failure({1: failure(-9), 2: failure(-9)}, 3)
