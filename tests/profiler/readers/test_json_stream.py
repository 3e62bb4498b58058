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


def _whole(block: bytes) -> list[object] | None:
    """A decoder of many values at a time that, like msgspec's, refuses what is not exactly JSON."""
    try:
        found: list[object] = json.loads(b"[" + block + b"]")
    except ValueError:
        return None
    return found


@pytest.mark.parametrize("many", [_whole, lambda block: None], ids=["many at a time", "one by one"])
@given(events=st.lists(json_values, max_size=6), ascii_only=st.booleans(), chunk=st.integers(1, 40))
def test_the_same_values_whatever_the_chunks(many, events: list[object], ascii_only: bool, chunk: int) -> None:
    text = json.dumps(events, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    stream = JsonStream(io.BytesIO(text), "t")
    stream._chunk = chunk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", chunk)
        patch.setattr(json_stream, "_BLOCK", 2 * chunk)
        found = [value for values in stream.batches(many, lenient) for value in values]
        stream.end()
    if "\\ud" not in json.dumps(events) or ascii_only:
        assert found == events
    else:
        assert len(found) == len(events)


def test_a_list_is_decoded_many_at_a_time_and_what_is_broken_alone() -> None:
    """A block that does not decode is taken value by value; the blocks around it are not."""
    good = [{"name": "{lambda()#1}, {lambda()#2}", "n": n} for n in range(400)]
    events = b",".join(json.dumps(event).encode() for event in good)
    text = b"[" + events + b', {"bad": "C:\\dir"}, ' + events + b"]"
    stream, singly = JsonStream(io.BytesIO(text), "t"), []

    def one(value: bytes, stream: JsonStream) -> object:
        singly.append(value)
        return lenient(value, stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_CHUNK", 1000)
        patch.setattr(json_stream, "_BLOCK", 1000)
        stream._chunk = 1000
        found = [value for values in stream.batches(_whole, one) for value in values]
        stream.end()
    assert found == [*good, {"bad": "C:\\dir"}, *good]
    assert 1 < len(singly) < 100


def test_only_what_stands_close_to_the_end_of_a_list_is_taken_singly() -> None:
    """The text at hand goes on behind the list: what does not decode with that decodes without it."""
    events = [{"n": n, "filler": "x" * 100} for n in range(20_000)]
    text = json.dumps({"first": events, "second": events}).encode()
    stream, singly = JsonStream(io.BytesIO(text), "t"), []

    def one(value: bytes, stream: JsonStream) -> object:
        singly.append(value)
        return lenient(value, stream)

    found = {key: [value for values in stream.batches(_whole, one) for value in values] for key in stream.fields()}
    stream.end()
    assert found == {"first": events, "second": events}
    assert sum(map(len, singly)) < 2 * json_stream._SMALL < len(text) / 30


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
    """60 MB of events, as python_function events fill real files, in a few blocks' memory."""
    stream = JsonStream(cast(BinaryIO, Endless(240_000)), "t")
    tracemalloc.start()
    count = 0
    with pytest.raises(UnreadableTrace, match="ends in the middle"):
        for found in stream.batches(_whole, lenient):
            count += len(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 240_000
    assert peak < 40 << 20
