"""Other programs' SQLite files: opened read-only, columns found by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.profiler.errors import UnreadableTrace

_ROWS = 20_000
#: No text of a profiler is this long.
_LONGEST = 64 << 20
EXPORT_AGAIN = "export the report again with `nsys export --type sqlite`"


@contextmanager
def opened(path: Path, advice: str = EXPORT_AGAIN) -> Iterator[Database]:
    """The file, open for reading. `advice` is what an error tells the user to do."""
    # immutable: a trace on a read-only or shared disk must open without a lock file beside it.
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        yield Database(connection, path, advice)
    except UnicodeDecodeError as error:
        # Python cannot show what SQLite says of a damaged name.
        raise sqlite3.DatabaseError(f"a name in the schema is no UTF-8: {error.object[:80]!r}") from error
    finally:
        connection.close()


@contextmanager
def reading(path: Path, kind: str, advice: str) -> Iterator[Database]:
    """The same for the whole of a reader's work, of files that `kind` names.

    Raises UnreadableTrace where the file is damaged or holds a value that none of its kind has.
    """
    try:
        with opened(path, advice) as database:
            yield database
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise UnreadableTrace(f"{path} is a damaged SQLite file ({error}): copy it again, or {advice}.") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise UnreadableTrace(f"{path} has a value that no {kind} holds ({error}): {advice}.") from error


def pending_rows(path: Path) -> str:
    """A sentence about rows that stand in the log beside a file and not in it, "" where there are none."""
    log = path.with_name(f"{path.name}-wal")
    try:
        size = log.stat().st_size
    except OSError:
        return ""
    if not size:
        return ""
    return (
        f"{log.name} holds {size} bytes that were not merged into {path.name}, and is not read: the program that wrote "
        f"it was killed. `sqlite3 {path.name} 'PRAGMA wal_checkpoint'` merges it."
    )


class Database:
    """One open file: which tables and columns it has."""

    def __init__(self, connection: sqlite3.Connection, path: Path, advice: str) -> None:
        self.advice = advice
        self.connection = connection
        self.path = path
        # A view can compute without end, and those that profilers write lose rows.
        self.tables = {
            str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }

    def columns(self, name: str) -> set[str]:
        return {str(row[1]) for row in self.connection.execute(f'PRAGMA table_info("{name}")')}

    def select(self, name: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> pd.DataFrame:
        """The columns of a table; an absent optional one is all missing, a needed one raises UnreadableTrace."""
        if name not in self.tables:
            return pd.DataFrame(columns=[*needed, *optional], dtype="object")
        picked = [column or "NULL" for column in self._columns(name, needed, optional)]
        # Python integers, not pandas' guess: an id beside a NULL would turn to float and lose its low bits.
        rows = self.connection.execute(f'SELECT {", ".join(picked)} FROM "{name}"').fetchall()
        return pd.DataFrame(rows, columns=[*needed, *optional], dtype="object")

    def numbers(
        self, name: str, needed: tuple[str, ...], optional: tuple[str, ...] = (), missing: int = -1
    ) -> dict[str, NDArray[np.int64]]:
        """Whole-number columns of a table of millions of rows; NULL, and what is absent, is `missing`.

        Raises as `select` does, and ValueError or OverflowError where a value is no such number.
        """
        if name not in self.tables:
            return {column: np.empty(0, dtype=np.int64) for column in (*needed, *optional)}
        quoted = dict(zip((*needed, *optional), self._columns(name, needed, optional), strict=True))
        there = [column for column, text in quoted.items() if text]
        count = int(self.connection.execute(f'SELECT COUNT(*) FROM "{name}"').fetchone()[0])
        absent = np.full(count, missing, dtype=np.int64)
        if not there:
            return dict.fromkeys(quoted, absent)
        picked = ", ".join(f"IFNULL({quoted[column]}, {missing})" for column in there)
        found = self.fetch(f'SELECT {picked} FROM "{name}"', len(there), count)
        return {column: found[there.index(column)] if quoted[column] else absent for column in quoted}

    def fetch(self, sql: str, columns: int, count: int) -> NDArray[np.int64]:
        """[columns, count] whole numbers of a query with `count` rows; raises ValueError where it has others."""
        found = np.empty((columns, count), dtype=np.int64)
        rows, at = self.connection.execute(sql), 0
        # Some at a time: as Python's objects all rows would take ten times the memory.
        while chunk := rows.fetchmany(_ROWS):
            # Faster than an array of the rows, and the same for every value.
            flat = np.fromiter(chain.from_iterable(chunk), dtype=np.int64, count=columns * len(chunk))
            found[:, at : at + len(chunk)] = flat.reshape(-1, columns).T
            at += len(chunk)
        if at != count:
            raise ValueError(f"{at} rows where {count} belong")
        return found

    def _columns(self, name: str, needed: tuple[str, ...], optional: tuple[str, ...]) -> list[str]:
        """Each column as SQL, "" where it is absent."""
        present = self.columns(name)
        if lacking := [column for column in needed if column not in present]:
            raise UnreadableTrace(f"{self.path}: table {name} has no column {', '.join(lacking)}; {self.advice}.")
        # `end` is a word of SQL, so every name is quoted; a quoted name that is absent would read as a text.
        return [f'"{column}"' if column in present else "" for column in (*needed, *optional)]

    def metadata(self, name: str) -> dict[str, str]:
        return {str(k): str(v) for k, v in self.select(name, ("name", "value")).itertuples(index=False)}
