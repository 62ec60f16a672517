"""Threads beside the network: each computes on one core, and the network on as many as before."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from vitcli.distributed import transfer


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_seen_by(pool: ThreadPoolExecutor, num_threads: int) -> list[int]:
    """Return the number of threads that an operation of torch has in each thread of a pool."""
    all_at_once = Barrier(num_threads)
    return list(pool.map(lambda _: (all_at_once.wait(), torch.get_num_threads())[1], range(num_threads)))


def test_each_thread_computes_on_one_core_and_all_others_as_before(three_threads):
    with transfer.single_core_pool(4, "beside") as pool, ThreadPoolExecutor(1) as later:
        torch.rand(10**6).exp_()

        assert threads_seen_by(pool, 4) == [1, 1, 1, 1]
        assert torch.get_num_threads() == 3
        assert threads_seen_by(later, 1) == [3]
        assert threads_seen_by(pool, 4) == [1, 1, 1, 1]


def test_where_the_system_gives_no_more_threads_none_is_left_waiting(three_threads, monkeypatch):
    class Scarce(ThreadPoolExecutor):
        def submit(self, *args):
            if self._work_queue.qsize() or len(self._threads) == 2:
                raise RuntimeError("can't start new thread")
            return super().submit(*args)

    made = []

    def make(*args, **options) -> Scarce:
        made.append(Scarce(*args, **options))
        return made[0]

    monkeypatch.setattr(transfer, "ThreadPoolExecutor", make)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        transfer.single_core_pool(4, "beside")

    made[0].shutdown(wait=True)  # returns
    assert torch.get_num_threads() == 3
