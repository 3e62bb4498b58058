"""The ranks that one file holds: one per process and device with GPU work."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


class FileRanks:
    """Ranks of one file: one per (process, device) with GPU work, by device, then process; a lone one is `alone`."""

    def __init__(self, rows: pd.DataFrame, alone: int) -> None:
        pairs = rows[["device", "process"]].drop_duplicates()
        self.units = sorted((int(d), int(p)) for d, p in pairs.itertuples(index=False))
        first = alone if len(self.units) == 1 else 0
        self._rank = {unit: rank for rank, unit in enumerate(self.units, first)}
        self._first: dict[int, int] = {}
        for (_, process), rank in self._rank.items():
            self._first.setdefault(process, rank)

    def of(self, rows: pd.DataFrame) -> NDArray[np.int64]:
        """The rank of each row, by its device and process."""
        found = np.full(len(rows), -1, dtype=np.int64)
        device, process = rows["device"].to_numpy(), rows["process"].to_numpy()
        for (d, p), rank in self._rank.items():
            found[(device == d) & (process == p)] = rank
        return found

    def of_processes(self, processes: pd.Series[int]) -> pd.Series[int]:
        """The first rank of each process, -1 where it has no GPU work."""
        return processes.map(self._first).fillna(-1).astype("int64")

    def of_calls(self, calls: pd.DataFrame, device: pd.DataFrame) -> pd.Series[int]:
        """A host call goes to the rank of the device that it launched on; without one, to its process's first rank."""
        first = self.of_processes(calls["process"])
        if len(self._first) == len(self.units):
            return first
        on = device.drop_duplicates(["process", "correlation"])[["process", "correlation", "device"]]
        where = calls[["process", "correlation"]].merge(on, on=["process", "correlation"], how="left")["device"]
        pairs = zip(where, calls["process"], first, strict=True)
        return pd.Series([self._rank.get((d, p), f) for d, p, f in pairs], dtype="int64")

    def sentence(self) -> str:
        said = ", ".join(f"rank {rank} is process {p} on device {d}" for rank, (d, p) in enumerate(self.units))
        return f"The file holds {len(self.units)} ranks, numbered by device, then process: {said}."
