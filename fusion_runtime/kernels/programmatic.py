"""Programmatic dependent launch, where the device has it (NVIDIA from compute capability 9.0): a kernel may be set up
while the one before it still runs, and waits for its results itself.

A kernel that is launched so must wait before it reads or writes anything that another kernel touches, exchanges
included: then a kernel's end still means that everything before it has ended.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(pdl: tl.constexpr):
    """Until every kernel before this one has ended and what it wrote can be read."""
    if pdl:
        gdc_wait()


@triton.jit
def launch_dependents(pdl: tl.constexpr):
    """Lets the next kernel be set up; it waits for this one's end before it reads."""
    if pdl:
        gdc_launch_dependents()
