"""Paragraphs and tables for the pages of results."""

import textwrap


def text(paragraph: str) -> str:
    """The paragraph filled to the width of a page."""
    joined = " ".join(paragraph.split())
    return textwrap.fill(joined, 100, break_long_words=False, break_on_hyphens=False)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
