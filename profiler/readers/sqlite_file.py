"""Other programs' SQLite files: opened read-only, columns found by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace

_EXPORT_AGAIN = "export the report again with `nsys export --type sqlite`"


@contextmanager
def opened(path: Path, advice: str = _EXPORT_AGAIN) -> Iterator[Database]:
    """The file, open for reading. `advice` is what an error tells the user to do."""
    # immutable: a trace on a read-only or shared disk must open without a lock file beside it.
    uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
        yield Database(connection, path, advice)
    finally:
        connection.close()


class Database:
    """One open file: which tables and columns it has."""

    def __init__(self, connection: sqlite3.Connection, path: Path, advice: str) -> None:
        self.advice = advice
        self.connection = connection
        self.path = path
        named = connection.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        self.tables = {str(name) for name, _ in named}
        self.views = {str(name) for name, kind in named if kind == "view"}

    def columns(self, name: str) -> set[str]:
        return {str(row[1]) for row in self.connection.execute(f'PRAGMA table_info("{name}")')}

    def select(self, name: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> pd.DataFrame:
        """The columns of a table; an absent optional one is all missing, a needed one raises UnreadableTrace."""
        if name not in self.tables:
            return pd.DataFrame(columns=[*needed, *optional], dtype="object")
        present = self.columns(name)
        if lacking := [column for column in needed if column not in present]:
            raise UnreadableTrace(f"{self.path}: table {name} has no column {', '.join(lacking)}; {self.advice}.")
        # `end` is a word of SQL, so every name is quoted; a quoted name that is absent would read as a text.
        picked = [f'"{column}"' if column in present else f'NULL AS "{column}"' for column in (*needed, *optional)]
        # Python integers, not pandas' guess: an id beside a NULL would turn to float and lose its low bits.
        rows = self.connection.execute(f'SELECT {", ".join(picked)} FROM "{name}"').fetchall()
        return pd.DataFrame(rows, columns=[*needed, *optional], dtype="object")

    def metadata(self, name: str) -> dict[str, str]:
        return {str(k): str(v) for k, v in self.select(name, ("name", "value")).itertuples(index=False)}
