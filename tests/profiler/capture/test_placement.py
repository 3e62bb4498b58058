"""Where captures' buffers lie: drawn by words, and a size for each way in which the allocator serves a request."""

from __future__ import annotations

from fusionscope.profiler.capture.placement import padding

MIB = 1024**2


def test_the_same_words_draw_the_same_places_and_others_draw_others() -> None:
    assert padding(0, 1, "base") == padding(0, 1, "base")
    drawn = [padding(process, place) for process in range(5) for place in range(8)]
    assert len(set(drawn)) == 40
    assert all(0 < small < MIB <= middle < 10 * MIB <= large <= 72 * MIB for small, middle, large in drawn)
    assert all(size % 512 == 0 for sizes in drawn for size in sizes)
