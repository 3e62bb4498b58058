"""Copies that the driver runs as kernels of its own."""

from __future__ import annotations

import re

# Copy and fill nodes of a graph can run as kernels of the driver's. CUPTI then tells of a kernel, Nsight Systems of the
# copy that it is: at TP2 on H200 the two gather copies of a forward were `memcpy32_post` in one and `Memcpy DtoD` in
# the other. Launches must be the same whoever recorded them.
_DRIVER_COPY = re.compile(r"^(mem(?:cpy|set))\d*_post$")


def kind_of(name: str, kind: str) -> str:
    """`kind`, or "memcpy" or "memset" for a "kernel" that is the driver's own copy or fill."""
    match = _DRIVER_COPY.match(name) if kind == "kernel" else None
    return match[1] if match else kind
