"""From the forward to the server: what a saving per forward makes of the time per output token, and what was observed.

Runs are matched by concurrency. Where the fusion cannot fire both arms run the same program: such rows are controls,
and what they and repeated runs of one arm differ by is the noise of serving. With one run an arm and no control no
noise is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fusionscope.analysis.verdict import BELOW_MARGIN, INCONCLUSIVE, WORDS, WORTH_MERGING, Verdict
from fusionscope.profiler.readers.serving_json import ServingRun


@dataclass(frozen=True)
class StepSaving:
    """What is known of one step at some batch: ns of the step, of the saving with its interval, of the ceiling."""

    step_ns: float
    saving_ns: float
    interval_ns: tuple[float, float]
    ceiling_ns: float | None = None


@dataclass(frozen=True)
class Serve:
    """How a forward sits in a server."""

    #: Host time a step that no forward hides, ns; None: what the observed time per token leaves over.
    host_ns: float | None = None
    #: Tokens a step (speculative decoding); None: what the base's runs say, else 1.
    accept_length: float | None = None
    #: Part of the time per token that is decode steps of this kind; the rest is prefill of other requests.
    decode_share: float = 1.0


@dataclass(frozen=True)
class Noise:
    """Relative standard deviation of one run, from repeats and controls; `freedom` 0 is no noise known."""

    sigma: float = 0.0
    freedom: int = 0

    def half_width(self, base: int, candidate: int) -> float | None:
        """Half of the 95 % interval of the relative difference of so many runs an arm."""
        if not self.freedom:
            return None
        error = self.sigma * float(np.sqrt(1 / base + 1 / candidate))
        return float(stats.t.ppf(0.975, self.freedom)) * error


@dataclass(frozen=True)
class ServingRow:
    """One concurrency. Parts are of the base's time per token; a saving is above 0."""

    concurrency: int
    control: bool
    runs: tuple[int, int]
    tpot_ms: tuple[float, float]
    throughput: tuple[float, float] | None
    ttft_ms: tuple[float, float] | None
    observed: float
    interval: tuple[float, float] | None
    predicted: float | None
    predicted_interval: tuple[float, float] | None
    ceiling: float | None
    #: The base's times with the predicted saving: ms a token, and output tokens a second where they are told.
    predicted_tpot_ms: float | None
    predicted_throughput: float | None
    #: Full sentences on what does not fit.
    says: tuple[str, ...]


@dataclass(frozen=True)
class Acceptance:
    """Tokens a step of speculative decoding, over all concurrencies."""

    base: float
    candidate: float
    #: Of the candidate over the base, minus 1; None where no noise is known.
    interval: tuple[float, float] | None

    @property
    def dropped(self) -> bool:
        """Whether it fell by more than its noise."""
        return self.interval is not None and self.interval[1] < 0

    def sentence(self) -> str:
        """The change in words."""
        told = f"Acceptance length {self.base:.3g} -> {self.candidate:.3g}"
        if self.interval is None:
            return f"{told}, no noise known: one run an arm says nothing of a drop."
        if self.dropped:
            return f"{told}: it fell beyond its noise, so the outputs changed."
        return f"{told}: no drop beyond its noise."


@dataclass(frozen=True)
class Serving:
    """Every concurrency that both arms have, the noise, and the acceptance length where it is told."""

    rows: list[ServingRow]
    noise: Noise
    acceptance: Acceptance | None
    #: Concurrencies that one arm alone has.
    unmatched: tuple[int, ...]
    ttft_range_ms: tuple[float, float] | None


def serving(
    base: Sequence[ServingRun],
    candidate: Sequence[ServingRun],
    savings: Mapping[int, StepSaving] | None = None,
    serve: Serve | None = None,
    controls: Collection[int] = (),
) -> Serving:
    """Put two arms of serving runs beside each other, and beside the prediction where a concurrency's batch has one."""
    arms = [_by_concurrency(runs) for runs in (base, candidate)]
    both = sorted(set(arms[0]) & set(arms[1]))
    noise = _noise([(arms[0][c], arms[1][c], c in controls) for c in both], "tpot_ms")
    serve = serve or Serve()
    rows = [_row(c, arms[0][c], arms[1][c], noise, (savings or {}).get(c), serve, c in controls) for c in both]
    ttfts = [run.ttft_ms for run in [*base, *candidate] if run.ttft_ms is not None]
    return Serving(
        rows=rows,
        noise=noise,
        acceptance=_acceptance([(arms[0][c], arms[1][c]) for c in both]),
        unmatched=tuple(sorted(set(arms[0]) ^ set(arms[1]))),
        ttft_range_ms=(min(ttfts), max(ttfts)) if len(ttfts) > 1 else None,
    )


