"""Captures: plan, one tar of members and one parquet of rows per shard."""

import gzip
import io
import json
import re
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image, UnidentifiedImageError

from now_builder.errors import FormatError
from now_builder.formats.io import atomic_write
from now_builder.formats.tables import UnreadableError, is_of_system, schema_of, write_rows
from now_builder.formats.tables import stream_rows as stream_table

Box = tuple[float, float, float, float]
"""A box in image pixels: left, top, right, bottom."""

WIDTH, HEIGHT = 720, 1280
"""The size of every screenshot, in image pixels."""

Status = Literal["ok", "duplicate", "refused", "failed"]
"""``refused``: not visited on purpose (robots, address); ``failed``: the visit failed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One line of ``plan.parquet``: the shard and key of a URL, assigned once.

    Attributes:
        key: shard and place in it, such as ``"00012_0345"``; never changes.
        url: the listed text, verbatim.
        url_canonical: the URL that is visited.
        site: host name.
        host_group: number of the shard's host group, which one worker at a time crawls; −1 if not
            yet assigned.
    """

    key: str
    shard: int
    url: str
    url_canonical: str
    site: str
    host_group: int = -1


@dataclass(frozen=True, slots=True)
class CaptureRow:
    """One URL's outcome, failures included: a row of ``00012.parquet``.

    Attributes:
        error: reason class (``timeout``, ``http_404``, ``robots`` …), ``None`` when ok.
        caption: meta description as served: entities decoded once, NFC, white space collapsed,
            control characters dropped, nothing else. ``None`` if the page has none.
        caption_source: where the caption was found: ``name``, ``og``, ``twitter``, ``script`` …
        candidates: JSON object of the descriptions found, by source.
        lang: language of the page (BCP 47 primary tag), detected from caption and text; ``und`` if
            undecided.
        lang_declared: language that the page declares.
        charset: encoding used.
        charset_source: ``bom``, ``header``, ``meta``, ``utf-8``, ``browser`` or ``default``.
        charset_browser: encoding by which the browser read the text in the screenshot
            (``document.characterSet``, in lower case); ``charset`` where both read it alike.
        fetched_at: UTC, ISO 8601.
        sha256: hash of the screenshot's file bytes.
        phash: 64-bit perceptual hash of the screenshot, hexadecimal.
        ink: share of the screenshot, in [0, 1], on which there is something to see:
            :func:`now_builder.formats.ink.ink_shares`.
        ink_middle: the same of its middle, without header, footer and bars.
        load_state: ``settled``, or ``partial`` when the page never came to rest.
        duplicate_of: key of the first URL with the same canonical form.
        elapsed_s: seconds spent on this page.
        overlays: rules by which cookie and consent overlays were hidden; empty if none was.
    """

    key: str
    url: str
    url_canonical: str
    site: str
    status: Status
    error: str | None = None
    error_message: str | None = None
    final_url: str | None = None
    redirects: list[str] = field(default_factory=list)
    http_status: int | None = None
    content_type: str | None = None
    charset: str | None = None
    charset_source: str | None = None
    charset_browser: str | None = None
    title: str | None = None
    caption: str | None = None
    caption_source: str | None = None
    candidates: str | None = None
    lang: str | None = None
    lang_declared: str | None = None
    fetched_at: str | None = None
    sha256: str | None = None
    html_sha256: str | None = None
    phash: str | None = None
    ink: float | None = None
    ink_middle: float | None = None
    load_state: str | None = None
    duplicate_of: str | None = None
    robots: str | None = None
    attempts: int = 0
    elapsed_s: float = 0.0
    browser: str | None = None
    tool: str | None = None
    overlays: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Element:
    """One DOM element that has a box, as the browser laid it out.

    Attributes:
        box: border box in image px, clipped to the screen.
        tag: lower-case tag name.
        role: explicit ARIA role, else the implicit one of the tag, else ``""``.
        text: the element's own text (its direct text nodes), at most 200 characters; of a frame
            its title or name, as its text is another document's.
        text_box: union of the lines of that text, in image px, or ``None``.
        visible: not hidden, transparent, clipped away, off screen or covered.
        visible_fraction: share of the border box on screen and not covered, in [0, 1].
        interactive: is a link or control, or has a pointer cursor or a tab stop.
        parent: index of the nearest recorded ancestor, −1 for none.
        input_type: ``type`` of an ``<input>``.
        loaded: has pixels, for pictures.
        background: has a CSS background image.
        fixed: has position fixed or sticky.
    """

    box: Box
    tag: str
    role: str = ""
    text: str = ""
    text_box: Box | None = None
    visible: bool = True
    visible_fraction: float = 1.0
    interactive: bool = False
    parent: int = -1
    input_type: str = ""
    loaded: bool = True
    background: bool = False
    fixed: bool = False


