"""The audit's server: the page, its pictures, one verdict at a time."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from now_builder.errors import NowError
from now_builder.formats.release import Pair
from now_builder.formats.screenshots import Screenshot
from now_builder.formats.shard import image_kind
from now_builder.formats.verdicts import VERDICTS, VerdictFile, VerdictRow, one_line
from now_builder.inspect.pairs import language_of
from now_builder.program.loopback import LoopbackHandler

_BODY = 16 * 2**10
"""Bytes of a request at most."""


@dataclass(slots=True)
class Audit:
    """An audit that is going on; ``page`` renders its page as things stand."""

    sample: Mapping[str, Pair]
    screenshots: Mapping[str, Screenshot]
    verdicts: VerdictFile
    judge: str
    page: Callable[[], str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def render(self) -> str:
        """Return the page."""
        with self._lock:
            return self.page()

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
                    pair.key, pair.url, pair.split, language_of(pair) or "", verdict, self.judge,
                    datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    round(float(looked), 1) if 0 <= looked < 86_400 else 0.0,
                    one_line(str(request.get("note", ""))),
                )
            )  # fmt: skip
            return {"done": self._done()}

    def undone(self) -> dict[str, Any]:
        """Take back the last verdict if it was on this sample; return it and the judged keys."""
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
        """Take a verdict, or one back."""
        path = self.inner_path()
        if path not in {"verdict", "undo"}:
            self.refuse(HTTPStatus.NOT_FOUND)
            return
        body = self.read_body(_BODY)
        if body is None:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind != "application/json" or self.is_from_elsewhere():
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
