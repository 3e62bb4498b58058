"""Blocks as GitHub's and GitLab's Markdown."""

from __future__ import annotations

import re

from fusionscope.analysis.blocks import (
    Block,
    Bold,
    Code,
    Heading,
    Inline,
    Line,
    Listing,
    Paragraph,
    Table,
    Verbatim,
)  # fmt: skip
from fusionscope.analysis.texts import seen

#: A zero-width space after them keeps GitHub from making a mention or a reference of our own text.
_LINKED = re.compile(r"[@#](?=\w)")


def markdown(blocks: list[Block]) -> str:
    """The page; an empty line stands between blocks, and none after a heading."""
    return "".join(_block(block) + ("" if isinstance(block, Heading) else "\n") for block in blocks).rstrip("\n") + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"### {inline(block.line)}\n"
    if isinstance(block, Paragraph):
        # Two spaces break a line where a comment would and a job's summary or GitLab would not.
        return "  \n".join(inline(one) for one in block.lines) + "\n"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Listing):
        return "".join(f"{'  ' * depth}- {inline(one)}\n" for depth, one in block.points)
    if isinstance(block, Verbatim):
        return _fence(block.text)
    return f"<details><summary>{_html(block.title)}</summary>\n\n{markdown(list(block.blocks))}\n</details>\n"


def _table(table: Table) -> str:
    rules = ["---"] * table.left + ["---:"] * (len(table.head) - table.left)
    lines = [[inline(cell, cell=True) for cell in row] for row in (table.head, *table.rows)]
    rows = [f"| {' | '.join(cells)} |\n" for cells in lines]
    return "".join([rows[0], f"|{'|'.join(rules)}|\n", *rows[1:]])


def inline(parts: Line, cell: bool = False) -> str:
    """One line; in a `cell` of a table no pipe may stand free."""
    return "".join(_inline(part, cell) for part in parts)


def _inline(part: Inline, cell: bool) -> str:
    if isinstance(part, Bold):
        return f"**{inline(part.parts, cell)}**" if part.parts else ""
    if isinstance(part, Code):
        return _code(part.text, cell)
    text = _LINKED.sub(lambda match: match[0] + "\u200b", seen(part))
    text = re.sub(r"[`*|\\]|<(?=[A-Za-z/!?])|\[(?=[^\]]*\][(\[:])", lambda match: "\\" + match[0], text)
    return text


def _code(text: str, cell: bool) -> str:
    text = seen(text) or " "
    if cell:
        # A backslash before a pipe would take the pipe's own escape away.
        text = text.replace("\\", "\u29f5").replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    # A span that begins or ends with a backtick or a space needs a space of its own on both sides.
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _fence(text: str) -> str:
    lines = [seen(one) for one in text.splitlines()]
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return "".join(f"{one}\n" for one in (fence, *lines, fence))


def _html(parts: Line) -> str:
    from fusionscope.analysis.blocks_html import inline as as_html

    return as_html(parts)
