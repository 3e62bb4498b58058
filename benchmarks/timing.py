"""What the benchmarks of kernels share: the bandwidth of the GPU, its name, times a site."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from fusionscope.fusion_runtime.measuring import Cold, captured, replay_times

__all__ = ["Cold", "bandwidth", "captured", "machine", "per_site", "replay_times"]


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
