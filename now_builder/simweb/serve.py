"""Serve a simulated web on loopback."""

from pathlib import Path

from now_builder.program import web_server
from now_builder.simweb.answer import Answers
from now_builder.simweb.make import read_world


def serve(
    folder: Path, port: int, *, ready_file: Path | None = None, latency_s: float = 0.0
) -> None:
    """Serve a folder made by ``make`` until interrupted or terminated."""
    answers = Answers(read_world(folder), latency_s)
    web_server.serve(answers, f"{len(answers.world.pages)} pages", port, ready_file)
