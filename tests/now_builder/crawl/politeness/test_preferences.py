"""Statements of preferences: as the drafts have them, and as people write them."""

import time

import pytest

from now_builder.crawl.politeness.robots_rules import refuses_training

REFUSE = [
    "train-ai=n", "search=y, train-ai=n", "train-ai=n, search=y", "Train-AI=N", "train-ai = n",
    "train-ai=\tno", "train-ai=n;until=2030", 'train-ai=n;why="a, train-ai=y"', 'train-ai="n"',
    "train-ai=y, train-ai=n", "ai-train=no", "search=yes,ai-train=no,use=reference",
    "search=yes; ai-train=no", "search=yes ai-train=no", "AI-Train: yes, ai-train=No", "ai=n",
    "tdm=n, search=y", "bots=n", "genai=n", "ai=y, train-ai=n",
]  # fmt: skip
ALLOW = [
    "train-ai=y", "ai-train=yes", "train-ai=n, train-ai=y", "ai=n, train-ai=y", "bots=n, ai=y",
    "train-ai;allow=n, train-ai=y", "search=no, ai-train=yes", 'train-ai=y;why="train-ai=n"',
]  # fmt: skip
SILENT = [
    "", "search=n", "ai-input=no", "train-ai", "train-ai=?0", "train-ai=maybe", "no-ai-train=no",
    "x.train-ai=n", "train-ai-not=n", "=n", "use=reference", "train-ai=", "bots",
]  # fmt: skip


@pytest.mark.parametrize("statement", REFUSE)
def test_a_statement_refuses_training(statement: str) -> None:
    assert refuses_training(statement) is True


@pytest.mark.parametrize("statement", ALLOW)
def test_a_statement_allows_training(statement: str) -> None:
    assert refuses_training(statement) is False


@pytest.mark.parametrize("statement", SILENT)
def test_a_statement_does_not_say(statement: str) -> None:
    assert refuses_training(statement) is None


@pytest.mark.parametrize("piece", ["a", "ai", "ai ", "ai=", '"', '"=', "ai=n,", "ai" + " " * 99])
def test_a_long_statement_takes_no_long_time(piece: str) -> None:
    started = time.process_time()
    refuses_training(piece * 50_000)
    assert time.process_time() - started < 5
