"""Write the folder of a simulated web: URL list, true matches, and settings for the server."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from now_builder.config import build, read_toml, to_toml
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import atomic_write, lock_folder, write_text
from now_builder.simweb.settings import SimwebSettings
from now_builder.simweb.world import World, build_world, listed

URLS, TRUTH, SETTINGS = "urls.txt", "truth.parquet", "simweb.toml"


@dataclass(frozen=True, slots=True)
class SimwebSummary:
    """Counts of a simulated web."""

    folder: Path
    pages: int
    sites: int
    topics: int
    captions: int
    mismatched: int
    awkward: int

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.pages} pages on {self.sites} sites and {self.topics} topics; "
            f"{self.captions} with a description, {self.mismatched} of them mismatched; "
            f"{self.awkward} awkward"
        )


def make(folder: Path, settings: SimwebSettings, *, force: bool = False) -> SimwebSummary:
    """Write ``urls.txt``, ``truth.parquet`` and, last, ``simweb.toml``; deterministic.

    Raises:
        ConfigError: Without ``force``, if the folder has a list of URLs of something else.
    """
    world = build_world(settings)
    table = truth(world)
    urls = "".join(f"{url}\n" for url in table["url"])
    with lock_folder(folder):
        path, last = folder / URLS, folder / SETTINGS
        if not force and path.exists() and not last.exists() and path.read_bytes() != urls.encode():
            raise ConfigError(f"{path}: not of a simulated web. Give --force to replace it")
        last.unlink(missing_ok=True)
        write_text(path, urls)
        with atomic_write(folder / TRUTH) as temporary, temporary.open("wb") as file:
            table.to_parquet(file, index=False)
        write_text(last, to_toml(settings))
    captions = table["caption"].notna()
    return SimwebSummary(
        folder=folder,
        pages=len(table),
        sites=len(world.sites),
        topics=len(world.topics),
        captions=int(captions.sum()),
        mismatched=int((captions & ~table["matched"]).sum()),
        awkward=int((table["kind"] != "page").sum()),
    )


def truth(world: World) -> pd.DataFrame:
    """Return kind, match, topic and caption of every URL, in the order of the list."""
    rows = [
        {"url": page.url, "matched": page.matched, "kind": page.kind, "mismatch": page.mismatch,
         "topic": page.topic, "caption_topic": page.caption_topic,
         "lang": world.sites[page.site].lang, "site": world.sites[page.site].host,
         "caption": page.caption, "charset": page.charset}
        for page in listed(world)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def read_world(folder: Path) -> World:
    """Build the world of a folder made by :func:`make`.

    Raises:
        FormatError: If the folder contains no simulated web.
        ConfigError: If its settings are invalid.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise FormatError(path, "file not found. Make it with `now-builder simweb make`")
    return build_world(build(SimwebSettings, read_toml(path), str(path)))
