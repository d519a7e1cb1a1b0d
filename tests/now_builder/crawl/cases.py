"""Read test cases from TOML files with tokens for common parts."""

import re
import tomllib
from pathlib import Path
from typing import Any

_TOKEN = re.compile(r"⟦([^⟦⟧]*)⟧")
_REPEATED = re.compile(r"(.*) \* (\d+)", re.DOTALL)


def read_cases(path: Path) -> dict[str, Any]:
    """Read a file where ⟦name⟧ stands for a text of its table ``words``.

    A ``@`` in that text is what follows the name in ⟦name text⟧. ⟦x * 9⟧ is x nine times, with the
    number in place of a ``#``. Tokens may be within tokens.
    """
    data = tomllib.loads(path.read_text("utf-8"))
    words = data.pop("words", {})
    return _expanded(data, words)


def _expanded(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _expanded(part, words) for name, part in value.items()}
    if isinstance(value, list):
        return [_expanded(part, words) for part in value]
    while isinstance(value, str) and (token := _TOKEN.search(value)):
        value = value[: token.start()] + _text(token[1], words) + value[token.end() :]
    return value


def _text(token: str, words: dict[str, str]) -> str:
    if repeated := _REPEATED.fullmatch(token):
        text, count = repeated[1], int(repeated[2])
        numbered = "#" in text
        return (
            "".join(text.replace("#", str(n)) for n in range(count)) if numbered else text * count
        )
    name, _, text = token.partition(" ")
    return words[name].replace("@", text)
