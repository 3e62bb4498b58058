"""A JSON document of any size, one value of its long list at a time, read the way profilers really write it.

Profilers write text that is not quite JSON: bare inf and nan, single backslashes, control characters, broken UTF-8.
Such a value is repaired; the others take the fast way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO, TypeVar

import msgspec

from fusionscope.profiler.errors import UnreadableTrace

_T = TypeVar("_T")
_CHUNK = 1 << 20
#: So much of a list is offered to the decoder at once.
_BLOCK = 4 << 20
#: And no less: a smaller block that does not decode is taken value by value.
_SMALL = 64 << 10
#: No event of a profiler is this long: a longer value means that the document is broken.
_LONGEST = 64 << 20
_DEPTH = 24
_SPACE = re.compile(rb"[\s\xef\xbb\xbf]*")
_STRING = rb'"(?:[^"\\]|\\.)*+"'


def _nested(depth: int) -> bytes:
    # Possessive repeats: a match never backtracks, so a broken value costs one pass.
    pattern = rb'[\[{](?:[^\[\]{}"]++|' + _STRING + rb")*+[\]}]"
    for _ in range(depth):
        pattern = rb'[\[{](?:[^\[\]{}"]++|' + _STRING + rb"|" + pattern + rb")*+[\]}]"
    return pattern


_VALUE = re.compile(_nested(_DEPTH) + rb"|" + _STRING + rb"|[^\s,\[\]{}\":]++(?=[\s,\]}])", re.DOTALL)


class JsonStream:
    """A cursor over the bytes of one document. Errors are UnreadableTrace with the byte at which they show."""

    def __init__(self, file: BinaryIO, label: str) -> None:
        self._file = file
        self._label = label
        self._buffer = b""
        self._at = 0
        self._dropped = 0
        self._chunk = _CHUNK

    def broken(self, what: str) -> UnreadableTrace:
        where = self._dropped + self._at
        return UnreadableTrace(f"{self._label} {what} (at byte {where}): copy or record the trace again.")

    def _more(self) -> bool:
        read = self._file.read(self._chunk)
        self._dropped += self._at
        self._buffer = self._buffer[self._at :] + read
        self._at = 0
        return bool(read)

    def peek(self) -> bytes:
        """The next byte that is not white space, b"" at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._more():
                return b""

    def take(self, expected: bytes) -> None:
        found = self.peek()
        if found != expected:
            what = f"has {found!r} where {expected!r} belongs" if found else "ends in the middle of the document"
            raise self.broken(what)
        self._at += 1

    def value(self) -> bytes:
        """The bytes of the next value."""
        self.peek()
        while not (match := _VALUE.match(self._buffer, self._at)):
            # Reading twice as much each time keeps a long value linear.
            self._chunk *= 2
            if self._chunk > _LONGEST or not self._more():
                left = self._buffer[self._at : self._at + 40]
                raise self.broken(f"ends in the middle of a value, or nests too deeply, after {left!r}")
        self._chunk = _CHUNK
        self._at = match.end()
        return match.group()

    def batches(
        self, many: Callable[[bytes], Sequence[_T] | None], one: Callable[[bytes, JsonStream], _T]
    ) -> Iterator[Sequence[_T]]:
        """The values of a list, the bracket included, decoded.

        `many` gets the text of a run of values with the commas between them and returns None where it cannot decode it;
        `one` then gets each value by itself.
        """
        self.take(b"[")
        if self.peek() == b"]":
            self._at += 1
            return
        size = _BLOCK
        while True:
            block = self._block(size)
            found = many(block) if block else None
            if found is None and len(block) > _SMALL:
                # The list may end in the block, or one value of it need repair: what stands before that is well.
                size = len(block) // 8
                continue
            if found is not None:
                self._at += len(block)
                yield found
            else:
                until = self._dropped + self._at + len(block)
                yield [one(self.value(), self)]
                while self._dropped + self._at < until and self._comma():
                    yield [one(self.value(), self)]
            size = min(2 * size, _BLOCK)
            if not self._comma():
                self.take(b"]")
                return

    def _comma(self) -> bool:
        """Take a comma that parts two values; some writers leave one after the last event."""
        if self.peek() != b",":
            return False
        self._at += 1
        return self.peek() != b"]"

    def _block(self, size: int) -> bytes:
        """About `size` bytes, up to the last `}` before `, {"`; not taken yet. b"" where there is no such place."""
        self.peek()
        while len(self._buffer) - self._at < size and self._more():
            pass
        end = min(len(self._buffer), self._at + size)
        # Few tries: in a trace of a profiler, that place is one event away from the end.
        for _ in range(16):
            opening = self._buffer.rfind(b"{", self._at, end)
            if opening < 0:
                break
            # Names of kernels hold `}, {` too ("{lambda(int)#1}, {lambda(int)#2}"), but no quote after it.
            quoted = self._buffer[opening + 1 : opening + 64].lstrip().startswith(b'"')
            before = self._buffer[max(self._at, opening - 64) : opening].rstrip()
            if quoted and before.endswith(b",") and (closed := before[:-1].rstrip()).endswith(b"}"):
                return self._buffer[self._at : max(self._at, opening - 64) + len(closed)]
            end = opening
        return b""

    def fields(self) -> Iterator[str]:
        """The keys of an object, the braces included; the caller takes each value before the next key."""
        self.take(b"{")
        while self.peek() != b"}":
            key = self.value()
            if not key.startswith(b'"'):
                raise self.broken("has a key that is no text")
            self.take(b":")
            yield str(lenient(key, self))
            if self.peek() == b",":
                self._at += 1
            elif self.peek() != b"}":
                raise self.broken("ends in the middle of the document" if not self.peek() else "lacks a comma")
        self.take(b"}")

    def end(self) -> None:
        """Nothing may follow: two processes that write one path leave two documents, spliced."""
        if self.peek():
            raise self.broken("goes on after the end of its JSON document, as when two processes wrote one path")


