"""A system without POSIX, as far as vit can see: `os`, `signal` and `sys` are those of Windows.

Libraries see the system that there is. What no module of Python can stand in for stays: open files can be
deleted, a path has one kind of slash, and the lock of a file is this system's.

    python -m tests.windows < COMMANDS.json     runs command lines, a list of lists of words, in one process
"""

import builtins
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

MODULES = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "_posixshmem"}
ABSENT = {
    "os": """chown chroot confstr copy_file_range ctermid fchdir fchmod fchown fdatasync fork forkpty
        fstatvfs getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getsid
        getuid getxattr killpg lchown listxattr lockf major makedev memfd_create minor mkfifo
        mknod nice O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC
        O_TMPFILE openpty pipe2 posix_fadvise posix_fallocate posix_spawn pread preadv pwrite
        pwritev register_at_fork removexattr sched_getaffinity sched_setaffinity sched_yield
        sendfile setgid setpgid setpriority setsid setuid setxattr splice statvfs sync sysconf
        tcgetpgrp ttyname uname wait wait3 wait4 WIFEXITED WIFSIGNALED WNOHANG WTERMSIG""",
    "signal": """alarm getitimer ITIMER_REAL pause pthread_kill pthread_sigmask setitimer SIG_BLOCK SIGALRM
        SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGPROF SIGQUIT siginterrupt sigpending
        SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 sigwait SIGXCPU SIGXFSZ""",
    "sys": "abiflags getdlopenflags setdlopenflags",
}  # fmt: skip
OTHERS = {"os": {"name": "nt"}, "signal": {}, "sys": {"platform": "win32"}}


class _OfWindows(ModuleType):
    """A module without the names that it has not on Windows; what is set in it is set in the real one."""

    def __init__(self, real: ModuleType):
        absent = frozenset(ABSENT[real.__name__].split())
        self.__dict__.update(_real=real, _absent=absent, **OTHERS[real.__name__])

    def __getattr__(self, name: str) -> Any:
        if name in self._absent:
            raise AttributeError(f"module {self._real.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


def pretend() -> None:
    """Give the modules of vit that are imported from now on the system of Windows; on Windows, do nothing."""
    if os.name == "nt":
        return
    system = {module.__name__: _OfWindows(module) for module in (os, signal, sys)}
    real_import = builtins.__import__

    def import_of_windows(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if not level and str((globals or {}).get("__name__")).partition(".")[0] == "vitcli":
            if name in MODULES:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in system:
                return system[name]
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = import_of_windows


def run(commands: list[list[str]]) -> list[int]:
    """Run command lines of vit in this process; return their exit codes."""
    from vitcli.cli import app

    codes = []
    for words in commands:
        print("$ vit", *words, file=sys.stderr, flush=True)
        try:
            app.main(words)
        except SystemExit as end:
            codes.append(end.code or 0)
    return codes


if __name__ == "__main__":
    pretend()
    print(json.dumps(run(json.load(sys.stdin))))
