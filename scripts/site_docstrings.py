"""Makes Markdown of what docstrings have beyond Google's sections; mkdocs.yml names this file.

Guarantee: text            an admonition, so that it stands out
Attributes (a note):       the note, then the section
Source: text               a paragraph with its name in bold
Example:                   the section of examples
"""

import re
import textwrap
from typing import Any

import griffe

_PARAGRAPH = re.compile(r"^(Guarantee|Source): (.+?)(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_NOTED = re.compile(r"^(Attributes|Args) \((.+)\):$", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_COMPARED = re.compile(r"^( +\*{0,2}\w+: )(?=>)", re.MULTILINE)


def as_markdown(text: str) -> str:
    """A docstring, without indentation, as the handler and Markdown know it."""
    text = _PARAGRAPH.sub(_paragraph, text)
    text = _NOTED.sub(lambda found: f"*{found[1]}: {_plain(found[2])}.*\n\n{found[1]}:", text)
    text = _COMPARED.sub(r"\1\\", text)  # a description that begins with > is no quotation
    return _EXAMPLE.sub("Examples:", text)


def _paragraph(found: re.Match[str]) -> str:
    if found[1] == "Source":
        return f"**Source.** {found[2]}"
    return '!!! guarantee "Guarantee"\n\n' + textwrap.indent(found[2], "    ")


def _plain(note: str) -> str:
    return note.replace("*", "")


class Docstrings(griffe.Extension):
    """Rewrites every docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called once an object and its members are known."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Called for a field, among others, as it is read."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "static_field":
            value.function = griffe.ExprName("field", parent=griffe.ExprName("dataclasses"))
            value.arguments = [*value.arguments, griffe.ExprKeyword("metadata", "{}")]
