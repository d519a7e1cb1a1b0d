"""Captures: a plan, and per shard a tar of page contents and a Parquet file of rows."""

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
from itertools import chain, groupby
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
"""Size of every screenshot in image pixels."""

Status = Literal["ok", "duplicate", "refused", "failed"]
"""``refused``: not visited on purpose (robots, address); ``failed``: the visit failed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A row of ``plan.parquet``: the shard and key of a URL, assigned once.

    Attributes:
        key: Shard and position in it, such as ``"00012_0345"``; never changes.
        url: Listed text, verbatim.
        url_canonical: URL to visit.
        site: Host name.
        host_group: Number of the shard's host group, which one worker at a time crawls; −1 if it is
            not assigned yet.
    """

    key: str
    shard: int
    url: str
    url_canonical: str
    site: str
    host_group: int = -1


@dataclass(frozen=True, slots=True)
class CaptureRow:
    """A row of ``00012.parquet``: the outcome of one URL, failures included.

    Attributes:
        error: Reason code (``timeout``, ``http_404``, ``robots`` …); ``None`` if ok.
        caption: Meta description as served: entities decoded once, NFC, white space collapsed,
            control characters removed, nothing else. ``None`` if the page has none.
        caption_source: Source in the page: ``name``, ``og``, ``twitter``, ``script`` …
        candidates: JSON object of all descriptions, by source.
        lang: Language of the page (BCP 47 primary tag), detected from caption and text; ``und`` if
            undecided.
        lang_declared: Language that the page declares.
        charset: Encoding of the source.
        charset_source: ``bom``, ``header``, ``meta``, ``utf-8``, ``browser`` or ``default``.
        charset_browser: Encoding that the browser used (``document.characterSet``, in lower case);
            ``charset`` if both give the same text.
        fetched_at: UTC, ISO 8601.
        sha256: Hash of the screenshot's file bytes.
        phash: 64-bit perceptual hash of the screenshot, hexadecimal.
        ink: Share of the screenshot in [0, 1] that is not blank, see
            :func:`now_builder.formats.ink.ink_shares`.
        ink_middle: Share of its middle, without header, footer and bars.
        load_state: ``settled``, or ``partial`` if the page never settled.
        duplicate_of: Key of the first URL with the same canonical form.
        elapsed_s: Seconds spent on this page.
        overlays: Rules that hid cookie and consent overlays.
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
    """A DOM element with a box in the browser's layout.

    Attributes:
        box: Border box in image px, clipped to the screen.
        tag: Lower-case tag name.
        role: Explicit ARIA role, else the implicit one of the tag, else ``""``.
        text: Direct text nodes of the element, at most 200 characters; for a frame, whose text is
            another document's, its title or name.
        text_box: Union of the lines of that text in image px, or ``None``.
        visible: Not hidden, transparent, clipped away, off screen or covered.
        visible_fraction: Share of the border box on screen and not covered, in [0, 1].
        interactive: Is a link or control, or has a pointer cursor or a tab stop.
        parent: Index of the nearest recorded ancestor, −1 for none.
        input_type: ``type`` of an ``<input>``.
        loaded: Has pixels, for pictures.
        background: Has a CSS background image.
        fixed: Has position fixed or sticky.
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
"""Headers that describe the encoded body, not the decoded one."""


@dataclass(frozen=True, slots=True)
class Capture:
    """The contents of one page with ``status=ok``.

    Attributes:
        screenshot: PNG or WebP bytes of 720 x 1280 px.
        html: Bytes of the source as served.
        elements: DOM elements in document order.
    """

    key: str
    screenshot: bytes
    html: bytes
    elements: list[Element]

    @property
    def extension(self) -> str:
        """``png`` or ``webp``."""
        return image_kind(self.screenshot)


def image_kind(screenshot: bytes) -> Literal["png", "webp"]:
    """Return the format of a screenshot from its bytes."""
    return "webp" if screenshot[8:12] == b"WEBP" else "png"


_ELEMENTS_FORMAT = "now-elements/1"
_PLAN, _CAPTURES = "now-plan/1", "now-captures/1"
_ROWS = re.compile(r"(\d{5})\.parquet", re.ASCII)
_OPTIONAL = {"host_group", "overlays", "charset_browser", "ink", "ink_middle"}
"""Columns that captures of earlier versions lack."""
_REQUIRED = {"key", "shard", "url", "url_canonical", "site", "status"}


def plan_path(captures: Path) -> Path:
    """Return the path of a captures folder's plan."""
    return captures / "plan.parquet"


def rows_path(captures: Path, shard: int) -> Path:
    """Return the path of a shard's Parquet file, which only complete shards have."""
    return captures / f"{shard:05d}.parquet"


