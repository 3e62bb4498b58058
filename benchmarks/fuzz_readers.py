"""Damages small inputs of every reader thousands of times, and counts what is read, refused and crashes.

    python benchmarks/fuzz_readers.py [--inputs 20000] [--only kineto,rpd] [--out benchmarks/results/fuzz_readers.json]

The inputs are those of tests/helpers/reader_seeds.py; each has a number and is the same in every run. A reading must
end within SECONDS and MEMORY: processes of their own have these limits, and one that dies, hangs or runs out of memory
is a crash of the input at which it was. What is done is written after every part, and another call goes on from there;
remove the file to begin again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Lock
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/helpers"))

#: Of one input: no seed is larger than a few 100 kB.
SECONDS, MEMORY = 20, 1 << 30
#: Inputs that one process reads, so that what it leaks shows in it alone.
PART = 1000
FIRST = {"inputs": 0, "readable": 0, "refused": 0, "crashed": 0, "slowest_s": 0.0, "slowest_cpu_s": 0.0, "peak_mb": 0.0}


class TooSlow(BaseException):
    """An input that took longer than SECONDS."""


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
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmHWM")


def part(reader: str, first: int, last: int) -> dict[str, Any]:
    """What a process of its own found; one that died has read all inputs before the one at which it died."""
    command = [sys.executable, __file__, "--child", reader, str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0:
        return dict(lines[-1])
    if not lines:
        sys.exit(done.stderr[-2000:])
    at = int(lines[-1]["at"])
    said = done.stderr.strip().splitlines()
    crash = {"input": at, "error": f"exit {done.returncode}: {said[0][:200] if said else ''}"}
    before = part(reader, first, at) if at > first else {**FIRST, "crashes": []}
    return {**before, "inputs": before["inputs"] + 1, "crashed": before["crashed"] + 1,
            "crashes": [*before["crashes"], crash]}  # fmt: skip


def added(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Counts of two parts together."""
    sums = {key: known[key] + new[key] for key in ("inputs", "readable", "refused", "crashed", "crashes")}
    return {**sums, **{key: round(max(known[key], new[key]), 3) for key in ("slowest_s", "slowest_cpu_s", "peak_mb")}}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    import reader_seeds

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each reader, those of earlier calls included")
    parser.add_argument("--only", default=",".join(reader_seeds.READERS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/fuzz_readers.json")
    args = parser.parse_args()
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"readers": {}}
    results["machine"] = {"python": platform.python_version(), "seconds": SECONDS, "memory_mb": MEMORY >> 20}
    lock = Lock()

    def go_on(reader: str) -> bool:
        """One part of a reader, kept as soon as it is known; False where nothing is left to do."""
        known = results["readers"].get(reader, {**FIRST, "crashes": []})
        first = int(known["inputs"])
        if first >= args.inputs:
            return False
        new = added(known, part(reader, first, min(first + PART, args.inputs)))
        with lock:
            results["readers"][reader] = new
            args.out.write_text(json.dumps(results, indent=1) + "\n")
            print(reader, {key: new[key] for key in FIRST}, file=sys.stderr, flush=True)
        return True

    left = args.only.split(",")
    with ThreadPoolExecutor(args.processes) as pool:
        # In turn, so that every reader has had as many when somebody ends this.
        while left:
            left = [reader for reader, more in zip(left, pool.map(go_on, left), strict=True) if more]


if __name__ == "__main__":
    main()
