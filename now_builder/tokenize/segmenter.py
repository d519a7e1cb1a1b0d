"""Jieba's tables and Jieba's arithmetic, in fewer steps: ``jieba.lcut``, token by token."""

import warnings
from functools import lru_cache
from math import log
from typing import Any

_REMEMBERED = 2**16
"""Latin words, and runs without a dictionary word, whose tokens are kept for when they recur."""
_NEVER = -3.14e100
"""Jieba's logarithm of nought."""


class Segmenter:
    """Cuts text as ``jieba.lcut`` of the installed library does, with its default dictionary.

    Differs:
        Jieba takes logarithms of the same frequencies again and again, lists all words before it
        weighs them, and copies whole paths; here logarithms are taken once, words are weighed as
        they are found, and a path is traced back. The sums are of the same numbers in the same
        order, so they round alike. In jieba-rs and jieba_next they do not: there a tie of two ways
        to cut falls the other way (``荔荔荔荔施``), and so do ``9_a`` and ``㐖.``.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jieba 0.42 has invalid escapes, asks pkg_resources
            import jieba  # noqa: PLC0415
        library = jieba.Tokenizer()
        # Past jieba's cache: that is a marshal file in a shared folder.
        frequencies, total = library.gen_pfdict(library.get_dict_file())
        self._unknown = 0.0 - log(total)
        self._weights: dict[str, float | None] = {
            word: log(frequency) - log(total) if frequency else None  # None: a longer one's start
            for word, frequency in frequencies.items()
        }
        self._blocks: Any = jieba.re_han_default
        self._spaces: Any = jieba.re_skip_default
        self._model: Any = jieba.finalseg
        self._latin = lru_cache(_REMEMBERED)(self._cut_block)
        self._guess = lru_cache(_REMEMBERED)(self._cut_unknown)

    def cut(self, caption: str) -> list[str]:
        """Cut a caption: words of the dictionary, guessed ones, and all else by character."""
        tokens: list[str] = []
        for place, block in enumerate(self._blocks.split(caption)):
            if place % 2:
                tokens += self._latin(block) if block.isascii() else self._cut_block(block)
            elif "\r\n" in block:
                for piece in self._spaces.split(block):
                    tokens += [piece] if piece == "\r\n" else piece
            else:
                tokens += block
        return tokens

    def _cut_block(self, block: str) -> list[str]:
        """Cut along the likeliest way; single characters in a row may be a word that is not known.

        Args:
            block: Chinese characters, Latin letters, digits and ``+#&._%-``.
        """
        tokens: list[str] = []
        ends = self._route(block)
        start = run = 0
        while start < len(block):
            end = ends[start]
            if end - start > 1:
                tokens += self._cut_run(block[run:start])
                tokens.append(block[start:end])
                run = end
            start = end
        return tokens + self._cut_run(block[run:])

    def _route(self, block: str) -> list[int]:
        """Give the end of the best word from each character on; a longer one wins a tie."""
        weights, size = self._weights, len(block)
        scores = [0.0] * (size + 1)
        ends = [0] * size
        for start in range(size - 1, -1, -1):
            end = best_end = start + 1
            best = None
            piece = block[start]
            while piece in weights:
                weight = weights[piece]
                if weight is not None:
                    score = weight + scores[end]
                    if best is None or score >= best:
                        best, best_end = score, end
                if end == size:
                    break
                end += 1
                piece = block[start:end]
            scores[start] = self._unknown + scores[start + 1] if best is None else best
            ends[start] = best_end
        return ends

    def _cut_run(self, run: str) -> list[str]:
        known = len(run) < 2 or self._weights.get(run) is not None
        return list(run) if known else self._guess(run)

    def _cut_unknown(self, run: str) -> list[str]:
        tokens: list[str] = []
        for place, block in enumerate(self._model.re_han.split(run)):
            if place % 2:
                tokens += self._cut_by_states(block)
            else:
                tokens += filter(None, self._model.re_skip.split(block))
        return tokens

    def _cut_by_states(self, block: str) -> list[str]:
        words, begin = [], 0
        for place, state in enumerate(self._states(block)):
            if state == "B":
                begin = place
            elif state == "E":
                words.append(block[begin : place + 1])
            elif state == "S":
                words.append(block[place])
        return words

    def _states(self, block: str) -> str:
        """Tell of each character whether it begins, continues or ends a word, or is one: BMES.

        Source:
            Viterbi's algorithm on Jieba's tables; of two as likely, the state later in the
            alphabet.
        """
        start, leave, emit = self._model.start_P, self._model.trans_P, self._model.emit_P
        emit_b, emit_m, emit_e, emit_s = (emit[state].get for state in "BMES")
        b, m, e, s = (start[state] + emit[state].get(block[0], _NEVER) for state in "BMES")
        steps: list[dict[str, str]] = []
        for character in block[1:]:
            at_b, at_m = emit_b(character, _NEVER), emit_m(character, _NEVER)
            at_e, at_s = emit_e(character, _NEVER), emit_s(character, _NEVER)
            begin_e, begin_s = e + leave["E"]["B"] + at_b, s + leave["S"]["B"] + at_b
            inner_b, inner_m = b + leave["B"]["M"] + at_m, m + leave["M"]["M"] + at_m
            end_b, end_m = b + leave["B"]["E"] + at_e, m + leave["M"]["E"] + at_e
            alone_e, alone_s = e + leave["E"]["S"] + at_s, s + leave["S"]["S"] + at_s
            steps.append(
                {
                    "B": "S" if begin_s >= begin_e else "E",
                    "M": "M" if inner_m >= inner_b else "B",
                    "E": "M" if end_m >= end_b else "B",
                    "S": "S" if alone_s >= alone_e else "E",
                }
            )
            b, m = max(begin_e, begin_s), max(inner_b, inner_m)
            e, s = max(end_b, end_m), max(alone_e, alone_s)
        states = ["S" if s >= e else "E"]
        for step in reversed(steps):
            states.append(step[states[-1]])
        return "".join(reversed(states))
