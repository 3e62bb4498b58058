"""Whether a fusion changed the answers: two evaluations, paired by question where that is known.

A total of right answers tells no more than its number of questions allows; what a drop would have to be to be seen
stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers.answers import read_answers

_TOTAL = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(\d+)")
_LEVEL = 0.05
#: Fewer questions lost than this, and none won, are no change to the exact test: 2 x 0.5^6 is the first below 5 %.
_FEWEST = 6


@dataclass(frozen=True)
class Accuracy:
    """Scores (parts) of two evaluations of one benchmark."""

    name: str
    base: float
    candidate: float
    questions: tuple[int, int]
    #: Questions that only the base, and only the candidate, answered right; None where they are not paired.
    discordant: tuple[int, int] | None
    #: Two-sided: exact McNemar for pairs, normal for totals.
    p_value: float
    #: Least drop that would be seen, as a part.
    least_drop: float

    @property
    def changed(self) -> bool:
        """Whether a change is seen."""
        return self.p_value < _LEVEL

    @property
    def dropped(self) -> bool:
        """Whether a drop is seen."""
        return self.changed and self.candidate < self.base

    def sentence(self) -> str:
        """`gsm8k 0.967 -> 0.969 of 1319: no change seen; would miss a drop below 1.4 points.`"""
        count = str(self.questions[0]) if len(set(self.questions)) == 1 else "{} and {}".format(*self.questions)
        told = f"{self.name} {self.base:.3f} -> {self.candidate:.3f} of {count}"
        if self.discordant is not None:
            told += f", paired ({self.discordant[0]} lost, {self.discordant[1]} won)"
        if self.changed:
            word = "dropped" if self.dropped else "rose"
            return f"{told}: {word} by {100 * abs(self.candidate - self.base):.1f} points (p = {self.p_value:.2g})."
        return f"{told}: no change seen; would miss a drop below {100 * self.least_drop:.1f} points."

    def document(self) -> dict[str, object]:
        """The same as JSON."""
        return {
            "name": self.name,
            "base": self.base,
            "candidate": self.candidate,
            "questions": list(self.questions),
            "paired": None if self.discordant is None else {"lost": self.discordant[0], "won": self.discordant[1]},
            "p_value": self.p_value,
            "least_drop": self.least_drop,
            "changed": self.changed,
            "sentence": self.sentence(),
        }


def of_totals(name: str, base: float, candidate: float, questions: tuple[int, int]) -> Accuracy:
    """From two scores (parts) over so many questions each, which are not paired."""
    each = 1 / questions[0] + 1 / questions[1]
    # Where nothing changed one rate holds for both: the pooled one, since a base that is all right has no error.
    rate = (base * questions[0] + candidate * questions[1]) / sum(questions)
    error = float(np.sqrt(rate * (1 - rate) * each))
    p_value = float(2 * stats.norm.sf(abs(candidate - base) / error)) if error else 1.0
    least = float(stats.norm.ppf(1 - _LEVEL / 2)) * float(np.sqrt(base * (1 - base) * each))
    least = max(least, _FEWEST / min(questions))
    return Accuracy(name, base, candidate, questions, None, p_value, least)


def of_answers(name: str, base: Mapping[str, bool], candidate: Mapping[str, bool]) -> Accuracy:
    """From what was answered right, paired by question.

    Raises FusionScopeError where the two evaluations did not ask the same questions.
    """
    if set(base) != set(candidate):
        apart = sorted(set(base) ^ set(candidate))
        raise FusionScopeError(
            f"The two evaluations of {name} differ in {len(apart)} questions (the first is {apart[0][:60]}): evaluate "
            "the same questions on both sides."
        )
    lost = sum(base[q] and not candidate[q] for q in base)
    won = sum(candidate[q] and not base[q] for q in base)
    count = len(base)
    p_value = float(stats.binomtest(lost, lost + won, 0.5).pvalue) if lost + won else 1.0
    least = max(float(stats.norm.ppf(1 - _LEVEL / 2)) * float(np.sqrt(lost + won)), _FEWEST) / count
    return Accuracy(
        name, sum(base.values()) / count, sum(candidate.values()) / count, (count, count), (lost, won), p_value, least
    )


def parse(text: str) -> Accuracy:
    """`gsm8k=0.967/1319,0.969/1319` (scores or right answers, over questions), or `gsm8k=before.jsonl,after.jsonl`.

    Raises FusionScopeError for another form.
    """
    name, equals, rest = text.partition("=")
    sides = [side.strip() for side in rest.split(",")]
    if not equals or not name.strip() or len(sides) != 2 or not all(sides):
        raise FusionScopeError(
            f"--accuracy takes NAME=BEFORE,AFTER as in gsm8k=0.967/1319,0.969/1319 or two files; {text!r} is not that."
        )
    totals = [_TOTAL.fullmatch(side) for side in sides]
    if any(totals):
        parts = [_part(text, match) for match in totals]
        return of_totals(name.strip(), parts[0][0], parts[1][0], (parts[0][1], parts[1][1]))
    return of_answers(name.strip(), read_answers(Path(sides[0])), read_answers(Path(sides[1])))


def _part(text: str, match: re.Match[str] | None) -> tuple[float, int]:
    if match is None:
        raise FusionScopeError(f"--accuracy {text}: give a total on both sides, or a file on both.")
    value, questions = float(match[1]), int(match[2])
    # A number with a point is a score; without one it counts right answers.
    part = value if "." in match[1] else value / max(questions, 1)
    if questions < 1 or not 0 <= part <= 1:
        raise FusionScopeError(f"--accuracy {text}: {match[0]} is no score from 0 to 1 over a number of questions.")
    return part, questions
