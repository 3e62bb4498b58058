"""The lines of a summary on serving and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from fusionscope.analysis.accuracy import Accuracy
from fusionscope.analysis.blocks import Inline, Line, bold, data
from fusionscope.analysis.serving import Serving, sentences


def serving_line(found: Serving) -> Line:
    """What serving runs show beside what the forward predicts."""
    return (bold("Serving:"), f" {' '.join(sentences(found))}")


def accuracy_line(scores: Sequence[Accuracy], found: Serving | None = None) -> Line:
    """What two evaluations can show, and whether an acceptance length was measured."""
    parts: list[Inline] = []
    for score in scores:
        # The name is the user's own text; the sentence after it is ours.
        parts += [" ", data(score.name), score.sentence().removeprefix(score.name)]
    if found is None or found.acceptance is None:
        parts.append(" Acceptance length: not measured.")
    return (bold("Accuracy:"), *parts)
