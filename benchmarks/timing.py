"""What the benchmarks of kernels share: the bandwidth of the GPU, its name, times a site, the rows as they are kept."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fusionscope.fusion_runtime.measuring import Cold, captured, replay_times

__all__ = ["Cold", "Report", "bandwidth", "captured", "machine", "per_site", "replay_times"]


class Report:
    """Rows as they come, kept on disk; `head` stands before them."""

    def __init__(self, path: Path, seconds: float, **head: Any) -> None:
        self.path, self.until, self.rows = path, time.monotonic() + seconds, []
        self.head = {"machine": machine(), **head}

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.until

    def add(self, **row: Any) -> None:
        """Keep a row and print what is short of it."""
        self.rows.append(row)
        self.path.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1) + "\n")
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items() if k != "raw"}, flush=True)


def per_site(times: Mapping[str, list[float]], sites: int) -> dict[str, float]:
    """Median microseconds of each arm, divided by the sites of its graph."""
    return {name: statistics.median(values) / sites for name, values in times.items()}


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    graph = captured(lambda: target.copy_(source))
    micro = statistics.median(replay_times({"copy": graph}, 10)["copy"])
    return 2 * source.numel() / (micro * 1e-6)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
