"""A difference of single captures: an observation, which is undecided whatever it looks like.

Two captures of one program differ for good, and blocks of replays of one capture show nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fusionscope.analysis.verdict import INCONCLUSIVE, OBSERVED, WORDS, Verdict, judge, us

#: 95 % of pairs of captures of one program lie within this part of the step: in one process, and in two
#: (190 and 59 arms on an H200, benchmarks/results/h200_captures.json).
ONE_PROCESS, TWO_PROCESSES = 0.00677, 0.01022
ONCE = "one capture of each arm"


def alone(captures: tuple[int, int] | None) -> str:
    """What there is one capture of, by how many there are of the base and of the candidate."""
    return ONCE if captures is None or max(captures) == 1 else "one capture of an arm"


@dataclass(frozen=True)
class Observation:
    """The verdict on a difference of single captures, and its interval with what it allows for another capture, ns."""

    verdict: Verdict
    interval_ns: tuple[float, float]
    between_ns: float


def observe(
    saving_ns: float,
    interval_ns: tuple[float, float],
    step_ns: float,
    mde_ns: float | None,
    *,
    together: bool,
    margin: float,
    subject: str = "",
    next_step: str,
    of: str = ONCE,
) -> Observation:
    """Judge a saving with the 95 % interval that its blocks give.

    `together`: both captures were made in one process. `next_step` says in a clause what would measure it, `of` what
    there was one capture of, as `alone` has it.
    """
    allowed = (ONE_PROCESS if together else TWO_PROCESSES) * step_ns
    low, high = (float(np.hypot(end - saving_ns, allowed)) for end in interval_ns)
    interval = (saving_ns - low, saving_ns + high)
    where = "one process" if together else "two processes"
    doubt = (
        f"This is {of}: two captures of one program, in {where} on an H200, lie up to {allowed / step_ns:.2%} of "
        f"the step apart (95 % of pairs), here {us(allowed)}, which the interval holds. What would settle it: "
        f"{next_step}."
    )
    found = judge(saving_ns, interval, step_ns, mde_ns, kind=OBSERVED, margin=margin, missing=doubt, subject=subject)
    leaning = "" if found.class_ == INCONCLUSIVE else found.class_
    said = found.sentence.partition(": ")[2].rstrip(".")
    if leaning:
        would = f"several captures with that interval would be {leaning.replace('_', ' ')}"
        sentence = f"Undecided: {said}; {would}. {doubt}"
        found = replace(found, class_=INCONCLUSIVE, would_be=leaning, sentence=sentence)
    quote = f"{found.quote.partition(f': {WORDS[leaning or INCONCLUSIVE]}')[0]}: {WORDS[INCONCLUSIVE]}, {of}"
    quote = f"{quote}; two captures of one program lie up to {us(allowed)} apart."
    return Observation(replace(found, quote=quote), interval, allowed)
