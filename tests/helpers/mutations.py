"""Damaged copies of files: bytes changed anywhere, and values changed where the format has them."""

from __future__ import annotations

import contextlib
import copy
import csv
import gzip
import io
import json
import sqlite3
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import zstandard
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
from pyarrow import parquet

#: Pieces that readers of numbers and texts stumble over.
_PIECES = (
    b"9" * 25, b"9" * 5000,
    b"-1", b"null", b'"', b"{}", b"[[[[", b"\x00" * 8, b"\xff" * 8, b"1e400", b"NaN", b"\\u0000", b"\\ud800",
    b",", b"\n", b"''", b"\xef\xbb\xbf", b"../../x", b"%s%n",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, -(2**63), 10**40, 10**400, 0.5, -0.0, 1e300, float("nan"),
    float("inf"), "", "x", "\x00", "\ud800", "stream 7", "é" * 40, "9" * 30, "../../etc", [], {}, [[]], {"a": {}},
)  # fmt: skip
#: Pages are read again for every statement: what does not end soon never will.
_STEPS = 200_000


def mutated(content: bytes, random: Random, packed: bool = False) -> bytes:
    """A damaged copy; with `packed` it may be packed with gzip or zstd, and be damaged after that."""
    found = content
    if random.random() < 0.5 and (edit := _editor(content)):
        found = edit(content, random)
    if found == content or random.random() < 0.3:
        found = _bytes(found, random)
    if packed and random.random() < 0.1:
        found = gzip.compress(found, 1) if random.random() < 0.5 else zstandard.compress(found)
        found = _bytes(found, random) if random.random() < 0.5 else found
    return found


def _odd(random: Random) -> Any:
    # A copy: a list that stands in two documents, or in itself, makes an input depend on those before it.
    return copy.deepcopy(random.choice(_VALUES))


def _editor(content: bytes) -> Callable[[bytes, Random], bytes] | None:
    if content.startswith(b"SQLite format 3\x00"):
        return _sqlite
    if content.startswith(b"PAR1"):
        return _parquet
    if content[:1] in (b"{", b"["):
        return _json
    if content[:1] == b"\n":
        return _packets
    return _cells if content.isascii() and content.count(b",") > 3 else None


def _bytes(content: bytes, random: Random) -> bytes:
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(7)
        if kind == 0 and data:
            data[at % len(data)] = random.randrange(256)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = random.randbytes(random.randrange(1, 8))
        elif kind == 3:
            del data[at : at + random.randrange(1, 20)]
        elif kind == 4:
            data[at:at] = random.choice(_PIECES)
        elif kind == 5:
            data[at:at] = data[at : at + random.randrange(1, 200)]
        elif data:
            data[at % len(data)] ^= 1 << random.randrange(8)
    return bytes(data)


def _json(content: bytes, random: Random) -> bytes:
    """Values replaced, removed or doubled, at any depth; of JSON lines, in one line."""
    try:
        return json.dumps(_edited(json.loads(content), random)).encode()
    except ValueError:
        lines = content.splitlines()
        at = random.randrange(len(lines))
        try:
            lines[at] = json.dumps(_edited(json.loads(lines[at]), random)).encode()
        except ValueError:
            return content
        return b"\n".join(lines) + b"\n"


def _edited(document: Any, random: Random) -> Any:
    for _ in range(random.choice((1, 1, 1, 3))):
        places = list(_places(document))
        if not places:
            return _odd(random)
        holder, key = random.choice(places)
        kind = random.randrange(5)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(random.randrange(len(holder) + 1), holder[key])
        elif kind == 2 and isinstance(holder, dict):
            holder[random.choice(("x", "", *holder))] = holder.pop(key)
        else:
            holder[key] = _odd(random)
    return document


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        holder = left.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            found += [(holder, key) for key in keys]
            left += [holder[key] for key in keys]
    return found