def decoded(decoder: msgspec.json.Decoder[list[_T]], block: bytes) -> list[_T] | None:
    """A run of values for `JsonStream.batches`; None where the decoder does not take them."""
    try:
        return decoder.decode(b"[" + block + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


_TOKEN = re.compile(rf"({_STRING.decode()})|([-+]?\b(?:inf(?:inity)?|nan)\b)", re.DOTALL | re.IGNORECASE)
#: A pair of surrogates or another letter; half a pair; what is no escape.
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    rf'\\(?:({_PAIR}|u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|["\\/bfnrt])|(u[0-9a-fA-F]{{4}})|)', re.DOTALL
)


def lenient(value: bytes, stream: JsonStream) -> Any:
    """A value that may need repair; decimals stay text, inf and nan become None."""
    text = _TOKEN.sub(_repair, value.decode("utf-8", errors="replace"))
    try:
        return json.loads(text, strict=False, parse_float=str, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise stream.broken(f"has a value that is no JSON, {text[:60]!r}") from error


def _repair(match: re.Match[str]) -> str:
    if match.group(2):
        return "null"
    return _ESCAPE.sub(_escape, match.group())


def _escape(match: re.Match[str]) -> str:
    # Half a surrogate pair is no letter, and no table can hold it.
    return match.group() if match.group(1) else "\ufffd" if match.group(2) else "\\\\"


def whole_letters(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can write and no table can hold."""
    return text.encode("utf-8", "replace").decode()


#: 146 years: no time is longer, and two of them still add up in an int64.
_TOO_LONG = 2**62


def nanoseconds(text: str, unit: int) -> int | None:
    """A decimal number in units of `unit` ns as whole ns, without a float on the way; None where it is no number.

    A float64 at 5e12 us has lost its nanoseconds.
    """
    whole, _, fraction = text.partition(".")
    if unit == 1000 and len(fraction) <= 3 and whole.isdecimal() and (fraction.isdecimal() or not fraction):
        exact = int(whole) * 1000 + int((fraction + "000")[:3]) if len(whole) < 20 else _TOO_LONG
    else:
        try:
            number = Decimal(text) * unit
            # Decimal takes an exponent of 10**6: compare before it becomes an integer of that many digits.
            exact = int(number.to_integral_value()) if number.is_finite() and abs(number) < _TOO_LONG else _TOO_LONG
        except ArithmeticError:
            return None
    return exact if abs(exact) < _TOO_LONG else None
