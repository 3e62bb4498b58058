"""Whether the times of two runs may be put beside each other, and if not, which field forbids it."""

from __future__ import annotations

from dataclasses import dataclass

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run

#: Labels that change what a time means: a run that has one and a run that has not are two different things.
DECISIVE_LABELS = ("cpu", "emulated ranks", "scaled shapes", "truncated layers", "isolated bench", "modelled link")
#: Fields of run.json that must agree, and those whose difference is said and no more.
_MUST, _SHOULD = ("model", "tp", "batch", "context", "layers", "device"), ("profiler", "tracing_mode")
#: Facts of the machine: another GPU is another experiment; clocks, throttling and versions move times.
_MACHINE_MUST = ("gpu",)
_MACHINE_SHOULD = ("sm_clock_mhz", "throttle_reasons", "driver", "cuda", "rocm", "torch", "triton", "cpu")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Mismatch:
    """One field in which two runs differ; `refuses`: their times are not comparable at all."""

    field: str
    base: str
    candidate: str
    refuses: bool

    @property
    def sentence(self) -> str:
        """The difference in words."""
        return f"{self.field}: {self.base} in the base, {self.candidate} in the candidate"


def mismatches(base: Run, candidate: Run) -> list[Mismatch]:
    """What speaks against comparing two runs, what refuses it first; paths and settings are the choice itself.

    A field that only one side knows is a warning: an imported run may not say its batch.
    """
    before, after = _facts(base), _facts(candidate)
    found = []
    for field, (must, value) in before.items():
        other = after[field][1]
        if value != other:
            found.append(Mismatch(field, value, other, must and UNKNOWN not in (value, other)))
    return sorted(found, key=lambda m: not m.refuses)


def refusal(found: list[Mismatch]) -> str:
    """One sentence that says why two runs are not comparable; "" where they are."""
    why = [m.sentence for m in found if m.refuses]
    if not why:
        return ""
    return f"The runs are not comparable ({'; '.join(why)}): choose two runs that differ in the fusion alone."


def _facts(run: Run) -> dict[str, tuple[bool, str]]:
    info = run.info
    machine = {**run.trace.machine, **info.machine}
    facts = {name: (True, _field(info, name)) for name in _MUST}
    facts |= {name: (True, machine.get(name) or UNKNOWN) for name in _MACHINE_MUST}
    facts |= {f"label {name}": (True, "yes" if name in info.labels else "no") for name in DECISIVE_LABELS}
    facts |= {name: (False, _field(info, name)) for name in _SHOULD}
    facts |= {name: (False, machine.get(name) or UNKNOWN) for name in _MACHINE_SHOULD}
    return facts


def _field(info: RunInfo, name: str) -> str:
    value = getattr(info, name)
    return UNKNOWN if value in ("", -1) else str(value)
