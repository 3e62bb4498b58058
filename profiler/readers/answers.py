"""Which questions of an evaluation were answered right: one JSON record a question, as lm-evaluation-harness writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fusionscope.profiler.errors import FusionScopeError

#: Where a record tells its question, and whether the answer was right (true, or a score of 1).
IDS = ("doc_id", "question_id", "id", "index", "idx", "question")
RIGHT = ("correct", "is_correct", "exact_match", "acc", "passed", "score")


def read_answers(path: str | Path) -> dict[str, bool]:
    """Question -> whether it was answered right. Of several filters of one answer the first in the file counts.

    Raises FusionScopeError for a file that cannot be read or a record without question or score.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise FusionScopeError(f"The answers {path} cannot be read ({error.strerror}): check the path.") from error
    found: dict[str, bool] = {}
    chosen: str | None = None
    for number, record in enumerate(_records(path, text), 1):
        kind = str(record.get("filter", "")) if isinstance(record, dict) else ""
        chosen = kind if chosen is None else chosen
        if kind == chosen:
            question, right = _answer(path, number, record)
            if question in found:
                raise FusionScopeError(f"{path} answers question {question[:60]} twice: give one evaluation's file.")
            found[question] = right
    if not found:
        raise FusionScopeError(f"{path} holds no answers: give a file with one JSON record a question.")
    return found


def _records(path: str | Path, text: bytes) -> list[Any]:
    try:
        whole = msgspec.json.decode(text)
        return whole if isinstance(whole, list) else [whole]
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FusionScopeError(f"{path} is no JSON and no JSON lines ({error}): give the samples file.") from error


def _answer(path: str | Path, number: int, record: Any) -> tuple[str, bool]:
    if isinstance(record, dict):
        question = next((record[k] for k in IDS if k in record), None)
        right = next((record[k] for k in RIGHT if isinstance(record.get(k), bool | int | float)), None)
        if question is not None and right in (0, 1):
            return str(question), bool(right)
    raise FusionScopeError(
        f"{path}, record {number}: it needs a question ({', '.join(IDS)}) and whether it was right "
        f"({', '.join(RIGHT)}: true, false, 0 or 1)."
    )
