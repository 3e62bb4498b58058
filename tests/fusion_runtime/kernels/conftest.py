"""Kernels in Triton's interpreter, which tests/conftest.py switches on."""

import pytest

pytest.importorskip("torch")
