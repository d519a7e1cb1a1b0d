"""What led to a page: only what was answered before it, and of bodies only its own."""

from now_builder.crawl.browser.exchange import Exchanges


def event(url: str, document: str, status: int = 200, **headers: str) -> dict[str, object]:
    return {
        "request": {"url": url, "method": "GET", "headers": {"User-Agent": "phone", "Cookie": "a"}},
        "networkId": document,
        "responseStatusCode": status,
        "responseStatusText": "",
        "responseHeaders": [{"name": name, "value": value} for name, value in headers.items()],
    }


def test_the_chain_to_a_document_ends_with_its_own_answer() -> None:
    told = Exchanges(keep=True)
    told.note(event("http://a.test/", "1", 302, Location="/b"), whole=False)
    told.note(event("http://a.test/b", "1"), whole=True)
    told.note(event("http://a.test/c#part", "2", Link="one\ntwo"), whole=True)
    told.note(event("http://a.test/never-seen", "3"), whole=True)
    way = told.chain_to("2")
    assert [(one.url, one.status, one.cut) for one in way] == [
        ("http://a.test/", 302, True), ("http://a.test/b", 200, True),
        ("http://a.test/c", 200, False),
    ]  # fmt: skip
    assert way[2].answer == (("Link", "one"), ("Link", "two"))
    assert way[2].request == (("User-Agent", "phone"),)
    assert told.chain_to("unknown") == ()
