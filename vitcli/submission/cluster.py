"""Job arrays of equal workers, by submitit: on SLURM, or as processes of this machine.

submit.json in the folder of the command holds the ids of the jobs, submit/ what submitit writes and the logs.
"""

import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from vitcli.distributed import launch
from vitcli.errors import MachineError, VitError, pip_install, reason_of
from vitcli.output import text
from vitcli.output.atomic import read_json, write_json
from vitcli.output.document import Columns, simple_table
from vitcli.output.owned_folder import SUBMISSION_FILE, SUBMISSION_FOLDER
from vitcli.output.redaction import without_secrets
from vitcli.submission.submission import LOCAL, SLURM, Submission
from vitcli.submission.worker import ArrayWorker

OF_EVERY_EXECUTOR = {"name", "timeout_min", "mem_gb", "nodes", "tasks_per_node", "cpus_per_task",
                     "gpus_per_node", "stderr_to_stdout"}  # fmt: skip
SIGNAL_DELAY_S = 300  # to finish a step and save before the time limit
NO_LIMIT_MIN = 10**7  # of a local worker; submitit's default is two minutes
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "STOPPED"}


def submit(submission: Submission) -> dict[str, Any]:
    """Start the workers as one job array; MachineError if submitit or SLURM is not here, or refuses it."""
    place, out = submission.place, submission.out
    submitit, folder = _submitit(place), out.absolute() / SUBMISSION_FOLDER
    line = [*launch.program(), *submission.arguments]
    workers = [ArrayWorker([*_devices(submission, at), *line]) for at in range(submission.num_workers)]
    # A job that is submitted from within another one would inherit what that one was given.
    clean_env = submitit.helpers.clean_env if "SLURM_JOB_ID" in os.environ else nullcontext
    safe_path = submitit.helpers.environment_variables(PYTHONSAFEPATH="1")  # no modules of the working folder
    try:
        with clean_env(), safe_path, _apart():
            executor = submitit.AutoExecutor(folder, cluster=place)
            executor.update_parameters(**_parameters(submission))
            with executor.batch():
                jobs = [executor.submit(worker) for worker in workers]
    except (RuntimeError, OSError) as error:
        what, fix = f"the job was refused: {reason_of(error)}", "correct --submit-set; sinfo shows the limits"
        raise MachineError(what, where=f"--submit {place}", fix=fix) from error
    shown = ["vit", *map(without_secrets, submission.arguments)]
    entry = {"place": place, "job_ids": [job.job_id for job in jobs], "command_line": shown}
    earlier = (read_json(out / SUBMISSION_FILE) or {}).get("submissions", [])
    write_json(out / SUBMISSION_FILE, {"submissions": [*earlier, entry]})
    started = [_worker(place, job_id, "PENDING", out) for job_id in entry["job_ids"]]
    return {"command": "submit", "run_dir": str(out), "workers": started}


def status(out: Path) -> dict[str, Any]:
    """Return the object of `vit submit status`: each worker that was submitted into a folder.

    The state is SLURM's word, UNKNOWN without its accounting. No result of submitit is read: it is a pickle,
    and the folder may be from somebody else. VitError if nothing was submitted into it.
    """
    named, workers = _submitted(out), []
    jobs = {job_id: _submitit(SLURM).SlurmJob(out, job_id) for place, job_id in named if place == SLURM}
    for place, job_id in named:
        if place == SLURM:
            state = jobs[job_id].state.split()[0]  # of "CANCELLED by 1000"; one call of sacct is for all
        else:
            has_result = (out / SUBMISSION_FOLDER / f"{job_id}_0_result.pkl").exists()
            state = "RUNNING" if _controller(job_id, out) else "COMPLETED" if has_result else "STOPPED"
        workers.append(_worker(place, job_id, state, out))
    return {"command": "submit status", "run_dir": str(out), "workers": workers}


def cancel(out: Path) -> dict[str, Any]:
    """Cancel the workers that have not ended, which save, and return them; MachineError if SLURM does not."""
    left = [worker for worker in status(out)["workers"] if worker["state"] not in ENDED]
    if queued := [worker["job_id"] for worker in left if worker["place"] == SLURM]:
        done = subprocess.run(["scancel", *queued], capture_output=True, text=True)
        if done.returncode:
            what = f"scancel failed: {done.stderr.strip()[:200]}"
            raise MachineError(what, where=" ".join(queued), fix="squeue --me lists your jobs")
    for worker in left:
        if worker["place"] == LOCAL and (process := _controller(worker["job_id"], out)):
            process.send_signal(signal.SIGTERM)  # which it passes on
        worker["state"] = "CANCELLED"
    return {"command": "submit cancel", "run_dir": str(out), "workers": left}


