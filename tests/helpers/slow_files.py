"""Functions that other processes run over files."""

from __future__ import annotations

import os
import signal
import time


def size(path: str) -> int:
    """The file's size, slowly; <path>.begun tells which process is at it."""
    with open(f"{path}.begun", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(0.3)
    return os.path.getsize(path)


def killed(path: str) -> int:
    """Ends its process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0
