"""Threads that work beside the network."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch


def single_core_pool(num_threads: int, name: str) -> ThreadPoolExecutor:
    """Return threads in each of which an operation of torch takes one core; nothing changes in this one.

    Otherwise each of them starts OpenMP threads of its own. Where there are more than cores, idle or not, the
    OpenMP library lets those of the network sleep after each operation: steps took up to 1.7 times as long
    (docs/loader.md).
    """
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
    num_here, all_started = torch.get_num_threads(), Barrier(num_threads)

    def compute_alone(_: int) -> None:
        all_started.wait()  # one that is done would be given the task of another, which is then never started
        torch.get_num_threads()  # takes over the number of the process, now and not after the next line
        torch.set_num_threads(1)  # of this thread, and of those that have not computed yet

    try:
        list(pool.map(compute_alone, range(num_threads)))
    except RuntimeError:  # the system gives no more threads
        all_started.abort()
        raise
    finally:
        torch.set_num_threads(num_here)
    return pool
