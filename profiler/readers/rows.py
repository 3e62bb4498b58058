"""Rows packed while a file is read: tens of millions fit in memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import pandas as pd

_MOST = (1 << 63) - 1


class Numbers:
    """Rows of int64 columns."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        for column, value in zip(self._columns.values(), values, strict=True):
            # Handles of queues and agents can be addresses, which are unsigned.
            column.append(value if -_MOST <= value <= _MOST else value & _MOST)

    def extend(self, *columns: Sequence[int]) -> None:
        """Many rows at once, a column each."""
        for column, values in zip(self._columns.values(), columns, strict=True):
            try:
                column.frombytes(np.array(values, dtype=np.int64).tobytes())
            except OverflowError:
                column.extend(value if -_MOST <= value <= _MOST else value & _MOST for value in values)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def frame(self) -> pd.DataFrame:
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
