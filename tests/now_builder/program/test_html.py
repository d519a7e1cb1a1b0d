"""All that is not Markdown is escaped, whatever its name."""

import pytest

from now_builder.program.html import template_environment


@pytest.mark.parametrize(
    ("name", "escaped"), [("page.html.j2", True), ("mail.txt", True), ("card.md.j2", False)]
)
def test_only_markdown_is_not_escaped(name, escaped):
    environment = template_environment("now_builder.inspect")
    assert environment.autoescape(name) is escaped  # type: ignore[operator]
