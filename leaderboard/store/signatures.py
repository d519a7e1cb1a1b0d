"""The judge's signatures on statements about entries, chained so that changes show."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import Field

from leaderboard.core.errors import Problem
from leaderboard.store.entries import (
    PRIVATE,
    RESULTS,
    UNSIGNED,
    EntryName,
    Moment,
    age,
    find_result,
    locked,
    now,
    read_entry,
    read_record,
    read_result,
    result_path,
)
from now_builder.config import Sha256, Strict
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import remove_leftovers, sha256_of, write_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from leaderboard.store.entries import Entry

KEYS, SIGNATURES = "keys", "signatures"
FIRST = "0" * 64
"""Hash that stands for the signature before the first."""

_CONTEXT = b"noise-of-web leaderboard "
_MAX_NAME = 200  # characters of a record's name

KeyName = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
SignatureText = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Statement = Literal["known", "scored", "reproduced", "withdrawn"]


class PublicKey(Strict):
    """``keys/<name>.json``: a public key of the judge, signed by the key before it.

    Attributes:
        name: first 16 hexadecimal digits of the sha256 of the key.
        public: the 32 bytes of the Ed25519 key, hexadecimal.
        first: number of the first signature that it may make; the key before it ends there.
        previous: name of the key before it; None for the first, which signs itself.
    """

    format: Literal["now-key/1"] = "now-key/1"
    name: KeyName
    public: Sha256
    made_at: Moment
    first: Annotated[int, Field(ge=1)]
    previous: KeyName | None
    signature: SignatureText


class Signature(Strict):
    """``signatures/<number>.json``: one statement of the judge.

    Attributes:
        previous: sha256 of the file of the signature before it.
        at: the judge's time; never earlier than that of the signature before it.
        says: ``scored`` by the judge; ``known``, in the store before it had a key; ``reproduced``
            or ``withdrawn``.
        payload_sha256: sha256 of the entry's submission.
        fingerprint: fingerprint of the data that the entry was scored on.
        files: sha256 of each file of the store that the statement is about, by path.
        key: name of the key.
    """

    format: Literal["now-signature/1"] = "now-signature/1"
    number: Annotated[int, Field(ge=1)]
    previous: Sha256
    at: Moment
    says: Statement
    entry: EntryName
    payload_sha256: Sha256
    fingerprint: Sha256
    files: dict[str, Sha256]
    key: KeyName
    signature: SignatureText


Signed = TypeVar("Signed", PublicKey, Signature)


@dataclass(slots=True)
class Chain:
    """Keys and valid signatures of a store, and the problems of others.

    Attributes:
        keys: keys from the first to the one in use.
        last: sha256 of the last signature's file.
    """

    keys: list[PublicKey] = field(default_factory=list)
    signatures: list[Signature] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    last: str = FIRST

    def note(self, path: str, found: str, expected: str) -> None:
        """Note a problem of a file."""
        self.problems.append(Problem("signature.invalid", path, found, expected))

    def signed_files(self) -> dict[str, Statement]:
        """Return the last statement about each file."""
        return {path: one.says for one in self.signatures for path in one.files}


def read_chain(store: Path) -> Chain:
    """Read and check all keys and signatures of a store; without any the chain is empty."""
    chain = Chain()
    _read_keys(chain, store)
    folder = store / SIGNATURES
    files = os.listdir(folder) if folder.is_dir() else []  # noqa: PTH208 - paths cost more
    for file in sorted(file for file in files if file.endswith(".json")):
        name = f"{SIGNATURES}/{file}"
        path = f"{store}/{name}"
        signature, signed, digest = _read_signature(path, *_state(path))
        problem = _problem_of(chain, name, signature, signed)
        if problem:
            chain.note(name, *problem)
            break
        _check_files(chain, store, name, signature)
        chain.signatures.append(signature)
        chain.last = digest
    return chain


def _read_keys(chain: Chain, store: Path) -> None:
    left = {path: read_record(path, PublicKey) for path in sorted((store / KEYS).glob("*.json"))}
    while left:
        last = chain.keys[-1] if chain.keys else None
        after = last.name if last else None
        path = next((path for path, key in left.items() if key.previous == after), None)
        if path is None:
            break
        key = left.pop(path)
        good = (
            path.stem == key.name == name_of(key.public)
            and (last is None or key.first >= last.first)
            and _holds((last or key).public, message(key), key.signature)
        )
        if not good:
            chain.note(f"{KEYS}/{path.name}", f"key {key.name}", "a key signed by the one before")
            break
        chain.keys.append(key)
    for path, key in left.items():
        chain.note(
            f"{KEYS}/{path.name}", f"another key {key.name}", "one chain of keys from one first key"
        )


def _problem_of(chain: Chain, name: str, found: Signature, signed: bytes) -> tuple[str, str] | None:
    """Return the problem of the next signature of a chain: found, expected."""
    number = len(chain.signatures) + 1
    if found.number != number or name != f"{SIGNATURES}/{number:08d}.json":
        return f"signature {found.number}", f"number {number}: none is missing"
    if found.previous != chain.last:
        return f"previous {found.previous[:16]}", f"{chain.last[:16]}, the signature before it"
    if chain.signatures and found.at < chain.signatures[-1].at:
        return f"time {found.at.isoformat()}", "none before the signature before it"
    known = {key.name for key in chain.keys}
    wanted = next((key for key in reversed(chain.keys) if key.first <= number), None)
    if wanted is None or found.key not in known:
        return f"unknown key {found.key}", f"one of {', '.join(sorted(known)) or 'none'}"
    if found.key != wanted.name:
        return f"key {found.key}, which is not in use at {found.number}", f"key {wanted.name}"
    holds = _holds(wanted.public, signed, found.signature)
    text = f"a text that key {found.key} did not sign", "the text that was signed"
    return None if holds else text


def _check_files(chain: Chain, store: Path, name: str, found: Signature) -> None:
    for path, digest in found.files.items():
        parts = path.split("/")
        plain = all(
            part.isprintable() and 0 < len(part) <= _MAX_NAME and part[0] != "." for part in parts
        )
        if len(parts) != 2 or not plain:
            chain.note(name, f"the path {path!r:.60}", "a record of the store")
        elif _hash_of(f"{store}/{path}") != digest:
            state = "another content" if (store / path).exists() else "nothing"
            chain.note(path, state, f"the file of signature {found.number}")


def _state(path: str) -> tuple[int, ...]:
    """Return properties of a file that change when it is replaced."""
    status = os.stat(path)  # noqa: PTH116 - several times faster on the many files of a store
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


@lru_cache(1 << 16)
def _read_signature(path: str, *_state: int) -> tuple[Signature, bytes, str]:
    """Read a signature, the bytes that are signed, and the hash of its file."""
    found = read_record(Path(path), Signature)
    return found, message(found), sha256_of(Path(path))


def _hash_of(path: str) -> str | None:
    try:
        return _hash_known(path, *_state(path))
    except OSError:
        return None


@lru_cache(1 << 16)
def _hash_known(path: str, *_state: int) -> str:
    return sha256_of(Path(path))


def message(record: PublicKey | Signature) -> bytes:
    """Return the bytes that are signed: a context, and the record as canonical JSON."""
    tree = record.model_dump(mode="json", exclude={"signature"})
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return _CONTEXT + record.format.encode() + b"\n" + text.encode()


@lru_cache(1 << 16)
def _holds(public: str, signed: bytes, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), signed)
    except (InvalidSignature, ValueError):
        return False
    return True


class Signer:
    """Signs statements about a store's entries with the judge's private key.

    Args:
        key_file: file with the private key, readable by its owner alone.

    Raises:
        ConfigError: If the key cannot be used, or is not the one in use in this store.
    """

    def __init__(self, store: Path, key_file: Path) -> None:
        self._store = store
        self._intents = store / PRIVATE / UNSIGNED
        self._key = read_private(key_file, store)
        self.name = name_of(public_of(self._key))
        self.chain()

    def chain(self) -> Chain:
        """Read the store's chain; refuse it unless this key is the one in use."""
        chain = read_chain(self._store)
        if chain.problems:
            raise ConfigError(f"{self._store}: {chain.problems[0]}")
        used = chain.keys[-1].name if chain.keys else "none; now-leaderboard keys make"
        if used != self.name:
            raise ConfigError(f"{self._store}: key {self.name}, expected the one in use: {used}")
        return chain

    def sign(self, says: Statement, entry: "Entry", paths: Sequence[Path]) -> None:
        """Sign a statement about those files of an entry that have no such statement yet."""
        with locked(self._store):
            chain = self.chain()
            signed = chain.signed_files()
            named = {path.relative_to(self._store).as_posix(): path for path in paths}
            files = {
                name: sha256_of(path) for name, path in named.items() if signed.get(name) != says
            }
            if files:
                self._append(chain, says, entry, files)

    def _append(self, chain: Chain, says: Statement, entry: "Entry", files: dict[str, str]) -> None:
        number = len(chain.signatures) + 1
        blank = Signature(
            number=number,
            previous=chain.last,
            at=max([now(), *(one.at for one in chain.signatures[-1:])]),
            says=says,
            entry=entry.name,
            payload_sha256=entry.result.payload_sha256,
            fingerprint=entry.result.release.fingerprint,
            files=files,
            key=self.name,
            signature=FIRST * 2,
        )
        _write_signed(self._store / SIGNATURES / f"{number:08d}.json", blank, self._key)

    @contextmanager
    def signing_intent(self, says: Statement, name: str) -> Iterator[None]:
        """Note that files of an entry are about to be written and signed in the ``with`` block.

        If the process dies in between, :meth:`sign_pending` signs them, which the same call again
        begins with. The note is in the store's private folder, where only the judge writes; an
        entry's name is the hash of its result.
        """
        self.sign_pending(name)
        note = self._intents / f"{says}-{name}"
        with locked(self._store):  # else others may take what is half-written for a leftover
            write_text(note, "")
        yield
        note.unlink(missing_ok=True)

    def sign_pending(self, name: str = "*") -> None:
        """Sign the noted files of one entry, or of all entries when nothing is being filed."""
        for note in sorted(self._intents.glob(f"*-{name}")):
            says, _, about = note.name.partition("-")
            if self._sign_noted(says, about) or name == "*":
                note.unlink(missing_ok=True)

    def _sign_noted(self, says: str, name: str) -> bool:
        tombstone = tombstone_path(self._store, name)
        if not any((self._store / RESULTS).glob(f"*-{name}.json")):
            return False
        entry = read_entry(self._store, read_result(find_result(self._store, name)))
        if says == "scored":
            self.sign("scored", entry, filed_paths(self._store, entry))
        elif tombstone.exists():
            self.sign("withdrawn", entry, [tombstone])
        return says == "scored" or tombstone.exists()


