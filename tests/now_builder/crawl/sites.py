"""A local server of many small sites, each host of ``*.test`` with answers of its own."""

import asyncio
import time
from collections import Counter

from .awkward import Awkward, page, response

PAGE = response(200, "text/html; charset=utf-8", page("a page"))


class Sites(Awkward):
    """Answers by host and path (``a.test/x``); several answers of one are given in turn.

    A page at ``/`` of any host, and 404 for all else, is what is not listed.

    Attributes:
        times: When each URL was asked for, by host and path.
    """

    def __init__(self, answers: dict[str, bytes | list[bytes]]) -> None:
        super().__init__()
        self.answers = answers
        self.hits: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        host = next(line[6:] for line in head if line.lower().startswith("host: "))
        where = host.partition(":")[0] + head[0].split(" ")[1]
        self.times.setdefault(where, []).append(time.monotonic())
        fallback = PAGE if where.endswith("test/") else response(404, "text/plain", b"none")
        answers = self.answers.get(where, fallback)
        if isinstance(answers, list):
            answers = answers[min(self.hits[where], len(answers) - 1)]
        self.hits[where] += 1
        writer.write(answers)
        await writer.drain()
