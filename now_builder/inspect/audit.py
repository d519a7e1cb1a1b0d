"""The audit of a release: a person judges a sample of its pairs, one by one, in a browser."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from now_builder.errors import ConfigError, FormatError, NowError
from now_builder.formats.pair_statistics import read_suspects
from now_builder.formats.release import Pair, read_manifest, stream_pairs
from now_builder.formats.screenshots import Screenshot, find_screenshots
from now_builder.formats.shard import image_kind
from now_builder.formats.verdicts import (
    KINDS,
    VERDICTS,
    VerdictFile,
    VerdictRow,
    open_verdicts,
    to_one_line,
)
from now_builder.inspect.pairs import drawn, drawn_by_weight, language_of, link_of
from now_builder.inspect.report import render
from now_builder.inspect.settings import AuditSettings
from now_builder.inspect.stats import read_audit
from now_builder.program.loopback import LoopbackHandler, listening

_BODY = 16 * 2**10
"""Maximum size of a request in bytes."""


def sample_of(release: Path, settings: AuditSettings) -> dict[Pair, float | None]:
    """Draw the pairs to judge, in order; by pair the weight, ``None`` if all are as likely.

    The draw depends on keys alone: a larger sample begins with the smaller one, and two judges
    see the same pairs in the same order. With ``from_`` it is a sample of the pairs judged there,
    by default all. With ``suspects`` the pairs with the lowest clean probability come first; they
    do not estimate the share of mismatches. With ``once`` too they are a weighted draw, which does
    (:func:`~now_builder.inspect.pairs.drawn_by_weight`).
    """
    read_manifest(release)
    pairs, size, among = stream_pairs(release), settings.sample, ""
    if settings.split is not None:
        pairs = (pair for pair in pairs if pair.split == settings.split)
    if settings.once:
        copies = Counter((pair.site, pair.caption) for pair in stream_pairs(release))
        pairs = (pair for pair in pairs if copies[pair.site, pair.caption] == 1)
        among = " whose caption stands once"
    if settings.from_ is not None:
        before = read_audit(settings.from_, release).index
        among += f" that {settings.from_} names"
        pairs = (pair for pair in pairs if pair.key in before)
        size = size if "sample" in settings.model_fields_set else len(before)
    sample: dict[Pair, float | None] = {}
    if (path := settings.suspects) is None:
        sample |= dict.fromkeys(drawn(pairs, size))
    else:
        among += f" with a clean probability in {path}"
        clean_prob = read_suspects(path, {pair.key: pair.url for pair in stream_pairs(release)})
        by_key = {pair.key: pair for pair in pairs if pair.key in clean_prob}
        keys = sorted(clean_prob, key=clean_prob.__getitem__)
        listed = [by_key[key] for key in keys if key in by_key]
        weighted = settings.once
        sample |= (
            drawn_by_weight(listed, clean_prob, size) if weighted else dict.fromkeys(listed[:size])
        )
    if not sample:
        problem = f"no pair of {settings.split or 'any split'}{among}"
        raise FormatError(release / "pairs.parquet", problem)
    return sample


@contextmanager
def serving(release: Path, settings: AuditSettings) -> Iterator[str]:
    """Serve the audit on 127.0.0.1 while the context is open; yield the page's URL."""
    sample = sample_of(release, settings)
    if settings.captures is None:
        raise ConfigError("--captures: not given. Name the folder made by crawl")
    screenshots = find_screenshots(settings.captures, [*sample])
    before = {} if settings.from_ is None else read_audit(settings.from_, release).T.to_dict()
    weights = {pair.key: weight for pair, weight in sample.items()}
    with open_verdicts(settings.output, weighted=None not in weights.values()) as verdicts:
        by_key = {pair.key: pair for pair in sample}
        _check_file(verdicts, settings, by_key)
        audit = Audit(settings, by_key, weights, before, screenshots, verdicts)
        with listening(AuditHandler, audit=audit) as url:
            yield url


def _check_file(verdicts: VerdictFile, settings: AuditSettings, sample: Mapping[str, Pair]) -> None:
    """Raise if the file has verdicts of another judge, or on the pages of another crawl."""
    path, judge = settings.output, settings.judge
    if judge != to_one_line(judge):
        raise ConfigError(f"--judge {judge!r}: expected printable words, single spaces")
    for line in verdicts.judged:
        if line.judge != judge:
            problem = f"has verdicts of {line.judge!r}, --judge is {judge!r}"
            raise ConfigError(f"{path}: {problem}. Give each judge a file (-o)")
        if line.key in sample and line.url not in {"", sample[line.key].url}:
            problem = f"its verdict on {line.key} is on {line.url}, which in this release is "
            raise ConfigError(
                f"{path}: {problem}{sample[line.key].url}. Give each crawl a file (-o)"
            )


