"""Parse the response header ``Retry-After``."""

import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after_s(value: str | None) -> float | None:
    """Parse a ``Retry-After`` header (seconds or a date) to seconds; ``None`` if it is neither.

    A date without a time zone, as in C's ``asctime``, is in UTC.

    Source:
        RFC 9110, section 10.2.3.
    """
    text = (value or "").strip()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        moment = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, moment - time.time())
