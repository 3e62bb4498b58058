"""What people read, word for word. FUSIONSCOPE_UPDATE_SNAPSHOTS=1 rewrites the files in tests/cli/snapshots."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "snapshots"
CASES = {
    "attribute_split.txt": "attribute split",
    "attribute_once.txt": "attribute once --rung 4",
    "estimate_candidate.txt": "estimate split --boundary ar_norm --fused-us 4 --fused-from candidate",
    "estimate_isolated.txt": "estimate split --boundary ar_norm:residual --fused-us 3 --fused-from isolated",
    "estimate_no_kernel.txt": "estimate split --boundary ar_norm --hidden 4096 --bandwidth-gbps 4000 --link-gbps 400",
    "estimate_traced.txt": "estimate traced --boundary ar_norm --speedup 2",
    "compare_fired.txt": "compare split fused",
    "compare_did_not_fire.txt": "compare split traced",
    "compare_slower.txt": "compare fused split",
    "summary_fired.md": "summary split fused",
    "summary_did_not_fire.md": "summary split traced",
    "show_split.txt": "show split",
}


def normal(text: str) -> str:
    """The text without what differs from one machine and moment to the next."""
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "RUN-ID", text)
    text = re.sub(r"(stored in +)\S.*", r"\1STORE", text)
    return "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())


@pytest.mark.parametrize("file", CASES)
def test_the_output_is_as_stored(run: Any, file: str) -> None:
    answer = run(*CASES[file].split())
    assert (answer.code, answer.err) == (0, "")
    path = FOLDER / file
    if os.environ.get("FUSIONSCOPE_UPDATE_SNAPSHOTS") == "1":
        path.write_text(normal(answer.out), encoding="utf-8")
    assert normal(answer.out) == path.read_text(encoding="utf-8")
