"""The card of a release: every number comes from its statistics."""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import combinations

from now_builder.formats.perceptual_hash import ALIKE
from now_builder.formats.release import DATA_FOLDER
from now_builder.formats.split import SPLITS, SplitPlan
from now_builder.formats.statistics import Summary, ranked, summarize
from now_builder.package.description import Description
from now_builder.package.settings import FLAGS, MEASURED, ReleaseSettings

_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
)


_FILTERS = (
    "min_characters", "max_characters", "languages", "drop", "duplicate_captions", "similarity",
    "duplicate_looks", "matched", "mend",
)  # fmt: skip


def write_card(about: Description, settings: ReleaseSettings, split: SplitPlan) -> str:
    """Fill the card: a YAML head as the Hugging Face hub reads it, then Markdown."""
    sections = [
        _head(about, settings),
        _what(about, settings),
        _provenance(about, settings, split),
        _making(about, settings),
        _languages(about),
        _captions(about),
        _noise(about, settings),
        _duplicates(about),
        _leakage(about, split),
        _flags(about, settings),
        _rejects(about, settings),
        _people(settings),
        _licence(settings),
        _limits(about),
    ]
    return "\n\n".join(sections) + "\n"


def size_category(pairs: int) -> str:
    """Return the hub's word for a number of pairs."""
    return next((word for limit, word in _SIZES if pairs < limit), "100M<n<1B")


def language_codes(languages: Iterable[str]) -> list[str]:
    """Keep what is a language code; ``und`` and the like are none."""
    codes = (language for language in languages if re.fullmatch("[a-z]{2,3}", language))
    return [code for code in codes if code != "und"]


def _head(about: Description, settings: ReleaseSettings) -> str:
    codes = language_codes(about.statistics.languages)
    tables = [
        line
        for name in ("pairs", "rejects")
        for line in (
            f"  - config_name: {name}",
            "    data_files:",
            f"      - split: {name}",
            f"        path: {name}.parquet",
        )
    ]
    lines = [
        "---",
        f"pretty_name: {json.dumps(settings.name, ensure_ascii=False)}",
        f"license: {json.dumps(settings.licence)}",
        # A bare `no` is a boolean in YAML; quoted, it is Norwegian.
        *_listed("language", map(json.dumps, codes)),
        *_listed("annotations_creators", ["no-annotation"]),
        *_listed("language_creators", ["found"]),
        *_listed("multilinguality", ["multilingual" if len(codes) > 1 else "monolingual"]),
        *_listed("source_datasets", ["original"]),
        *_listed("task_categories", ["image-to-text", "text-to-image"]),
        *_listed("size_categories", [size_category(about.statistics.pairs)]),
        *_listed("tags", ["noisy-correspondence", "cross-modal-retrieval", "web-screenshots"]),
        "configs:",
        *tables,
        "---",
    ]
    return "\n".join(lines)


def _listed(name: str, values: Iterable[str]) -> list[str]:
    items = [f"  - {value}" for value in values]
    return [f"{name}:", *items] if items else []


def _what(about: Description, settings: ReleaseSettings) -> str:
    rows = [
        (
            name, split.pairs, split.columns["domain"].distinct, split.columns["site"].distinct,
            f"{split.detected_mean:.1f}",
        )
        for name, split in about.splits.items()
    ]  # fmt: skip
    tracks = len(about.vocabularies)
    three = "three" if tracks == 3 else tracks
    home = f"\n\nHome: {settings.homepage}" if settings.homepage else ""
    return (
        f"# {settings.name}\n\n"
        f"{about.statistics.pairs:,} pairs of a phone screenshot of a web page (as 36 region "
        f"features of 768 numbers) and the page's meta description (as token ids under "
        f"{three} tokenizers, and as text), collected without annotation, so that many pairs do "
        "not correspond. It is laid out as *Noise of Web* (NoW; PC², Duan et al., ACM MM 2024) was "
        "published, and was made by the open toolkit noise-of-web, not by NoW's authors.\n\n"
        + _table(
            ["split", "pairs", "domains", "sites", "regions from the detector, mean of 36"], rows
        )
        + home
    )


def _provenance(about: Description, settings: ReleaseSettings, split: SplitPlan) -> str:
    first, last = (moment[:10] for moment in about.fetched)
    sizes = ", ".join(f"{name} {getattr(settings, name):,}" for name in SPLITS)
    unit = {
        "domain": "registrable domain, so that none is in two splits",
        "site": "site (host name), so that none is in two splits",
        "page": "page",
    }[split.by]
    return (
        "## Provenance\n\n"
        f"{about.listed:,} listed URLs were visited between {first} and {last} with a phone's "
        "screen of 360 × 640 CSS px at device scale 2: screenshots of 720 × 1280 px. Pools of "
        f"train, dev and test were decided before anything was learned, by a hash of the {unit} "
        f"(seed {split.seed}; shares {split.shares.train:.3g}, {split.shares.dev:.3g}, "
        f"{split.shares.test:.3g}). Sizes asked for: {sizes}."
    )


