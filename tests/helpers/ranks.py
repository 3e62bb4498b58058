"""Runs a piece of Python on several real gloo ranks, one process each."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap

PRELUDE = """
import os
import sys
import torch
import torch.distributed as dist
torch.set_num_threads(1)
rank, size = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", rank=rank, world_size=size)
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
group = ProcessGroup()
"""

# Gloo's threads can outlive the interpreter, whose end then aborts: leave without it.
CODA = """
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""


def run_ranks(size: int, code: str, timeout: int = 300) -> list[str]:
    """What every rank printed. `code` sees `torch`, `dist`, `rank`, `size` and `group`; a rank that fails or hangs
    fails the test with every rank's errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    whole = PRELUDE + textwrap.dedent(code) + CODA
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", whole, str(rank), str(size), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        answers = [rank.communicate(timeout=timeout) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    errors = "\n".join(f"rank {number}: {error}" for number, (_, error) in enumerate(answers))
    assert [rank.returncode for rank in ranks] == [0] * size, errors
    return [answer for answer, _ in answers]
