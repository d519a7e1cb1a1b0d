"""Answers that hold for all pages of a site: requested once per origin, and remembered."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from urllib.parse import urlsplit

_ORIGINS = 20_000
_FAILED_S = 60.0
"""Seconds for which a failure counts; then the next page of the origin asks again."""

Said = TypeVar("Said")


class OncePerOrigin(Generic[Said]):
    """Answers of origins (``https://host``); simultaneous requests wait for one answer.

    ``ask`` returns the answer of an origin, and whether it is final; an error never is.
    """

    def __init__(self, ask: Callable[[str], Awaitable[tuple[Said, bool]]]) -> None:
        self._ask = ask
        self._known: OrderedDict[str, asyncio.Task[Said]] = OrderedDict()

    async def of(self, url: str) -> Said:
        """Return the answer of a URL's origin."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._known:
            self._known[origin] = asyncio.ensure_future(self._answer(origin))
            while len(self._known) > _ORIGINS:
                self._known.popitem(last=False)
        return await asyncio.shield(self._known[origin])

    async def close(self) -> None:
        """Drop pending requests."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)

    async def _answer(self, origin: str) -> Said:
        final = False
        try:
            said, final = await self._ask(origin)
            return said
        finally:
            if not final:
                asyncio.get_running_loop().call_later(_FAILED_S, self._known.pop, origin, None)
