"""How answers look: tables for people, one JSON document for tools, progress on stderr."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fusionscope.profiler.progress import Progress


def show(what: RenderableType) -> None:
    """Print a table or text on stdout. Without a terminal lines are as wide as the tables need."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=False)
    console.print(what)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[str] = ()) -> Table:
    """A table; the columns named in `right` are aligned to the right."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=escape(title) or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made


def pairs(title: str, rows: Iterable[tuple[str, object]]) -> Table:
    """A table of names and values, without a header."""
    made = table(title, ("", " "), rows)
    made.show_header = False
    return made


def microseconds(ns: float) -> str:
    """Nanoseconds as text in us, to the nanosecond."""
    return f"{ns / 1000:,.3f}"


def counted(number: int, noun: str) -> str:
    """`1 replay`, `2 replays`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def write_json(payload: Any) -> None:
    """One JSON document on stdout. Integers stay integers; a NaN or an infinity becomes null."""
    sys.stdout.write(json_text(payload))
    sys.stdout.flush()


def json_text(payload: Any) -> str:
    """The same as text."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(_plain(payload)), indent=2).decode() + "\n"


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


def say(text: str) -> None:
    """One line for people on stderr."""
    print(text, file=sys.stderr, flush=True)


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

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=escape(what or title))

        yield report
