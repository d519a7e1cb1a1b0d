"""Read stores for a board: signatures are checked, and unsigned figures recomputed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from leaderboard.store.entries import (
    RESULTS,
    Entry,
    Proof,
    read_results,
    reproduction_path,
    result_path,
)
from leaderboard.store.signatures import Chain, Signature, read_chain, refuse_broken
from leaderboard.store.verify import recomputed
from now_builder.errors import FormatError


def read_board(paths: Iterable[Path]) -> list[Entry]:
    """Read result files, folders of them, and stores, by name, each with its proof.

    Raises:
        FormatError: If a file is invalid, a signature does not hold, or an unsigned result has
            figures that do not follow from its ranks.
    """
    entries: dict[str, Entry] = {}
    for path in paths:
        for entry in prove(path, read_results([path])):
            known = entries.get(entry.name)
            if known is None or (
                known.proof.arrival is None and (entry.filing is not None or not known.stored)
            ):
                entries[entry.name] = entry
    return [entries[name] for name in sorted(entries)]


def prove(
    store: Path,
    entries: Iterable[Entry],
    known: frozenset[str] = frozenset(),
    chain: Chain | None = None,
) -> list[Entry]:
    """Add the statements of a store's signatures to its entries; recompute unsigned entries.

    In a store with a key, unsigned tombstones and reproductions have no effect, nor has an unsigned
    filing of a signed entry. ``known`` names entries that were recomputed before, ``chain`` has
    the store's signatures if they were read before.

    Raises:
        FormatError: If a signature does not hold, or figures do not follow from the ranks.
    """
    chain = chain or read_chain(store)
    refuse_broken(store, chain)
    said: dict[str, list[Signature]] = defaultdict(list)
    for one in chain.signatures:
        said[one.entry].append(one)
    signed = chain.signed_files()
    order = {path: number for number, path in enumerate(signed)}
    found = []
    for entry in entries:
        proof = proof_of(said[entry.name])
        if not proof.scored and entry.name not in known:
            _refuse_changed(store, entry)
        found.append(
            _only_signed(entry, proof, order) if chain.keys else replace(entry, proof=proof)
        )
    return found


def _only_signed(entry: Entry, proof: Proof, signed: Mapping[str, int]) -> Entry:
    """Leave out unsigned records that only the judge may make; find the run signed last.

    ``signed`` has the place of each signed file among them.
    """
    name = entry.name
    runs = tuple(run for run in entry.reproductions if reproduction_path(run) in signed)
    known = [run for run in runs if run.result is not None]
    last = max(known, key=lambda run: signed[reproduction_path(run)], default=None)
    file = f"filings/{name}.json" in signed or proof.arrival is None
    return replace(
        entry,
        proof=replace(proof, run=last),
        filing=entry.filing if file else None,
        withdrawal=entry.withdrawal if f"withdrawals/{name}.json" in signed else None,
        reproductions=runs,
    )


def key_in_use(chains: Iterable[Chain]) -> str | None:
    """Return the name of the stores' key; None if one has none, or they differ."""
    names = {key_of(chain) for chain in chains}
    return names.pop() if len(names) == 1 else None


def key_of(chain: Chain) -> str | None:
    """Return the name of the key in use; None without one."""
    return chain.keys[-1].name if chain.keys else None


def proof_of(signatures: list[Signature]) -> Proof:
    """Summarise the signatures about one entry."""
    arrived = next((one for one in signatures if one.says in {"scored", "known"}), None)
    said = {one.says for one in signatures}
    return Proof(
        arrival=arrived.number if arrived else None,
        received_at=arrived.at if arrived and arrived.says == "scored" else None,
        scored="scored" in said,
    )


def _refuse_changed(store: Path, entry: Entry) -> None:
    if entry.result.ranks is None:
        return
    for difference in recomputed(entry.result):
        path = result_path(store, entry) if (store / RESULTS).is_dir() else store
        raise FormatError(path, str(difference))
