"""What one element of a job array runs: the command line, its signals, and the requeue of this element."""

import signal
import subprocess
import sys
from dataclasses import dataclass

STOPPED = 143  # exit code of a command that stopped and saved
RESTART_LOCALLY = 144  # a process of submitit's local executor that ends with it is started again


@dataclass
class ArrayWorker:
    """The function that submitit pickles for each element; it runs the command in a process of its own.

    submitit's own handler of signals requeues first, upon which SLURM ends what is still saving, and at most
    three times. So ours takes its place: the command saves and ends, and then its element is requeued.
    """

    command: list[str]

    def __call__(self) -> None:
        """Run the command to its end, and end with its exit code unless it is 0."""
        from submitit import JobEnvironment

        element = JobEnvironment()
        code, is_to_return = self._run()
        if is_to_return and code in (STOPPED, 128 + signal.SIGUSR1):  # the latter before vit has a handler
            if element.cluster != "slurm":
                sys.exit(RESTART_LOCALLY)
            # Of several tasks one. ARRAYID_TASKID, since the SLURM_JOB_ID of the last element is the array's.
            if element.global_rank == 0:
                subprocess.run(["scontrol", "requeue", element.job_id], timeout=60)
        if code:
            sys.exit(code)

    def _run(self) -> tuple[int, bool]:
        """Return the exit code of the command, and whether it was asked to save and come back.

        SIGUSR1 comes before the time limit and before preemption. SIGTERM is SLURM's own end, of a job that
        was cancelled, or that it requeues by itself: the command saves, and nothing is requeued here.
        """
        received: list[int] = []
        processes: list[subprocess.Popen] = []

        def forward(number: int, _: object) -> None:
            received.append(number)
            for process in processes:  # SIGUSR2 is submitit's word for SIGUSR1
                process.send_signal(signal.SIGTERM if number == signal.SIGTERM else signal.SIGUSR1)

        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, forward)
        with subprocess.Popen(self.command) as process:
            processes.append(process)
            if received:  # before it could be forwarded
                process.send_signal(signal.SIGTERM)
            code = process.wait()
        return code if code >= 0 else 128 - code, bool(received) and signal.SIGTERM not in received
