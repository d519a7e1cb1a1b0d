"""Croissant 1.1 metadata of a release, with the fields for responsible use."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from now_builder.formats.release import DATA_FOLDER, SPDX, FileEntry, Pair
from now_builder.package.card import ReleaseDescription, as_counts, language_codes
from now_builder.package.settings import PackageSettings

_TERMS = (
    "@language", "@vocab", "arrayShape", "citeAs", "column", "conformsTo", "containedIn", "cr",
    "rai", "data", "dataType", "dct", "description", "equivalentProperty", "examples", "extract",
    "field", "fileObject", "fileProperty", "fileSet", "format", "includes", "isArray",
    "isLiveDataset", "jsonPath", "key", "md5", "name", "parentField", "path", "recordSet",
    "references", "regex", "repeated", "replace", "samplingRate", "sc", "separator", "source",
    "subField", "transform",
)  # fmt: skip
_OWN_TERMS: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "sc": "https://schema.org/",
}
_CONTEXT = {term: _OWN_TERMS.get(term, f"cr:{term}") for term in _TERMS}
_ENCODINGS = {
    ".h5": "application/x-hdf5", ".txt": "text/plain", ".json": "application/json",
    ".parquet": "application/x-parquet", ".md": "text/markdown", ".csv": "text/csv",
}  # fmt: skip
_CITE = (
    "@inproceedings{duan2024pc2, title={PC2: Pseudo-Classification Based Pseudo-Captioning for "
    "Noisy Correspondence Learning in Cross-Modal Retrieval}, author={Duan, Yue and others}, "
    "booktitle={ACM Multimedia}, year={2024}}"
)
_SPLITS = {"train": "cr:TrainingSplit", "dev": "cr:ValidationSplit", "test": "cr:TestSplit"}


def make_croissant(
    about: ReleaseDescription, settings: PackageSettings, files: Mapping[str, FileEntry]
) -> dict[str, Any]:
    """Describe a release as JSON-LD.

    Source:
        Croissant 1.1 and Croissant-RAI 1.0, MLCommons.
    """
    spdx = SPDX.get(settings.licence)
    own = f"https://spdx.org/licenses/{spdx}.html" if spdx else settings.licence
    tree: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": [
            "http://mlcommons.org/croissant/1.1",
            "http://mlcommons.org/croissant/RAI/1.0",
        ],
        "name": settings.name,
        "description": f"{about.statistics.pairs} pairs of phone screenshots of web pages (36 "
        "region features of an APT-style detector) and meta descriptions, many of them "
        "mismatched; the layout of Noise of Web.",
        "license": [own, *about.licences] if about.licences else own,
        "citeAs": _CITE,
        "creator": {"@type": "sc:Organization", "name": "Users of the noise-of-web toolkit"},
        "datePublished": about.fetched[1][:10],
        "dateCreated": about.fetched[1][:10],
        "inLanguage": language_codes(about.statistics.languages),
        "keywords": ["noisy correspondence", "cross-modal retrieval", "web screenshots"],
        "version": "1.0.0",
        "isLiveDataset": False,
        "distribution": [_file(name, entry) for name, entry in files.items()],
        "recordSet": [_split_records(), _pair_records()],
        **_responsible(about, settings),
    }
    return tree


def _file(name: str, entry: FileEntry) -> dict[str, Any]:
    suffix = name[name.rindex(".") :]
    shape = f" of shape {entry.shape}" if entry.shape else ""
    return _node(
        "cr:FileObject",
        name,
        description=f"{_ABOUT.get(suffix, 'File')}{shape}",
        contentUrl=name,
        contentSize=f"{entry.bytes} B",
        encodingFormat=_ENCODINGS.get(suffix, "application/octet-stream"),
        sha256=entry.sha256,
    )


_ABOUT = {
    ".h5": "Region features, boxes and scores; rows in pair order;",
    ".npy": "Region features for the authors' loader;",
    ".txt": "Lines in pair order: comma-separated content token ids, or keys",
    ".json": "Vocabulary or tokenizer",
    ".parquet": "Table",
    ".md": "Dataset card",
    ".csv": "Sites with repository, commit and licence, for attribution",
}


def _split_records() -> dict[str, Any]:
    return _node(
        "cr:RecordSet",
        "splits",
        dataType="cr:Split",
        key={"@id": "splits/name"},
        field=[_field("splits", "name", "sc:Text"), _field("splits", "url", "sc:URL")],
        data=[
            {"splits/name": name, "splits/url": url.replace("cr:", _OWN_TERMS["cr"])}
            for name, url in _SPLITS.items()
        ],
    )


def _pair_records() -> dict[str, Any]:
    found = []
    for item in fields(Pair):
        kind = "sc:Integer" if item.type is int else "sc:Text"
        source = {"fileObject": {"@id": "pairs.parquet"}, "extract": {"column": item.name}}
        found.append(_field("pairs", item.name, kind, source=source))
        if item.name == "split":
            found[-1]["references"] = {"field": {"@id": "splits/name"}}
    return _node(
        "cr:RecordSet",
        "pairs",
        description=f"One row a pair, in the order of the arrays of {DATA_FOLDER}/.",
        key={"@id": "pairs/key"},
        field=found,
    )


def _node(kind: str, name: str, **properties: Any) -> dict[str, Any]:
    return {"@type": kind, "@id": name, "name": name, **properties}


def _field(records: str, name: str, kind: str, **properties: Any) -> dict[str, Any]:
    identity = {"@id": f"{records}/{name}", "name": name, "dataType": kind}
    return {"@type": "cr:Field", **identity, **properties}


def _responsible(about: ReleaseDescription, settings: PackageSettings) -> dict[str, Any]:
    contact = settings.contact or "no contact was given when this was made"
    return {
        "rai:dataCollection": f"{about.listed} listed URLs were visited by a browser set up as a "
        "phone (720 x 1280 px); the meta description was read from the HTML source.",
        "rai:dataCollectionType": ["Web Scraping"],
        "rai:dataCollectionTimeframe": [moment[:10] for moment in about.fetched],
        "rai:dataCollectionMissingData": "URLs in no split, by reason: "
        + (as_counts(about.rejects) or "none"),
        "rai:dataCollectionRawData": "Screenshots and HTML are kept by the maker, not released.",
        "rai:dataPreprocessingProtocol": [
            "Captions: entities decoded once, NFC, white space collapsed, controls dropped.",
            "Images: 36 regions a page from an APT-style detector, not the paper's weights.",
        ],
        "rai:dataLimitations": [
            "Many pairs do not correspond, by design; one screen a page, at one moment.",
            "Duplicate captions bound R@1; see DATASET_CARD.md.",
        ],
        "rai:dataBiases": [
            "Pages by language: " + as_counts(about.statistics.languages),
            "Sites that refuse robots, need a sign-in or fail to load are missing.",
        ],
        "rai:personalSensitiveInformation": "Meta descriptions are public text and may name people "
        "or hold addresses; the flag personal_data says where a rule found an e-mail address, a "
        f"telephone number or an ID number. Flags whose pairs were left out: {settings.drop}.",
        "rai:dataUseCases": [
            "Learning and evaluating cross-modal retrieval under noisy correspondence."
        ],
        "rai:dataSocialImpact": "Nobody was asked for consent; a site's owner may have pages "
        "removed.",
        "rai:dataReleaseMaintenancePlan": f"Removal requests: {contact}",
    }