def _making(about: Description, settings: ReleaseSettings) -> str:
    attributes = [
        (name, value if len(value) <= 120 else f"{value[:117]}…")
        for name, value in sorted(about.detector.items())
    ]
    sources = about.sources
    origins = sorted({name for found in sources.values() for name in found})
    counts = [
        (split, *(f"{found.get(name, 0):,}" for name in origins))
        for split, found in sources.items()
    ]
    tracks = [
        (name, f"{vocabulary.idx:,}", vocabulary.source, vocabulary.learned_on)
        for name, vocabulary in about.vocabularies.items()
    ]
    mended = (
        "; then what was escaped twice decoded, tags, zero-width characters and bidi controls "
        "taken out"
        if settings.mend
        else ", nothing else"
    )
    return (
        "## How it was made\n\n"
        "**Images.** An *APT-style* detector, not the authors' weights (those are not published): "
        "the features are not numerically comparable with NoW's. The stored features are visual "
        "only; the page's text never enters them. Where the detector finds fewer than 36 regions, "
        "the rest is filled and marked in `/source`.\n\n"
        + _table(["attribute", "value"], attributes)
        + "\n\n"
        + _table(["regions by origin", *origins], counts)
        + "\n\n**Captions.** The meta description in the HTML source, entities decoded once, "
        f"Unicode NFC, white space collapsed, control characters dropped{mended}. "
        "Vocabularies were learned on the train pool alone (the published ones contain words of "
        "dev and test); other tokens are `<unk>`.\n\n"
        + _table(["tokenizer", "tokens", "source", "learned on"], tracks)
    )


def _languages(about: Description) -> str:
    rows = [
        (
            language,
            f"{count:,}",
            f"{100 * count / about.statistics.pairs:.1f} %",
            *(f"{split.languages.get(language, 0):,}" for split in about.splits.values()),
        )
        for language, count in about.statistics.languages.items()
    ]
    return "## Languages\n\nDetected from caption and page (`und`: undecided).\n\n" + _table(
        ["language", "pairs", "share", *about.splits], rows
    )


def _captions(about: Description) -> str:
    rows: list[tuple[str, ...]] = [
        ("characters", split, *_cells_of(summarize(found.characters)), "–")
        for split, found in about.splits.items()
    ]
    for name in sorted(about.vocabularies):
        for split, found in about.splits.items():
            track = found.tracks[name]
            unknown = f"{track.unknown_percent:.2f} %"
            rows.append((f"{name} tokens", split, *_cells_of(summarize(track.lengths)), unknown))
    sources = [
        (split, as_counts(ranked(found.caption_sources))) for split, found in about.splits.items()
    ]
    head = ["length in", "split", "mean", "median", "90 %", "99 %", "longest", "`<unk>`"]
    return (
        "## Captions\n\n"
        + _table(head, rows)
        + "\n\nWhere in the page the caption stood:\n\n"
        + _table(["split", "source and pairs"], sources)
    )


def _cells_of(summary: Summary) -> tuple[str, ...]:
    shown = (summary.mean, summary.median, summary.p90, summary.p99)
    return (*(f"{value:.1f}" for value in shown), str(summary.largest))


def _noise(about: Description, settings: ReleaseSettings) -> str:
    rows = [(split, as_counts(verdicts)) for split, verdicts in about.verdicts.items() if verdicts]
    if not rows:
        return (
            "## Known noise\n\nNo pair of this release was judged: dev and test are as noisy as "
            "train. The paper estimates that nearly 70 % of NoW's pairs do not match; nothing "
            "here says what the share is in this release. Retrieval scores on a test split with "
            "mismatched pairs understate every method."
        )
    drawn = (
        "were drawn only from pairs judged to match" if settings.matched else "were not drawn so"
    )
    return (
        f"## Known noise\n\nPairs were judged (by a truth file or by people); dev and test {drawn}."
        " Verdicts on the released pairs:\n\n" + _table(["split", "verdicts"], rows)
    )


def _duplicates(about: Description) -> str:
    rows = [
        (
            split, f"{found.pairs:,}", f"{found.columns['caption'].distinct:,}",
            f"{found.columns['caption'].largest_group:,}", f"{found.columns['image'].distinct:,}",
        )
        for split, found in about.splits.items()
    ]  # fmt: skip
    ceilings = []
    for name in about.vocabularies:
        for split in SPLITS[1:]:
            found = about.splits[split]
            bound, lines = found.ceiling(name), found.tracks[name].lines
            cells = f"{lines.distinct:,}", f"{bound.i2t:.1f} %", f"{bound.t2i:.1f} %"
            ceilings.append((name, split, *cells))
    head = ["split", "pairs", "distinct captions", "largest group", "distinct images"]
    return (
        "## Duplicates, and the R@1 that they allow\n\n"
        + _table(head, rows)
        + "\n\nPairs with identical captions (or images) can be told apart only by luck. A "
        "perfect model that breaks ties at random reaches:\n\n"
        + _table(["tokenizer", "split", "distinct token lines", "i2t R@1", "t2i R@1"], ceilings)
    )


