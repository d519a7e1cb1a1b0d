"""Names that look like another one."""

import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Literal

# compatibility last: it turns Ϲ, which looks like a C, into Σ
_FORMS: tuple[Literal["NFD", "NFKD"], ...] = ("NFD", "NFKD", "NFKD")


def lookalike(name: str, known: Iterable[str]) -> str | None:
    """Return a known name that looks like another one; None if that one is known itself."""
    own = skeleton(name)
    alike = [other for other in known if skeleton(other) == own]
    plain = unicodedata.normalize("NFKC", name)  # PC2 and PC² are one name
    if any(unicodedata.normalize("NFKC", other) == plain for other in alike):
        return None
    return alike[0] if alike else None


@lru_cache(2**14)
def skeleton(text: str) -> str:
    """Return what is equal for texts that look alike: "PC2" in Latin or Cyrillic letters, "PC²".

    Source:
        Unicode Technical Standard #39, section 4: the characters of one prototype are one.
    """
    prototypes = _prototypes()
    for form in _FORMS:
        text = unicodedata.normalize(form, text)
        text = "".join(prototypes.get(character, character) for character in text)
    return text


@cache
def _prototypes() -> Mapping[str, str]:
    """Read the prototype of each character: the one that all others like it are listed with.

    Several characters, as rn for m, are read one by one again.
    """
    from confusable_homoglyphs.confusables import confusables_data

    mark = "\u200e"  # around what is written from right to left
    alike: dict[str, list[str]] = {
        text.strip(mark): [other["c"].strip(mark) for other in others]
        for text, others in confusables_data.items()
    }

    def prototype(text: str) -> str:
        return min(text, alike[text][0], key=lambda one: (-len(alike[one]), -len(one), one))

    return {text: prototype(text) for text in alike}
