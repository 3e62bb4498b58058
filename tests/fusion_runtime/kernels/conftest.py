"""Triton's interpreter for these tests: kernels run in Python on the CPU. Must be set before triton is imported."""

import os
import sys

import pytest

pytest.importorskip("torch")

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
