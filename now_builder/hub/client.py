"""Report errors of the hub's client in one line, and retry when it is busy."""

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from now_builder.errors import NowError
from now_builder.program.retry_after import retry_after_s

_PATIENCE_S = 3600.0  # Maximum total wait of one step for the hub's rate limit, in seconds
_BUSY_S = 60.0
"""Wait in seconds if the hub does not say how long; its rate limits cover five minutes."""

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
_ANSWERS = {
    401: "no valid token. Run hf auth login, or set the environment variable HF_TOKEN",
    403: "the token does not allow this. See https://huggingface.co/settings/tokens",
    404: "data set, revision or file not found, or not accessible to you",
    429: "too many requests. Wait, then run the same command again",
}
_RERUN = "Run the same command again to resume"


class BusyError(NowError):
    """The hub's rate limit was reached; retry after ``wait_s`` seconds."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def retry_on_rate_limit(call: Callable[[], Answer]) -> Answer:
    """Call again after each :class:`BusyError`, when its wait is over.

    Raises:
        BusyError: If the waits add up to more than an hour.
    """
    left = _PATIENCE_S
    while True:
        try:
            return call()
        except BusyError as busy:
            left -= busy.wait_s
            if left < 0:
                raise
            problem = str(busy).partition(". ")[0]
            _log.warning("publish: %s. Retrying in %.0f s", problem, busy.wait_s)
            time.sleep(busy.wait_s)


@contextmanager
def hub_errors(subject: str) -> Iterator[None]:
    """Convert errors of the hub's client to one line about ``subject``.

    Raises:
        NowError: If the hub cannot be reached or reports an error.
        BusyError: If the hub's rate limit was reached.
    """
    try:
        yield
    except Exception as error:
        # An error in one of several files is the cause of a RuntimeError.
        inner = error.__cause__ if isinstance(error, RuntimeError) else None
        line = _describe(inner or error)
        if line is None:
            raise
        response = getattr(inner or error, "response", None)
        if response is not None and response.status_code == 429:
            raise BusyError(f"{subject}: {line}", _wait_s(response.headers)) from None
        raise NowError(f"{subject}: {line}") from None


def _wait_s(headers: Mapping[str, str]) -> float:
    """Return the wait in seconds by the header Retry-After or the hub's RateLimit."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    retry_after = retry_after_s(headers.get("retry-after"))
    if retry_after is not None:
        return max(1.0, retry_after)
    limit = parse_ratelimit_headers(headers)
    return _BUSY_S if limit is None else limit.reset_in_seconds + 1.0


def _describe(error: BaseException) -> str | None:
    """Return the line for an error of the hub's client; ``None`` for other errors."""
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    )

    words = " ".join(str(error).split()) or type(error).__name__
    if of_xet(error):
        return f"Xet, the hub's store of large files, failed ({words}). {NO_XET}"
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set. Unset it to use the hub"
    if isinstance(error, LocalTokenNotFoundError):
        return f"the hub: {_ANSWERS[401]}"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        answer = f"the hub answered {status}"
        return f"{answer}: {_ANSWERS[status]}" if status in _ANSWERS else f"{answer}. {_RERUN}"
    if isinstance(error, HTTPError | InvalidURL):
        return f"the hub cannot be reached ({words}). {_RERUN}"
    if torn := isinstance(error, OSError) and error.errno is None:  # wrong number of bytes
        words = f"{words.partition('. ')[0]}. {_RERUN}"
    return words if torn or isinstance(error, HFValidationError) else None


NO_XET = "Run the same command again, or set HF_HUB_DISABLE_XET=1 to avoid Xet"


def of_xet(error: BaseException) -> bool:
    """Return whether an error comes from the hub's Xet client, which can raise any type.

    Uploads call it directly in ``_upload_pipeline.py``; other errors come from deeper calls.
    """
    steps = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(step.co_name in {"_upload_xet_files", "xet_get"} for step in steps):
        return True
    return bool(steps) and steps[-1].co_filename.endswith("_upload_pipeline.py")


def size_text(size: int) -> str:
    """Format a number of bytes in MB or GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
