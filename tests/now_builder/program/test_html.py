"""All that is not Markdown is escaped, whatever its name."""

from now_builder.program.html import template_environment


def test_only_markdown_is_not_escaped():
    environment = template_environment("now_builder.inspect")
    for name, escaped in (("page.html.j2", True), ("mail.txt", True), ("card.md.j2", False)):
        assert environment.autoescape(name) is escaped  # type: ignore[operator]
