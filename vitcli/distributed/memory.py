"""The largest memory of this process and its GPU since a moment."""

import sys
from contextlib import suppress
from pathlib import Path

import torch

from vitcli.distributed.runtime import peak_memory_gib


def reset_peaks() -> None:
    """Forget the largest memory so far; that of the process where the system allows it (Linux)."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peaks() -> dict[str, float | None]:
    """Return the largest memory since the last reset, in GiB: of this process, and of its GPU."""
    has_gpu = torch.cuda.is_available()
    return {
        "host_peak_memory_gib": _host_peak_gib(),
        "device_peak_memory_gib": peak_memory_gib() if has_gpu else None,
    }


def _host_peak_gib() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        kib = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
        return int(kib) / 2**20
    except (OSError, StopIteration):  # macOS: since the process began
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**30 if sys.platform == "darwin" else 2**20)
