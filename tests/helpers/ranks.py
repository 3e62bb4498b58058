"""Runs a piece of Python on several real gloo ranks, one process each."""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
import textwrap
import time
import traceback
from contextlib import redirect_stdout
from multiprocessing.connection import Connection

#: Ranks are forked off one server, so that torch is imported once and not by every rank of every test.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch.distributed", "torch._dynamo", "fusionscope.fusion_runtime.decode.model"])


def run_ranks(size: int, code: str, timeout: float = 300) -> list[str]:
    """What every rank printed. `code` sees `torch`, `dist`, `rank`, `size` and `group`; a rank that fails or hangs
    fails the test with every rank's errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    deadline, ranks = time.monotonic() + timeout, []
    for rank in range(size):
        mine, theirs = _SERVER.Pipe(duplex=False)
        process = _SERVER.Process(target=_rank, args=(rank, size, port, textwrap.dedent(code), theirs), daemon=True)
        process.start()
        theirs.close()
        ranks.append((process, mine))
    try:
        answers = [_answer(mine, deadline) for _, mine in ranks]
    finally:
        for process, mine in ranks:
            process.kill()
            process.join()
            mine.close()
    errors = "\n".join(f"rank {number}: {error}" for number, (_, error) in enumerate(answers) if error)
    assert not errors, errors
    return [said for said, _ in answers]


def _answer(mine: Connection, deadline: float) -> tuple[str, str]:
    """(what a rank printed, what went wrong there)."""
    try:
        if not mine.poll(max(0.0, deadline - time.monotonic())):
            return "", "it did not come to an end"
        said, error = mine.recv()
        return str(said), str(error)
    except EOFError:
        return "", "it ended without a word"


def _rank(rank: int, size: int, port: int, code: str, answer: Connection) -> None:
    import torch
    import torch.distributed as dist

    said, error = io.StringIO(), ""
    try:
        with redirect_stdout(said):
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
            from fusionscope.fusion_runtime.comm.process_group import ProcessGroup

            known = {"torch": torch, "dist": dist, "rank": rank, "size": size, "group": ProcessGroup()}
            exec(compile(code, "<rank>", "exec"), known)
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        error = traceback.format_exc()
    answer.send((said.getvalue(), error))
    answer.close()
    # Gloo's threads can outlive the interpreter, whose end then aborts: leave without it.
    os._exit(0)
