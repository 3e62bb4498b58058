"""Start the worker processes of one phase, follow them, and leave none behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fusionscope.profiler.capture import messages
from fusionscope.profiler.capture.plan import CaptureError, CapturePlan
from fusionscope.profiler.progress import Progress

WORKER = "fusionscope.profiler.capture.worker"
#: Marks the processes of one capture, so that whatever they started in their turn is found as well.
TOKEN = "FUSIONSCOPE_CAPTURE_TOKEN"
_GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1
#: How torch.distributed.run tells of a rank that a signal ended.
_KILLED = re.compile(r"Signal \d+ \((SIG\w+)\) received by PID")


def worker_command(
    plan: CapturePlan, plan_file: Path, phase: str, out: Path, prefix: Sequence[str] = (), module: str = WORKER
) -> list[str]:
    """The command line of a phase. `prefix` goes before each rank's own command (a profiler that starts it)."""
    worker = ["-m", module, "--plan", str(plan_file), "--phase", phase, "--out", str(out)]
    if plan.processes == 1:
        return [*prefix, sys.executable, *worker]
    # The ranks meet on this machine, whatever its host name resolves to: a machine without DNS would wait for it.
    meet = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={plan.processes}"]
    # Unasked, the launcher makes a folder for the ranks' output in the system's temporary one, and leaves it there.
    meet.append(f"--log-dir={out / 'launcher'}")
    launcher = [sys.executable, "-m", "torch.distributed.run", *meet]
    if prefix:
        return [*launcher, "--no-python", *prefix, sys.executable, *worker]
    return [*launcher, *worker]


def run_phase(command: Sequence[str], out: Path, log: Path, progress: Progress, env: dict[str, str]) -> None:
    """Run one phase to its end.

    Raises CaptureError with the sentence of the rank that failed first, or with the last line of its output and
    the log's path. Whatever happens (Ctrl-C too), every process of the phase has ended when this returns.
    """
    token = secrets.token_hex(16)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as record:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **env, TOKEN: token},
            start_new_session=True,
            preexec_fn=terminate_with_parent,
        )
        lines: list[str] = []
        try:
            assert child.stdout is not None
            for line in child.stdout:
                record.write(line)
                step = messages.parse(line)
                if step is not None:
                    progress(*step)
                elif line.strip():
                    lines = [*lines[-200:], line.strip()]
            code = child.wait()
        finally:
            end(child, token)
    # A profiler between us and the rank may hide the rank's exit code.
    if code or messages.read_failures(out):
        raise CaptureError(_sentence(out, lines, code, log))


def _sentence(out: Path, lines: Sequence[str], code: int, log: Path) -> str:
    failures = messages.read_failures(out)
    if own := [failure for failure in failures if failure.expected]:
        return own[0].message
    where = f"The whole output is in {log}."
    signals = [match[1] for line in lines if (match := _KILLED.search(line))]
    if signals or code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        # The launcher itself ends the other ranks with SIGTERM.
        name = next((name for name in signals if name != "SIGTERM"), signals[0] if signals else "SIGKILL")
        return f"A rank of the capture was ended by {name} from outside, by hand or for want of memory. {where}"
    if failures:
        return f"{failures[0].message} {where}"
    said = lines[-1] if lines else "it said nothing"
    return f"The capture stopped with code {code}; its last line was: {said} {where}"


# Looked up here, since the child of a fork should do as little as it can.
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def end_with_parent(number: int) -> None:
    """Ask Linux to send this process a signal when its parent dies, however it dies; elsewhere nothing happens."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, number)


def terminate_with_parent() -> None:
    """To be run in a child between fork and exec: SIGTERM when its parent dies."""
    end_with_parent(signal.SIGTERM)


def end(child: subprocess.Popen[str], token: str) -> None:
    """Terminate what is left of a phase, first kindly; ranks live in sessions of their own."""
    left = _alive(child, token)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_S
        while (left := _alive(child, token)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not left:
            break
    if child.stdout is not None:
        child.stdout.close()


def _alive(child: subprocess.Popen[str], token: str) -> list[int]:
    own = [child.pid] if child.poll() is None else []
    return list(dict.fromkeys([*own, *_marked(token)]))


def _marked(token: str) -> Iterator[int]:
    """Running processes that carry the token in their environment (Linux; elsewhere none is found)."""
    mark = f"{TOKEN}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:
            continue
