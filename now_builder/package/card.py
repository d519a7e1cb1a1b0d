"""The card of a release: every number comes from its facts."""

import json
import re
from collections.abc import Iterable, Mapping

from now_builder.formats.perceptual_hash import ALIKE
from now_builder.formats.release import DATA_FOLDER
from now_builder.formats.split import SPLITS, SplitPlan
from now_builder.package.facts import Facts
from now_builder.package.settings import FLAGS, MEASURED, Settled

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


def write_card(facts: Facts, settled: Settled, split: SplitPlan) -> str:
    """Fill the card: a YAML head as the Hugging Face hub reads it, then Markdown."""
    sections = [
        _head(facts, settled),
        _what(facts, settled),
        _provenance(facts, settled, split),
        _making(facts, settled),
        _languages(facts),
        _captions(facts),
        _noise(facts, settled),
        _duplicates(facts),
        _leakage(facts, split),
        _flags(facts, settled),
        _rejects(facts, settled),
        _people(settled),
        _licence(settled),
        _limits(facts),
    ]
    return "\n\n".join(sections) + "\n"


def size_category(pairs: int) -> str:
    """Give the hub's word for a number of pairs."""
    return next((word for limit, word in _SIZES if pairs < limit), "100M<n<1B")


def language_codes(languages: Iterable[str]) -> list[str]:
    """Keep what is a language code; ``und`` and the like are none."""
    codes = (language for language in languages if re.fullmatch("[a-z]{2,3}", language))
    return [code for code in codes if code != "und"]


def _head(facts: Facts, settled: Settled) -> str:
    codes = language_codes(facts.languages)
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
        f"pretty_name: {json.dumps(settled.name, ensure_ascii=False)}",
        f"license: {json.dumps(settled.licence)}",
        # A bare `no` is a boolean in YAML; quoted, it is Norwegian.
        *_listed("language", map(json.dumps, codes)),
        *_listed("annotations_creators", ["no-annotation"]),
        *_listed("language_creators", ["found"]),
        *_listed("multilinguality", ["multilingual" if len(codes) > 1 else "monolingual"]),
        *_listed("source_datasets", ["original"]),
        *_listed("task_categories", ["image-to-text", "text-to-image"]),
        *_listed("size_categories", [size_category(facts.pairs)]),
        *_listed("tags", ["noisy-correspondence", "cross-modal-retrieval", "web-screenshots"]),
        "configs:",
        *tables,
        "---",
    ]
    return "\n".join(lines)


def _listed(name: str, values: Iterable[str]) -> list[str]:
    items = [f"  - {value}" for value in values]
    return [f"{name}:", *items] if items else []


def _what(facts: Facts, settled: Settled) -> str:
    rows = [
        (name, split.pairs, split.domains, split.sites, f"{split.detected[0]:.1f}")
        for name, split in facts.splits.items()
    ]
    three = "three" if len(facts.tracks) == 3 else len(facts.tracks)
    home = f"\n\nHome: {settled.homepage}" if settled.homepage else ""
    return (
        f"# {settled.name}\n\n"
        f"{facts.pairs:,} pairs of a phone screenshot of a web page (as 36 region features of 768 "
        f"numbers) and the page's meta description (as token ids under {three} tokenizers, "
        "and as "
        "text), collected without annotation, so that many pairs do not correspond. It is laid "
        "out as *Noise of Web* (NoW; PC², Duan et al., ACM MM 2024) was published, and was made "
        "by the open toolkit noise-of-web, not by NoW's authors.\n\n"
        + _table(
            ["split", "pairs", "domains", "sites", "regions from the detector, mean of 36"], rows
        )
        + home
    )


def _provenance(facts: Facts, settled: Settled, split: SplitPlan) -> str:
    first, last = (moment[:10] for moment in facts.fetched)
    sizes = ", ".join(f"{name} {getattr(settled, name):,}" for name in SPLITS)
    unit = {
        "domain": "registrable domain, so that none is in two splits",
        "site": "site (host name), so that none is in two splits",
        "page": "page",
    }[split.by]
    return (
        "## Provenance\n\n"
        f"{facts.listed:,} listed URLs were visited between {first} and {last} with a phone's "
        "screen of 360 × 640 CSS px at device scale 2: screenshots of 720 × 1280 px. Pools of "
        f"train, dev and test were decided before anything was learned, by a hash of the {unit} "
        f"(seed {split.seed}; shares {split.shares.train:.3g}, {split.shares.dev:.3g}, "
        f"{split.shares.test:.3g}). Sizes asked for: {sizes}."
    )


