"""Blocks as HTML."""

from __future__ import annotations

import html as markup

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
from fusionscope.analysis.texts import seen_lines

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border: 1px solid #8886; padding: .25rem .6rem; text-align: left; }
th.number, td.number { text-align: right; white-space: nowrap; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; }
code, pre { font: .87em/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8886; }
details { margin: 1rem 0; }
"""


def escape(text: str) -> str:
    """A text as HTML that shows it and does nothing else."""
    return markup.escape(seen_lines(text))


def page(title: str, body: str) -> str:
    """A whole document that loads nothing from anywhere."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def html(blocks: list[Block]) -> str:
    """The blocks, without the document around them."""
    return "\n".join(_block(block) for block in blocks)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h1>{inline(block.line)}</h1>"
    if isinstance(block, Paragraph):
        return f"<p>{'<br>'.join(inline(one) for one in block.lines)}</p>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Listing):
        # Depth as indentation: nested lists say no more to a reader.
        points = (f'<li style="margin-left:{depth * 1.5}rem">{inline(one)}</li>' for depth, one in block.points)
        return f"<ul>{''.join(points)}</ul>"
    if isinstance(block, Verbatim):
        return f"<pre>{escape(block.text)}</pre>"
    return f"<details><summary>{inline(block.title)}</summary>\n{html(list(block.blocks))}\n</details>"


def _table(table: Table) -> str:
    def row(cells: tuple[Line, ...], tag: str) -> str:
        kinds = ["" if place < table.left else ' class="number"' for place in range(len(cells))]
        return "".join(f"<{tag}{kind}>{inline(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))

    body = "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    return f"<table>\n<thead><tr>{row(table.head, 'th')}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def inline(parts: Line) -> str:
    """One line."""
    return "".join(_inline(part) for part in parts)


def _inline(part: Inline) -> str:
    if isinstance(part, Bold):
        return f"<strong>{inline(part.parts)}</strong>"
    if isinstance(part, Code):
        return f"<code>{escape(part.text)}</code>"
    return escape(part)
