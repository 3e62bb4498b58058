"""One vocabulary for every answer, predicted or measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass

WORTH_MERGING = "worth_merging"
BELOW_MARGIN = "below_margin"
NOT_MEASURABLE = "not_measurable"
SLOWER = "slower"
INCONCLUSIVE = "inconclusive"
#: Kind of a verdict on times of one capture of each arm, which no measurement is.
OBSERVED = "observed"

#: Margin that a saving must exceed to be worth a merge, as part of the step.
MARGIN = 0.005


@dataclass(frozen=True)
class Verdict:
    """`class_` is one of the five above; `kind` is "predicted", "observed" or "measured"."""

    class_: str
    kind: str
    above_noise: bool | None
    above_margin: bool
    confidence: float
    sentence: str
    #: One sentence to quote: saving, interval, share of the step, times the noise floor, class, what would change it.
    quote: str = ""
    #: Of an undecided observation: the class that several captures with this interval would have.
    would_be: str = ""

    def document(self) -> dict[str, object]:
        """The verdict as JSON."""
        fields = asdict(self)
        return {"class": fields.pop("class_"), **fields, "would_be": self.would_be or None}


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
    subject: str = "",
    change: str = "",
    equivalent: bool = False,
    error: tuple[float, float] | None = None,
) -> Verdict:
    """The verdict on a saving with its 95 % interval, against the noise floor and a margin (part of the step).

    `missing` is a sentence that says what would settle an inconclusive answer, `caution` one that is always said.
    The quote is of `subject` ("fusing X at 90 sites"), and `change` says what would change the answer; without it
    the limits are named. `equivalent`: a test found the difference smaller than the margin, so that an interval around
    0 is no measurable difference, also where the noise floor is below the margin. `error` is the standard error of the
    saving in ns with its degrees of freedom, where they are known: few of them make a lower confidence.
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
        would = "" if guess == INCONCLUSIVE else f"; with a noise floor below {us(floor)} it would be {_said(guess)}"
        sentence = f"Undecided: {said}, but the noise floor of the untraced step is not known{would}. {missing}"
        quote = _quote(kind, subject, said, saving_ns, None, INCONCLUSIVE, change or would.removeprefix("; "))
        confidence = confidence_of(low, high, INCONCLUSIVE, 0.0, need, error)
        return Verdict(INCONCLUSIVE, kind, None, above_margin, confidence, _joined(sentence, caution), quote)
    name = _class(low, high, mde_ns, need)
    if equivalent and name == INCONCLUSIVE and low <= 0 <= high:
        name = NOT_MEASURABLE
    bar = f"noise floor {us(mde_ns)}, margin {margin:.2%} = {us(need)}"
    words = {
        WORTH_MERGING: f"Faster, above noise and margin (worth merging on time alone): {said}; {bar}.",
        BELOW_MARGIN: f"Faster and above noise, but below the margin: {said}; {bar}.",
        NOT_MEASURABLE: f"No measurable difference: {said}; {bar}.",
        SLOWER: f"Slower, above noise: {said}; {bar}.",
        INCONCLUSIVE: f"Undecided: {said}; the interval spans {_spans(low, high, mde_ns, need)}; {bar}. {missing}",
    }
    sentence = _joined(words[name], caution)
    limits = _change(name, saving_ns, interval_ns, step_ns, mde_ns, need)
    quote = _quote(kind, subject, said, saving_ns, mde_ns, name, change or limits)
    confidence = confidence_of(low, high, name, mde_ns, need, error)
    return Verdict(name, kind, low > mde_ns, above_margin, confidence, sentence, quote)


#: The classes in the words of a quote.
WORDS = {
    WORTH_MERGING: "worth merging on time alone",
    BELOW_MARGIN: "real, but below the margin",
    NOT_MEASURABLE: "no measurable difference",
    SLOWER: "slower",
    INCONCLUSIVE: "undecided",
}


def _quote(kind: str, subject: str, said: str, saving_ns: float, mde_ns: float | None, name: str, change: str) -> str:
    noise = "the noise floor is not known"
    if mde_ns is not None:
        noise = f"{abs(saving_ns) / mde_ns:.1f} times the noise floor" if mde_ns > 0 else "the noise floor is 0"
    # Blocks of one capture are no noise that a difference of two captures could be held against.
    against = "" if kind == OBSERVED else f", {noise}"
    parts = [f"{kind.capitalize()}: {subject or 'the candidate'} {said}{against}: {WORDS[name]}", change]
    return "; ".join(part for part in parts if part) + "."


def _change(
    name: str, saving_ns: float, interval_ns: tuple[float, float], step_ns: float, mde_ns: float, need: float
) -> str:
    """What would change the answer, of the limits that it stands on."""
    low, high = interval_ns
    if name == WORTH_MERGING:
        return f"a noise floor or margin above {us(low)} would change that"
    if name == BELOW_MARGIN:
        return f"a margin below {low / step_ns:.2%} would make it worth merging"
    if name == SLOWER:
        return f"it would have to take {us(max(mde_ns, need) - low)} less to be worth merging"
    if name == NOT_MEASURABLE:
        if low > 0 or high < 0:
            return f"a noise floor below {us(min(abs(low), abs(high)))} would show it"
        most = max(-low, high)
        return f"nothing above {us(most) if most > mde_ns else 'the noise'} is hidden in the interval"
    there = _class(saving_ns, saving_ns, mde_ns, need)
    return f"with a narrower interval around the same saving it would be {_said(there)}"


def with_prediction(measured: Verdict, predicted: str) -> str:
    """The quote of a measurement with the prediction beside it; the measurement decides."""
    return f"{measured.quote.removesuffix('.')}; predicted beforehand: {predicted}."


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
    return " to ".join(map(_said, ends)) if ends[0] != ends[1] else f"more than {_said(ends[0])}"


def _said(name: str) -> str:
    """A class inside a sentence."""
    return name.replace("_", " ")


#: A class is said where all of the interval lies in it.
_INTERVAL = 0.95


def confidence_of(
    low: float, high: float, name: str, noise: float, need: float, error: tuple[float, float] | None = None
) -> float:
    """Probability that the saving is of its class, for a normal interval or Student's t, and at least the interval's.

    Undecided: that it is worth merging, or that it is not, whichever is likelier, and at most the interval's, since an
    answer of more is no doubt.
    """
    from scipy import stats

    middle = (low + high) / 2
    saving = stats.norm(middle, max((high - low) / 2 / stats.norm.ppf(0.975), 1e-9))
    if error is not None and error[0] > 0:
        saving = stats.t(error[1], middle, error[0])
    most = max(noise, need)
    bounds = {
        SLOWER: (-float("inf"), -noise),
        NOT_MEASURABLE: (-noise, noise),
        BELOW_MARGIN: (noise, most),
    }
    if name in bounds:
        least, most = bounds[name]
        return max(float(saving.cdf(most) - saving.cdf(least)), _INTERVAL)
    above = float(saving.sf(most))
    if name == WORTH_MERGING:
        return max(above, _INTERVAL)
    return min(max(above, 1 - above), _INTERVAL)


def us(ns: float) -> str:
    """Nanoseconds as text: us, with two decimals for a launch and one for a step, and ms above 10 ms."""
    if abs(ns) >= 10_000_000:
        return f"{ns / 1_000_000:.2f} ms"
    return f"{ns / 1000:.{2 if abs(ns) < 100_000 else 1}f} us"
