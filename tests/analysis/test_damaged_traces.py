"""What a damaged trace still holds is analysed, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyarrow")

import reader_seeds

from fusionscope.analysis.analysed import analyse
from fusionscope.analysis.totals import totals
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.imported import run_info
from fusionscope.profiler.importing import Part, joined
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.runinfo import InputFile
from fusionscope.profiler.store import Run


def analysed(path: Path) -> None:
    file = InputFile(path="x", sha256="", bytes=0)
    trace = joined([Part(str(path), read_trace(path), file)])
    totals(trace)
    analyse(Run(run_info([file], trace), trace, Path()))


@pytest.mark.parametrize("reader", ["kineto", "nsys_sqlite", "rocprofv3_json", "rpd"])
def test_a_damaged_trace_is_analysed_or_refused(reader: str, tmp_path: Path) -> None:
    done = 0
    for number in range(40):
        seed = reader_seeds.damaged(reader, Random(f"{reader} {number}"))
        path = tmp_path / f"{number}{seed.entry}"
        path.write_bytes(seed.files[seed.entry])
        try:
            analysed(path)
            done += 1
        except FusionScopeError:
            continue
    assert done > 3