def _making(facts: Facts, settled: Settled) -> str:
    attributes = [
        (name, value if len(value) <= 120 else f"{value[:117]}…")
        for name, value in sorted(facts.detector.items())
    ]
    sources = [
        (split, *(f"{split_facts.sources.get(source, 0):,}" for source in _origins(facts)))
        for split, split_facts in facts.splits.items()
    ]
    tracks = [
        (name, f"{track.vocabulary:,}", track.source, track.learned_on)
        for name, track in facts.tracks.items()
    ]
    mended = (
        "; then what was escaped twice decoded, tags, zero-width characters and bidi controls "
        "taken out"
        if settled.mend
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
        + _table(["regions by origin", *_origins(facts)], sources)
        + "\n\n**Captions.** The meta description in the HTML source, entities decoded once, "
        f"Unicode NFC, white space collapsed, control characters dropped{mended}. "
        "Vocabularies were learned on the train pool alone (the published ones contain words of "
        "dev and test); other tokens are `<unk>`.\n\n"
        + _table(["tokenizer", "tokens", "source", "learned on"], tracks)
    )


def _origins(facts: Facts) -> list[str]:
    return sorted({source for split in facts.splits.values() for source in split.sources})


def _languages(facts: Facts) -> str:
    rows = [
        (
            language,
            f"{count:,}",
            f"{100 * count / facts.pairs:.1f} %",
            *(f"{split.languages.get(language, 0):,}" for split in facts.splits.values()),
        )
        for language, count in facts.languages.items()
    ]
    return "## Languages\n\nDetected from caption and page (`und`: undecided).\n\n" + _table(
        ["language", "pairs", "share", *facts.splits], rows
    )


def _captions(facts: Facts) -> str:
    texts: list[tuple[str, ...]] = []
    rows: list[tuple[str, ...]] = []
    for split, split_facts in facts.splits.items():
        texts.append(("characters", split, *_spread_cells(split_facts.characters), "–"))
        for name, track in facts.tracks.items():
            unknown = f"{track.unknown[split]:.2f} %"
            rows.append((f"{name} tokens", split, *_spread_cells(track.lengths[split]), unknown))
    sources = [
        (split, ", ".join(f"{name} {count:,}" for name, count in found.caption_sources.items()))
        for split, found in facts.splits.items()
    ]
    head = ["length in", "split", "mean", "median", "90 %", "99 %", "longest", "`<unk>`"]
    return (
        "## Captions\n\n"
        + _table(head, [*texts, *sorted(rows, key=lambda row: row[0])])
        + "\n\nWhere in the page the caption stood:\n\n"
        + _table(["split", "source and pairs"], sources)
    )


def _spread_cells(spread: object) -> tuple[str, ...]:
    values = [getattr(spread, name) for name in ("mean", "median", "p90", "p99", "largest")]
    return tuple(f"{value:.1f}" if isinstance(value, float) else str(value) for value in values)


def _noise(facts: Facts, settled: Settled) -> str:
    rows = [
        (split, ", ".join(f"{verdict} {count:,}" for verdict, count in found.judged.items()))
        for split, found in facts.splits.items()
        if found.judged
    ]
    if not rows:
        return (
            "## Known noise\n\nNo pair of this release was judged: dev and test are as noisy as "
            "train. The paper estimates that nearly 70 % of NoW's pairs do not match; nothing "
            "here says what the share is in this release. Retrieval scores on a test split with "
            "mismatched pairs understate every method."
        )
    drawn = "were drawn only from pairs judged to match" if settled.matched else "were not drawn so"
    return (
        f"## Known noise\n\nPairs were judged (by a truth file or by people); dev and test {drawn}."
        " Verdicts on the released pairs:\n\n" + _table(["split", "verdicts"], rows)
    )


