"""From a profiler's file to the tables of fusionscope.profiler.trace: one module per format."""

from __future__ import annotations

from fusionscope.profiler.readers.detect import read_trace
from fusionscope.profiler.readers.provenance import read_provenance
from fusionscope.profiler.readers.timings import read_timings

__all__ = ["read_provenance", "read_timings", "read_trace"]
