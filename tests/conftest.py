"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys

import pytest

# A job in the background of a shell ignores Ctrl-C, and so do its children: the tests that press it would wait on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Lets Triton run kernels in Python on the CPU; under `-m gpu` it goes on compiling them.

    Triton reads this as it is imported. So it is set here, before any test module is collected: set later, every test
    that needs the interpreter would be skipped without a word.
    """
    if config.getoption("markexpr").strip() == "gpu":
        return
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("triton was imported before the tests could choose its interpreter: TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"
