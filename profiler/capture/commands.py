"""Two commands measured in turn: each prints its times, one number a line. Works anywhere."""

from __future__ import annotations

import random
import shlex
import subprocess
from collections.abc import Callable, Sequence

import pandas as pd

from fusionscope.profiler import runinfo
from fusionscope.profiler.capture import machine
from fusionscope.profiler.capture.arms import EARLY, SETTING
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.measure import AGAIN, BASE, CANDIDATE
from fusionscope.profiler.progress import Progress, quiet
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run, Store, check_name
from fusionscope.profiler.trace import Trace, table

UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def split_commands(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The two commands of `A… -- B…`. Raises FusionScopeError where there are not two."""
    words = list(words)
    if words.count("--") != 1:
        raise FusionScopeError("Two commands go after `ab --`, with `--` between them: fusionscope ab -- ./a -- ./b.")
    at = words.index("--")
    first, second = words[:at], words[at + 1 :]
    if not first or not second:
        raise FusionScopeError("One of the two commands is empty: fusionscope ab -- ./a -- ./b.")
    return first, second


def run_command(command: Sequence[str], unit: str = "us") -> list[int]:
    """Run a command to its end -> the times that it printed, ns. Its stderr goes to ours.

    Raises FusionScopeError where it cannot be run, fails, prints no number, or prints a line that is none.
    """
    said = shlex.join(command)
    try:
        done = subprocess.run(list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise FusionScopeError(f"{said} cannot be run ({error.strerror}): check the command.") from error
    if done.returncode:
        raise FusionScopeError(f"{said} ended with code {done.returncode}: it must print times and end with 0.")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    times = [_ns(line, unit, said) for line in lines]
    if not times:
        raise FusionScopeError(f"{said} printed nothing: it must print one number a line, a time in {unit}.")
    return times


def _ns(line: str, unit: str, said: str) -> int:
    try:
        value = float(line) * UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 < value < 1e18:
        raise FusionScopeError(f"{said} printed {line[:60]!r}: it must print one number a line, a time in {unit}.")
    return round(value)


def run_blocks(
    base: Sequence[str],
    candidate: Sequence[str],
    blocks: int,
    unit: str = "us",
    seed: int = 0,
    progress: Progress = quiet,
    run: Callable[[Sequence[str], str], list[int]] = run_command,
) -> tuple[pd.DataFrame, str]:
    """TIMINGS of whole blocks, and why there are no more ("" where all were made); every turn is a process of its own.

    A block runs base, candidate and base again in random order, then in that order reversed. Ctrl-C, and a command that
    fails, end with the blocks that are whole. Raises FusionScopeError for an unknown unit, and as `run_command` where
    no block is whole.
    """
    if unit not in UNITS:
        raise FusionScopeError(f"--unit takes one of {', '.join(UNITS)}, not {unit!r}.")
    commands = {BASE: base, CANDIDATE: candidate, AGAIN: base}
    chooser = random.Random(seed)
    rows: list[tuple[int, str, int]] = []
    ended = ""
    turns = 2 * len(commands)
    try:
        for block in range(blocks):
            order = list(commands)
            chooser.shuffle(order)
            taken: list[tuple[int, str, int]] = []
            for turn, arm in enumerate([*order, *reversed(order)]):
                progress(block * turns + turn, blocks * turns, f"block {block + 1}: {arm}")
                taken += [(block, arm, ns) for ns in run(commands[arm], unit)]
            rows += taken
    except KeyboardInterrupt:
        ended = EARLY
    except FusionScopeError as error:
        if not rows:
            raise
        ended = f"{error} The blocks before it are kept."
    data = pd.DataFrame(rows, columns=["block", "arm", "duration_ns"])
    made = table("timings", data.assign(rank=0, process=0, source="untraced")) if rows else table("timings")
    return made, ended


def run_and_store(
    base: Sequence[str],
    candidate: Sequence[str],
    blocks: int,
    unit: str,
    store: Store,
    name: str = "",
    progress: Progress = quiet,
    command: Sequence[str] = (),
) -> Run:
    """Measure two commands and store the run; see `run_blocks`.

    Raises FusionScopeError where no block was finished.
    """
    check_name(name)
    timings, ended = run_blocks(base, candidate, blocks, unit, progress=progress)
    if not len(timings):
        raise FusionScopeError("No block was finished, so nothing was measured: give it more time.")
    info = RunInfo(
        name=name,
        command=list(command),
        profiler="none",
        tracing_mode="none",
        machine=machine.describe("cpu"),
        environment=runinfo.recorded_environment(),
        settings={SETTING: "commands", "base": shlex.join(base), "candidate": shlex.join(candidate), "unit": unit},
        warnings=[ended] if ended else [],
    )
    return store.save(info, Trace(timings=timings))
