"""A process ends when another is gone and its main thread cannot learn of it, and never for being slow."""

import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from vitcli.distributed import launch, peers


@pytest.fixture
def ended(monkeypatch) -> list:
    """The exit codes with which the process would have ended, after its message."""
    codes: list = []
    launch.enter("the start")  # as in a process of its own
    monkeypatch.setattr(peers, "TICK_S", 0.02)
    monkeypatch.setattr(peers, "STUCK_S", 0.3)
    monkeypatch.setattr(launch, "print_error", codes.append)
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def watch() -> threading.Thread:
    """Watch this thread as after the loss of a process."""
    reason = "[/gloo/pair.cc:5] Connection closed by peer"
    thread = threading.Thread(target=peers.Watch(None, 1.0).end_once_stuck, args=[reason])
    thread.start()
    return thread


def test_a_main_thread_that_moves_is_left_to_itself_and_a_stuck_one_is_ended(ended):
    def step() -> None:
        time.sleep(0.001)

    thread, began_at = watch(), time.monotonic()
    while time.monotonic() - began_at < 0.6:
        step()
    assert not ended

    thread.join()  # this thread waits, in C
    error, code = ended
    assert code == error.exit_code == 7 and len(str(error).splitlines()) == 3
    assert error.where == "process 0, the start: Connection closed by peer"


def test_what_is_being_written_is_finished_first(ended):
    with peers.finishing():
        thread = watch()
        thread.join(timeout=0.8)
        assert not ended
    thread.join()
    assert ended[1] == 7


def test_what_is_being_written_is_waited_for_as_long_as_a_process_may_save(ended, monkeypatch):
    monkeypatch.setattr(launch, "SAVING_TIME_S", 0.15)
    monkeypatch.setattr(peers, "STUCK_S", 0.1)
    with peers.finishing():
        watch().join(timeout=5)
        assert ended[1] == 7


def test_a_main_thread_that_only_waits_for_the_others_is_ended_at_once(ended, monkeypatch):
    monkeypatch.setattr(peers, "STUCK_S", 60.0)
    watch = peers.Watch(None, 1.0)
    watch.only_waits.set()

    watch.end_once_stuck("no answer for 1 s")
    assert ended[1] == 7


class Answers:
    """Stand-in for torch.distributed: other processes that answer each beat after some ticks, or never."""

    def __init__(self, ticks: float, *, beats: int):
        self.ticks, self.beats_left = ticks, beats

    def get_world_size(self, group: object) -> int:
        return 3

    def all_reduce(self, left: torch.Tensor, *, group: object, async_op: bool) -> SimpleNamespace:
        asked = itertools.count()
        assert self.beats_left, "it goes on when all have left"
        self.beats_left -= 1
        left.fill_(2 if self.beats_left else 3)  # all have left the block at last
        return SimpleNamespace(is_completed=lambda: self._is_completed(next(asked)), wait=lambda: None)

    def _is_completed(self, ticks: int) -> bool:
        assert ticks < 50, "it waits for ever"
        return ticks >= self.ticks


@pytest.mark.parametrize(
    ("ticks", "beats", "only_waits", "expected"),
    [
        (math.inf, 9, False, "no answer for 5 s"),  # of 1 s each: four are waited, and one more is too long
        (math.inf, 9, True, "no answer for 5 s"),
        (4, 9, False, None),  # slow, but it answers: for 36 s in all
        (2, 9, True, "no answer for 5 s"),  # it answers, and never comes to the end of the run
        (2, 2, True, None),
    ],
)
def test_another_process_is_waited_for_as_long_as_is_said(monkeypatch, ticks, beats, only_waits, expected):
    monkeypatch.setattr(peers, "dist", Answers(ticks, beats=beats))
    monkeypatch.setattr(peers, "TICK_S", 1.0)
    monkeypatch.setattr(peers, "BEAT_S", 0.0)
    monkeypatch.setattr(peers.time, "sleep", lambda seconds: None)
    ended: list = []
    monkeypatch.setattr(peers.Watch, "end_once_stuck", lambda watch, reason: ended.append(reason))
    watch = peers.Watch(None, 4.0)
    watch.only_waits.set() if only_waits else None

    watch.run()

    assert ended == ([expected] if expected else [])


PROCESS = """
import sys, ctypes
from vitcli.distributed import peers, runtime

peers.BEAT_S, peers.TICK_S, peers.STUCK_S = 0.2, 0.1, 1.0
joined = runtime.start("fp32", stall_minutes=4 / 60)
with peers.watched(joined):
    print("watching", flush=True)
    ctypes.CDLL(None).sleep(int(sys.argv[1]))
joined.shutdown()
print("end", flush=True)
"""


class Processes:
    """Three processes of a run, each inside a call of C for so many seconds."""

    def __init__(self, *seconds: int):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        together = {
            "WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        self.all = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", PROCESS, str(duration)],
                env=os.environ
                | {k: str(v) for k, v in together.items()}
                | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, duration in enumerate(seconds)
        ]
        for process in self.all:
            assert process.stdout.readline() == "watching\n"

    def outcomes(self) -> list[tuple[int, str]]:
        ended = [(process, process.communicate(timeout=60)) for process in self.all]
        return [(process.returncode, out + err) for process, (out, err) in ended]


@pytest.mark.slow
def test_processes_inside_a_call_of_c_end_soon_after_another_is_killed():
    processes = Processes(60, 60, 60)
    processes.all[1].kill()
    killed_at = time.monotonic()
    first, (code, _), last = processes.outcomes()

    assert time.monotonic() - killed_at < 8  # a beat, a second without moving, and the exit of Python
    assert code == -signal.SIGKILL
    for code, text in (first, last):
        assert code == 7 and text.startswith("error: another process of the run has ended or stalled")
        assert len(text.splitlines()) == 3


@pytest.mark.slow
def test_slow_processes_and_stopped_ones_go_on_and_a_silent_one_ends_the_run():
    # Three times as long in C as a process whose peer is gone may be; one is stopped for a while.
    processes = Processes(4, 1, 4)
    processes.all[2].send_signal(signal.SIGSTOP)
    time.sleep(2)
    processes.all[2].send_signal(signal.SIGCONT)
    assert processes.outcomes() == [(0, "end\n")] * 3

    processes = Processes(60, 60, 60)
    processes.all[2].send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    for process in processes.all[:2]:
        assert process.wait(timeout=20) == 7 and "no answer for 4 s" in process.stderr.read()
    assert time.monotonic() - stopped_at > 4
    processes.all[2].kill()
    processes.outcomes()