def as_text(result: dict[str, Any]) -> str:
    """Render workers with their states and logs."""
    columns: Columns = {"worker": "id", "state": "text", "log": "text"}
    rows = [(worker["job_id"], worker["state"], worker["log"]) for worker in result["workers"]]
    following = text.commands(["vit", "submit", "status", result["run_dir"]])
    is_new = result["command"] == "submit"
    return simple_table(columns, rows).as_text() + text.pairs(following if is_new else [])


def _worker(place: str, job_id: str, state: str, out: Path) -> dict[str, str]:
    log = str(out / SUBMISSION_FOLDER / f"{job_id}_0_log.out")
    return {"place": place, "job_id": job_id, "state": state, "log": log}


def _parameters(submission: Submission) -> dict[str, Any]:
    """Return the parameters of submitit's executor."""
    values: dict[str, Any] = {"name": submission.name, "stderr_to_stdout": True} | submission.values
    if submission.place == LOCAL:
        return {"timeout_min": values.get("timeout_min", NO_LIMIT_MIN), "stderr_to_stdout": True}
    # Its own signal is SIGUSR2, for its own handler (see `ArrayWorker`); vit knows SIGUSR1.
    delay_s = values.pop("signal_delay_s", min(SIGNAL_DELAY_S, values["timeout_min"] * 15))
    values["additional_parameters"] = {"signal": f"USR1@{delay_s}", "requeue": True}
    if "cpus_per_task" in values:  # which srun does not inherit (since SLURM 22.05)
        values["srun_args"] = [f"--cpus-per-task={values['cpus_per_task']}"]
    return {key if key in OF_EVERY_EXECUTOR else f"slurm_{key}": value for key, value in values.items()}


def _devices(submission: Submission, number: int) -> list[str]:
    """Return words that give a local worker GPUs of its own, by default none; submitit's are those of all."""
    count = submission.values.get("gpus_per_node", 0)
    devices = ",".join(map(str, range(number * count, (number + 1) * count)))
    return ["env", f"CUDA_VISIBLE_DEVICES={devices}"] if submission.place == LOCAL else []


def _submitted(out: Path) -> list[tuple[str, str]]:
    """Return place and job id of each worker that submit.json names."""
    named = []
    with suppress(KeyError, TypeError):
        for entry in (read_json(out / SUBMISSION_FILE) or {})["submissions"]:
            named += [(entry["place"], job) for job in entry["job_ids"] if re.fullmatch(r"\d+(_\d+)?", job)]
    if not named:
        raise VitError(f"no {SUBMISSION_FILE} names a job", where=str(out), fix="name the --out of --submit")
    return named


def _controller(job_id: str, out: Path) -> Any:
    """Return the process of submitit that looks after a local worker; None if it has ended."""
    import psutil

    ours = ["submitit.local._local", str(out.absolute() / SUBMISSION_FOLDER)]
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(int(job_id))  # or another one that has got its number
        if process.cmdline()[-2:] == ours and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _submitit(place: str) -> Any:
    """Return the library, which then prints nothing; MachineError without it or SLURM."""
    where = f"--submit {place}"
    try:
        import submitit
    except ImportError as error:
        raise MachineError("submitit is missing", where=where, fix=pip_install("vitcli[slurm]")) from error
    if place == SLURM and not all(map(shutil.which, ("sbatch", "srun", "scancel"))):
        raise MachineError("there is no sbatch", where=where, fix="a login node, or --submit local")
    logging.getLogger("submitit").setLevel(logging.CRITICAL)
    return submitit


@contextmanager
def _apart() -> Iterator[None]:
    """Keep this command's terminal or pipe from local workers: a reader would wait for their end."""
    with open(os.devnull, "r+b") as null, ExitStack() as restored:
        for number in range(3):
            kept = os.dup(number)
            restored.callback(os.close, kept)
            restored.callback(os.dup2, kept, number)
            os.dup2(null.fileno(), number)
        yield
