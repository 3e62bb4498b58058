"""What a Kineto file says as a whole: its kernels with their processes, its rank, its machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fusionscope.profiler.readers.copies import kind_of
from fusionscope.profiler.readers.kineto_events import whole_number
from fusionscope.profiler.readers.names import rank_in_name
from fusionscope.profiler.readers.replays import KEY
from fusionscope.profiler.trace import table

KINDS = ("kernel", "memcpy", "memset")


def gpu_kernels(gpu: pd.DataFrame, launches: pd.DataFrame, ranges: pd.DataFrame) -> pd.DataFrame:
    """GPU rows know their device, not their process: that is the launching call's, else the rank's only one."""
    host = pd.concat([launches[["rank", "process"]], ranges[["rank", "process"]]])
    usual = host.groupby("rank")["process"].agg(lambda found: int(found.mode().iloc[0]))
    by_call = launches.drop_duplicates(["rank", "correlation"])[KEY]
    found = gpu[["rank", "correlation"]].merge(by_call, on=["rank", "correlation"], how="left")["process"]
    process = found.fillna(gpu["rank"].map(usual)).fillna(-1).astype("int64")
    raw = gpu["name"].array
    assert isinstance(raw, pd.Categorical)
    # Names repeat thousands of times: each distinct one is looked at once.
    short = [re.sub(r"(?: \[clone \.kd\]|\.kd)$", "", name) for name in raw.categories]
    own = np.array([[KINDS.index(kind_of(name, kind)) for kind in KINDS] for name in raw.categories])
    kinds = pd.Categorical.from_codes(own[raw.codes, gpu["kind"]], categories=pd.Index(KINDS))
    texts = pd.Index(dict.fromkeys(short), dtype="object")
    names = pd.Categorical.from_codes(texts.get_indexer(pd.Index(short))[raw.codes], categories=texts)
    rest = gpu.drop(columns=["kind", "name"])
    return table("kernels", rest.assign(process=process, kind=kinds, raw_name=raw, name=names))


def distributed(metadata: dict[str, Any]) -> dict[str, Any]:
    found = metadata.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def file_rank(metadata: dict[str, Any], path: Path) -> int:
    told = whole_number(distributed(metadata).get("rank"))
    if 0 <= told < 2**20:
        return told
    return rank_in_name(path)


def machine(metadata: dict[str, Any], has_gpu: bool, warnings: list[str]) -> dict[str, str]:
    machine = {"profiler": "torch.profiler"}
    devices = metadata.get("deviceProperties")
    names = [str(d.get("name") or "") for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    if gpu := ", ".join(dict.fromkeys(name for name in names if name)):
        machine["gpu"] = gpu
    elif has_gpu:
        warnings.append("The file does not name its GPU.")
    for key, value in metadata.items():
        if key.endswith("_version") and isinstance(value, int | str):
            machine[key] = str(value)
    if isinstance(nccl := distributed(metadata).get("nccl_version"), str):
        machine["nccl_version"] = nccl
    return machine
