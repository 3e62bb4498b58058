"""Where a capture's buffers lie: drawn anew for each capture, since the time of a replay depends on it."""

from __future__ import annotations

import random

_KIB, _MIB = 1024, 1024**2


def padding(*what: object) -> tuple[int, ...]:
    """Bytes of the buffers to allocate before a capture's own, the same each time for the same words.

    Captures that are made in the same order get the same addresses in every process, and keep what they differ by. One
    buffer for each way in which torch's allocator serves a request: below 1 MiB several share 2 MiB, below 10 MiB
    several share 20 MiB, and a larger one moves all memory that is taken from the driver after it.
    """
    draw = random.Random(" ".join(map(str, what)))
    return (
        draw.randrange(1, 2 * _KIB) * 512,
        _MIB + draw.randrange(8 * 2 * _KIB) * 512,
        10 * _MIB + draw.randrange(32) * 2 * _MIB,
    )
