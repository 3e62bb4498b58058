"""A summary's blocks as components, as its Markdown will look; whatever is data stays text."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

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
from fusionscope.dashboard import parts


def rendered(blocks: Sequence[Block]) -> list[Component]:
    """The blocks in order."""
    return [_block(block) for block in blocks]


def _block(block: Block) -> Component:
    if isinstance(block, Heading):
        return html.H3(_line(block.line))
    if isinstance(block, Paragraph):
        # GitHub keeps the line breaks of a comment.
        return html.P([html.Div(_line(one)) for one in block.lines])
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Listing):
        return html.Ul([html.Li(_line(one), style={"marginLeft": f"{depth * 1.5}rem"}) for depth, one in block.points])
    if isinstance(block, Verbatim):
        return html.Pre(block.text)
    return html.Details([html.Summary(_line(block.title)), *rendered(block.blocks)])


def _table(table: Table) -> Component:
    kinds = ["" if place < table.left else "fs-number" for place in range(len(table.head))]
    head = [html.Th(_line(cell), scope="col", className=kind) for cell, kind in zip(table.head, kinds, strict=True)]
    body = [
        html.Tr([html.Td(_line(cell), className=kind) for cell, kind in zip(row, kinds, strict=True)])
        for row in table.rows
    ]
    name = "".join(part for part in table.head[0] if isinstance(part, str)) or "table"
    return parts.scrolling(html.Table([html.Thead(html.Tr(head)), html.Tbody(body)]), name)


def _line(line: Line) -> list[Component | str]:
    return [_inline(part) for part in line]


def _inline(part: Inline) -> Component | str:
    if isinstance(part, Bold):
        return html.Strong(_line(part.parts))
    return html.Code(part.text) if isinstance(part, Code) else part
