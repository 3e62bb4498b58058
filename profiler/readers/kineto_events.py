"""One event of a Kineto trace: decoded with its decimals as they are written, and packed into columns."""

from __future__ import annotations

import re
from array import array
from typing import Any

import msgspec
import pandas as pd

from fusionscope.profiler.readers.json_stream import JsonStream, lenient, nanoseconds


class Args(msgspec.Struct):
    device: Any = None
    stream: Any = None
    correlation: Any = None
    rank: Any = None
    graph: Any = msgspec.field(name="graph id", default=None)
    node: Any = msgspec.field(name="graph node id", default=None)


class Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    # Raw keeps the decimals as they are written.
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    pid: Any = None
    tid: Any = None
    args: Args | None = None


_decoder = msgspec.json.Decoder(Event)
NO_ARGS = Args()


def decode(raw: bytes, stream: JsonStream) -> Event:
    """One event; what is not quite JSON is repaired, what is no event has no category."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _repaired(raw, stream)


def _repaired(raw: bytes, stream: JsonStream) -> Event:
    value = lenient(raw, stream)
    if not isinstance(value, dict):
        return Event()
    args = value.get("args")
    if isinstance(args, dict):
        names = ("device", "stream", "correlation", "rank", "graph id", "graph node id")
        known = Args(*(args.get(name) for name in names))
    else:
        known = NO_ARGS
    phase, category, name = (text if isinstance(text := value.get(key), str) else "" for key in ("ph", "cat", "name"))
    start, duration = (msgspec.Raw(str(value[key]).encode() if key in value else b"") for key in ("ts", "dur"))
    return Event(phase, category, name, start, duration, value.get("pid"), value.get("tid"), known)


def microseconds(raw: msgspec.Raw) -> int | None:
    """Microseconds as written to whole nanoseconds."""
    text = bytes(raw).strip(b'"').decode("ascii", errors="replace")
    return nanoseconds(text, 1000) if text else None


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


class Columns:
    """Rows of int64 columns and one text column, packed: tens of millions fit in memory."""

    def __init__(self, *names: str) -> None:
        self.numbers = {name: array("q") for name in names}
        self._columns = tuple(self.numbers.values())
        self._texts: dict[str, int] = {}
        self._codes = array("q")

    def add(self, text: str, *values: int) -> None:
        self._codes.append(self._texts.setdefault(text, len(self._texts)))
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self._codes)

    def frame(self) -> pd.DataFrame:
        data: dict[str, Any] = {name: pd.Series(column, dtype="int64") for name, column in self.numbers.items()}
        data["name"] = pd.Categorical.from_codes(
            list(self._codes), categories=pd.Index(list(self._texts), dtype="object")
        )
        return pd.DataFrame(data)
