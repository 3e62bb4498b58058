"""What tests of compiled paths need of the machine."""

from __future__ import annotations

import pytest

from fusionscope.fusion_runtime.paths.inductor import no_compiler

#: Without a C++ compiler inductor declines on the CPU, which has tests of its own.
needs_compiler = pytest.mark.skipif(no_compiler() is not None, reason=str(no_compiler()))
