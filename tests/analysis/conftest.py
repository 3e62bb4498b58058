"""Fixtures of the analysis tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from literal_traces import Launch, kernels

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

SHARED = Path(__file__).parents[3] / "shared" / "samples"


@pytest.fixture
def samples() -> Path:
    """The folder of public sample traces; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the sample traces (../shared/samples) are not here")
    return SHARED


@pytest.fixture
def made() -> Callable[..., Analysed]:
    """Builds an analysed run from replays of launches."""

    def build(replays: Sequence[Sequence[Launch]], times: pd.DataFrame | None = None, **info: object) -> Analysed:
        trace = Trace(kernels=kernels(replays), timings=times if times is not None else table("timings"))
        return analyse(Run(RunInfo(**info), trace, Path()))  # type: ignore[arg-type]

    return build
