"""The Markdown of a pull request: claim, what ran, measurement, verdict, proof that it fired, a table that adds up."""

from __future__ import annotations

import re

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.changes import Change
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.estimate import Estimate, Fused, estimate
from fusionscope.analysis.names import short
from fusionscope.analysis.paired_rows import Cell, Row
from fusionscope.analysis.verdict import MARGIN, us
from fusionscope.profiler.runinfo import RunInfo

#: GitHub refuses a comment that is longer.
LONGEST = 65_536
#: Rows of kernels elsewhere that stand by name; the rest is one row.
ELSEWHERE = 8
BUILT_IN = (
    "built-in model: random weights, synthetic routing, FusionScope's own and libraries' kernels, not an engine's"
)


def markdown(found: Comparison, margin: float = MARGIN) -> str:
    """The summary of a comparison, under 65,536 characters."""
    claim = found.claims[0][0] if found.claims else None
    # Two fusions at once have one measured saving and no prediction to hold against it.
    predicted = _predicted(found, claim, margin) if len(found.claims) == 1 else None
    lines = [
        _title(found, claim, predicted),
        _what_ran(found),
        _measurement(found, predicted),
        _verdict(found, predicted),
        _fired(found),
        "",
        *_table(found),
        "",
        _not_measured(found),
        *_details(found),
    ]
    text = "\n".join(lines) + "\n"
    return text if len(text) < LONGEST else text[: LONGEST - 200].rsplit("\n", 1)[0] + "\n\n(cut: too long)\n"


def _predicted(found: Comparison, claim: Change | None, margin: float) -> Estimate | None:
    """What the base run alone, with the fused kernel's time in the candidate's trace, would have predicted."""
    if claim is None or not claim.candidate_sites:
        return None
    run = found.candidate
    sites = [s for s in run.attribution.sites[claim.boundary] if not claim.subtype or s.subtype == claim.subtype]
    each = np.stack([run.forward.duration[:, list(s.columns)].sum(axis=1) for s in sites])
    launches = int(np.median([len(s.columns) for s in sites]))
    fused = Fused(time_ns=float(np.median(each)), launches=launches, source="candidate")
    base = found.base
    return estimate(
        base.attribution, base.schedule(), claim.boundary, claim.subtype, fused, base.untraced, margin
    )  # fmt: skip


def _title(found: Comparison, claim: Change | None, predicted: Estimate | None) -> str:
    if claim is None:
        if found.same_sequence:
            return "### The fusion did not fire: both runs launch the same kernels in the same order"
        return "### No known boundary became fewer launches"
    step = found.base.step_ns()
    if found.measured is not None and found.measured_saving_ns is not None:
        saving, how = found.measured_saving_ns, "untraced"
    else:
        spans = [float(np.median(side.forward.span)) for side in (found.base, found.candidate)]
        saving, how = spans[0] - spans[1], "traced"
    word = "less" if saving >= 0 else "more"
    verdict = found.measured or (predicted.verdict if predicted else None)
    label = f", {verdict.class_.replace('_', ' ')}" if verdict else ""
    more = "".join(f" and `{change.name}` at {sites} more" for change, sites in found.claims[1:])
    return (
        f"### `{claim.name}` fused at {claim.fired_sites} sites{more}: {us(abs(saving))} {word} per decode forward "
        f"({-saving / step:+.2%} of the {how} step){label}"
    )


def _what_ran(found: Comparison) -> str:
    info = found.candidate.info
    machine = info.machine or found.candidate.run.trace.machine
    parts = [info.model or "unknown model (imported)", machine.get("gpu") or _unnamed(info)]
    parts += [f"TP{info.tp}"] if info.tp > 0 else []
    parts += [f"batch {info.batch}"] if info.batch > 0 else []
    parts += [f"context {info.context}"] if info.context > 0 else []
    ranks = found.candidate.run.trace.kernels["rank"].nunique()
    parts += [f"rank {found.candidate.forward.rank} of {ranks} traced"]
    parts += [f"profiler {info.profiler}"] if info.profiler else []
    labels = dict.fromkeys([*found.base.info.labels, *info.labels])
    built_in = f" ({BUILT_IN})" if "built-in model" in labels else ""
    return f"{', '.join(parts)}{built_in}. Labels: {', '.join(labels) or 'none'}."


def _unnamed(info: RunInfo) -> str:
    return info.machine.get("cpu") or "CPU" if info.device == "cpu" else "unknown GPU"


