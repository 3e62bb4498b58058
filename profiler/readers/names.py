"""The rank that a file's name tells of."""

from __future__ import annotations

import re
from pathlib import Path

# vLLM: dp0_pp0_tp0_dcp0_ep0_rank0; TensorRT-LLM: -rank-0; SGLang: -TP-0. A plain "tp8" is a size, not a rank.
_PATTERNS = (r"rank[-_]?(\d{1,6})", r"-TP-(\d{1,6})(?=[-.])", r"dp\d+_pp\d+_tp(\d{1,6})")


def rank_in_name(path: Path) -> int:
    """The rank, 0 where the name has none."""
    for pattern in _PATTERNS:
        if match := re.search(pattern, path.name):
            return int(match.group(1))
    return 0
