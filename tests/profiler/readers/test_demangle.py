"""Names of C++ functions, whoever wrote them."""

from __future__ import annotations

import time

import pytest

from fusionscope.profiler.readers import demangle as module
from fusionscope.profiler.readers.demangle import demangle, demangle_all

needs_runtime = pytest.mark.skipif(demangle("_Z1fi") != "f(int)", reason="no C++ runtime with a demangler is here")
#: Each parameter is a pair of the one before: 400 letters that stand for 2**36.
_BOMB = "_Z1f1AIiE" + "".join(f"S_IS{n}_S{n}_E" for n in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")


@needs_runtime
def test_mangled_names_become_readable() -> None:
    names = ["_ZN4vllm15rms_norm_kernelIfEEvPT_PKS1_i", "gemm", "_Zbroken", "_Z1fi\x01"]
    assert demangle_all(names) == {names[0]: "void vllm::rms_norm_kernel<float>(float*, float const*, int)"}


@needs_runtime
def test_a_name_that_stands_for_an_endless_text_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 1)
    monkeypatch.setattr(module, "_BYTES", 256 << 20)
    start = time.monotonic()
    found = demangle_all(["_Z1fi", _BOMB, "_Z1gi"])
    assert found == {"_Z1fi": "f(int)", "_Z1gi": "g(int)"}
    assert time.monotonic() - start < 10


def test_without_a_mangled_name_no_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: pytest.fail("started a process"))
    assert demangle_all(["gemm", ""]) == {}
