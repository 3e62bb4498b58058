"""A run as plain tables for spreadsheets and notebooks."""

from __future__ import annotations

from csv import QUOTE_NONNUMERIC

import pandas as pd

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.tables import kernel_rows
from fusionscope.analysis.texts import seen
from fusionscope.analysis.tracks import RankTracks, rank_tracks

#: What makes a spreadsheet take a cell for a formula, also behind white space.
_FORMULA = ("=", "+", "-", "@")


def tables(run: Analysed) -> dict[str, pd.DataFrame]:
    """`launches`, `sites` and `gaps` of every execution, and `kernels` of one forward; times in ns."""
    shown = rank_tracks(run)
    found = {
        "launches": _rows(shown, "launches"),
        "sites": _rows(shown, "boundary"),
        "gaps": _rows(shown, "gaps"),
    }
    kernels = pd.DataFrame(kernel_rows(run.forward, run.attribution.roles))
    found["kernels"] = kernels.assign(rank=run.forward.rank)
    return found


def _rows(shown: RankTracks, kind: str) -> pd.DataFrame:
    rows = [
        {"rank": shown.rank, "track": track.name, "name": one.name, "start_ns": one.start_ns,
         "duration_ns": one.duration_ns, **one.facts}
        for track in shown.tracks if track.kind == kind for one in track.slices
    ]  # fmt: skip
    if not rows:
        return pd.DataFrame()
    # A launch outside any site has no layer: whole numbers stay whole beside what is missing.
    return pd.DataFrame(rows).sort_values("start_ns", kind="stable", ignore_index=True).convert_dtypes()


def csv(frame: pd.DataFrame) -> str:
    """A table as CSV whose texts no spreadsheet takes for formulas: such a cell begins with an apostrophe.

    Control characters become spaces, since a CSV is also looked at in a terminal.
    """
    safe = frame.copy()
    for column in safe.columns:
        if safe[column].dtype == object or isinstance(safe[column].dtype, pd.StringDtype):
            safe[column] = pd.Series([_neutral(value) for value in safe[column]], index=safe.index, dtype=object)
    # Every text is quoted: a lone carriage return would begin a new cell.
    return str(safe.to_csv(index=False, lineterminator="\n", quoting=QUOTE_NONNUMERIC))


def _neutral(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = seen(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