def members_path(captures: Path, shard: int) -> Path:
    """Return the path of a shard's WebDataset tar."""
    return captures / f"{shard:05d}.tar"


def write_plan(captures: Path, plan: Sequence[Planned]) -> None:
    """Write ``plan.parquet`` atomically."""
    write_rows(plan_path(captures), plan, schema_of(Planned, _PLAN))


def read_plan(captures: Path) -> list[Planned]:
    """Read ``plan.parquet``."""
    if not plan_path(captures).exists():
        raise FormatError(captures, "no plan.parquet in it, expected a folder that crawl writes")
    return [Planned(**line) for line in _read(plan_path(captures), Planned, _PLAN)]


def write_shard(
    captures: Path, shard: int, rows: Sequence[CaptureRow], members: Iterable[Capture]
) -> None:
    """Write a shard: the tar, and last the Parquet file, which makes the shard complete.

    ``rows`` has one row per planned URL; ``members`` the captures of those with ``status=ok``, in
    the same order.
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
        for name, content in chain.from_iterable(packed):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(content))
    write_rows(rows_path(captures, shard), rows, schema_of(CaptureRow, _CAPTURES))


def to_members(capture: Capture) -> list[tuple[str, bytes]]:
    """Return the tar members of a capture, as names and bytes."""
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
    """Return the numbers of the complete shards, sorted."""
    matches = (_ROWS.fullmatch(path.name) for path in captures.glob("*.parquet"))
    return sorted(int(match[1]) for match in matches if match)


def read_rows(captures: Path, shard: int | None = None) -> list[CaptureRow]:
    """Return the rows of one shard or of all complete shards, sorted by key."""
    return list(stream_rows(captures, shard))


def stream_rows(captures: Path, shard: int | None = None) -> Iterator[CaptureRow]:
    """Yield the rows of one shard or of all complete shards, sorted by key."""
    if not captures.is_dir():
        raise FormatError(captures, "no such captures folder; `now-builder crawl` makes it")
    shards = complete_shards(captures) if shard is None else [shard]
    if not shards:
        raise FormatError(captures, "no complete shard (00000.parquet …). Crawl first")
    for number in shards:
        for row in _read(rows_path(captures, number), CaptureRow, _CAPTURES):
            yield CaptureRow(**row)


def read_texts(captures: Path, shard: int) -> list[tuple[str, str, str]]:
    """Return key, site and caption of one shard's pages that were captured and have a caption."""
    rows = read_columns(captures, shard, ("key", "site", "status", "caption"))
    return [
        (row["key"], row["site"], row["caption"])
        for row in rows
        if row["status"] == "ok" and row["caption"]
    ]


