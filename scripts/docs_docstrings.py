"""Turn docstrings from reStructuredText into Markdown."""

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":[a-z]+:`~?\.?([^`]+)`")
SESSION = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n(?P=indent)\S.*)*", re.MULTILINE)


class Docstrings(Extension):
    """Rewrite each docstring before it is parsed."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Return a docstring with roles as code, sessions and literal blocks as fenced code."""
    text = ROLE.sub(r"`\1`", text)
    text = SESSION.sub(lambda m: f"{m['indent']}```pycon\n{m[0]}\n{m['indent']}```", text)
    return re.sub(r"::\n\n(?=[ ]{4})", ":\n\n", text)
