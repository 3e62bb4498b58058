"""Triton's interpreter for these tests: kernels run in Python on the CPU. Must be set before triton is imported."""

import os
import sys

import pytest

pytest.importorskip("torch")


def pytest_configure(config: pytest.Config) -> None:
    """Leaves Triton compiling under `-m gpu`, which collects this folder too and runs nothing of it."""
    if "triton" not in sys.modules and config.getoption("markexpr").strip() != "gpu":
        os.environ["TRITON_INTERPRET"] = "1"