def predicted_part(saving: StepSaving, value_ns: float, serve: Serve, tpot_ms: float | None = None) -> float:
    """The part of the time per token that `value_ns` of one step is.

    The step is the forward with the host's time; where that is not given and a time per token was observed, all of
    the time per token times the tokens a step.
    """
    whole = saving.step_ns + (serve.host_ns or 0.0)
    if serve.host_ns is None and tpot_ms is not None:
        whole = max(tpot_ms * 1e6 * (serve.accept_length or 1.0), saving.step_ns)
    return serve.decode_share * value_ns / whole if whole else 0.0


def guarded(verdict: Verdict, found: Serving) -> Verdict:
    """The verdict, with no positive answer where the acceptance length fell beyond its noise.

    Nor does an observation then say that several captures would give one.
    """
    positive = (WORTH_MERGING, BELOW_MARGIN)
    fell = found.acceptance
    if fell is None or not fell.dropped or not {verdict.class_, verdict.would_be} & set(positive):
        return verdict
    sentence = f"Undecided whatever the time: {fell.sentence()} On time alone: {verdict.sentence}"
    why = f"the acceptance length fell beyond its noise ({fell.base:.3g} -> {fell.candidate:.3g})."
    # What was to be quoted ends in the class and what would change that; both are others now.
    said = verdict.quote.rpartition(f": {WORDS[verdict.class_]}")[0]
    return replace(
        verdict,
        class_=INCONCLUSIVE,
        sentence=sentence,
        quote=f"{said}: {WORDS[INCONCLUSIVE]}, since {why}",
        would_be="",
    )


def sentences(found: Serving) -> list[str]:
    """The answer in full sentences, for a report."""
    said = []
    for row in found.rows:
        observed = f"{-row.observed:+.1%}"
        if row.interval is not None:
            half = (row.interval[1] - row.interval[0]) / 2
            observed += f" +- {half:.1%}"
        if row.control:
            said.append(f"Concurrency {row.concurrency} is a control (fusion off): time per token {observed}.")
            continue
        forecast = ", not predicted"
        if row.predicted is not None and row.predicted_tpot_ms is not None:
            forecast = f", predicted {-row.predicted:+.1%} ({row.tpot_ms[0]:.2f} -> {row.predicted_tpot_ms:.2f} ms"
            if row.throughput is not None and row.predicted_throughput is not None:
                forecast += f", {row.throughput[0]:,.0f} -> {row.predicted_throughput:,.0f} tokens a second"
            forecast += ")"
        said += [f"Concurrency {row.concurrency}: time per token observed {observed}{forecast}.", *row.says]
    if not found.noise.freedom:
        said.append("No noise known: one run an arm and no control; repeat the runs, or add one where it is off.")
    if found.acceptance is not None:
        said.append(found.acceptance.sentence())
    if found.ttft_range_ms is not None:
        low, high = found.ttft_range_ms
        said.append(f"Time to first token: no claim; it lies between {low:.0f} and {high:.0f} ms over all runs.")
    if found.unmatched:
        said.append(f"One arm alone has concurrency {', '.join(map(str, found.unmatched))}.")
    return [text.replace("%", " %") for text in said]


def _by_concurrency(runs: Sequence[ServingRun]) -> dict[int, list[ServingRun]]:
    found: dict[int, list[ServingRun]] = {}
    for run in runs:
        found.setdefault(run.concurrency, []).append(run)
    return found


def _values(runs: Sequence[ServingRun], name: str) -> list[float]:
    return [value for run in runs if (value := getattr(run, name)) is not None]


def _mean(runs: Sequence[ServingRun], name: str) -> float | None:
    values = _values(runs, name)
    return float(np.mean(values)) if values else None


def _pair(base: Sequence[ServingRun], candidate: Sequence[ServingRun], name: str) -> tuple[float, float] | None:
    before, after = _mean(base, name), _mean(candidate, name)
    return None if before is None or after is None else (before, after)


