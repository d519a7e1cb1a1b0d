"""Statements such as ``Content-Signal`` and ``Content-Usage``: do they refuse training?"""

import re

_TRAINING = ("train-ai", "ai-train", "train-genai", "genai", "ai", "tdm", "bots")
"""Names of training, the narrowest first: ``train-ai`` is the IETF's, the names after ``ai-train``
(of contentsignals.org) are wider ones of its earlier drafts, which include training."""

_ANSWERS = {"n": True, "no": True, "y": False, "yes": False}
_QUOTED = re.compile(r'"([^"]*)"')
_STATED = re.compile(rf"(?<![\w.*-])({'|'.join(_TRAINING)})\s*=\s*(\w+)")


def refuses_training(statement: str) -> bool | None:
    """Return whether a statement of preferences refuses training; ``None`` if it does not say.

    Source:
        draft-ietf-aipref-vocab, section 6: a dictionary of structured fields (RFC 9651); of a name
        that stands there twice the last counts.

    Differs:
        From the draft, by which what is not written as it should be says nothing: case and spaces
        do not matter, ``no`` is ``n``, and a semicolon or a space may stand for a comma.
    """
    plain = _QUOTED.sub(lambda text: text[1] if text[1] in _ANSWERS else "", statement.lower())
    stated = dict(_STATED.findall(plain))
    answers = (_ANSWERS.get(stated.get(name, "")) for name in _TRAINING)
    return next((answer for answer in answers if answer is not None), None)