def _measurement(found: Comparison, predicted: Estimate | None) -> str:
    text = ""
    if found.measured is not None and found.measured_interval_ns is not None:
        base, candidate = found.base.untraced, found.candidate.untraced
        assert base is not None and candidate is not None
        low, high = found.measured_interval_ns
        text = (
            f"**Measured, {base.source}:** {us(base.median_ns)} -> {us(candidate.median_ns)}, saving "
            f"{us(found.measured_saving_ns or 0.0)} [95 % CI {us(low)}, {us(high)}]"
        )
        text += f"; noise floor (A/A) {us(found.mde_ns)}." if found.mde_ns is not None else "; noise floor unknown."
    else:
        text = "**Measured, untraced:** nothing; no replay times without a profiler."
    if len(found.claims) > 1:
        text += " Predicted: nothing, since several boundaries changed at once; compare them one at a time."
    if predicted is not None:
        low, high = predicted.interval_ns
        text += (
            f" Predicted from the base run with the fused time of this trace: {us(predicted.saving_ns)} "
            f"[{us(low)}, {us(high)}] ({predicted.basis}); Amdahl {predicted.amdahl_gain:.2%}."
        )
    return text


def _verdict(found: Comparison, predicted: Estimate | None) -> str:
    verdict = found.measured or (predicted.verdict if predicted else None)
    if verdict is None:
        return "**Verdict:** none; nothing was fused."
    return f"**Verdict ({verdict.kind}): {verdict.class_}.** {verdict.sentence}"


def _fired(found: Comparison) -> str:
    fired = found.fired
    if fired is None:
        text = "**Fired:** no." if not found.suspects else "**Fired:** not known."
        for kernel, count, boundary in found.suspects:
            text += (
                f" {count} sites of `{boundary}` vanished and `{short(kernel)}` appears as often: if it is the fused "
                "kernel, name it under `fused` in a rules file (--rules); nothing was subtracted."
            )
    else:
        text = (
            f"**Fired:** {fired.sites} of {fired.of_sites} sites, {fired.replays} of {fired.of_replays} replays, "
            f"{fired.ranks} of {fired.of_ranks} ranks."
        )
    return f"{text} {differences(found)}"


def differences(found: Comparison) -> str:
    """What differs between the two runs, in one sentence."""
    told = [f"`{k}` {a or 'unset'} -> {b or 'unset'}" for k, (a, b) in found.differs.items()]
    if any(run.info.imported for run in (found.base, found.candidate)):
        recorded = f"; recorded: {', '.join(told)}" if told else ""
        return f"**What differs:** unknown (imported){recorded}."
    word = "Only difference" if len(told) == 1 else "What differs"
    return f"**{word}:** {', '.join(told) or 'nothing that was recorded'}."


def _cell(cell: Cell) -> str:
    if not cell.launches:
        return "0"
    return f"{cell.launches} x {us(cell.median_ns)}, sum {us(cell.sum_ns)}"


def _table(found: Comparison) -> list[str]:
    totals = [float(np.median(run.forward.kernel_time)) for run in (found.base, found.candidate)]
    inside = [r for r in found.rows if r.where]
    named = _named_elsewhere(found.rows, inside)
    rest = [r for r in found.rows if not r.where and r not in named]
    lines = [
        f"| one decode forward, rank {found.base.forward.rank}, traced | before: launches x median, sum "
        "| after: launches x median, sum | difference |",
        "|---|---:|---:|---:|",
    ]
    for change, sites in found.claims:
        mine = [r for r in inside if r.where == change.name]
        name = "this boundary" if len(found.claims) == 1 else f"`{change.name}`"
        lines += [_row(r, f"`{short(r.name)}`, in {name}") for r in mine]
        lines.append(_boundary_row(mine, sites if change is not found.claims[0][0] else change.base_sites))
    lines += [_row(r, f"`{short(r.name)}`, elsewhere ({_control(r)})") for r in named]
    # The last row is what is left of the totals, so that the columns add up to them exactly.
    left = [
        total - sum(getattr(r, side).sum_ns for r in inside + named)
        for total, side in zip(totals, ("base", "candidate"), strict=True)
    ]
    count = [sum(getattr(r, side).launches for r in rest) for side in ("base", "candidate")]
    grown = sum(1 for r in rest if r.status == "grown")
    note = f"{grown} of {len(rest)} kernels grew beyond noise" if grown else "none grew beyond noise"
    # Medians of sums do not add up to the median of the whole: what they leave over stands here too.
    cells = " | ".join(f"{n} launches, {us(ns)}" for n, ns in zip(count, left, strict=True))
    lines.append(
        f"| all other kernels (control), what medians leave over | {cells} | {_signed(left[1] - left[0])} ({note}) |"
    )
    n = [run.forward.launches for run in (found.base, found.candidate)]
    spans = [float(np.median(run.forward.span)) for run in (found.base, found.candidate)]
    lines.append(f"| **launches** | **{n[0]}** | **{n[1]}** | **{n[1] - n[0]:+d} ({n[1] / n[0] - 1:+.2%})** |")
    for name, (a, b), of in (
        ("**kernel time** (sum of durations)", totals, "kernel time"),
        ("span", spans, "span"),
    ):
        lines.append(f"| {name} | {us(a)} | {us(b)} | {_signed(b - a)} ({b / a - 1:+.2%} of {of}) |")
    return lines


