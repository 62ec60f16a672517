"""What the processes of a run tell each other, in two and three real ones."""

import torch

from tests.processes import of_processes
from vitcli.distributed.runtime import Runtime
from vitcli.errors import DataError


def test_three_processes_sum_gather_exchange_and_agree():
    def action(runtime: Runtime) -> dict:
        rank = runtime.rank
        overwritten = [torch.tensor([10.0 * rank, 7.0]), torch.tensor([rank])]
        runtime.broadcast(overwritten)
        return {
            "sum": runtime.sum_over_processes(torch.tensor([[rank + 1.0], [10.0 * rank]])).tolist(),
            "gathered": runtime.gather(torch.tensor([rank, -rank])).tolist(),
            "exchanged": runtime.exchange(torch.tensor([[0], [1], [2]]) + 10 * rank).tolist(),
            "joined": runtime.concatenated([f"{rank}"] * rank),
            "union": runtime.union({"all", f"{rank}"}),
            "any": [runtime.any(rank == one) for one in (0, 1, 2, 3)],
            "main": runtime.on_main(lambda: f"of process {rank}"),
            "broadcast": [tensor.tolist() for tensor in overwritten],
        }

    told = of_processes(3, action)

    for rank, each in enumerate(told):
        assert each == {
            "sum": [[6.0], [30.0]],
            "gathered": [[0, 0], [1, -1], [2, -2]],
            "exchanged": [[rank], [10 + rank], [20 + rank]],
            "joined": ["1", "2", "2"],
            "union": {"all", "0", "1", "2"},
            "any": [True, True, True, False],
            "main": "of process 0",
            "broadcast": [[0.0, 7.0], [0]],
        }


def test_an_error_of_the_first_process_is_that_of_all_and_one_of_another_is_its_own():
    def action(runtime: Runtime) -> tuple:
        errors = []
        for error in (DataError("bad", where="here", fix="this"), KeyError("bug")):

            def fail(error: Exception = error) -> None:
                raise error

            try:
                runtime.on_main(fail)
            except Exception as raised:
                errors.append((type(raised).__name__, str(raised), getattr(raised, "rank", None)))
        try:
            with runtime.local_errors():
                raise DataError("of one", where="here", fix="this")
        except DataError as error:
            return errors, error.rank

    (first, own), (second, other) = of_processes(2, action)

    bad = str(DataError("bad", where="here", fix="this"))
    assert first == second == [("DataError", bad, None), ("KeyError", "'bug'", 0)]
    assert (own, other) == (0, 1)
