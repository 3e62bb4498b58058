"""What tests of compiled kernels need of the machine and of the process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

#: Some tests choose the interpreter while they are collected, so that condition is a text, read when a test starts.
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU"),
    pytest.mark.skipif(
        "os.environ.get('TRITON_INTERPRET') == '1'",
        reason="Triton's interpreter, which the tests of kernels chose, runs no GPU: pytest -m gpu",
    ),
]