TRANSFER_HEADERS = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that describe a body as it was sent, not as it is once decoded."""


@dataclass(frozen=True, slots=True)
class Capture:
    """The members of one page with ``status=ok``.

    Attributes:
        screenshot: PNG or WebP bytes of 720 x 1280 px.
        html: bytes of the source as served.
        elements: DOM elements in document order.
    """

    key: str
    screenshot: bytes
    html: bytes
    elements: list[Element]

    @property
    def extension(self) -> str:
        """``png`` or ``webp``, as the bytes are."""
        return image_kind(self.screenshot)


def image_kind(screenshot: bytes) -> Literal["png", "webp"]:
    """Return the kind of a screenshot, read from its bytes."""
    return "webp" if screenshot[8:12] == b"WEBP" else "png"


_ELEMENTS_FORMAT = "now-elements/1"
_PLAN, _CAPTURES = "now-plan/1", "now-captures/1"
_ROWS = re.compile(r"(\d{5})\.parquet", re.ASCII)
_OPTIONAL = {"host_group", "overlays", "charset_browser", "ink", "ink_middle"}
"""Columns that the first captures lack."""
_REQUIRED = {"key", "shard", "url", "url_canonical", "site", "status"}


def plan_path(captures: Path) -> Path:
    """Path of the plan of a captures folder."""
    return captures / "plan.parquet"


def rows_path(captures: Path, shard: int) -> Path:
    """Path of the parquet of a shard; it exists when the shard is complete."""
    return captures / f"{shard:05d}.parquet"


def members_path(captures: Path, shard: int) -> Path:
    """Path of the WebDataset tar of a shard."""
    return captures / f"{shard:05d}.tar"


def write_plan(captures: Path, plan: Sequence[Planned]) -> None:
    """Write ``plan.parquet`` atomically."""
    write_rows(plan_path(captures), plan, schema_of(Planned, _PLAN))


def read_plan(captures: Path) -> list[Planned]:
    """Read ``plan.parquet``.

    Raises:
        FormatError: If there is none, or it is damaged.
    """
    if not plan_path(captures).exists():
        raise FormatError(captures, "no plan.parquet in it, expected a folder that crawl writes")
    return [Planned(**line) for line in _read(plan_path(captures), Planned, _PLAN)]


def write_shard(
    captures: Path, shard: int, rows: Sequence[CaptureRow], members: Iterable[Capture]
) -> None:
    """Write a shard: first the tar, then, last, the parquet that makes it complete.

    There is a row for each planned URL, and for each with ``status=ok``, in order, its members.
    """
    write_packed(captures, shard, rows, map(to_members, members))


def write_packed(
    captures: Path,
    shard: int,
    rows: Sequence[CaptureRow],
    packed: Iterable[Sequence[tuple[str, bytes]]],
) -> None:
    """Write a shard as :func:`write_shard` does, from results of :func:`to_members`."""
    with (
        atomic_write(members_path(captures, shard)) as temporary,
        tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for members in packed:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                info.mode = 0o644
                tar.addfile(info, io.BytesIO(content))
    write_rows(rows_path(captures, shard), rows, schema_of(CaptureRow, _CAPTURES))


def to_members(capture: Capture) -> list[tuple[str, bytes]]:
    """Return the file names and bytes under which a capture is stored in the tar."""
    elements = {
        "format": _ELEMENTS_FORMAT,
        "width": WIDTH,
        "height": HEIGHT,
        "elements": [asdict(element) for element in capture.elements],
    }
    return [
        (f"{capture.key}.{capture.extension}", capture.screenshot),
        (f"{capture.key}.html.gz", gzip.compress(capture.html, compresslevel=6, mtime=0)),
        (
            f"{capture.key}.elements.json",
            json.dumps(elements, ensure_ascii=False, separators=(",", ":")).encode(),
        ),
    ]


def complete_shards(captures: Path) -> list[int]:
    """List the shards whose parquet exists, in order."""
    found = (_ROWS.fullmatch(path.name) for path in captures.glob("*.parquet"))
    return sorted(int(match[1]) for match in found if match)


def read_rows(captures: Path, shard: int | None = None) -> list[CaptureRow]:
    """Read the rows of one shard or of all complete shards, in the order of the keys."""
    return list(stream_rows(captures, shard))


def stream_rows(captures: Path, shard: int | None = None) -> Iterator[CaptureRow]:
    """Yield what :func:`read_rows` gives, holding one shard at a time."""
    if not captures.is_dir():
        raise FormatError(captures, "no such captures folder; `now-builder crawl` makes it")
    shards = complete_shards(captures) if shard is None else [shard]
    if not shards:
        raise FormatError(captures, "no complete shard (00000.parquet …); crawl first")
    for number in shards:
        for row in _read(rows_path(captures, number), CaptureRow, _CAPTURES):
            yield CaptureRow(**row)


def read_texts(captures: Path, shard: int) -> list[tuple[str, str, str]]:
    """Read key, site and caption of the captured pages of one shard that have a caption."""
    rows = read_columns(captures, shard, ("key", "site", "status", "caption"))
    return [
        (row["key"], row["site"], row["caption"])
        for row in rows
        if row["status"] == "ok" and row["caption"]
    ]


def read_columns(captures: Path, shard: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read some columns of one shard's rows: :func:`read_rows` takes ten times as long."""
    return list(_read(rows_path(captures, shard), CaptureRow, _CAPTURES, names))