def _boundary_row(rows: list[Row], sites: int) -> str:
    sums = [sum(getattr(r, side).sum_ns for r in rows) for side in ("base", "candidate")]
    count = [sum(getattr(r, side).launches for r in rows) for side in ("base", "candidate")]
    per_site = (sums[1] - sums[0]) / max(sites, 1)
    cells = " | ".join(f"**{n} launches, {us(ns)}**" for n, ns in zip(count, sums, strict=True))
    return f"| **boundary, {sites} sites** | {cells} | **{_signed(sums[1] - sums[0])} ({_signed(per_site)} a site)** |"


def _named_elsewhere(rows: list[Row], inside: list[Row]) -> list[Row]:
    """Rows outside the boundary that a reviewer must see: shared kernels, and those that came, went or grew."""
    shared = {r.name for r in inside}
    elsewhere = [r for r in rows if not r.where]
    first = [r for r in elsewhere if r.name in shared]
    moved = [r for r in elsewhere if r.name not in shared and r.status not in ("untouched",)]
    moved.sort(key=lambda r: -abs(r.difference_ns))
    return first + moved[:ELSEWHERE]


def _control(row: Row) -> str:
    return "control" if row.status == "untouched" else row.status


def _row(row: Row, label: str) -> str:
    return f"| {label} | {_cell(row.base)} | {_cell(row.candidate)} | {_signed(row.difference_ns)} |"


def _signed(ns: float) -> str:
    return f"{ns / 1000:+.2f} us"


def _not_measured(found: Comparison) -> str:
    info = found.candidate.info
    known = f"batch {info.batch}, context {info.context}, TP{info.tp}" if info.batch > 0 else "this batch"
    return f"**Not measured:** anything but {known}; serving throughput; accuracy."


def _details(found: Comparison) -> list[str]:
    lines = ["<details><summary>Reproduce, all kernels, environment, input hashes</summary>", ""]
    for side, run in (("before", found.base), ("after", found.candidate)):
        lines += _run_lines(side, run)
    lines += ["", "| kernel | where | status | before | after |", "|---|---|---|---:|---:|"]
    for row in found.rows[:200]:
        where = row.where or "elsewhere"
        name = re.sub(r"[`|\s]", " ", row.name)[:160]
        lines.append(f"| `{name}` | {where} | {row.status} | {_cell(row.base)} | {_cell(row.candidate)} |")
    if len(found.rows) > 200:
        lines.append(f"| {len(found.rows) - 200} more kernels: `fusionscope compare --json` has them | | | | |")
    return [*lines, "", "</details>"]


def _run_lines(side: str, run: Analysed) -> list[str]:
    info = run.info
    lines = [f"- {side}: run `{info.id}`, fusionscope {info.tool_version}"]
    if info.command:
        lines.append(f"  - command: `{' '.join(info.command)}`")
    machine = {**run.run.trace.machine, **info.machine}
    if machine:
        lines.append("  - machine: " + ", ".join(f"{k} {v}" for k, v in machine.items()))
    if info.environment:
        lines.append("  - environment: " + ", ".join(f"`{k}={v}`" for k, v in info.environment.items()))
    lines += [f"  - input: {i.path}, sha256 {i.sha256}" for i in info.inputs]
    covered = run.attribution.coverage()
    lines.append("  - coverage of kernel time by rung: " + ", ".join(f"{k} {v:.1%}" for k, v in covered.items() if v))
    return lines
