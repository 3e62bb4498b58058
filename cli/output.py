"""How answers look: tables for people, one JSON document for tools, progress on stderr."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from fusionscope.profiler.wording import counted as counted

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.segment import Segment
    from rich.table import Table

    from fusionscope.profiler.progress import Progress


#: A longer word is broken where the terminal is narrow.
_LONGEST_WORD = 28


def show(what: RenderableType) -> None:
    """Print a table or text on stdout. Without a terminal lines are as wide as the tables need."""
    from rich.measure import Measurement

    console = _console()(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=False)
    # Rather lines longer than the terminal than numbers in pieces.
    least = max((Measurement.get(console, console.options, part).minimum for part in _tables(what)), default=0)
    console.print(what, width=max(console.width, least), crop=False)


def _tables(what: RenderableType) -> Iterator[Table]:
    from rich.console import Group
    from rich.table import Table

    if isinstance(what, Table):
        yield what
    for part in what.renderables if isinstance(what, Group) else ():
        yield from _tables(part)


@cache
def _console() -> type[Console]:
    """A console that shows what a trace holds and does nothing of it: no escape sequence, no turned text."""
    from rich.console import Console
    from rich.segment import Segment

    from fusionscope.analysis.texts import seen_lines

    class Plain(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(seen_lines(segment.text), segment.style)

    return Plain


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()) -> Table:
    """A table; the columns named in `right` are aligned to the right."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from fusionscope.analysis.texts import seen

    made = Table(title=escape(seen(title)) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = set(right)
    cells = [[seen(str(cell)) for cell in row] for row in rows]
    for place, column in enumerate(columns):
        told = [column, *(row[place] for row in cells)]
        # A number stays in one piece; of a text the words do, up to a length.
        pieces = [*column.split(), *told[1:]] if column in numbers else [w for text in told for w in text.split()]
        longest = max(map(len, pieces), default=0)
        least = longest if column in numbers else min(longest, _LONGEST_WORD)
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold", min_width=least)
    for row in cells:
        made.add_row(*map(escape, row))
    return made


def pairs(title: str, rows: Iterable[tuple[str, object]]) -> Table:
    """A table of names and values, without a header."""
    made = table(title, ("", " "), rows)
    made.show_header = False
    return made


def microseconds(ns: float) -> str:
    """Nanoseconds as text in us, to the nanosecond."""
    return f"{ns / 1000:,.3f}"


def write_json(payload: Any) -> None:
    """One JSON document on stdout. Integers stay integers; a NaN or an infinity becomes null."""
    text = json_text(payload)
    if not text.isascii() and not (sys.stdout.encoding or "utf-8").lower().startswith("utf"):
        text = re.sub("[^\x00-\x7f]+", lambda found: _ascii(found[0]), text)
    sys.stdout.write(text)
    sys.stdout.flush()


def json_text(payload: Any) -> str:
    """The same as text."""
    import msgspec

    from fusionscope.analysis.texts import escaped

    return escaped(msgspec.json.format(msgspec.json.encode(_plain(payload)), indent=2).decode() + "\n")


def _ascii(text: str) -> str:
    """Characters as JSON escapes, by their UTF-16 codes."""
    codes = text.encode("utf-16-be").hex()
    return "".join(f"\\u{codes[place : place + 4]}" for place in range(0, len(codes), 4))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if hasattr(value, "item") and callable(value.item):  # numpy scalars
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def command_line() -> str:
    """The command that runs, as one would type it; "" where it is no `fusionscope` process."""
    import shlex
    from pathlib import Path

    if Path(sys.argv[0]).name != "fusionscope":
        return ""
    return shlex.join(["fusionscope", *sys.argv[1:]])


def line(text: str) -> None:
    """Text for people on stdout, in lines of ours."""
    from fusionscope.analysis.texts import seen_lines

    print(seen_lines(text))


def say(text: str) -> None:
    """One line for people on stderr."""
    from fusionscope.analysis.texts import seen

    print(seen(text), file=sys.stderr, flush=True)


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A progress bar on stderr: call what it yields with (done, total, what). Without a terminal it says nothing."""
    if not sys.stderr.isatty():
        from fusionscope.profiler.progress import quiet

        yield quiet
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from fusionscope.analysis.texts import seen

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=escape(seen(what or title)))

        yield report
