"""Generate pages of the documentation, as hooks of MkDocs (mkdocs.yml).

The home page, changes, dataset card and contribution guide are files at the top; the reference is
`--help` and docstrings. A line "Fields: `package.module.Class`." becomes a table of its fields.
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from posixpath import normpath, relpath
from textwrap import indent
from typing import Any, get_type_hints

from griffe import Docstring, DocstringSectionKind
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

TOP = Path(__file__).parents[1]
PROGRAMS = {
    "now-builder": "now_builder",
    "pc2-baseline": "pc2_baseline",
    "now-leaderboard": "leaderboard",
}
TOP_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "DATASET_CARD.md": "project/dataset_card.md",
    "SECURITY.md": "project/security.md",
}
FIELDS = re.compile(r"^Fields: (`[\w.]+`(?:,\s`[\w.]+`)*)\.$", re.MULTILINE)
ROLE = re.compile(r":[a-z]+:`~?\.?([^`]+)`")
CODE = re.compile(r"(`[^`]+`)")
INLINE = re.compile(r"<code>[^<\n]*</code>")
OPTION = re.compile(r"(?<![^\s>])--?\w[\w-]*([ =][^\s<-][^\s<]*)?")
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s#]+)([^)]*\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    made = {page: top_page(name) for name, page in TOP_PAGES.items()}
    for program, package in PROGRAMS.items():
        made[f"reference/{program}.md"] = commands_page(program, package)
        made[f"reference/{package}.md"] = python_page(package)
    made["colours.css"] = (TOP / "now_builder/program/colours.css").read_text(encoding="utf-8")
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Redirect links to files outside docs/ and to folders to their pages."""

    def lead(match: re.Match[str]) -> str:
        text, target, rest = match.groups()
        folder = str(Path(page.file.src_uri).parent)
        if (name := normpath(f"docs/{folder}/{target}")) in TOP_PAGES:
            target = relpath(TOP_PAGES[name], folder)
        elif target == "adr/":
            target = "adr/0001-feature-parts.md"
        return f"[{text}]({target}{rest}"

    return FIELDS.sub(fields_tables, LINK.sub(lead, markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Keep an option of inline code on one line with its value."""
    word = r'<span class="word">\g<0></span>'
    return INLINE.sub(lambda match: OPTION.sub(word, match[0]), html)


def fields_tables(match: re.Match[str]) -> str:
    """Return a table of each class that the line names."""
    paths = match[1].replace("`", "").replace(",", "").split()
    return "\n\n".join(fields_table(*path.rsplit(".", 1), titled=len(paths) > 1) for path in paths)


def fields_table(module: str, name: str, *, titled: bool) -> str:
    """Return the fields of a dataclass or a model: name, type, and text of the docstring."""
    model = getattr(import_module(module), name)
    docstring = Docstring(ROLE.sub(r"`\1`", model.__doc__ or "").replace("``", "`"))
    meanings = {
        attribute.name: escaped(" ".join(attribute.description.split())).replace("|", r"\|")
        for section in docstring.parse("google")
        if section.kind is DocstringSectionKind.attributes
        for attribute in section.value
    }
    hints = get_type_hints(model)
    rows = [f"`{name}`\n" if titled else "", "| field | type | meaning |", "|---|---|---|"]
    if dataclasses.is_dataclass(model):
        fields = {field.name: field.name for field in dataclasses.fields(model)}
    else:
        fields = {key: field.alias or key for key, field in model.model_fields.items()}
    for key, shown in fields.items():
        rows.append(f"| `{shown}` | {type_text(hints[key])} | {meanings.get(key, '')} |")
    return "\n".join(rows)


def type_text(hint: Any) -> str:
    """Return a type hint for a table's cell, without the names of modules."""
    text = hint.__name__ if isinstance(hint, type) and hint.__module__ != "types" else str(hint)
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text).replace(" | ", " or ")
    text = re.sub(r"Literal\[(.*?)\]", lambda match: match[1].replace("'", "`"), text)
    text = re.sub(r"^Union\[(.*)\]$", r"\1", re.sub(r"^Optional\[(.*)\]$", r"\1 or None", text))
    return escaped(text)


def top_page(name: str) -> str:
    """Return the text of a file at the top, with links that fit its page."""
    folder = str(Path(TOP_PAGES[name]).parent)

    def lead(match: re.Match[str]) -> str:
        text, target, rest = match.groups()
        if target in TOP_PAGES:
            target = relpath(TOP_PAGES[target], folder)
        elif target.startswith("docs/"):
            target = relpath(target.removeprefix("docs/"), folder)
        elif not target.startswith("http"):
            return text  # a file without a page, such as the licence
        return f"[{text}]({target}{rest}"

    return LINK.sub(lead, (TOP / name).read_text(encoding="utf-8"))


def commands_page(program: str, package: str) -> str:
    """Return a program's commands as in `--help`."""
    root = get_command(import_module(f"{package}.cli").app)
    context = root.make_context(program, [], resilient_parsing=True)
    texts = [command_text(command, within) for command, within in leaves(root, context)]
    return "\n".join([f"# {program}\n\n{prose(root.help)}\n", *texts])


def leaves(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each command below a group with its context."""
    for name in group.list_commands(context):
        listed = group.get_command(context, name)
        within = listed.make_context(name, [], parent=context, resilient_parsing=True)
        if hasattr(within.command, "list_commands"):
            yield from leaves(within.command, within)
        else:
            yield within.command, within


def command_text(command: Any, context: Any) -> str:
    """Return a command's usage, help, arguments and options."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = f"## {context.command_path}\n\n{prose(command.help)}\n\n```text\n{usage}\n```\n\n"
    records = [parameter.get_help_record(context) for parameter in command.params]
    for names, meaning in filter(None, records):
        if names.startswith("-h, ") or names == "--help":
            continue
        text += f"`{names}`\n{indent(prose(meaning) or '—', '    ').replace('   ', ':  ', 1)}\n\n"
    return text


def prose(text: str | None) -> str:
    """Return help text as Markdown: examples as code, other text escaped."""
    lines = [line.strip() for line in (text or "").strip().splitlines()]
    return "\n".join(
        f"`{line}`" if line.split(" ")[0] in PROGRAMS else escaped(line) for line in lines
    )


def escaped(text: str) -> str:
    """Return text with Markdown's signs escaped outside of backticks."""
    parts = CODE.split(text)
    return "".join(p if CODE.fullmatch(p) else re.sub(r"([*_\[\]<>])", r"\\\1", p) for p in parts)


def python_page(package: str) -> str:
    """Return the page that mkdocstrings fills: a package, then what it exports."""
    module = import_module(package)
    of_package = {"members": False, "show_root_heading": False, "show_root_toc_entry": False}
    text = f"# {package}\n\n" + directive(package, of_package)
    for name in sorted(module.__all__, key=lambda name: (name[0].isupper(), name.lower())):
        exported = getattr(module, name)
        path = f"{exported.__module__}.{exported.__qualname__}"
        text += directive(path, {"heading": name, "toc_label": name})
    return text


def directive(path: str, options: dict[str, Any]) -> str:
    """Return the lines that mkdocstrings replaces by an object's docstring."""
    lines = [f"      {key}: {json.dumps(value)}" for key, value in options.items()]
    return "\n".join([f"::: {path}", "    options:", *lines]) + "\n\n"