def read_columns(captures: Path, shard: int, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of one shard's rows, ten times faster than :func:`read_rows`."""
    return list(_read(rows_path(captures, shard), CaptureRow, _CAPTURES, names))


def read_captures(
    captures: Path, skip: frozenset[str] = frozenset(), shards: Iterable[int] | None = None
) -> Iterator[Capture]:
    """Yield the captures of some shards, or all, in tar order; keys in ``skip`` are left out."""
    for shard in complete_shards(captures) if shards is None else shards:
        yield from read_members(members_path(captures, shard), skip)


def read_members(path: Path, skip: frozenset[str] = frozenset()) -> Iterator[Capture]:
    """Yield the captures of one tar."""
    with _open_tar(path) as tar:
        members = (member for member in tar if _split_name(member)[0] not in skip)
        for key, group in groupby(members, lambda member: _split_name(member)[0]):
            contents = {_split_name(member)[1]: _content(path, tar, member) for member in group}
            yield _capture(path, key, contents)


def _split_name(member: tarfile.TarInfo) -> tuple[str, str]:
    """Split the name of a member into key and suffix."""
    key, _, suffix = member.name.partition(".")
    return key, suffix


def stream_elements(
    captures: Path, keys: frozenset[str], shards: Iterable[int]
) -> Iterator[tuple[str, list[Element]]]:
    """Yield the elements of some pages by key, without reading screenshots and sources."""
    for path in (members_path(captures, shard) for shard in shards):
        with _open_tar(path) as tar:
            for member in tar:
                key, suffix = _split_name(member)
                if key in keys and suffix == "elements.json":
                    yield key, _elements(path, key, _content(path, tar, member))


@dataclass(frozen=True, slots=True)
class ScreenshotPlace:
    """Position of a screenshot in a tar, in bytes."""

    path: Path
    offset: int
    size: int


def locate_screenshots(captures: Path, shard: int) -> dict[str, ScreenshotPlace]:
    """Return the positions of one shard's screenshots by key, in tar order."""
    path = members_path(captures, shard)
    with _open_tar(path) as tar:
        return {
            _split_name(member)[0]: ScreenshotPlace(path, member.offset_data, member.size)
            for member in tar
            if member.name.endswith((".png", ".webp"))
        }


def read_place(place: ScreenshotPlace) -> bytes:
    """Return the bytes of one screenshot."""
    with place.path.open("rb") as file:
        file.seek(place.offset)
        return file.read(place.size)


@contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a shard's tar, or raise a FormatError if it is damaged."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - 1024))
            if file.read() != bytes(1024):  # tarfile accepts a tar cut between two members
                raise torn(path, "not a readable tar (no end mark)")
        with tarfile.open(path, "r:") as tar:
            yield tar
    except FileNotFoundError:
        raise torn(path, "no such tar, although the shard has a Parquet file") from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise torn(path, f"not a readable tar ({error})", error) from None


_MEMBER = 256 * 2**20
"""Maximum size in bytes of a tar member and of the decompressed HTML."""


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


def _capture(path: Path, key: str, contents: dict[str, bytes]) -> Capture:
    """Return a capture from the contents of its members, by suffix."""
    screenshot = contents.get("png") or contents.get("webp")
    if screenshot is None or "html.gz" not in contents or "elements.json" not in contents:
        expected = "expected png or webp, html.gz, elements.json"
        raise FormatError(path, f"page {key}: found members {sorted(contents)}, {expected}")
    elements = _elements(path, key, contents["elements.json"])
    return Capture(key, screenshot, _decompress(path, key, contents["html.gz"]), elements)


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
        problem = f"format {version!r:.40}, expected {_ELEMENTS_FORMAT}"
        raise FormatError(path, f"{key}.elements.json: {problem}")
    return elements


def _decompress(path: Path, key: str, content: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        html = decompressor.decompress(content, _MEMBER)
    except zlib.error as error:
        raise torn(path, f"{key}.html.gz: not gzip ({error})") from None
    if not decompressor.eof:
        raise torn(path, f"{key}.html.gz: cut off, or more than {_MEMBER} bytes unpacked")
    return html


def read_element(item: dict[str, Any]) -> Element:
    """Return an element from the JSON of the browser's script or of the tar."""
    box, text_box = item.pop("box"), item.pop("text_box", None)
    item["visible_fraction"] = float(item.get("visible_fraction", 1.0))
    return Element(box=_box(box), text_box=_box(text_box) if text_box else None, **item)


def _box(numbers: list[Any]) -> Box:  # JSON has integers, too
    left, top, right, bottom = map(float, numbers)
    return left, top, right, bottom


def _read(
    path: Path, row: type, version: str, names: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, or some of their columns."""
    try:
        yield from stream_table(path, schema_of(row, version, names), _REQUIRED, _OPTIONAL)
    except UnreadableError as error:
        raise torn(path, error.problem) from None


def torn(path: Path, problem: str, error: Exception | None = None) -> FormatError:
    """Return the error for a damaged file of captures; for a shard, the message has the fix.

    If ``error`` comes from the operating system, the file may be intact.
    """
    if is_of_system(error):
        return FormatError(path, f"cannot be read ({error!s:.200})")
    if match := re.fullmatch(r"(\d{5})\.(tar|parquet)", path.name):
        files = f"{match[1]}.tar and {match[1]}.parquet"
        problem += f"; delete {files} and crawl again, which visits the shard's pages again"
    return FormatError(path, problem)


def open_screenshot(content: bytes, name: str) -> Image.Image:
    """Decode a screenshot, or another picture in one of :data:`PICTURES`, to RGB.

    Raises:
        FormatError: If it cannot be decoded or has more than :data:`MOST_PIXELS`.
    """
    try:
        with Image.open(io.BytesIO(content), formats=PICTURES) as image:
            if image.width * image.height > MOST_PIXELS:
                most = f"expected at most {MOST_PIXELS // 10**6} million"
                raise FormatError(name, f"{image.width} x {image.height} pixels, {most}")
            return image.convert("RGB")
    except UnidentifiedImageError:
        raise FormatError(name, "not a picture, expected PNG, WebP or JPEG") from None
    except _PILLOW_ERRORS as error:
        raise FormatError(name, f"not a readable picture ({error!s:.200})") from None


PICTURES = ("PNG", "WEBP", "JPEG")
"""Pillow's names of the picture formats that are read; for others it may start programs."""
MOST_PIXELS = 50_000_000
"""Maximum number of pixels in a picture; a screenshot has one million."""

_PILLOW_ERRORS = (
    OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError,
    struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""Exceptions raised by Pillow on damaged pictures."""
