"""`fusionscope bench` as a user runs it; the timing itself is in tests/profiler/capture/test_bench.py."""

from __future__ import annotations

from typing import Any

import pytest


def test_without_a_gpu_it_says_what_else(fusionscope: Any) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    answer = fusionscope("bench", "mhc_post", "--model", "glm-5.3-flash")
    assert answer.code == 2 and "needs a GPU" in answer.err and "--from TABLE.csv" in answer.err


@pytest.mark.parametrize("tokens", ["", "4,x", "0", "1,,2", "-3"])
def test_tokens_are_whole_numbers(fusionscope: Any, tokens: str) -> None:
    answer = fusionscope("bench", "mhc_post", "--model", "tiny", f"--tokens={tokens}")
    assert answer.code == 2 and "--tokens is a list" in answer.err