def _duplicates(facts: Facts) -> str:
    rows = [
        (
            split, f"{found.pairs:,}", f"{found.distinct_captions:,}", f"{found.largest_group:,}",
            f"{found.distinct_images:,}",
        )
        for split, found in facts.splits.items()
    ]  # fmt: skip
    ceilings = [
        (name, split, f"{track.distinct[split]:,}", f"{bound.i2t:.1f} %", f"{bound.t2i:.1f} %")
        for name, track in facts.tracks.items()
        for split, bound in track.ceilings.items()
        if split != "train"
    ]
    head = ["split", "pairs", "distinct captions", "largest group", "distinct images"]
    return (
        "## Duplicates, and the R@1 that they allow\n\n"
        + _table(head, rows)
        + "\n\nPairs with identical captions (or images) can be told apart only by luck. A "
        "perfect model that breaks ties at random reaches:\n\n"
        + _table(["tokenizer", "split", "distinct token lines", "i2t R@1", "t2i R@1"], ceilings)
    )


def _leakage(facts: Facts, split: SplitPlan) -> str:
    rows = [
        (
            f"{leak.later} in {leak.earlier}",
            f"{leak.caption:,}",
            f"{leak.screenshot:,}",
            f"{leak.look:,}",
            f"{leak.alike:,}",
            f"{leak.site:,}",
            f"{leak.domain:,}",
            f"{leak.landed:,}",
        )
        for leak in facts.leaks
    ]
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


def _flags(facts: Facts, settled: Settled) -> str:
    counted = {flag for split in facts.splits.values() for flag in split.flags}
    rows = [
        (f"`{flag}`", *(f"{split.flags.get(flag, 0):,}" for split in facts.splits.values()))
        for flag in FLAGS
        if flag in counted
    ]
    looked = bool(settled.filters.drop & {*MEASURED})
    what = (
        "The column `flags` of `pairs.parquet` says what is noteworthy about a pair, told by rules "
        "and word lists, which err. Text flags are of the caption as crawled"
        f"{', before it was mended' if settled.mend else '; nothing was mended'}. "
        f"{' and '.join(f'`{name}`' for name in MEASURED)} were {'' if looked else 'not '}looked "
        "for.\n\n"
    )
    table = _table(["flag", *facts.splits], rows) if rows else "No pair has a flag."
    return "## Flags\n\n" + what + table


def _rejects(facts: Facts, settled: Settled) -> str:
    total = sum(facts.rejects.values())
    rows = [(f"`{reason}`", f"{count:,}") for reason, count in facts.rejects.items()]
    default = Settled(seed=settled.seed, by=settled.by)
    chosen = [
        f"`{name} = {getattr(settled, name)}`"
        for name in _FILTERS
        if getattr(settled, name) != getattr(default, name)
    ]
    return (
        f"## What is not in it\n\n{total:,} of {facts.listed:,} listed URLs are in no split; each "
        "is a row of `rejects.parquet` with its reason. Filters chosen: "
        f"{', '.join(chosen) or 'none'}.\n\n" + _table(["reason", "URLs"], rows)
    )


def _people(settled: Settled) -> str:
    dropped = [f"`{flag}`" for flag in ("email", "phone") if flag in settled.filters.drop]
    left = f", and those with {' or '.join(dropped)} were left out" if dropped else ""
    way = (
        f"Ask here: {settled.contact}."
        if settled.contact
        else "**No contact was given when this card was made; add one before publishing.**"
    )
    return (
        "## Consent and opt-out\n\nPages were public and fetched where robots.txt allows it "
        "(what it refused is among the rejects); nobody was asked. Meta descriptions may name "
        "people or hold addresses and phone numbers; pairs in which a rule found one have the flag "
        f"`email` or `phone`{left}. A site's "
        f"owner can have pages taken out: name the URL, it is in `pairs.parquet`. {way}"
    )


def _licence(settled: Settled) -> str:
    return (
        f"## Licence\n\n`{settled.licence}` for what this release adds (selection, features, token "
        "ids, metadata). Page texts and the pages behind the features belong to their owners. "
        "NoW itself is cc-by-nc-4.0."
    )


def _limits(facts: Facts) -> str:
    return (
        "## Limits\n\n"
        "- One screen of each page, at one moment, without scrolling, signing in or consenting.\n"
        "- Features of an APT-style detector, not the authors'; scores on this release and on NoW "
        "are not comparable.\n"
        '- A meta description is written for search engines; "mismatched" means that it does not '
        "tell what the screen shows, not that it is wrong.\n"
        f"- {facts.pairs:,} pairs: with few test pairs a difference of a few points of rSum is "
        "chance.\n\n"
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
