"""Resolving names to addresses: cached, excluded, mapped or unknown."""

import asyncio
import socket
import time

import pytest

from now_builder.crawl.politeness import resolver
from now_builder.crawl.politeness.resolver import Resolver, parse_mapping, parse_pattern
from now_builder.crawl.visit import PageError
from now_builder.errors import ConfigError


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Let every name resolve to these addresses; return the list of names looked up."""
    asked = []

    def answer(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET,
             socket.SOCK_STREAM, 6, "", (address, 0))
            for address in addresses
        ]  # fmt: skip

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return asked


def refusal(names: Resolver, host: str) -> PageError:
    with pytest.raises(PageError) as caught:
        asyncio.run(names.resolve(host, 80))
    return caught.value


def test_a_host_in_never_is_not_contacted_nor_are_its_subdomains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answering(monkeypatch, "93.184.216.34")
    names = Resolver([], allow_private=True, never=frozenset({"barred.org", "a.b.net"}))
    for host, listed in [
        ("barred.org", "barred.org"), ("BARRED.org.", "barred.org"),
        ("www.deep.barred.org", "barred.org"), ("x.a.b.net", "a.b.net"),
    ]:  # fmt: skip
        refused = refusal(names, host)
        assert refused.code == "never"
        assert listed in refused.message
    assert asked == []
    for host in ("notbarred.org", "b.net", "barred.org.example"):
        asyncio.run(names.resolve(host, 80))
    assert asked == ["notbarred.org", "b.net", "barred.org.example"]


def test_a_host_that_matches_no_only_is_not_even_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answering(monkeypatch, "93.184.216.34")
    only = [parse_pattern(text) for text in ("*.Shop.test", "http://müller.test/", "[::1]")]
    names = Resolver([parse_mapping("*:127.0.0.1")], allow_private=True, only=only)
    for host in ("shop.test", "notshop.test", "a.shop.test.org", "a.xn--mller-kva.test", "1.1.1.1"):
        refused = refusal(names, host)
        assert (refused.code, refused.message.split()[0]) == ("only", host)
    assert asked == []
    for host in ("a.b.SHOP.test.", "xn--mller-kva.test", "::1"):
        asyncio.run(names.resolve(host, 80))
    assert asked == ["a.b.shop.test", "xn--mller-kva.test"]


def test_a_look_up_is_cached_so_that_its_result_cannot_change_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answering(monkeypatch, "2606:4700::1", "8.8.8.8", "2606:4700::1%eth0", "8.8.4.4")
    names = Resolver([], allow_private=False)

    async def run() -> None:
        both = await asyncio.gather(*(names.resolve("a.example", 8443) for _ in range(2)))
        for addresses, port in [*both, await names.resolve("A.example.", 8443)]:
            assert [str(address) for address in addresses] == ["2606:4700::1", "8.8.8.8", "8.8.4.4"]
            assert port == 8443
        for _ in range(2):
            at, addresses = names._cache["a.example"]
            names._cache["a.example"] = (at - 299.0, addresses)
            await names.resolve("a.example", 80)

    asyncio.run(run())
    assert asked == ["a.example", "a.example"]
    answering(monkeypatch, "8.8.8.8", "127.0.0.1")
    assert refusal(Resolver([], allow_private=False), "a.example").code == "private_address"


def test_a_mapping_covers_its_host_or_the_hosts_below() -> None:
    for text in ("", "a.test", "a.test:", "a.test:name", "a.test:1.2.3", "a.test:127.0.0.1:0",
                 "a.test:127.0.0.1:99999", ":127.0.0.1", "a.test:127.0.0.1:80:80"):  # fmt: skip
        with pytest.raises(ConfigError, match="--resolve"):
            parse_mapping(text)
    for text in ("", "*", "*.", "*.*", "*test", "a.test,b.test", "a b", "a.*"):
        with pytest.raises(ConfigError, match="--only"):
            parse_pattern(text)
    mappings = [parse_mapping(text) for text in ("A.test:127.0.0.1:8765", "*.test:[::1]")]
    names = Resolver(mappings, allow_private=True)
    for host, address, port in [("a.test", "127.0.0.1", 8765), ("b.a.test", "::1", 80)]:
        addresses, to = asyncio.run(names.resolve(host, 80))
        assert ([str(each) for each in addresses], to) == ([address], port)
    assert [mappings[1].covers(host) for host in ("test", "atest")] == [False, False]


def test_slow_names_delay_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """More slow names than the event loop's own pool has threads."""
    asked = answering(monkeypatch, "93.184.216.34")
    at_once = socket.getaddrinfo

    def answer(host: str, *_: object, **__: object) -> object:
        time.sleep(1.5 if host.startswith("slow") else 0)
        return at_once(host, 80)

    monkeypatch.setattr(socket, "getaddrinfo", answer)

    async def run() -> None:
        names = Resolver([], allow_private=False)
        slow = [asyncio.create_task(names.resolve(f"slow{n}.example", 80)) for n in range(40)]
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        await names.resolve("quick.example", 80)
        assert time.monotonic() - begun < 0.7
        await asyncio.gather(*slow)

    asyncio.run(run())
    assert len(asked) == 41


def test_an_unknown_or_slow_name_is_a_dns_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    names = Resolver([], allow_private=True)
    refused = refusal(names, "nowhere.example")
    assert (refused.code, "nowhere.example" in refused.message) == ("dns_error", True)
    assert "not known" in refused.message
    assert refusal(names, "a" * 64 + ".example").code == "dns_error"

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(0.5))
    monkeypatch.setattr(resolver, "_LOOK_UP_S", 0.05)
    refused = refusal(names, "slow.example")
    assert (refused.code, refused.message) == ("dns_error", "slow.example: timeout")
    answering(monkeypatch, "93.184.216.34")  # a failure is not cached
    addresses, _ = asyncio.run(names.resolve("slow.example", 80))
    assert str(addresses[0]) == "93.184.216.34"


def test_mapped_and_private_hosts_are_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, "10.0.0.7")
    names = Resolver([parse_mapping("*.test:93.184.216.34")], allow_private=True)
    hosts = {"A.test": True, "test": False, "10.1.2.3": True, "[::1]": True, "8.8.8.8": False}
    assert {host: names.is_local(host) for host in hosts} == hosts
    assert not names.is_local("intranet.example")  # not looked up yet
    asyncio.run(names.resolve("intranet.example", 80))
    assert names.is_local("Intranet.example")
    answering(monkeypatch, "10.0.0.7", "93.184.216.34")
    asyncio.run(names.resolve("both.example", 80))
    assert names.is_local("both.example")
    answering(monkeypatch, "93.184.216.34")
    asyncio.run(names.resolve("public.example", 80))
    assert not names.is_local("public.example")
