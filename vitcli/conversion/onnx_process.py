"""An .onnx or .pte file, which is a program, run in a process of its own, within limits of memory and time.

A few bytes of it may take all memory, or run for ever. The process writes no file, loads torch for .pte files
alone, and what its libraries print is dropped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any, BinaryIO

import numpy as np

from vitcli.distributed.launch import cpu_count, peak_memory_of
from vitcli.errors import CheckFailed, VitError, is_out_of_memory, reason_of
from vitcli.weights.production.session import SESSIONS, OpenedFile, load_runtime

# Memory is what the process may take besides its libraries: weights are read, copied and laid out anew.
MEMORY_MB, MEMORY_PER_BYTE = 512, 4
MOST_S, BYTES_IN_A_SECOND = 60, 10_000_000  # and a second more for this many bytes of weights
MOST_THREADS, MB_OF_A_THREAD = 8, 16
MOST_OUTPUTS = 1_000_000
PROGRAM = """\
import sys
sys.path.append(sys.argv[1])
from vitcli.conversion.onnx_process import answer_within
answer_within(*map(int, sys.argv[4:]), path=sys.argv[3], runtime=sys.argv[2])
"""


class OnnxProcess:
    """A process that runs an ONNX file on images; leave its context to end it.

    Attributes:
        input_shape, answer_name: as of `OnnxSession`.

    Raises:
        CheckFailed: the file is not accepted, cannot take an image, or needs more memory or time than a
            network of its size.
        MachineError: the runtime is not installed.
    """

    def __init__(self, path: Path, *, num_bytes: int, runtime: str = "onnxruntime"):
        """Start it.

        Args:
            num_bytes: of the file, and of those beside it that hold its weights.
            runtime: one of `session.SESSIONS`.
        """
        self.path, self.runtime = path, runtime
        self.memory_mb = MEMORY_MB + MEMORY_PER_BYTE * num_bytes // 2**20
        self.seconds = MOST_S + num_bytes // BYTES_IN_A_SECOND
        package = str(Path(__file__).parents[2])
        words = [sys.executable, "-P", "-c", PROGRAM, package, runtime, path, self.memory_mb, self.seconds]
        self._process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"MALLOC_ARENA_MAX": "1"},  # what an arena reserves would count
        )
        self._is_late = False
        self._timer = Timer(self.seconds, self._end_late)
        self._timer.daemon = True

    def __enter__(self) -> "OnnxProcess":
        self._timer.start()
        try:
            opened = self._next()
        except BaseException:
            self.__exit__()
            raise
        self.input_shape, self.answer_name = tuple(opened["input_shape"]), opened["answer_name"]
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()

    def answers(self, image_HWC: np.ndarray) -> np.ndarray:
        """Return the outputs of the network on an image: probabilities_K, number_1 or features_D."""
        try:
            self._process.stdin.write(json.dumps(image_HWC.shape).encode() + b"\n" + image_HWC.tobytes())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: its last message, or that there is none, tells why
        return np.array(self._next()["answers"], dtype=np.float64)

    def peak_memory_mb(self) -> float | None:
        """Return the largest memory of the process so far, with its libraries; None where nothing tells."""
        num_bytes = peak_memory_of(self._process.pid)
        return num_bytes and num_bytes / 1e6

    def _next(self) -> dict[str, Any]:
        """Return the next message of the process."""
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        message = json.loads(line)
        match message:
            case {"error": dict(error), "kind": str(kind)}:
                kinds = {each.__name__: each for each in VitError.__subclasses__()}
                raise kinds.get(kind, CheckFailed)(**error)
            case {"memory": True}:
                raise self._too_much(f"more than {self.memory_mb:,} MB of memory")
        return message

    def _ended(self) -> CheckFailed:
        code = self._process.wait()
        if self._is_late:
            return self._too_much(f"more than {self.seconds} s")
        return CheckFailed(
            f"{self.runtime} ended with {f'signal {-code}' if code < 0 else f'code {code}'} on it",
            where=str(self.path),
            fix="do not use it: export the checkpoint again",
        )

    def _too_much(self, what: str) -> CheckFailed:
        return CheckFailed(
            f"it takes {what}, which no network of its size does",
            where=str(self.path),
            fix="do not use it: an ONNX file is a program; export the checkpoint again",
        )

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()


def answer_within(memory_mb: int, seconds: int, *, path: str, runtime: str) -> None:
    """Run an ONNX file in this process on the images that come in, within limits.

    Each image comes as a line of its shape, in JSON, and its bytes. Each answer is a line of JSON; the first
    one says what the file takes and gives.
    """
    images, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    try:
        session = _open_within(memory_mb, seconds, Path(path), runtime)
        _send(answers, input_shape=session.input_shape, answer_name=session.answer_name)
        while line := images.readline():
            shape = json.loads(line)
            pixels = images.read(int(np.prod(shape)))
            image_HWC = np.frombuffer(pixels, dtype=np.uint8).reshape(shape)
            try:
                (answers_K,) = session.run(session.answer_name, image_HWC[None])
                if answers_K.size > MOST_OUTPUTS:
                    raise ValueError(f"it gives {answers_K.size:,} numbers")
                answers_K = answers_K.astype(np.float64).reshape(-1)
            except Exception as error:  # onnxruntime's exceptions have no common type
                raise CheckFailed(
                    f"it does not take the images of its golden file: {reason_of(error)}",
                    where=path,
                    fix="export it again",
                ) from error
            _send(answers, answers=answers_K.tolist())
    except Exception as error:
        causes = (error, error.__cause__)
        if any(is_out_of_memory(each) or "alloc" in str(each) for each in causes if each is not None):
            _send(answers, memory=True)
        elif isinstance(error, VitError):
            _send(answers, error=error.as_dict(), kind=type(error).__name__)
        else:
            raise


def _open_within(memory_mb: int, seconds: int, path: Path, runtime: str) -> OpenedFile:
    num_threads = min(cpu_count(), MOST_THREADS)
    load_runtime(runtime)  # before the limit, which is for what it does with the file
    try:
        import resource
    except ImportError:  # no limits outside Unix
        return SESSIONS[runtime](path, num_threads=num_threads)
    limits = {resource.RLIMIT_CPU: seconds * num_threads, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        more = (memory_mb + num_threads * MB_OF_A_THREAD) * 2**20
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + more
    for kind, most in limits.items():
        allowed = resource.getrlimit(kind)[1]  # by the user
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(kind, (most, most))
    return SESSIONS[runtime](path, num_threads=num_threads)


def _send(answers: BinaryIO, /, **what: Any) -> None:
    answers.write(json.dumps(what).encode() + b"\n")
    answers.flush()
