"""Times and shares as text of a report: one unit a pair, exact where they must add up."""

from __future__ import annotations


def saving(ns: float) -> str:
    """A difference of two steps: ms from 0.1 ms on, else us; without sign."""
    size = abs(ns)
    if size >= 100_000:
        return f"{size / 1_000_000:.2f} ms"
    return f"{size / 1000:.{0 if size >= 10_000 else 2}f} us"


def in_us(ns: float) -> str:
    """Microseconds: whole from 100 on, two decimals below 10, one between; with sign where it is negative."""
    size = abs(ns) / 1000
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    # Adding nothing makes a rounded -0.00 plain.
    return f"{round(ns / 1000, digits) + 0.0:.{digits}f}"


def pair(before: float, after: float) -> str:
    """`9.74 -> 9.59 ms`: two steps in one unit."""
    if max(before, after) >= 1_000_000:
        return f"{before / 1_000_000:.2f} -> {after / 1_000_000:.2f} ms"
    return f"{before / 1000:.2f} -> {after / 1000:.2f} us"


def percent(part: float, digits: int = 2) -> str:
    """A part with its sign: `-1.56 %`."""
    return f"{round(part, digits + 2) + 0.0:+.{digits}%}".replace("%", " %")


def launch_us(ns: float) -> str:
    """The time of one launch, exact: two decimals of a us, or three."""
    return _trimmed(f"{ns / 1000:.3f}", 2)


class Ticks:
    """Sums of one table, rounded so that what is read adds up: to 0.1 us from a total of 1 ms on, else to 0.01 us."""

    def __init__(self, total_ns: float) -> None:
        self.large = total_ns >= 1_000_000
        self.decimals = 1 if self.large else 2

    def of(self, ns: float) -> int:
        """Whole ticks."""
        return round(ns / 1000 * float(10**self.decimals))

    def us(self, ticks: int, signed: bool = False) -> str:
        """Ticks in us."""
        return f"{ticks / 10**self.decimals:{'+' if signed else ''}.{self.decimals}f} us"

    def total(self, ticks: int, signed: bool = False) -> str:
        """Ticks in ms with at least two decimals and every digit that adds up; in us for a total below 1 ms."""
        if not self.large:
            return self.us(ticks, signed)
        return _trimmed(f"{ticks / 10_000:{'+' if signed else ''}.4f}", 2) + " ms"


def _trimmed(text: str, least: int) -> str:
    whole, _, decimals = text.partition(".")
    kept = decimals.rstrip("0")
    return f"{whole}.{kept + '0' * (least - len(kept))}"
