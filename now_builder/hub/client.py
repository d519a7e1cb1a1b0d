"""The hub's client: its errors in one line, its noise left out."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from now_builder.errors import NowError

_ANSWERS = {
    401: "it wants a valid token: hf auth login, or the environment variable HF_TOKEN",
    403: "the token does not allow that: see https://huggingface.co/settings/tokens",
    404: "it has no such data set, revision or file, or only for those who may see it",
    429: "too many requests; wait, and run the same command again",
}


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Make one line of what the hub's client raises.

    Raises:
        NowError: If the hub cannot be reached, or refuses.
    """
    try:
        yield
    except Exception as error:
        # The error of one of several files is the cause of another.
        inner = error.__cause__ if isinstance(error, RuntimeError) else None
        line = _describe(inner or error)
        if line is None:
            raise
        raise NowError(f"{what}: {line}") from None


def _describe(error: BaseException) -> str | None:
    """Return the line for an error of the hub's client; ``None`` for any other."""
    from httpx2 import HTTPError
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
    if isinstance(error, HTTPError):
        return f"the hub cannot be reached ({words}); run the same command again to go on"
    return words if isinstance(error, HFValidationError) else None


NO_XET = "run the same command again, or with HF_HUB_DISABLE_XET=1, which does without Xet"


def of_xet(error: BaseException) -> bool:
    """Whether an error comes from the hub's Xet, whose client raises errors of any type."""
    steps = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name in {"_upload_xet_files", "xet_get"} for frame, _ in steps)


def size_text(size: int) -> str:
    """Write a number of bytes as people do."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
