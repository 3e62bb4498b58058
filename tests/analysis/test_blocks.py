"""Names from a trace are data: nothing in them becomes markup, a mention, a reference or a link."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionscope.analysis.blocks import Bold, Code, Fold, Heading, Paragraph, Table, data, joined, line, plain
from fusionscope.analysis.blocks_html import html, page
from fusionscope.analysis.blocks_markdown import inline, markdown
from fusionscope.analysis.texts import seen, seen_lines

NASTY = [
    "a|b", "a`b", "``", "`", "a\nb", "<script>alert(1)</script>",
    "@octocat", "fix #123", "GH-12", "x\\|y", "\u202eevil", "_x_ y",
    "- x", "1. x", "=== ",
    "[x](http://evil)", "www.evil.example", "a\rb", "**bold**", "-->", "![i](x)", " padded ", "",
]  # fmt: skip


@pytest.mark.parametrize("text", NASTY)
def test_data_stands_in_a_code_span_that_it_cannot_end(text: str) -> None:
    found = data(text)
    assert isinstance(found, Code)
    said = inline((found,))
    fence = re.match("`+", said)
    assert fence is not None and said.endswith(fence[0]) and "\n" not in said and "\r" not in said
    inner = said[len(fence[0]) : -len(fence[0])]
    assert len(fence[0]) not in [len(run) for run in re.findall("`+", inner)]


def test_tame_data_stays_text() -> None:
    assert data("GLM-5.3-Flash_MXFP4 (TP4)") == "GLM-5.3-Flash_MXFP4 (TP4)"
    assert plain((data("x" * 200),)) == "x" * 119 + "…"


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_row_has_as_many_cells_as_the_head(a: str, b: str) -> None:
    table = Table((("name",), ("value",)), (((Code(a),), (data(b),)),))
    rows = markdown([table]).splitlines()
    assert len(rows) == 3
    # As cmark-gfm reads a row: a backslash takes the next punctuation along, any other pipe ends a cell.
    assert len(re.findall(r"\\[^\w\s]|(\|)", rows[2])) - len(re.findall(r"\\[^\w\s]", rows[2])) == 3


@given(st.text(max_size=60))
def test_html_shows_the_text_and_nothing_else(text: str) -> None:
    class Reader(HTMLParser):
        tags: list[str]
        seen: str

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.tags.append(tag)

        def handle_data(self, data: str) -> None:
            self.seen += data

    reader = Reader(convert_charrefs=True)
    reader.tags, reader.seen = [], ""
    reader.feed(html([Paragraph(((Code(text),),))]))
    reader.close()
    assert (reader.tags, reader.seen) == (["p", "code"], seen_lines(text))


def test_our_own_text_makes_no_mention_and_no_reference() -> None:
    assert inline(("see @main and #12",)) == "see @\u200bmain and #\u200b12"
    assert inline(("a < b, <b>",)) == "a < b, \\<b>"


def test_the_blocks_of_a_page() -> None:
    fold = Fold(("more <x>",), (Paragraph((line("one ", Bold(("two",))),)),))
    text = markdown([Heading(line("A ", Code("k"))), fold])
    assert text == "### A `k`\n<details><summary>more &lt;x&gt;</summary>\n\none **two**\n\n</details>\n"
    assert page("<t>", html([fold])).count("<details>") == 1 and "<title>&lt;t&gt;" in page("<t>", "")
    assert joined([("a",), (Code("b"),)]) == ("a", ", ", Code("b"))


class Seen(HTMLParser):
    """Tags and the text of each code element of rendered Markdown."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.codes: list[str] = []
        self.inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag == "code":
            self.codes.append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "code"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.codes[-1] += data


@given(st.lists(st.text(min_size=1, max_size=30), min_size=2, max_size=2))
def test_a_renderer_of_markdown_sees_one_table_and_the_names_in_code(names: list[str]) -> None:
    markdown_it = pytest.importorskip("markdown_it")
    renderer = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    rows = tuple((line("x ", Code(name)), line(Bold((Code(name), " y")))) for name in names)
    text = markdown([Paragraph((line(Code(names[0])),)), Table((("a",), ("b",)), rows), Paragraph((("end",),))])
    seen = Seen(renderer.render(text))
    row = ["tr", "td", "code", "td", "strong", "code"]
    assert seen.tags == ["p", "code", "table", "thead", "tr", "th", "th", "tbody", *row, *row, "p"]
    # Spaces at the ends and characters that nobody sees are not kept; everything else is.
    kept = [names[0], names[0], names[0], names[1], names[1]]
    seen_codes = ["".join(c for c in code if not c.isspace()) for code in seen.codes]
    for code, name in zip(seen_codes, kept, strict=True):
        wanted = "".join(c for c in _shown(name) if not c.isspace())
        assert code.replace("\u29f5", "\\") == wanted.replace("\u29f5", "\\")


def _shown(name: str) -> str:
    return seen(name)
