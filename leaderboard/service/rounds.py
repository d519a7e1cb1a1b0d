"""Files of a person in an open blind round: how many are scored, and which get new figures."""

import json
from dataclasses import dataclass

from sqlalchemy import Engine, select

from leaderboard.core.rounds import BlindRound
from leaderboard.scoring.result import Result
from leaderboard.service import events
from leaderboard.service.database import EntryRow, EventRow, reading, writing

_KIND = "round.file"


@dataclass(frozen=True, slots=True)
class Turns:
    """The files that a person had scored in a round, by sha256, in their order; ``of`` at most."""

    files: tuple[str, ...]
    of: int

    @property
    def left(self) -> int:
        """Number of files that may still be scored."""
        return max(0, self.of - len(self.files))

    def place(self, payload: str) -> str:
        """Return which file of how many this is, as in ``2 of 5``."""
        return f"{self.files.index(payload) + 1} of {self.of}"


def turns_of(engine: Engine, blind: BlindRound, handle: str) -> Turns:
    """Return the files that a person had scored in a round, by the log of events."""
    query = select(EventRow.subject).where(
        EventRow.kind == _KIND,
        EventRow.actor == handle,
        EventRow.detail == json.dumps({"round": blind.commitment}),
    )
    with reading(engine) as session:
        return Turns(tuple(session.scalars(query.order_by(EventRow.id))), blind.scored)


def take_turn(engine: Engine, blind: BlindRound, handle: str, payload: str) -> Turns:
    """Count a file, before its figures are told, if it is new; return the files with it."""
    turns = turns_of(engine, blind, handle)
    if payload in turns.files:
        return turns
    with writing(engine) as session:
        events.append(session, handle, _KIND, payload, {"round": blind.commitment})
    return Turns((*turns.files, payload), turns.of)


def best_of(engine: Engine, user_id: int, result: Result) -> EntryRow | None:
    """Return a person's best entry on a result's data and track; a withdrawn one was told too."""
    query = select(EntryRow).where(
        EntryRow.user_id == user_id,
        EntryRow.fingerprint == result.release.fingerprint,
        EntryRow.track == result.track,
        EntryRow.split == result.split,
    )
    with reading(engine) as session:
        return session.scalar(query.order_by(EntryRow.rsum.desc(), EntryRow.name).limit(1))