def _write_signed(path: Path, blank: Signed, key: "Ed25519PrivateKey") -> Signed:
    made = blank.model_copy(update={"signature": key.sign(message(blank)).hex()})
    write_text(path, made.model_dump_json(indent=2) + "\n")
    return made


def filed_paths(store: Path, entry: "Entry") -> list[Path]:
    """Return the files of an entry's result and, if there is one, its filing."""
    filing = store / "filings" / f"{entry.name}.json"
    return [result_path(store, entry), *([filing] if filing.exists() else [])]


def tombstone_path(store: Path, name: str) -> Path:
    """Return the path of an entry's tombstone."""
    return store / "withdrawals" / f"{name}.json"


def make_key(store: Path, key_file: Path, entries: Sequence["Entry"]) -> PublicKey:
    """Make the first key of a store, and sign the entries and tombstones that it already has.

    If the process dies before all is signed, the same call again signs the rest: a note in the
    store's private folder names the key's file.

    Raises:
        ConfigError: If the store has a key, or the file exists or lies in the store.
    """
    note = store / PRIVATE / "first-key"
    with locked(store):  # two calls at once would make two first keys
        keys = read_chain(store).keys
        if keys and not _begun(note, key_file):
            raise ConfigError(f"{store}: has a key already; now-leaderboard keys rotate")
        if not keys:
            key = _make_private(note, key_file, store)
            keys = [_publish(store, key, key, None, 1)]
    signer = Signer(store, key_file)
    for entry in sorted(entries, key=age):
        signer.sign("known", entry, filed_paths(store, entry))
        if entry.withdrawal is not None:
            signer.sign("withdrawn", entry, [tombstone_path(store, entry.name)])
    note.unlink()
    return keys[0]


