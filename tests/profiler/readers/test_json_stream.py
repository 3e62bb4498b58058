"""The streaming reader: exact decimals, any chunking, bounded memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from fractions import Fraction
from typing import BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import json_stream
from fusionscope.profiler.readers.json_stream import JsonStream, lenient, nanoseconds


@given(ns=st.integers(0, 4 * 10**18))
def test_microseconds_as_written_give_the_same_nanoseconds(ns: int) -> None:
    assert nanoseconds(f"{ns // 1000}.{ns % 1000:03d}", 1000) == ns
    trimmed = f"{ns // 1000}.{ns % 1000:03d}".rstrip("0").rstrip(".")
    assert nanoseconds(trimmed, 1000) == ns


@given(
    whole=st.integers(-(10**12), 10**12),
    digits=st.integers(0, 10**7 - 1),
    exponent=st.integers(-3, 3),
    unit=st.sampled_from([1, 1000, 10**6, 10**9]),
)
def test_any_decimal_is_rounded_once(whole: int, digits: int, exponent: int, unit: int) -> None:
    text = f"{whole}.{digits:07d}e{exponent}"
    exact = (abs(whole) + Fraction(digits, 10**7)) * Fraction(10) ** exponent * unit * (-1 if whole < 0 else 1)
    found = nanoseconds(text, unit)
    assert found == (round(exact) if abs(exact) < 2**62 else None)


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-inf", "1e999999", "9" * 40, "1.2.3", "0x1", "1_0e"])
def test_what_is_no_time(text: str) -> None:
    assert nanoseconds(text, 1000) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(events=st.lists(json_values, max_size=6), ascii_only=st.booleans(), chunk=st.integers(1, 40))
def test_the_same_values_whatever_the_chunks(events: list[object], ascii_only: bool, chunk: int) -> None:
    text = json.dumps(events, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    stream = JsonStream(io.BytesIO(text), "t")
    stream._chunk = chunk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        found = [lenient(value, stream) for value in stream.items()]
        stream.end()
    if "\\ud" not in json.dumps(events) or ascii_only:
        assert found == events
    else:
        assert len(found) == len(events)


class Endless:
    """A document that is never whole in memory: `count` events, made as they are read."""

    def __init__(self, count: int) -> None:
        name = "torch/nn/module.py(1): call " + "x" * 200
        self.event = json.dumps({"ph": "X", "cat": "python_function", "name": name}).encode() + b","
        self.left = count
        self.started = False

    def read(self, size: int) -> bytes:
        if not self.started:
            self.started = True
            return b"["
        many = min(self.left, max(1, size // len(self.event)))
        self.left -= many
        return self.event * many if many else b""


def test_memory_does_not_grow_with_the_file() -> None:
    """17 MB of events, as python_function events fill real files, in a few chunks' memory."""
    stream = JsonStream(cast(BinaryIO, Endless(60_000)), "t")
    tracemalloc.start()
    count = 0
    with pytest.raises(UnreadableTrace, match="ends in the middle"):
        for _ in stream.items():
            count += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60_000
    assert peak < 6 << 20
