"""Paragraphs for the README."""

import textwrap


def text(paragraph: str) -> str:
    """The paragraph filled to the width of a page."""
    joined = " ".join(paragraph.split())
    return textwrap.fill(joined, 100, break_long_words=False, break_on_hyphens=False)
