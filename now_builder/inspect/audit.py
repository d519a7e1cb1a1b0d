"""The audit of a release: a random sample of its pairs, judged one by one by a person."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import nsmallest
from pathlib import Path
from typing import Any

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.pair_statistics import read_suspects
from now_builder.formats.release import Pair, read_manifest, stream_pairs
from now_builder.formats.screenshots import find_screenshots
from now_builder.formats.verdicts import (
    KINDS,
    VerdictFile,
    VerdictRow,
    one_line,
    open_verdicts,
)
from now_builder.inspect.pairs import drawn, language_of, link_of
from now_builder.inspect.report import render
from now_builder.inspect.server import Audit, AuditHandler
from now_builder.inspect.settings import AuditSettings
from now_builder.inspect.stats import read_audit
from now_builder.program.loopback import listening


def sample_of(release: Path, settings: AuditSettings) -> list[Pair]:
    """Draw the pairs to judge, in the order in which they are asked.

    The draw depends on seed and keys alone: a larger sample begins with the smaller one, and two
    judges with one seed see the same pairs in the same order. With ``from_`` it is a sample of the
    pairs judged there, by default all. With ``suspects`` it is no draw: the pairs with the lowest
    clean probability come first, and say nothing about the share of mismatches.
    """
    read_manifest(release)
    pairs, size = stream_pairs(release), settings.sample
    if settings.split is not None:
        pairs = (pair for pair in pairs if pair.split == settings.split)
    among = ""
    if settings.from_ is not None:
        before, among = _before(release, settings), f" that {settings.from_} names"
        pairs = (pair for pair in pairs if _is_of(pair, before.get(pair.key)))
        size = size if "sample" in settings.model_fields_set else len(before)
    if settings.suspects is not None:
        sample = _suspects(settings.suspects, release, pairs, size)
        among += f" with a clean probability in {settings.suspects}"
    else:
        sample = drawn(pairs, size, settings.seed)
    if not sample:
        problem = f"no pair of {settings.split or 'any split'}{among}"
        raise FormatError(release / "pairs.parquet", problem)
    return sample


def _suspects(path: Path, release: Path, pairs: Iterable[Pair], count: int) -> list[Pair]:
    """Return the pairs with the lowest clean probability, in the order of the file where equal."""
    known = read_suspects(path, {pair.key: pair.url for pair in stream_pairs(release)})
    place = {key: place for place, key in enumerate(known)}
    listed = (pair for pair in pairs if pair.key in known)
    return nsmallest(count, listed, key=lambda pair: (known[pair.key], place[pair.key]))


def _before(release: Path, settings: AuditSettings) -> dict[str, VerdictRow]:
    """Read the verdicts to correct, by key."""
    lines = read_audit(settings.from_, release) if settings.from_ is not None else ()
    return {line.key: line for line in lines}


def _is_of(pair: Pair, line: VerdictRow | None) -> bool:
    """Whether a verdict is on that pair: another crawl gives its pages the same keys."""
    return line is not None and line.url in {"", pair.url}


@contextmanager
def serving(release: Path, settings: AuditSettings) -> Iterator[str]:
    """Serve the audit on 127.0.0.1 while the context is open; give the page's URL."""
    sample = sample_of(release, settings)
    screenshots = find_screenshots(settings.captures, sample)
    with open_verdicts(settings.output) as verdicts:
        _check_judge(verdicts, settings)

        before = _before(release, settings)

        def page() -> str:
            items = [_item(pair, before.get(pair.key)) for pair in sample]
            return _page(settings, items, verdicts)

        audit = Audit(
            {pair.key: pair for pair in sample}, screenshots, verdicts, settings.judge, page
        )
        with listening(AuditHandler, settings.port, audit=audit) as url:
            yield url


def _check_judge(verdicts: VerdictFile, settings: AuditSettings) -> None:
    if settings.judge != one_line(settings.judge):
        raise ConfigError(f"--judge {settings.judge!r}: expected printable words, single spaces")
    other = next((v.judge for v in verdicts.judged if v.judge != settings.judge), None)
    if other is not None:
        raise ConfigError(
            f"{settings.output}: holds verdicts of {other!r}, --judge is {settings.judge!r}; "
            "give each judge a file (-o), or go on as the same judge"
        )


def audit(release: Path, settings: AuditSettings, say: Callable[[str], None]) -> None:
    """Serve the audit until interrupted."""
    with serving(release, settings) as url:
        say(f"Judge here: {url}\nEach verdict is stored at once in {settings.output}; Ctrl-C ends.")
        sys.stdout.flush()
        threading.Event().wait()


def _item(pair: Pair, before: VerdictRow | None) -> dict[str, Any]:
    return {
        "key": pair.key,
        "url": pair.url,
        "href": link_of(pair),
        "site": pair.site,
        "split": pair.split,
        "lang": language_of(pair) or "",
        "caption": pair.caption,
        "picture": f"pictures/{pair.key}",
        "verdict": before.matched if before else "",
        "kind": before.note if before else "",
    }


def _page(settings: AuditSettings, items: Sequence[dict[str, Any]], verdicts: VerdictFile) -> str:
    return render(
        "audit.html.j2",
        output=settings.output.name,
        judge=settings.judge,
        kinds=KINDS,
        data={"items": items, "done": [verdict.key for verdict in verdicts.judged]},
    )
