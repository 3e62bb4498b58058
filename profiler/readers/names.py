"""What names tell: the rank of a file, the readable name of a kernel."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fusionscope.profiler.readers.demangle import demangle_all
from fusionscope.profiler.trace import Trace

# vLLM: dp0_pp0_tp0_dcp0_ep0_rank0; TensorRT-LLM: -rank-0; SGLang: -TP-0. A plain "tp8" is a size, not a rank.
_PATTERNS = (r"rank[-_]?(\d{1,6})", r"-TP-(\d{1,6})(?=[-.])", r"dp\d+_pp\d+_tp(\d{1,6})")
# AMD's loader and compiler: the kernel descriptor, and copies of one function.
_SUFFIX = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd)+$")


def rank_in_name(path: Path) -> int:
    """The rank, 0 where the name has none."""
    return max(named_rank(path), 0)


def named_rank(path: Path) -> int:
    """The rank, -1 where the name has none."""
    for pattern in _PATTERNS:
        if match := re.search(pattern, path.name):
            return int(match.group(1))
    return -1


def with_readable_names(trace: Trace) -> Trace:
    """Kernel names without AMD's suffixes and demangled; `raw_name` keeps what the file says."""
    names = trace.kernels["name"].cat.categories
    short = {str(name): _SUFFIX.sub("", str(name)) for name in names}
    readable = demangle_all(short.values())
    told = {name: readable.get(text, text) for name, text in short.items()}
    if all(name == text for name, text in told.items()):
        return trace
    texts = list(dict.fromkeys(told.values()))
    place = {text: code for code, text in enumerate(texts)}
    codes = pd.Series(trace.kernels["name"].cat.codes).map({i: place[told[str(n)]] for i, n in enumerate(names)})
    named = pd.Categorical.from_codes(codes.fillna(-1).astype("int64").to_list(), categories=pd.Index(texts))
    return replace(trace, kernels=trace.kernels.assign(name=named))
