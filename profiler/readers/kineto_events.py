"""Events of a Kineto trace: decoded many at a time, their times exact, packed into columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.profiler.readers.json_stream import JsonStream, lenient, nanoseconds

Ints = NDArray[np.int64]


# gc=False: these hold no cycles, and a garbage collector that walks a million of them takes as long as reading them.
class Args(msgspec.Struct, gc=False):
    device: Any = None
    stream: Any = None
    correlation: Any = None
    rank: Any = None
    graph: Any = msgspec.field(name="graph id", default=None)
    node: Any = msgspec.field(name="graph node id", default=None)


class Event(msgspec.Struct, gc=False):
    """`ts` and `dur` are microseconds as written; None where there is none."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: int | float | None = None
    dur: int | float | None = None
    pid: Any = None
    tid: Any = None
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """The same with decimals that no float64 has rounded."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: Decimal | None = None
    dur: Decimal | None = None
    pid: Any = None
    tid: Any = None
    args: Args | None = None


AnyEvent = Event | ExactEvent
NO_ARGS = Args()
_ARGS = ("device", "stream", "correlation", "rank", "graph id", "graph node id")
_quick = msgspec.json.Decoder(list[Event])
_exact = msgspec.json.Decoder(list[ExactEvent])
_one = msgspec.json.Decoder(ExactEvent)
#: Below 2**43 us a float64 is within half a nanosecond of what was written; beyond it is not.
_FLOAT_IS_EXACT = 2.0**43


def decode_many(block: bytes) -> Sequence[AnyEvent] | None:
    """The events of a list's inside; None where something in it needs repair, or the block is no whole number of them.

    A cut in the middle of a value leaves a bracket or a quote open, so what decodes was cut between two events.
    """
    text = b"[" + block + b"]"
    try:
        events = _quick.decode(text)
        if all(type(e.ts) is int or e.ts is None or e.ts < _FLOAT_IS_EXACT for e in events):
            return events
        return _exact.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decode(raw: bytes, stream: JsonStream) -> AnyEvent:
    """One event; what is not quite JSON is repaired, what is no event has no category."""
    try:
        return _one.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _repaired(raw, stream)


def _repaired(raw: bytes, stream: JsonStream) -> ExactEvent:
    value = lenient(raw, stream)
    if not isinstance(value, dict):
        return ExactEvent()
    args = value.get("args")
    known = Args(*(args.get(name) for name in _ARGS)) if isinstance(args, dict) else NO_ARGS
    phase, category, name = (text if isinstance(text := value.get(key), str) else "" for key in ("ph", "cat", "name"))
    start, duration = (_decimal(value.get(key)) for key in ("ts", "dur"))
    return ExactEvent(phase, category, name, start, duration, value.get("pid"), value.get("tid"), known)


def _decimal(value: Any) -> Decimal | None:
    try:
        number = Decimal(str(value))
    except ArithmeticError:
        return None
    return number if number.is_finite() else None


def times_ns(values: list[Any]) -> tuple[Ints, NDArray[np.bool_]]:
    """Microseconds as whole nanoseconds, and which of them are there."""
    try:
        floats = np.array(values, dtype=np.float64)
    except OverflowError:
        floats = np.array([np.inf])
    known = ~np.isnan(floats)
    if not (np.abs(floats[known]) < _FLOAT_IS_EXACT).all():
        exact = [None if v is None else nanoseconds(str(v), 1000) for v in values]
        return np.array([0 if v is None else v for v in exact], dtype=np.int64), np.array(
            [v is not None for v in exact]
        )
    floats[~known] = 0.0
    # Whole and part by themselves: their product with 1000 together would need more bits than a float64 has.
    whole = np.floor(floats)
    return whole.astype(np.int64) * 1000 + np.rint((floats - whole) * 1000).astype(np.int64), known


_DIGITS = re.compile(r"(\d+)\s*$")


def whole_number(value: Any) -> int:
    """An id as a number: "stream 7" and "[TP00] 83" count as 7 and 83; -1 where there is none."""
    if isinstance(value, bool) or value is None:
        return -1
    if isinstance(value, str) and (match := _DIGITS.search(value)):
        value = int(match.group(1)[:19])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else -1


def whole_numbers(values: list[Any]) -> Ints:
    """`whole_number` of each."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return np.full(len(values), -1, dtype=np.int64)
    if kinds == {int}:
        try:
            found = np.array(values, dtype=np.int64)
        except OverflowError:
            pass
        else:
            return found
    return np.array([whole_number(value) for value in values], dtype=np.int64)


class Columns:
    """Rows of int64 columns and one text column, packed: tens of millions fit in memory."""

    def __init__(self, *names: str) -> None:
        self._numbers: dict[str, list[Ints]] = {name: [] for name in names}
        self._texts: dict[str, int] = {}
        self._codes: list[NDArray[np.int32]] = []
        self._rows = 0

    def extend(self, texts: list[str], **columns: Ints) -> None:
        """Add rows; every column is given, in any order."""
        known = self._texts
        self._codes.append(np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int32))
        for name, values in self._numbers.items():
            values.append(columns[name])
        self._rows += len(texts)

    def __len__(self) -> int:
        return self._rows

    def frame(self) -> pd.DataFrame:
        """The rows as a table; `name` is a category."""
        data: dict[str, Any] = {}
        for name, parts in self._numbers.items():
            data[name] = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
            parts.clear()
        codes = np.concatenate(self._codes) if self._codes else np.empty(0, dtype=np.int32)
        data["name"] = pd.Categorical.from_codes(codes, categories=pd.Index(list(self._texts), dtype="object"))
        return pd.DataFrame(data)