def _leakage(about: Description, split: SplitPlan) -> str:
    rows = []
    for earlier, later in combinations(SPLITS, 2):
        first, second = about.splits[earlier], about.splits[later]
        same = {name: second.columns[name].count_in(first.columns[name]) for name in first.columns}
        counts = (
            same["casefolded"], same["screenshot"], second.phashes.count_in(first.phashes),
            second.count_alike(first), same["site"], same["domain"], same["landed"],
        )  # fmt: skip
        rows.append((f"{later} in {earlier}", *(f"{count:,}" for count in counts)))
    why = {
        "domain": "",
        "site": " This release is split by host: hosts of one domain may be in two splits.",
        "page": " This release is split by page: sites are shared.",
    }[split.by]
    head = [
        "pairs of", "same caption", "same screenshot", "same perceptual hash",
        f"within {ALIKE} of its 64 bits", "same site", "same domain", "led to the same domain",
    ]  # fmt: skip
    return (
        f"## Leakage across splits\n\nPairs of the later split that share something.{why}\n\n"
        + _table(head, rows)
        + "\n\nCaptions are compared without regard to case, screenshots by their bytes and by a "
        "perceptual hash (pages of little content are easily alike by it). A page that was listed "
        "on one domain may have led to another."
    )


def _flags(about: Description, settings: ReleaseSettings) -> str:
    counted = {flag for split in about.splits.values() for flag in split.flags}
    rows = [
        (f"`{flag}`", *(f"{split.flags.get(flag, 0):,}" for split in about.splits.values()))
        for flag in FLAGS
        if flag in counted
    ]
    looked = bool(settings.filters.drop & {*MEASURED})
    what = (
        "The column `flags` of `pairs.parquet` says what is noteworthy about a pair, told by rules "
        "and word lists, which err. Text flags are of the caption as crawled"
        f"{', before it was mended' if settings.mend else '; nothing was mended'}. "
        f"{' and '.join(f'`{name}`' for name in MEASURED)} were {'' if looked else 'not '}looked "
        "for.\n\n"
    )
    table = _table(["flag", *about.splits], rows) if rows else "No pair has a flag."
    return "## Flags\n\n" + what + table


def _rejects(about: Description, settings: ReleaseSettings) -> str:
    total = sum(about.rejects.values())
    rows = [(f"`{reason}`", f"{count:,}") for reason, count in about.rejects.items()]
    default = ReleaseSettings(seed=settings.seed, by=settings.by)
    chosen = [
        f"`{name} = {getattr(settings, name)}`"
        for name in _FILTERS
        if getattr(settings, name) != getattr(default, name)
    ]
    return (
        f"## What is not in it\n\n{total:,} of {about.listed:,} listed URLs are in no split; "
        "each is a row of `rejects.parquet` with its reason. Filters chosen: "
        f"{', '.join(chosen) or 'none'}.\n\n" + _table(["reason", "URLs"], rows)
    )


def _people(settings: ReleaseSettings) -> str:
    dropped = [f"`{flag}`" for flag in ("email", "phone") if flag in settings.filters.drop]
    left = f", and those with {' or '.join(dropped)} were left out" if dropped else ""
    way = (
        f"Ask here: {settings.contact}."
        if settings.contact
        else "**No contact was given when this card was made; add one before publishing.**"
    )
    return (
        "## Consent and opt-out\n\nPages were public and fetched where robots.txt allows it "
        "(what it refused is among the rejects); nobody was asked. Meta descriptions may name "
        "people or hold addresses and phone numbers; pairs in which a rule found one have the flag "
        f"`email` or `phone`{left}. A site's "
        f"owner can have pages taken out: name the URL, it is in `pairs.parquet`. {way}"
    )


def _licence(settings: ReleaseSettings) -> str:
    return (
        f"## Licence\n\n`{settings.licence}` for what this release adds (selection, features, "
        "token ids, metadata). Page texts and the pages behind the features belong to their "
        "owners. NoW itself is cc-by-nc-4.0."
    )


def _limits(about: Description) -> str:
    return (
        "## Limits\n\n"
        "- One screen of each page, at one moment, without scrolling, signing in or consenting.\n"
        "- Features of an APT-style detector, not the authors'; scores on this release and on NoW "
        "are not comparable.\n"
        '- A meta description is written for search engines; "mismatched" means that it does not '
        "tell what the screen shows, not that it is wrong.\n"
        f"- {about.statistics.pairs:,} pairs: with few test pairs a difference of a few points of "
        "rSum is chance.\n\n"
        f"Layout: `{DATA_FOLDER}/{{train,dev,test}}.h5` with captions and keys beside them, "
        "`vocab/`, `pairs.parquet`, `rejects.parquet`, `croissant.json`, `manifest.json` (hashes; "
        "`now-builder verify` checks them).\n\n"
        "## Citation\n\nDuan et al., *PC²: Pseudo-Classification Based Pseudo-Captioning for Noisy "
        "Correspondence Learning in Cross-Modal Retrieval*, ACM Multimedia 2024, for the idea and "
        "the layout."
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def as_counts(counts: Mapping[str, int]) -> str:
    """Write counts on one line."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