def read_captures(
    captures: Path, skip: frozenset[str] = frozenset(), shards: Iterable[int] | None = None
) -> Iterator[Capture]:
    """Stream the captures of some shards, or all, in the order of the tars, without some keys."""
    for shard in complete_shards(captures) if shards is None else shards:
        yield from read_members(members_path(captures, shard), skip)


def read_members(path: Path, skip: frozenset[str] = frozenset()) -> Iterator[Capture]:
    """Stream the captures of one tar."""
    parts: dict[str, bytes] = {}
    current = ""
    with _opened(path) as tar:
        for member in tar:
            key, _, kind = member.name.partition(".")
            if key in skip:
                continue
            if key != current and parts:
                yield from_members(path, current, parts)
                parts = {}
            current = key
            parts[kind] = _content(path, tar, member)
    if parts:
        yield from_members(path, current, parts)


def stream_elements(
    captures: Path, keys: frozenset[str], shards: Iterable[int]
) -> Iterator[tuple[str, list[Element]]]:
    """Yield key and elements of some pages, passing over their pictures and sources."""
    for path in (members_path(captures, shard) for shard in shards):
        with _opened(path) as tar:
            for member in tar:
                key, _, kind = member.name.partition(".")
                if key in keys and kind == "elements.json":
                    yield key, _elements(path, key, _content(path, tar, member))


@dataclass(frozen=True, slots=True)
class ScreenshotPlace:
    """The bytes of a screenshot in a tar, so that it can be read alone."""

    path: Path
    offset: int
    size: int


def locate_screenshots(captures: Path, shard: int) -> dict[str, ScreenshotPlace]:
    """Find the screenshots of one shard without reading them, by key, in the order of the tar."""
    path = members_path(captures, shard)
    with _opened(path) as tar:
        return {
            member.name.partition(".")[0]: ScreenshotPlace(path, member.offset_data, member.size)
            for member in tar
            if member.name.endswith((".png", ".webp"))
        }


def read_place(place: ScreenshotPlace) -> bytes:
    """Read the bytes of one screenshot."""
    with place.path.open("rb") as file:
        file.seek(place.offset)
        return file.read(place.size)


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a shard's tar; a damaged one is a FormatError."""
    try:
        _check_end(path)
        with tarfile.open(path, "r:") as tar:
            yield tar
    except FileNotFoundError:
        raise torn(path, "no such tar, though the shard's parquet is there") from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise torn(path, f"not a readable tar ({error})", error) from None


def _check_end(path: Path) -> None:
    """Refuse a tar without its end mark: one cut between two members would read as whole."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - 1024))
        if file.read() != bytes(1024):
            raise torn(path, "not a readable tar (no end mark)")


_MEMBER = 256 * 2**20
"""Bytes of a member, and of a page's source once unpacked, at most."""


