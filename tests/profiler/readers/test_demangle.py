"""Names of C++ functions, whoever wrote them."""

from __future__ import annotations

import shutil
import subprocess
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
@pytest.mark.parametrize(
    ("mangled", "readable"),
    [
        ("_ZN5aiter4normIDF16bDF16bLi8EEEvPT0_PT_S4_", "void aiter::norm<std::bfloat16_t, std::bfloat16_t, 8>"),
        ("_Z6reduceIDF16_Li128EEvPT_PKfS3_", "void reduce<_Float16, 128>(_Float16*, float const*, float const*)"),
    ],
)
def test_half_types_that_older_runtimes_do_not_know(mangled: str, readable: str) -> None:
    assert demangle(mangled).startswith(readable)


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="c++filt is not installed")
def test_newer_grammar_is_left_to_the_tools_that_know_it() -> None:
    name = "_Z3addIiTnT_Li3EEvS0_"
    said = subprocess.run(["c++filt", name], capture_output=True, text=True).stdout.strip()
    assert demangle_all([name, "_Z1fi"]) == ({name: said} if said != name else {}) | {"_Z1fi": "f(int)"}


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