def rotate_key(store: Path, old_file: Path, new_file: Path) -> PublicKey:
    """Make the next key of a store, signed by the one in use, which ends with it.

    If the process dies before the key is published, the same call again goes on with it: a note in
    the store's private folder names its file.

    Raises:
        ConfigError: If the old key is not in use, or the new file exists or lies in the store.
    """
    note, last = store / PRIVATE / "next-key", read_chain(store).keys[-1:]
    begun = _begun(note, new_file) and _is_written(new_file)
    if not begun or [key.public for key in last] != [public_of(read_private(new_file, store))]:
        signer, old = Signer(store, old_file), read_private(old_file, store)
        with locked(store):
            chain = signer.chain()  # again, as another call may have rotated the key meanwhile
            new = _make_private(note, new_file, store)
            last = [_publish(store, new, old, chain.keys[-1].name, len(chain.signatures) + 1)]
    note.unlink(missing_ok=True)
    return last[0]


def _begun(note: Path, key_file: Path) -> bool:
    """Whether a call that was to make this key died before it had."""
    return note.exists() and note.read_text(encoding="utf-8") == str(key_file.resolve())


def _is_written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _make_private(note: Path, path: Path, store: Path) -> "Ed25519PrivateKey":
    """Make a private key and note its file first; one that was begun is gone on with."""
    if not _begun(note, path):
        _check_new(path, store)
        write_text(note, str(path.resolve()))
    remove_leftovers(path.parent, path.name)
    return read_private(path, store) if _is_written(path) else _new_private(path, store)