def _noise(cells: list[tuple[list[ServingRun], list[ServingRun], bool]], name: str) -> Noise:
    """Repeats of an arm at one concurrency and the arms' difference at controls, pooled as relative variances."""
    squares, freedom = 0.0, 0
    for base, candidate, control in cells:
        arms = [np.array(_values(runs, name)) for runs in (base, candidate)]
        for values in arms:
            if len(values) > 1:
                squares += float(((values / values.mean() - 1) ** 2).sum())
                freedom += len(values) - 1
        if control and all(len(values) for values in arms):
            apart = float(arms[1].mean() / arms[0].mean() - 1)
            squares += apart**2 / (1 / len(arms[0]) + 1 / len(arms[1]))
            freedom += 1
    return Noise(float(np.sqrt(squares / freedom)), freedom) if freedom else Noise()


def _row(
    concurrency: int, base: list[ServingRun], candidate: list[ServingRun], noise: Noise, known: StepSaving | None,
    serve: Serve, control: bool,
) -> ServingRow:  # fmt: skip
    tpot = _pair(base, candidate, "tpot_ms")
    assert tpot is not None
    observed = 1 - tpot[1] / tpot[0]
    half = noise.half_width(len(base), len(candidate))
    interval = None if half is None else (observed - half, observed + half)
    predicted, forecast, ceiling = None, None, None
    says: list[str] = []
    if known is not None and not control:
        own = serve if serve.accept_length else replace(serve, accept_length=_mean(base, "accept_length") or 1.0)
        predicted = predicted_part(known, known.saving_ns, own, tpot[0])
        forecast = (
            predicted_part(known, known.interval_ns[0], own, tpot[0]),
            predicted_part(known, known.interval_ns[1], own, tpot[0]),
        )
        if known.ceiling_ns is not None:
            ceiling = predicted_part(known, known.ceiling_ns, own, tpot[0])
        says = _misfits(known, own, tpot[0], observed, interval, forecast, ceiling)
    throughput = _pair(base, candidate, "throughput")
    left = None if predicted is None else 1 - predicted
    return ServingRow(
        concurrency=concurrency,
        control=control,
        runs=(len(base), len(candidate)),
        tpot_ms=tpot,
        throughput=throughput,
        ttft_ms=_pair(base, candidate, "ttft_ms"),
        observed=observed,
        interval=interval,
        predicted=predicted,
        predicted_interval=forecast,
        ceiling=ceiling,
        predicted_tpot_ms=None if left is None else tpot[0] * left,
        predicted_throughput=None if left is None or throughput is None else throughput[0] / left,
        says=tuple(says),
    )


def _misfits(
    known: StepSaving, serve: Serve, tpot_ms: float, observed: float, interval: tuple[float, float] | None,
    forecast: tuple[float, float], ceiling: float | None,
) -> list[str]:  # fmt: skip
    says = []
    if known.step_ns > tpot_ms * 1e6 * (serve.accept_length or 1.0) * 1.05:
        says.append(
            f"The forward ({known.step_ns / 1e6:.2f} ms) is longer than the time of a step here: this is another "
            "batch or program than was traced."
        )
    if ceiling is not None and observed > ceiling:
        sure = interval is not None and interval[0] > ceiling
        within = "" if sure else " (its noise reaches down to what can be explained)" if interval else ""
        says.append(f"This is larger than this fusion can explain: the ceiling is {ceiling:.1%}{within}.")
    elif interval is not None and (forecast[1] < interval[0] or forecast[0] > interval[1]):
        says.append("Prediction and observation disagree beyond the noise.")
    return says


def _acceptance(cells: list[tuple[list[ServingRun], list[ServingRun]]]) -> Acceptance | None:
    told = [(b, c) for b, c in cells if _values(b, "accept_length") and _values(c, "accept_length")]
    if not told:
        return None
    noise = _noise([(b, c, False) for b, c in told], "accept_length")
    pairs = [both for b, c in told if (both := _pair(b, c, "accept_length")) is not None]
    changes = [after / before - 1 for before, after in pairs]
    counts = [(len(_values(b, "accept_length")), len(_values(c, "accept_length"))) for b, c in told]
    interval = None
    if noise.freedom:
        variance = noise.sigma**2 * sum(1 / b + 1 / c for b, c in counts) / len(counts) ** 2
        half = float(stats.t.ppf(0.975, noise.freedom)) * float(np.sqrt(variance))
        middle = float(np.mean(changes))
        interval = (middle - half, middle + half)
    before, after = (float(np.mean([pair[k] for pair in pairs])) for k in (0, 1))
    return Acceptance(before, after, interval)