def _content(path: Path, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if not member.isreg() or member.issparse() or member.size > _MEMBER:
        raise FormatError(
            path, f"member {member.name!r:.80}: not a plain file of at most {_MEMBER} bytes"
        )
    file = tar.extractfile(member)
    content = file.read() if file else b""
    if len(content) != member.size:
        raise torn(path, f"member {member.name!r:.80}: cut off")
    return content


def from_members(path: Path, key: str, parts: dict[str, bytes]) -> Capture:
    """Read a capture from the bytes of its members, by ending; ``path`` is for messages."""
    screenshot = parts.get("png") or parts.get("webp")
    if screenshot is None or "html.gz" not in parts or "elements.json" not in parts:
        found = f"page {key}: found members {sorted(parts)}"
        raise FormatError(path, f"{found}, expected png or webp, html.gz, elements.json")
    elements = _elements(path, key, parts["elements.json"])
    return Capture(key, screenshot, _unpacked(path, key, parts["html.gz"]), elements)


def _elements(path: Path, key: str, content: bytes) -> list[Element]:
    try:
        tree = json.loads(content)
        version = tree["format"]
        elements = [read_element(item) for item in tree["elements"]]
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError,
    ) as error:  # fmt: skip
        raise torn(path, f"{key}.elements.json: not elements ({error!r:.200})") from None
    if version != _ELEMENTS_FORMAT:
        found = f"{key}.elements.json: format {version!r:.40}"
        raise FormatError(path, f"{found}, expected {_ELEMENTS_FORMAT}")
    return elements


def _unpacked(path: Path, key: str, packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        html = unpacker.decompress(packed, _MEMBER)
    except zlib.error as error:
        raise torn(path, f"{key}.html.gz: not gzip ({error})") from None
    if not unpacker.eof:
        raise torn(path, f"{key}.html.gz: cut off, or more than {_MEMBER} bytes unpacked")
    return html


def read_element(item: dict[str, Any]) -> Element:
    """Read an element from JSON, as the browser's script and the tar have it."""
    box, text_box = item.pop("box"), item.pop("text_box", None)
    item["visible_fraction"] = float(item.get("visible_fraction", 1.0))
    return Element(box=_box(box), text_box=_box(text_box) if text_box else None, **item)


def _box(numbers: list[Any]) -> Box:  # JSON has whole numbers, too
    left, top, right, bottom = map(float, numbers)
    return left, top, right, bottom


def _read(
    path: Path, kind: type, version: str, names: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Read rows, or some of their columns."""
    try:
        yield from stream_table(path, schema_of(kind, version, names), _REQUIRED, _OPTIONAL)
    except UnreadableError as error:
        raise torn(path, error.problem) from None


def torn(path: Path, problem: str, error: Exception | None = None) -> FormatError:
    """Return the error of a damaged file of captures; of a shard's file it names the mend.

    If the system's own ``error`` is behind it, the file may be whole.
    """
    if is_of_system(error):
        return FormatError(path, f"cannot be read ({error!s:.200})")
    if found := re.fullmatch(r"(\d{5})\.(tar|parquet)", path.name):
        files = f"{found[1]}.tar and {found[1]}.parquet"
        problem += f"; delete {files} and crawl again: the shard's pages are visited anew"
    return FormatError(path, problem)


def open_screenshot(content: bytes, name: str) -> Image.Image:
    """Decode a stored screenshot, or another picture of :data:`PICTURES`, to RGB.

    Raises:
        FormatError: If the bytes are not such a picture, or it has more than :data:`MOST_PIXELS`.
    """
    try:
        with Image.open(io.BytesIO(content), formats=PICTURES) as image:
            if image.width * image.height > MOST_PIXELS:
                raise FormatError(
                    name,
                    f"{image.width} x {image.height} pixels, expected at most "
                    f"{MOST_PIXELS // 10**6} million",
                )
            return image.convert("RGB")
    except UnidentifiedImageError:
        raise FormatError(name, "not a picture, expected PNG, WebP or JPEG") from None
    except _NO_PICTURE as error:
        raise FormatError(name, f"not a readable picture ({error!s:.200})") from None


PICTURES = ("PNG", "WEBP", "JPEG")
"""Formats of pictures that are read, as Pillow names them: for others it may start programs."""
MOST_PIXELS = 50_000_000
"""Pixels of a picture at most; a screenshot has one million."""

_NO_PICTURE = (
    OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError,
    struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""Errors of Pillow on bytes that are no picture; what it cannot identify is an ``OSError``."""