def _publish(
    store: Path,
    key: "Ed25519PrivateKey",
    by: "Ed25519PrivateKey",
    previous: str | None,
    first: int,
) -> PublicKey:
    public = public_of(key)
    blank = PublicKey(
        name=name_of(public),
        public=public,
        made_at=now(),
        first=first,
        previous=previous,
        signature=FIRST * 2,
    )
    return _write_signed(store / KEYS / f"{blank.name}.json", blank, by)


def name_of(public: str) -> str:
    """Return the name of a public key."""
    return hashlib.sha256(bytes.fromhex(public)).hexdigest()[:16]


def public_of(key: "Ed25519PrivateKey") -> str:
    """Return the public key of a private one, hexadecimal."""
    return key.public_key().public_bytes_raw().hex()


def _new_private(path: Path, store: Path) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    _check_new(path, store)
    key = Ed25519PrivateKey.generate()
    write_text(path, f"{key.private_bytes_raw().hex()}\n", mode=0o600)
    return key


def _check_new(path: Path, store: Path) -> None:
    _check_outside(path, store)
    if _is_written(path):
        raise ConfigError(f"{path}: exists; a key is never written over")


def read_private(path: Path, store: Path) -> "Ed25519PrivateKey":
    """Read a private key.

    Raises:
        ConfigError: If it is missing, readable by others, inside the store, or not a key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    _check_outside(path, store)
    try:
        mode, text = path.stat().st_mode & 0o777, path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise ConfigError(
            f"{path}: not a readable private key; now-leaderboard keys make"
        ) from None
    if mode & 0o077:
        raise ConfigError(f"{path}: permissions {mode:04o}, expected 0600: chmod 600 {path}")
    try:
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text))
    except ValueError:
        raise ConfigError(f"{path}: not a private key, expected 64 hexadecimal digits") from None


def _check_outside(path: Path, store: Path) -> None:
    if path.resolve().is_relative_to(store.resolve()):
        raise ConfigError(f"{path}: inside the store, expected a file that is never published")


def refuse_broken(store: Path, chain: Chain) -> None:
    """Raise a ``FormatError`` for the first problem of a chain."""
    if chain.problems:
        raise FormatError(store / chain.problems[0].field, str(chain.problems[0]))
