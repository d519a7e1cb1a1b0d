"""The hub's client: its errors in one line, its noise left out."""

import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from now_builder.errors import NowError
from now_builder.program.retry_after import retry_after_s

_PATIENCE_S = 3600.0
"""Seconds to wait in all, for one step, where the hub answers that it had too many requests."""
_BUSY_S = 60.0
"""Seconds to wait where it does not say how long; its limits are for five minutes."""

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
_ANSWERS = {
    401: "it wants a valid token: hf auth login, or the environment variable HF_TOKEN",
    403: "the token does not allow that: see https://huggingface.co/settings/tokens",
    404: "it has no such data set, revision or file, or only for those who may see it",
    429: "too many requests; wait, and run the same command again",
}


class BusyError(NowError):
    """The hub had too many requests, and takes them again after some seconds."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def retry_on_rate_limit(call: Callable[[], Answer]) -> Answer:
    """Call until the hub has no longer too many requests, waiting as long as it says each time.

    Raises:
        BusyError: If it asks to wait for more than an hour in all.
    """
    left = _PATIENCE_S
    while True:
        try:
            return call()
        except BusyError as busy:
            left -= busy.wait_s
            if left < 0:
                raise
            what = str(busy).partition(";")[0]
            _log.warning("publish: %s; going on in %.0f s", what, busy.wait_s)
            time.sleep(busy.wait_s)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Make one line of what the hub's client raises.

    Raises:
        NowError: If the hub cannot be reached, or refuses; a :class:`BusyError` if it is busy.
    """
    try:
        yield
    except Exception as error:
        # The error of one of several files is the cause of another.
        inner = error.__cause__ if isinstance(error, RuntimeError) else None
        line = _describe(inner or error)
        if line is None:
            raise
        response = getattr(inner or error, "response", None)
        if response is not None and response.status_code == 429:
            raise BusyError(f"{what}: {line}", _wait_s(response.headers)) from None
        raise NowError(f"{what}: {line}") from None


def _wait_s(headers: Mapping[str, str]) -> float:
    """Return the seconds that an answer asks to wait: by Retry-After, or by the hub's RateLimit."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    asked = retry_after_s(headers.get("retry-after"))
    if asked is not None:
        return max(1.0, asked)
    limit = parse_ratelimit_headers(headers)
    return _BUSY_S if limit is None else limit.reset_in_seconds + 1.0


def _describe(error: BaseException) -> str | None:
    """Return the line for an error of the hub's client; ``None`` for any other."""
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    )

    words = " ".join(str(error).split()) or type(error).__name__
    if of_xet(error):
        return (
            f"the hub's store of large files, Xet, refused or was not reached ({words}); {NO_XET}"
        )
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so that the hub is not asked"
    if isinstance(error, LocalTokenNotFoundError):
        return f"the hub: {_ANSWERS[401]}"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        said = _ANSWERS.get(status, "run the same command again to go on")
        return f"the hub answered {status}: {said}"
    if isinstance(error, HTTPError | InvalidURL):
        return f"the hub cannot be reached ({words}); run the same command again to go on"
    if torn := isinstance(error, OSError) and error.errno is None:  # other bytes than it named
        words = f"{words.partition('. ')[0]}; run the same command again to go on"
    return words if torn or isinstance(error, HFValidationError) else None


NO_XET = "run the same command again, or with HF_HUB_DISABLE_XET=1, which does without Xet"


def of_xet(error: BaseException) -> bool:
    """Whether an error comes from the hub's Xet, whose client raises errors of any type.

    Uploads call it in ``_upload_pipeline.py``; other errors there come from deeper within.
    """
    steps = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(step.co_name in {"_upload_xet_files", "xet_get"} for step in steps):
        return True
    return bool(steps) and steps[-1].co_filename.endswith("_upload_pipeline.py")


def size_text(size: int) -> str:
    """Write a number of bytes as people do."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
