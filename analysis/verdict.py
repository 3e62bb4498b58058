"""One vocabulary for every answer, predicted or measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass

WORTH_MERGING = "worth_merging"
BELOW_MARGIN = "below_margin"
NOT_MEASURABLE = "not_measurable"
SLOWER = "slower"
INCONCLUSIVE = "inconclusive"

#: Margin that a saving must exceed to be worth a merge, as part of the step.
MARGIN = 0.005


@dataclass(frozen=True)
class Verdict:
    """`class_` is one of the five above; `kind` is "predicted" or "measured"."""

    class_: str
    kind: str
    above_noise: bool | None
    above_margin: bool
    confidence: float
    sentence: str

    def document(self) -> dict[str, object]:
        """The verdict as JSON."""
        fields = asdict(self)
        return {"class": fields.pop("class_"), **fields}


def judge(
    saving_ns: float,
    interval_ns: tuple[float, float],
    step_ns: float,
    mde_ns: float | None,
    *,
    kind: str,
    margin: float = MARGIN,
    missing: str = "",
    caution: str = "",
) -> Verdict:
    """The verdict on a saving with its 95 % interval, against the noise floor and a margin (part of the step).

    `missing` is a sentence that says what would settle an inconclusive answer, `caution` one that is always said.
    """
    low, high = interval_ns
    need = margin * step_ns
    what = f"saves {us(saving_ns)} [{us(low)}, {us(high)}]"
    if saving_ns < 0:
        what = f"costs {us(-saving_ns)} [{us(-high)}, {us(-low)}]"
    said = f"{what} of {us(step_ns)} ({abs(saving_ns) / step_ns:.2%})"
    above_margin = low > need
    if mde_ns is None:
        guess = _class(low, high, 0.0, need)
        floor = min(abs(low), abs(high))
        would = "" if guess == INCONCLUSIVE else f"; with a noise floor below {us(floor)} it would be {guess}"
        sentence = f"Undecided: {said}, but the noise floor of the untraced step is not known{would}. {missing}"
        return Verdict(INCONCLUSIVE, kind, None, above_margin, _confidence(low, high, need), _joined(sentence, caution))
    name = _class(low, high, mde_ns, need)
    bar = f"noise floor {us(mde_ns)}, margin {margin:.2%} = {us(need)}"
    words = {
        WORTH_MERGING: f"Faster, above noise and margin (worth merging on time alone): {said}; {bar}.",
        BELOW_MARGIN: f"Faster and above noise, but below the margin: {said}; {bar}.",
        NOT_MEASURABLE: f"No measurable difference: {said}; {bar}.",
        SLOWER: f"Slower, above noise: {said}; {bar}.",
        INCONCLUSIVE: f"Undecided: {said}; the interval spans {_spans(low, high, mde_ns, need)}; {bar}. {missing}",
    }
    # The limit that decides the class is the one the saving must clear.
    limit = {BELOW_MARGIN: mde_ns, SLOWER: mde_ns, NOT_MEASURABLE: mde_ns}.get(name, max(mde_ns, need))
    sentence = _joined(words[name], caution)
    return Verdict(name, kind, low > mde_ns, above_margin, _confidence(low, high, limit), sentence)


def _joined(*sentences: str) -> str:
    return " ".join(s.strip() for s in sentences if s.strip())


def _class(low: float, high: float, noise: float, need: float) -> str:
    if low > max(noise, need):
        return WORTH_MERGING
    if high < -noise:
        return SLOWER
    if low >= -noise and high <= noise:
        return NOT_MEASURABLE
    if low > noise and high <= need:
        return BELOW_MARGIN
    return INCONCLUSIVE


def _spans(low: float, high: float, noise: float, need: float) -> str:
    ends = [_class(edge, edge, noise, need) for edge in (low, high)]
    return " to ".join(ends) if ends[0] != ends[1] else f"more than {ends[0]}"


def _confidence(low: float, high: float, limit: float) -> float:
    """Probability that the saving clears the limit (or, below it, that it does not), for a normal interval."""
    from scipy import stats

    centre, spread = (low + high) / 2, max((high - low) / 2 / stats.norm.ppf(0.975), 1e-9)
    above = float(stats.norm.sf(limit, centre, spread))
    return max(above, 1 - above)


def us(ns: float) -> str:
    """Nanoseconds as text: us, with two decimals for a launch and one for a step, and ms above 10 ms."""
    if abs(ns) >= 10_000_000:
        return f"{ns / 1_000_000:.2f} ms"
    return f"{ns / 1000:.{2 if abs(ns) < 100_000 else 1}f} us"
