"""Changes of structured files that keep their frame whole, so that what is inside is reached."""

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable

Change = Callable[[bytes], bytes]

_VALUES = [
    None, True, False, 0, -1, 2**31, 2**64, -(2**63), 10**400, 1.5, 1e308, "", "x", "\n", "\x00",
    "\ud800", "\u202e", "9" * 5000, [], {}, [[]], {"": None}, "a" * 600,
]  # fmt: skip
"""What a reader of JSON may not have thought of."""


def change_json(chance: random.Random, content: bytes) -> bytes:
    """Replace, remove, double or rename one value of a JSON text; what is no JSON stays."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return content
    holders = [holder for holder in _holders(tree) if holder]
    if not holders or chance.random() < 0.03:
        return json.dumps(chance.choice(_VALUES)).encode()
    holder = chance.choice(holders)
    key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    how = chance.randrange(5)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[str(chance.choice(_VALUES))] = holder[key]
    elif how == 1:
        holder.append(holder[key])
    elif how == 2:
        holder[key] = [holder[key]]
    else:
        holder[key] = chance.choice(_VALUES)
    return json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")


def _holders(tree: object) -> list:
    if not isinstance(tree, dict | list):
        return []
    children = tree.values() if isinstance(tree, dict) else tree
    return [tree, *(holder for child in children for holder in _holders(child))]


def change_zip(chance: random.Random, content: bytes, inside: Callable[[str], Change]) -> bytes:
    """Change a member of a zip and write the zip again, with sums and sizes that are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # noqa: BLE001 - an input that is no longer a zip
        return content
    if not members:
        return content
    at = chance.randrange(len(members))
    name, old = members[at]
    members[at] = (name, inside(name)(old))
    file = io.BytesIO()
    packing = zipfile.ZIP_DEFLATED if chance.random() < 0.2 else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", packing) as archive:
        for member, new in members:
            archive.writestr(zipfile.ZipInfo(member), new, packing)
    return file.getvalue()


def change_tar(chance: random.Random, content: bytes, inside: Callable[[str], Change]) -> bytes:
    """Change a member of a tar and write the tar again, with sums that are right."""
    file, new = io.BytesIO(content), io.BytesIO()
    try:
        with tarfile.open(fileobj=file) as tar, tarfile.open(fileobj=new, mode="w") as out:
            members = tar.getmembers()
            at = chance.randrange(len(members))
            for place, member in enumerate(members):
                reader = tar.extractfile(member)
                text = reader.read() if reader else b""
                if place == at:
                    text = inside(member.name)(text)
                    if chance.random() < 0.1:
                        member.type = chance.choice([tarfile.DIRTYPE, tarfile.SYMTYPE, b"S", b"x"])
                member.size = len(text)
                out.addfile(member, io.BytesIO(text))
    except Exception:  # noqa: BLE001 - an input that is no longer a tar
        return content
    return new.getvalue()
