"""Chrome JSON of rocprof v1. Its `ts` and `dur` are whole microseconds, so only the ns among the arguments count."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import packed
from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble
from fusionscope.profiler.readers.json_stream import JsonStream, decoded, lenient, nanoseconds
from fusionscope.profiler.readers.rocprof_csv import ADVICE
from fusionscope.profiler.readers.rows import Numbers, Texts
from fusionscope.profiler.trace import Trace

#: The first event is an empty object: the writer begins every other with a comma.
_HEAD = re.compile(rb'[\s\xef\xbb\xbf]*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}')
_TIMES = ("start_ns", "end_ns")
_Plain = int | str | bool | None
#: Takes no decimal, which a float would round.
_DECODER = msgspec.json.Decoder(list[dict[str, _Plain | dict[str, _Plain]]])


def is_rocprof(head: bytes) -> bool:
    """Whether the first bytes are those of rocprof v1's JSON."""
    return _HEAD.match(head) is not None


def read(path: str | Path) -> Trace:
    """The tables of one results.json. Raises UnreadableTrace with the byte at which it breaks."""
    path = Path(path)
    reading = _Reading()
    try:
        with packed.opened(path) as file:
            stream = JsonStream(file, str(path))
            for key in stream.fields():
                if key == "traceEvents" and stream.peek() == b"[":
                    for events in stream.batches(partial(decoded, _DECODER), lenient):
                        for event in events:
                            reading.add(event)
                else:
                    stream.value()
            stream.end()
    except packed.DAMAGE as error:
        raise packed.damaged(path, packed.head(path)[0], error) from error
    return assemble(reading.found(path))


class _Reading:
    """Events sorted by the section (a "process" of the viewer) in which they stand."""

    def __init__(self) -> None:
        self._sections: dict[int, str] = {}
        self._rows = Numbers("section", "process", "thread", "queue", "device", "text", *_TIMES, "correlation")
        self._texts = Texts()
        self._skipped = 0

    def add(self, event: Any) -> None:
        if not isinstance(event, dict):
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        section = _whole(event.get("pid"))
        if event.get("ph") == "M" and event.get("name") == "process_name":
            self._sections[section] = str(args.get("name", ""))
        elif event.get("ph") == "X":
            start, end = (nanoseconds(str(args.get(key, "")), 1) for key in ("BeginNs", "EndNs"))
            if start is None or end is None:
                self._skipped += 1
                return
            name = self._texts.code(str(args.get("Name") or event.get("name") or ""))
            ids = [_whole(args.get(key)) for key in ("pid", "tid", "queue-id", "dev-id")]
            self._rows.add(section, *ids, name, start, end, _whole(args.get("Index")))

    def found(self, path: Path) -> Found:
        rows = self._rows.frame()
        rows["name"] = self._texts.column(rows["text"])
        named = rows["section"].map(self._sections).astype("object").fillna("")
        gpu, copies = named.str.match(r"GPU\s*\d*"), named.str.contains("copy", case=False)
        number = {section: _digits(text) for section, text in self._sections.items()}
        rows["device"] = rows["device"].where(
            rows["device"] >= 0, rows["section"].map(number).fillna(-1).astype("int64")
        )
        device = rows.assign(stream=rows["queue"], kind="kernel")
        device["kind"] = device["kind"].where(~copies, "memcpy")
        calls, marks = named.str.contains("HIP API"), named.str.contains("Marker")
        found = Found(path, device.loc[gpu | copies, list(DEVICE)], machine={"profiler": "rocprof"}, advice=ADVICE)
        if not len(found.device):
            seen = ", ".join(sorted(set(self._sections.values()))[:6]) or "none"
            raise UnreadableTrace(f"{path} is a trace of rocprof without GPU work (its sections: {seen}): {ADVICE}.")
        found.calls, found.ranges = rows.loc[calls, list(CALLS)], rows.loc[marks, list(RANGES)]
        if self._skipped:
            found.warnings.append(f"{self._skipped} events have no BeginNs and EndNs and were left out.")
        return found


def _whole(value: Any) -> int:
    text = str(value).strip()
    return int(text[:18]) if text.isdecimal() else -1


def _digits(text: str) -> int:
    match = re.search(r"\d+", text)
    return int(match[0][:18]) if match else -1
