"""Rows packed while a file is read: tens of millions fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_MOST = (1 << 63) - 1
#: So many rows are turned into columns together.
_AT_ONCE = 10_000


class Numbers:
    """Rows of int64 columns."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}
        #: Rows that were added one by one and are not in the columns yet.
        self._rows: list[tuple[int, ...]] = []

    def add(self, *values: int) -> None:
        self._rows.append(values)
        if len(self._rows) >= _AT_ONCE:
            self._settle()

    def extend(self, *columns: Sequence[int]) -> None:
        """Many rows at once, a column each."""
        self._settle()
        self._extend(columns)

    def _settle(self) -> None:
        if self._rows:
            self._extend(list(zip(*self._rows, strict=True)))
            self._rows.clear()

    def _extend(self, columns: Sequence[Sequence[int]]) -> None:
        for column, values in zip(self._columns.values(), columns, strict=True):
            try:
                column.frombytes(np.array(values, dtype=np.int64).tobytes())
            except OverflowError:
                # Handles of queues and agents can be addresses, which are unsigned.
                column.extend(value if -_MOST <= value <= _MOST else value & _MOST for value in values)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) + len(self._rows)

    def frame(self) -> pd.DataFrame:
        self._settle()
        return pd.DataFrame({name: np.array(column, dtype="int64") for name, column in self._columns.items()})


class Texts:
    """Texts as numbers, for rows of Numbers."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self._codes.setdefault(text, len(self._codes))

    def column(self, codes: pd.Series) -> pd.Series:
        """The texts of a column of codes."""
        return pd.Series(np.array([*self._codes, ""], dtype="object")[codes.to_numpy()], index=codes.index)


def category(texts: Sequence[str], codes: NDArray[np.integer[Any]]) -> pd.Categorical:
    """The text of each code; millions of rows have few texts, and two codes may have one."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    picked = np.array([places[text] for text in texts], dtype=np.int64)[codes]
    return pd.Categorical.from_codes(picked, categories=pd.Index(list(places), dtype="object"))
