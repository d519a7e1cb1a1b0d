"""Jieba's tables and Jieba's arithmetic, in fewer steps: ``jieba.lcut``, token by token."""

import warnings
from functools import lru_cache
from math import log
from typing import Any

_REMEMBERED = 2**15
"""Latin words, and runs without a dictionary word, whose tokens are kept for when they recur."""
_NEVER = -3.14e100
"""Jieba's logarithm of nought."""
_NOTHING = (_NEVER,) * 4
_BEGIN, _INNER, _END, _ALONE = range(4)


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
        self._weights = _weigh(frequencies, log(total))
        self._blocks: Any = jieba.re_han_default
        self._spaces: Any = jieba.re_skip_default
        self._model: Any = jieba.finalseg
        leave, emit = self._model.trans_P, self._model.emit_P
        self._first = [self._model.start_P[state] for state in "BMES"]
        self._inside = [leave[before][after] for before in "BM" for after in "ME"]
        self._outside = [leave[before][after] for before, after in ("EB", "ES", "SB", "SS")]
        self._emitted = {
            character: tuple(emit[state].get(character, _NEVER) for state in "BMES")
            for character in {*emit["B"], *emit["M"], *emit["E"], *emit["S"]}
        }
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
        weigh, size = self._weights.get, len(block)
        scores = [0.0] * (size + 1)
        ends = [0] * size
        for start in range(size - 1, -1, -1):
            end = best_end = start + 1
            best = None
            weight = weigh(block[start])
            while weight is not None:
                if weight:
                    score = scores[end] - abs(weight)
                    if best is None or score >= best:
                        best, best_end = score, end
                if weight > 0.0 or end == size:
                    break
                end += 1
                weight = weigh(block[start:end])
            scores[start] = self._unknown + scores[start + 1] if best is None else best
            ends[start] = best_end
        return ends

    def _cut_run(self, run: str) -> list[str]:
        known = len(run) < 2 or self._weights.get(run)
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
            if state == _BEGIN:
                begin = place
            elif state == _END:
                words.append(block[begin : place + 1])
            elif state == _ALONE:
                words.append(block[place])
        return words

    def _states(self, block: str) -> list[int]:
        """Tell of each character whether it begins, goes on with or ends a word, or is one.

        Source:
            Viterbi's algorithm on Jieba's tables; of two as likely, the state that comes later in
            the alphabet, as B, E, M and S.
        """
        begin_to_inner, begin_to_end, inner_to_inner, inner_to_end = self._inside
        end_to_begin, end_to_alone, alone_to_begin, alone_to_alone = self._outside
        emitted = [self._emitted.get(character, _NOTHING) for character in block]
        b, m, e, s = (own + at for own, at in zip(self._first, emitted[0], strict=True))
        steps = []
        for at_b, at_m, at_e, at_s in emitted[1:]:
            end_b, alone_b = e + end_to_begin + at_b, s + alone_to_begin + at_b
            begin_m, inner_m = b + begin_to_inner + at_m, m + inner_to_inner + at_m
            begin_e, inner_e = b + begin_to_end + at_e, m + inner_to_end + at_e
            end_s, alone_s = e + end_to_alone + at_s, s + alone_to_alone + at_s
            b, from_b = (alone_b, _ALONE) if alone_b >= end_b else (end_b, _END)
            m, from_m = (inner_m, _INNER) if inner_m >= begin_m else (begin_m, _BEGIN)
            e, from_e = (inner_e, _INNER) if inner_e >= begin_e else (begin_e, _BEGIN)
            s, from_s = (alone_s, _ALONE) if alone_s >= end_s else (end_s, _END)
            steps.append((from_b, from_m, from_e, from_s))
        states = [_ALONE if s >= e else _END]
        for step in reversed(steps):
            states.append(step[states[-1]])
        return states[::-1]


def _weigh(frequencies: dict[str, int], logtotal: float) -> dict[str, float]:
    """Give the logarithm of each word's share: below zero, or above if no longer word starts so.

    What only starts longer words weighs nothing.
    """
    starts = {word[:-1] for word in frequencies}
    return {
        word: 0.0 if not count else (log(count) - logtotal) * (1.0 if word in starts else -1.0)
        for word, count in frequencies.items()
    }
