"""Damages small inputs of every reader thousands of times, and counts what is read, refused and crashes.

    python benchmarks/fuzz_readers.py [--inputs 20000] [--only kineto,rpd] [--processes 2] [--seconds 600]
        [--out benchmarks/results/fuzz_readers.json] [--keep FOLDER]

The inputs are those of tests/helpers/reader_seeds.py; each has a number and is the same in every run with the same
libraries (those of SQLite and Parquet hold their writer's version). A reading must end within SECONDS and MEMORY:
processes of their own have these limits, and one that dies, hangs or runs out of memory is a crash of the input at
which it was. What is done is written after every part, and another call goes on from there; remove the file to begin
again. With --keep, files that crashed a reader are left in FOLDER, as READER-NUMBER-NAME.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from random import Random
from threading import Lock
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/helpers"))

#: Of one input: no seed is larger than a few 100 kB.
SECONDS, MEMORY = 20, 1 << 30
#: Inputs that one process reads, so that what it leaks shows in it alone; it takes a second to start.
PART = 200
#: One mistake can crash most inputs: so many are written down of a reader, and their files kept.
TOLD = 20
FIRST = {"inputs": 0, "readable": 0, "refused": 0, "crashed": 0, "slowest_s": 0.0, "slowest_cpu_s": 0.0, "peak_mb": 0.0}


class TooSlow(BaseException):
    """An input that took longer than SECONDS."""


class CannotBegin(Exception):
    """Not even the undamaged inputs of a reader can be read here."""


def child(reader: str, first: int, last: int) -> None:
    """Read inputs first to last (excluded) and print a line for each that is new: slowest, largest, crashed; a sum."""
    import reader_seeds

    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, _too_slow)
    found: dict[str, Any] = {**FIRST, "crashes": []}
    with tempfile.TemporaryDirectory(prefix="fusionscope-fuzz-") as name:
        folder = Path(name)
        for seed in reader_seeds.seeds(reader):
            reader_seeds.read(reader, seed, folder)
        before = _address_space()
        resource.setrlimit(resource.RLIMIT_AS, (before + MEMORY, before + MEMORY))
        for number in range(first, last):
            seed = reader_seeds.damaged(reader, Random(f"{reader} {number}"))
            # A loop in C hears no signal: this ends the process from a thread of its own.
            faulthandler.dump_traceback_later(3 * SECONDS, exit=True)
            print(json.dumps({"at": number}), flush=True)
            resting = _peak(reset=True)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            began, worked = time.perf_counter(), time.process_time()
            outcome, why = _outcome(reader_seeds, reader, seed, folder)
            found["slowest_s"] = max(found["slowest_s"], time.perf_counter() - began)
            # On a machine that others use as well, only this is the reader's own.
            found["slowest_cpu_s"] = max(found["slowest_cpu_s"], time.process_time() - worked)
            signal.setitimer(signal.ITIMER_REAL, 0)
            found["peak_mb"] = max(found["peak_mb"], (_peak() - resting) / 1e6)
            found["inputs"] += 1
            found[outcome] += 1
            found["crashes"] += [{"input": number, "error": why}] if why else []
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(found), flush=True)


def _outcome(seeds: Any, reader: str, seed: Any, folder: Path) -> tuple[str, str]:
    from fusionscope.profiler.errors import FusionScopeError

    try:
        seeds.read(reader, seed, folder)
    except FusionScopeError as error:
        whole = len(str(error)) > 20 and "\n" not in str(error)
        return ("refused", "") if whole else ("crashed", f"a message of several lines: {str(error)[:200]}")
    except (Exception, TooSlow) as error:
        return "crashed", f"{type(error).__name__}: {str(error)[:200]}"
    return "readable", ""


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _status(field: str) -> int:
    """Bytes that the kernel tells of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def _address_space() -> int:
    return _status("VmSize")


def _peak(reset: bool = False) -> int:
    """Most resident bytes since the last reset."""
    if reset:
        # Some sandboxes have no such file: the growth of the whole process is told then.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    return _status("VmHWM")


