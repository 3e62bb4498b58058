"""Kernels in Triton's interpreter, which tests/conftest.py switches on."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def language_is_patched_once_a_launch() -> Iterator[None]:
    """Functions that a kernel calls find the language as the first of their module to be called has patched it.

    The interpreter patches triton.language at each of these calls: it looks through all members, and after the first
    finds nothing left to do. With kernels made of small functions that took most of the time of these tests.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    called, launched = interpreter.InterpretedFunction.__call__, interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = id(self.fn.__globals__)
        if module not in patched:
            patched.add(module)
            return called(self, *args, **kwargs)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A launch takes back at its end what it patched.
        patched.clear()
        return launched(self, *args, **kwargs)

    interpreter.InterpretedFunction.__call__, interpreter.GridExecutor.__call__ = call, launch
    yield
    interpreter.InterpretedFunction.__call__, interpreter.GridExecutor.__call__ = called, launched
