"""Writing what the analysis makes to files that the user named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionscope.analysis.analysed import Analysed


def write(file: Path, data: bytes) -> Path:
    """Write a file whole or not at all. Raises FusionScopeError where that fails."""
    from fusionscope.profiler.whole_file import whole_file

    with whole_file(file) as partial:
        partial.write_bytes(data)
    return file


def tracks(sides: list[Analysed], perfetto: Path | None, chrome: Path | None) -> list[Path]:
    """The traces for viewers that were asked for."""
    if not (perfetto or chrome):
        return []
    import msgspec

    from fusionscope.analysis import export_chrome, export_perfetto
    from fusionscope.analysis.tracks import rank_tracks

    shown = [rank_tracks(side) for side in sides]
    written = []
    if perfetto:
        written.append(write(perfetto, export_perfetto.perfetto(shown)))
    if chrome:
        written.append(write(chrome, msgspec.json.encode(export_chrome.chrome(shown))))
    return written


def tables(sides: list[Analysed], csv: Path | None, parquet: Path | None) -> list[Path]:
    """The tables that were asked for, all ranks in one file each."""
    if not (csv or parquet):
        return []
    import io

    import pandas as pd

    from fusionscope.analysis import export_tables

    each = [export_tables.tables(side) for side in sides]
    written = []
    for name in each[0]:
        whole = pd.concat([one[name] for one in each], ignore_index=True)
        if csv:
            written.append(write(csv / f"{name}.csv", export_tables.csv(whole).encode()))
        if parquet:
            buffer = io.BytesIO()
            whole.to_parquet(buffer, index=False, compression="zstd")
            written.append(write(parquet / f"{name}.parquet", buffer.getvalue()))
    return written
