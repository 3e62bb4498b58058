"""CSV of profilers: columns found by their header, numbers read exactly, broken rows counted."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import csv as arrow_csv

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import packed

_BLOCK = 8 << 20
#: Every byte is a letter of this encoding.
_BYTES = "latin-1"
_TEXT = pa.dictionary(pa.int32(), pa.binary())


@dataclass
class CsvTable:
    """The wanted columns of one file, under the names that the caller gave them; absent ones are not there.

    Whole numbers are int64 (-1 where the cell is empty), texts are categories.
    """

    path: Path
    rows: pd.DataFrame
    warnings: list[str] = field(default_factory=list)


def header(head: bytes) -> list[str]:
    """The column names in the first line, in small letters and without blanks."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").split(b"\n", 1)[0].decode("utf-8", errors="replace")
    try:
        names = next(csv.reader([line]), [])
    except csv.Error:
        return []
    return [name.strip().strip('"').lower() for name in names]


def read(path: Path, numbers: Mapping[str, Sequence[str]], texts: Mapping[str, Sequence[str]]) -> CsvTable:
    """Columns by name: each wanted one has one or several spellings (small letters), the first that is there counts.

    Raises UnreadableTrace with the row where a number is none.
    """
    _, head = packed.head(path)
    raw = _raw_names(head)
    known = {name.strip().strip('"').lower(): name for name in reversed(raw)}
    wanted = {**numbers, **texts}
    picked = {
        name: known[s] for name, spellings in wanted.items() if (s := next((s for s in spellings if s in known), ""))
    }
    types = {column: pa.int64() if name in numbers else _TEXT for name, column in picked.items()}
    broken: list[arrow_csv.InvalidRow] = []
    table, encoding = _arrow(path, raw, types, broken)
    columns = {name: _column(table[column], encoding) for name, column in picked.items()}
    found = CsvTable(path, pd.DataFrame(columns))
    if broken:
        if len(broken) > max(len(table), 10):
            raise UnreadableTrace(
                f"{path}: {len(broken)} of {len(broken) + len(table)} rows have another number of columns than the "
                f"header, the first is {_shown(broken[0])}: copy or record the trace again."
            )
        found.warnings.append(
            f"{path.name}: {len(broken)} of {len(broken) + len(table)} rows are cut or broken and were left out, the "
            f"first is {_shown(broken[0])}: the recording may have been killed."
        )
    return found


def _shown(row: arrow_csv.InvalidRow) -> str:
    where = f"row {row.number}: " if row.number is not None else ""
    return f"{where}{row.text[:60]!r} ({row.actual_columns} columns for {row.expected_columns})"


def _raw_names(head: bytes) -> list[str]:
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").split(b"\n", 1)[0].decode("utf-8", errors="replace")
    try:
        return next(csv.reader([line.rstrip("\r")]), [])
    except csv.Error:
        return []


def _arrow(
    path: Path, raw: list[str], types: dict[str, pa.DataType], broken: list[arrow_csv.InvalidRow]
) -> tuple[pa.Table, str]:
    def skip(row: arrow_csv.InvalidRow) -> str:
        broken.append(row)
        return "skip"

    def parse(whole: bool) -> pa.Table:
        with packed.opened(path) as file:
            return arrow_csv.read_csv(
                file,
                # The file's own header is row 0: two columns of one name must not be an error.
                read_options=arrow_csv.ReadOptions(
                    use_threads=whole,
                    block_size=_BLOCK,
                    skip_rows=1,
                    column_names=_unique(raw),
                    encoding="utf8" if whole else _BYTES,
                ),
                parse_options=arrow_csv.ParseOptions(invalid_row_handler=None if whole else skip),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=list(types), column_types=types, null_values=["", "None", "NULL", "N/A"]
                ),
            )

    try:
        try:
            return parse(whole=True), "utf-8"
        except pa.ArrowInvalid:
            # The slow way knows the row, can leave out broken ones, and takes every byte for a letter: Arrow prints a
            # traceback where the text of a broken row is not UTF-8.
            return parse(whole=False), _BYTES
    except pa.ArrowException as error:
        raise UnreadableTrace(f"{path} is broken ({error}): copy or record the trace again.") from error
    except packed.DAMAGE as error:
        raise packed.damaged(path, packed.head(path)[0], error) from error


def _unique(names: list[str]) -> list[str]:
    return [f"{name}#{i}" if name in names[:i] else name for i, name in enumerate(names)]


def _column(column: pa.ChunkedArray, encoding: str) -> pd.Series:
    if pa.types.is_integer(column.type):
        return pd.Series(column.fill_null(-1).to_numpy())
    packed_texts = column.unify_dictionaries().combine_chunks()
    if isinstance(packed_texts, pa.ChunkedArray):
        return pd.Series(pd.Categorical([], categories=[]))
    raw = [bytes(text) for text in packed_texts.dictionary.to_pylist()]
    if encoding == _BYTES:
        raw = [text.decode("utf-8").encode(_BYTES) for text in raw]
    texts = [text.decode("utf-8", errors="replace") for text in raw]
    codes = packed_texts.indices.fill_null(-1).to_numpy()
    # Two broken texts can read the same.
    places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    if len(places) < len(texts):
        codes = pd.Series(codes).map({i: places[text] for i, text in enumerate(texts)}).fillna(-1).astype("int64")
    return pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index(list(places), dtype="object")))
