"""Runs the lab's groups on one or several GPUs: on each, a tracing process and a measuring one take turns.

A turn is a group of cases: it is predicted as soon as it was traced, and measured as soon as it was predicted, so that
an end at any time leaves whole cases. The measuring process never loads a profiler; the other one waits while it
measures.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from lab import add, lines

#: Seconds after which a group is given up, and what must be left for one to be begun: of a chain, of a model.
PATIENCE = 150
LEAST = (10, 45)
SCRIPT = Path(__file__).parent / "lab.py"


class Worker:
    """One process that is told group names and answers each; started again after it hung or died."""

    def __init__(self, phase: str, gpu: str, options: argparse.Namespace, out: Path) -> None:
        self.phase, self.out = phase, out
        self._command = [sys.executable, str(SCRIPT), "worker", str(out), "--phase", phase, "--set", options.set]
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": gpu}
        self._start()

    def _start(self) -> None:
        self._said: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._env, text=True
        )
        threading.Thread(target=self._listen, args=(self._process, self._said), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str], said: queue.Queue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"[{self.out.name}] {line}", end="", flush=True)
            said.put(line.strip())
        said.put(None)

    def do(self, name: str) -> None:
        """Have a group done; a group that takes too long or ends the process is written down as failed."""
        until = time.monotonic() + PATIENCE
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()
            while (said := self._said.get(timeout=max(until - time.monotonic(), 0.1))) != f"done {name}":
                if said is None:
                    raise RuntimeError(f"the process ended with {self._process.wait(timeout=10)}")
        except (queue.Empty, OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            add(self.out / f"{self.phase}0.jsonl", {"group": name, "failed": f"{type(error).__name__}: {error}"})
            self.end()
            self._start()

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def run(options: argparse.Namespace) -> int:
    """Do the groups that are not done yet, each GPU taking the next one; results lie in OUT/gpuN."""
    begin = time.monotonic()
    gpus = options.gpus.split(",")
    done = {row["group"] for k in range(len(gpus)) for row in lines(options.out / f"gpu{k}" / "measure0.jsonl")}
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    words = [word for word in options.only.split(",") if word]
    for name in names(options.set):
        if name not in done and (not words or any(word in name for word in words)):
            todo.put(name)
    until = begin + options.seconds
    threads = [threading.Thread(target=_turns, args=(k, gpu, todo, options, until)) for k, gpu in enumerate(gpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{todo.qsize()} groups were not begun; {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def _turns(place: int, gpu: str, todo: queue.SimpleQueue[str], options: argparse.Namespace, until: float) -> None:
    out = options.out / f"gpu{place}"
    out.mkdir(parents=True, exist_ok=True)
    workers = [Worker(phase, gpu, options, out) for phase in ("trace", "measure")]
    while True:
        try:
            name = todo.get_nowait()
        except queue.Empty:
            break
        if until - time.monotonic() < LEAST[".l" in name]:
            print(f"no time for {name}", flush=True)
            continue
        for worker in workers:
            worker.do(name)
    for worker in workers:
        worker.end()


def build(options: argparse.Namespace) -> int:
    """Compile what the groups need, in several processes at once."""
    gpus, count = options.gpus.split(","), options.processes
    command = [sys.executable, str(SCRIPT), "worker", str(options.out), "--phase", "build", "--set", options.set]
    started = []
    for k in range(count):
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]}
        mine = [*command, "--share", f"{k}/{count}", "--seconds", str(options.seconds - 10)]
        started.append(subprocess.Popen(mine, env=env))
    until = time.monotonic() + options.seconds
    for process in started:
        try:
            process.wait(timeout=max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return 0


def names(which: str) -> list[str]:
    """The names of the groups of a set, in order."""
    from lab_groups import groups

    return [name for name, _ in groups(which)]
