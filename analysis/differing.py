"""What differs between two runs, and whether that lets their times be compared at all."""

from __future__ import annotations

from fusionscope.analysis.analysed import Analysed
from fusionscope.profiler.store import Run

#: State of the machine at the moment, which always differs a little and is no choice of the runs.
_MOMENTARY = ("temperature", "clock_mhz", "throttle", "power", "gbps")
_COMPARED = ("model", "tp", "batch", "context", "layers", "device", "profiler", "tool_version")


def differing(base: Analysed, candidate: Analysed) -> dict[str, tuple[str, str]]:
    """What differs between the runs: settings, recorded environment variables, versions, labels."""

    def facts(run: Analysed) -> dict[str, str]:
        info = run.info
        known = {name: str(getattr(info, name)) for name in _COMPARED}
        if not info.imported:
            known |= {f"path {k}": "split" for k in ("ar_norm", "moe_finalize", "mhc_post", "mhc_post_pre")}
        known |= {f"path {k}": v for k, v in info.paths.items()}
        known |= info.environment | {f"set {k}": v for k, v in info.settings.items()}
        known |= {k: v for k, v in machine(run).items() if not any(m in k.lower() for m in _MOMENTARY)}
        known["labels"] = ", ".join(info.labels)
        return known

    before, after = facts(base), facts(candidate)
    keys = dict.fromkeys([*before, *after])
    return {k: (before.get(k, "unset"), after.get(k, "unset")) for k in keys if before.get(k) != after.get(k)}


#: Two times are not of the same work where one of these differs and both are known.
_SAME_WORK = ("model", "tp", "batch", "context", "layers", "device")
#: Labels of a run whose times stand for something else than those of a run without.
_OTHER_TIMES = (
    "cpu",
    "emulated ranks",
    "scaled shapes",
    "truncated layers",
    "isolated bench",
    "modelled link",
    "eager",
)
#: Clocks further apart than this part make a difference of times doubtful.
_CLOCKS = 0.02


def machine(run: Analysed) -> dict[str, str]:
    """What is known of the machine: the capture's own words, else the trace's."""
    return run.info.machine or run.run.trace.machine


def same_work(base: Run, candidate: Run) -> dict[str, tuple[str, str]]:
    """Model, shape and GPU in which two runs differ, where both know them."""
    found = {}
    for name in _SAME_WORK:
        a, b = (getattr(run.info, name) for run in (base, candidate))
        if a != b and a not in ("", -1) and b not in ("", -1):
            found[name] = (str(a), str(b))
    gpus = [(run.info.machine or run.trace.machine).get("gpu", "") for run in (base, candidate)]
    if all(gpus) and gpus[0] != gpus[1]:
        found["gpu"] = (gpus[0], gpus[1])
    return found


def incomparable(base: Analysed, candidate: Analysed) -> dict[str, tuple[str, str]]:
    """The fields that forbid a comparison of times, with both values: another model, batch, GPU, kind of run.

    What one side does not know is no difference.
    """
    found = same_work(base.run, candidate.run)
    for label in _OTHER_TIMES:
        has = [label in run.info.labels for run in (base, candidate)]
        if has[0] != has[1]:
            found[f"label {label}"] = ("yes" if has[0] else "no", "yes" if has[1] else "no")
    return found


def doubts(base: Analysed, candidate: Analysed) -> dict[str, tuple[str, str]]:
    """The fields that make a comparison doubtful: profilers that cost another time, clocks, throttling, lost ranks."""
    found = {}
    profilers = [run.info.profiler for run in (base, candidate)]
    if all(profilers) and profilers[0] != profilers[1]:
        found["profiler"] = (profilers[0], profilers[1])
    sides = [machine(run) for run in (base, candidate)]
    for key in sorted(set(sides[0]) & set(sides[1])):
        if ("clock" in key and _apart(sides[0][key], sides[1][key])) or (
            "throttle" in key and sides[0][key] != sides[1][key]
        ):
            found[key] = (sides[0][key], sides[1][key])
    missing = ["incomplete" in run.info.labels for run in (base, candidate)]
    if missing[0] != missing[1]:
        found["label incomplete"] = ("yes" if missing[0] else "no", "yes" if missing[1] else "no")
    return found


def _apart(a: str, b: str) -> bool:
    try:
        one, other = float(a), float(b)
    except ValueError:
        return False
    return abs(one - other) > _CLOCKS * max(one, other)