def _cells(content: bytes, random: Random) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(random.choice((1, 1, 3))):
        row = random.choice([row for row in rows if row] or [[""]])
        at = random.randrange(len(row)) if row else 0
        kind = random.randrange(5)
        if kind == 0 and row:
            del row[at]
        elif kind == 1:
            row.insert(at, str(_odd(random)))
        elif kind == 2:
            rows.insert(random.randrange(len(rows) + 1), list(row))
        elif row:
            row[at] = str(_odd(random))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def _sqlite(content: bytes, random: Random) -> bytes:
    """Values set to odd ones, rows, columns and tables removed or renamed, a view in a table's place."""
    db = sqlite3.connect(":memory:")
    try:
        db.deserialize(content)
        db.set_progress_handler(lambda: 1, _STEPS)
        db.execute("PRAGMA writable_schema = OFF")
        for _ in range(random.choice((1, 1, 3))):
            names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if names:
                _sql(db, random.choice(names), random)
        db.commit()
        return db.serialize()
    except (sqlite3.Error, OverflowError):
        return content
    finally:
        db.close()


def _sql(db: sqlite3.Connection, table: str, random: Random) -> None:
    columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
    column, kind = random.choice(columns), random.randrange(9)
    rows = "" if random.random() < 0.3 else f" WHERE rowid % {random.randrange(1, 4)} = 0"
    if kind == 0:
        db.execute(f'DELETE FROM "{table}"{rows}')
    elif kind == 1:
        db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"')
    elif kind == 2:
        db.execute(f'DROP TABLE "{table}"')
    elif kind == 3:
        db.execute(f'ALTER TABLE "{table}" RENAME TO "hidden"')
        db.execute(f'CREATE VIEW "{table}" AS SELECT * FROM "hidden", "hidden" AS again')
    elif kind == 4:
        db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
    else:
        value = random.choice((*_VALUES, b"\xff\x00", 2**24, 2**40))
        value = value if isinstance(value, int | float | str | bytes | None) else str(value)
        value = value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        db.execute(f'UPDATE "{table}" SET "{column}" = ?{rows}', (value,))


def _packets(content: bytes, random: Random) -> bytes:
    """Perfetto's packets removed, doubled or moved, and fields in them changed."""
    trace = perfetto_trace_pb2.Trace.FromString(content)
    packets = list(trace.packet)
    for _ in range(random.choice((1, 1, 3))):
        at, kind = random.randrange(len(packets)), random.randrange(6)
        if kind == 0 and len(packets) > 1:
            del packets[at]
        elif kind == 1:
            packets.insert(random.randrange(len(packets) + 1), packets[at])
        else:
            _field(packets[at], random)
    del trace.packet[:]
    trace.packet.extend(packets)
    return trace.SerializeToString()


def _field(message: Any, random: Random) -> None:
    """Another value, or none, in one field of a message or of one inside it."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = random.choice(fields)
    if field.message_type and random.random() < 0.9:
        _field(random.choice(value) if hasattr(value, "append") or hasattr(value, "add") else value, random)
    elif random.random() < 0.3 or field.message_type:
        message.ClearField(field.name)
    else:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            odd = random.choice((0, 1, -1, 2**32 - 1, 2**62, 2**63, 2**64 - 1, 0.5, "", "\x00", "9" * 30, "é" * 40))
            if hasattr(value, "append"):
                value.append(odd)
            else:
                setattr(message, field.name, odd)


_TYPES = (pa.int8(), pa.int32(), pa.uint64(), pa.float64(), pa.string(), pa.large_binary(), pa.bool_(), pa.null())


def _parquet(content: bytes, random: Random) -> bytes:
    """A column of another type, with another value, renamed, twice, or gone."""
    table = parquet.read_table(io.BytesIO(content))
    if not table.column_names:
        return content
    at, kind = random.randrange(len(table.column_names)), random.randrange(6)
    name = table.column_names[at]
    try:
        if kind == 0:
            table = table.remove_column(at)
        elif kind == 1:
            table = table.rename_columns(["other" if n == name else n for n in table.column_names])
        elif kind == 2:
            table = table.append_column(name, table[name])
        elif kind == 3:
            table = table.set_column(at, name, table[name].cast(random.choice(_TYPES)))
        else:
            odd = random.choice([value for value in _VALUES if not isinstance(value, dict)])
            table = table.set_column(at, name, pa.array([odd] * len(table)))
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        return content
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()
