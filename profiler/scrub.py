"""A run without what is nobody's business: command lines, environment, host and user names, paths, process ids.

What stays is named, not what goes: the tables with their known columns, and the facts of the machine that a reader
needs to judge the numbers. Texts that stay (names of ranges, warnings, settings) lose paths, addresses and user names.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pandas as pd

from fusionscope.profiler.runinfo import Decline, RunInfo
from fusionscope.profiler.store import EXAMPLES
from fusionscope.profiler.trace import TABLES, Trace
from fusionscope.profiler.wording import counted

#: Facts of a machine that stay: what decides how fast a kernel is, and what wrote the trace.
KEPT = (
    "gpu",
    "gpus",
    "driver",
    "cuda",
    "hip",
    "python",
    "torch",
    "triton",
    "profiler",
    "nsys",
    "flashinfer-python",
    "amd-aiter",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_limit_w",
    "throttle_reasons",
)
_SECRET = re.compile(
    r"[a-z][a-z0-9+.-]*://\S+"  # URLs, with what is in them
    r"|[\w.+-]+@[\w-]+(\.[\w-]+)+"  # addresses of people
    r"|(?<![\w.])\d{1,3}(\.\d{1,3}){3}(?![\w.])"  # addresses of machines
    r"|\b[A-Za-z]:\\\S+"  # paths of Windows
    r"|(?<![\w.)\]])(~|\.{0,2})/[\w.@+~=-]+(/[\w.@+~=-]*)+"  # paths of more than one part
    r"|(?<![\w.)\]])~/\S+",
    re.IGNORECASE,
)
_USER = re.compile(r"(?:/home/|/Users/|\\Users\\)([\w.-]{2,})")
GONE = "<removed>"


@dataclass(frozen=True)
class Scrubbed:
    """A scrubbed run, and sentences about what was taken out of it."""

    info: RunInfo
    trace: Trace
    removed: list[str]


def scrubbed(info: RunInfo, trace: Trace) -> Scrubbed:
    """The run without private details. Numbers, kernels, sites, labels and provenance stay as they are."""
    clean = _Cleaner(_names(info, trace))
    removed = _removed(info, trace)
    machine = {key: clean(value) for key, value in info.machine.items() if _stays(key)}
    made = msgspec.structs.replace(
        info,
        id="",
        # The shipped runs' names are theirs alone.
        name=f"{info.name}-scrubbed" if info.name in EXAMPLES else clean(info.name),
        command=[],
        model=clean(info.model),
        machine=machine,
        environment={},
        inputs=[],
        settings={clean(key): clean(value) for key, value in info.settings.items()},
        declines=[_decline(decline, clean) for decline in info.declines],
        warnings=[clean(text) for text in info.warnings],
        tags=[clean(tag) for tag in info.tags],
    )
    tables = _tables(trace, clean)
    kept = {key: clean(value) for key, value in trace.machine.items() if _stays(key)}
    bare = replace(trace, **tables, machine=kept, warnings=tuple(clean(text) for text in trace.warnings))
    if clean.count:
        removed.append(f"paths, addresses and names in {counted(clean.count, 'text')}")
    return Scrubbed(made, bare, removed)


def _stays(fact: str) -> bool:
    return fact in KEPT or fact.endswith("_version")


class _Cleaner:
    """Takes paths, addresses and known names out of texts, and counts the texts that had some."""

    def __init__(self, names: set[str]) -> None:
        words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])") if words else None
        self.count = 0

    def __call__(self, text: str) -> str:
        found = _SECRET.sub(GONE, text)
        if self._names is not None:
            found = self._names.sub(GONE, found)
        self.count += found != text
        return found


def _names(info: RunInfo, trace: Trace) -> set[str]:
    """Names of users and hosts, as far as the run, or this machine, tells them."""
    texts = [*info.command, *info.environment.values(), *info.settings.values(), *info.machine.values()]
    texts += [*trace.machine.values(), *trace.warnings, *info.warnings]
    texts += [str(name) for name in trace.ranges["name"].cat.categories]
    names = {match[1] for text in texts for match in _USER.finditer(text)}
    for machine in (info.machine, trace.machine):
        names |= {value for key, value in machine.items() if key in ("host", "hostname", "user")}
    for ask in (getpass.getuser, socket.gethostname):
        try:
            names.add(ask())
        except (OSError, KeyError):  # no user entry, no host name
            continue
    # Words that are no secret and stand in names of kernels and ranges.
    return {name for name in names if len(name) > 2} - {"root", "user", "localhost", "runner", "ubuntu"}


def _removed(info: RunInfo, trace: Trace) -> list[str]:
    facts = sorted(key for key in {*info.machine, *trace.machine} if not _stays(key))
    told = [
        (bool(info.command), "the command line"),
        (bool(info.environment), counted(len(info.environment), "environment variable")),
        (bool(info.inputs), f"names and digests of {counted(len(info.inputs), 'file')}"),
        (bool(facts), f"facts of the machine ({', '.join(facts)})"),
        (bool(len(trace.kernels)), "process and thread ids"),
    ]
    return [text for there, text in told if there]


def _decline(decline: Decline, clean: Callable[[str], str]) -> Decline:
    return msgspec.structs.replace(decline, declined=clean(decline.declined))


def _tables(trace: Trace, clean: Callable[[str], str]) -> dict[str, Any]:
    numbers = {column: _numbered(trace, column) for column in ("process", "thread")}
    tables = {}
    for name in TABLES:
        frame = getattr(trace, name)
        for column, known in numbers.items():
            if column in frame:
                frame = frame.assign(**{column: frame[column].map(known).astype("int64")})
        for column in ("name", "raw_name", "declined", "arm"):
            if column in frame and frame[column].dtype == "category":
                frame = frame.assign(**{column: _cleaned(frame[column], clean)})
        tables[name] = frame
    return tables


def _cleaned(column: pd.Series, clean: Callable[[str], str]) -> pd.Series:
    """Each distinct text once; texts that become one are one category."""
    new = {text: clean(str(text)) for text in column.cat.categories}
    if all(text == cleaned for text, cleaned in new.items()):
        return column
    return column.astype("object").map(new).astype("category")


def _numbered(trace: Trace, column: str) -> dict[int, int]:
    """Ids of processes and threads as 1, 2, 3, …, the same in every table; -1 stays."""
    seen = {int(v) for name in TABLES if column in getattr(trace, name) for v in getattr(trace, name)[column].unique()}
    return {-1: -1} | {value: number for number, value in enumerate(sorted(seen - {-1}), 1)}