def audit(release: Path, settings: AuditSettings, say: Callable[[str], None]) -> None:
    """Serve the audit until interrupted."""
    with serving(release, settings) as url:
        say(f"Judge here: {url}\nEach verdict is stored at once in {settings.output}; Ctrl-C ends.")
        sys.stdout.flush()
        threading.Event().wait()


def _item(pair: Pair, before: Mapping[str, str]) -> dict[str, Any]:
    return {
        "key": pair.key,
        "url": pair.url,
        "href": link_of(pair),
        "site": pair.site,
        "split": pair.split,
        "lang": language_of(pair) or "",
        "caption": pair.caption,
        "flags": pair.flags.replace(",", ", "),
        "picture": f"pictures/{pair.key}",
        "verdict": before.get("matched", ""),
        "kind": before.get("note", ""),
    }


@dataclass(slots=True)
class Audit:
    """An audit in progress; ``before`` has the verdicts and notes to correct, by key."""

    settings: AuditSettings
    sample: Mapping[str, Pair]
    weights: Mapping[str, float | None]
    before: Mapping[str, Mapping[str, str]]
    screenshots: Mapping[str, Screenshot]
    verdicts: VerdictFile
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def render(self) -> str:
        """Return the page with the current verdicts."""
        with self._lock:
            items = [_item(pair, self.before.get(key, {})) for key, pair in self.sample.items()]
            return render(
                "audit.html.j2",
                output=self.settings.output.name,
                judge=self.settings.judge,
                kinds=KINDS,
                data={"items": items, "done": self._done()},
            )

    def judged(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Store a verdict on a pair of the sample that has none, and return the judged keys."""
        with self._lock:
            pair = self.sample.get(str(request.get("key")))
            verdict = next((word for word in VERDICTS if word == request.get("matched")), None)
            if pair is None or verdict is None or pair.key in self._done():
                return None
            seconds = request.get("seconds")
            looked = seconds if isinstance(seconds, int | float) else 0.0
            self.verdicts.append(
                VerdictRow(
                    pair.key, pair.url, pair.split, language_of(pair) or "", verdict,
                    self.settings.judge,
                    datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    round(float(looked), 1) if 0 <= looked < 86_400 else 0.0,
                    to_one_line(str(request.get("note", ""))), self.weights[pair.key],
                )
            )  # fmt: skip
            return {"done": self._done()}

    def undone(self) -> dict[str, Any]:
        """Undo the last verdict if it was on this sample; return it and the judged keys."""
        with self._lock:
            last = self.verdicts.judged[-1] if self.verdicts.judged else None
            if last is not None and last.key in self.sample:
                self.verdicts.undo()
            return {
                "done": self._done(),
                "key": last.key if last else None,
                "note": last.note if last else "",
            }

    def _done(self) -> list[str]:
        return [verdict.key for verdict in self.verdicts.judged]


class AuditHandler(LoopbackHandler):
    """Answer a judge's browser."""

    audit: Audit

    def do_GET(self) -> None:  # noqa: N802 - the base's name
        """Answer with the page or a picture."""
        path = self.inner_path()
        folder, _, key = (path or "").partition("/")
        if path == "":
            self.answer(HTTPStatus.OK, "text/html; charset=utf-8", self.audit.render().encode())
        elif folder == "pictures" and key in self.audit.screenshots:
            try:
                picture = self.audit.screenshots[key].read()
            except (NowError, OSError) as error:
                self._fail(error)
                return
            self.answer(HTTPStatus.OK, f"image/{image_kind(picture)}", picture, "max-age=3600")
        else:
            self.refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:  # noqa: N802 - the base's name
        """Store a verdict, or undo the last one."""
        path = self.inner_path()
        if path not in {"verdict", "undo"}:
            self.refuse(HTTPStatus.NOT_FOUND)
            return
        body = self.read_body(_BODY)
        if body is None:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        content_type = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if content_type != "application/json" or self.is_from_elsewhere():
            self.refuse(HTTPStatus.FORBIDDEN)
            return
        request = _object(body)
        if request is None:
            self.refuse(HTTPStatus.BAD_REQUEST)
            return
        try:
            answer = self.audit.undone() if path == "undo" else self.audit.judged(request)
        except (NowError, OSError) as error:
            self._fail(error)
            return
        status = HTTPStatus.OK if answer is not None else HTTPStatus.CONFLICT
        self.answer(status, "application/json", json.dumps(answer).encode())

    def _fail(self, error: Exception) -> None:
        text = f"{error}.".encode()
        self.answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