def part(reader: str, first: int, last: int) -> dict[str, Any]:
    """What processes of its own found; one that died has read all inputs before that at which it died, and another
    goes on behind it. Raises CannotBegin."""
    found: dict[str, Any] = {**FIRST, "crashes": []}
    while first < last:
        command = [sys.executable, __file__, "--child", reader, str(first), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode == 0:
            return added(found, lines[-1])
        if not lines:
            raise CannotBegin(done.stderr[-2000:])
        at = int(lines[-1]["at"])
        said = done.stderr.strip().splitlines()
        crash = {"input": at, "error": f"exit {done.returncode}: {said[-1][:200] if said else ''}"}
        if at > first:
            found = added(found, part(reader, first, at))
        found = added(found, {**FIRST, "inputs": 1, "crashed": 1, "crashes": [crash]})
        first = at + 1
    return found


def added(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Counts of two parts together."""
    sums = {key: known[key] + new[key] for key in ("inputs", "readable", "refused", "crashed")}
    crashes = (known["crashes"] + new["crashes"])[:TOLD]
    worst = {key: round(max(known[key], new[key]), 3) for key in ("slowest_s", "slowest_cpu_s", "peak_mb")}
    return {**sums, "crashes": crashes, **worst}


def keep(reader: str, crashes: list[dict[str, Any]], folder: Path) -> None:
    """Write the files of inputs that crashed a reader."""
    import reader_seeds

    folder.mkdir(parents=True, exist_ok=True)
    for number in [crash["input"] for crash in crashes[:TOLD]]:
        for name, content in reader_seeds.damaged(reader, Random(f"{reader} {number}")).files.items():
            (folder / f"{reader}-{number}-{name.replace('/', '-')}").write_bytes(content)


class Campaign:
    """Parts that are handed out to several threads, and what they found, written as far as no part is missing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.until = time.monotonic() + args.seconds
        self.lock = Lock()
        self.results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"readers": {}}
        _note_machine(self.results)
        self.known = {r: self.results["readers"].get(r, {**FIRST, "crashes": []}) for r in args.only.split(",")}
        self.handed = {reader: int(known["inputs"]) for reader, known in self.known.items()}
        self.early: dict[str, dict[int, dict[str, Any]]] = {reader: {} for reader in self.known}

    def work(self, _: int) -> None:
        """Read parts until none is left or the time is over."""
        while job := self._next():
            reader, first, last = job
            try:
                found = part(reader, first, last)
            except CannotBegin as error:
                print(f"{reader} is left out: {error}", file=sys.stderr, flush=True)
                self.handed[reader] = self.args.inputs
            else:
                self._note(reader, first, found)

    def _next(self) -> tuple[str, int, int] | None:
        """Of the reader that has had the fewest, so that all have had as many when somebody ends this."""
        with self.lock:
            reader = min(self.handed, key=self.handed.__getitem__)
            first = self.handed[reader]
            if first >= self.args.inputs or time.monotonic() > self.until:
                return None
            self.handed[reader] = min(first + self.args.part, self.args.inputs)
            return reader, first, self.handed[reader]

    def _note(self, reader: str, first: int, new: dict[str, Any]) -> None:
        with self.lock:
            if self.args.keep and new["crashes"]:
                keep(reader, new["crashes"], self.args.keep)
            self.early[reader][first] = new
            while part := self.early[reader].pop(self.known[reader]["inputs"], None):
                self.known[reader] = added(self.known[reader], part)
            self.results["readers"][reader] = self.known[reader]
            # Another name first: who is ended here leaves the file of before.
            written = self.args.out.with_suffix(".part")
            written.write_text(json.dumps(self.results, indent=1) + "\n")
            written.replace(self.args.out)
            print(reader, {key: self.known[reader][key] for key in FIRST}, file=sys.stderr, flush=True)


def _note_machine(results: dict[str, Any]) -> None:
    machine = {"python": platform.python_version(), "pandas": version("pandas"), "pyarrow": version("pyarrow"),
               "cpu_cores": os.cpu_count(), "seconds": SECONDS, "memory_mb": MEMORY >> 20}  # fmt: skip
    machines = results.setdefault("machines", [])
    if machine not in machines:
        machines.append(machine)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    import reader_seeds

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each reader, those of earlier calls included")
    parser.add_argument("--only", default=",".join(reader_seeds.READERS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part", type=int, default=PART, help="inputs that one process reads")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no part after so many")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/fuzz_readers.json")
    parser.add_argument("--keep", type=Path, help="folder for the files of inputs that crash a reader")
    campaign = Campaign(parser.parse_args())
    with ThreadPoolExecutor(campaign.args.processes) as pool:
        list(pool.map(campaign.work, range(campaign.args.processes)))


if __name__ == "__main__":
    main()
