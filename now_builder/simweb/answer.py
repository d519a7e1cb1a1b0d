"""Answer requests to the simulated web, including awkward pages, and serve them."""

from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from now_builder.program import web_server
from now_builder.program.web_server import Answer, Manner
from now_builder.simweb.make import read_world
from now_builder.simweb.render import encode, refreshed_target, render
from now_builder.simweb.view import picture, picture_target, site_style
from now_builder.simweb.world import Page, World, token

_HOPS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_ROBOTS = b"User-agent: *\nDisallow: /private/\n"
_PDF = b"%PDF-1.4\ntrailer<<>>\n%%EOF\n"  # A PDF without pages; a crawler only looks at its type


@dataclass(slots=True)
class Answers:
    """Answer requests by a table of routes."""

    world: World
    latency_s: float = 0.0
    _routes: dict[tuple[str, str], tuple[Page, str]] = field(default_factory=dict)
    _homes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._homes |= {site.host: site.number for site in self.world.sites}
        for page in self.world.pages:
            if page.original is None:
                host = self.world.sites[page.site].host
                for target, role in _targets(self.world, page):
                    self._routes[host, target] = (page, role)

    def of(self, host: str, target: str) -> Answer:
        """Answer a request to a host for ``target``, a path with query."""
        answer = self._of(host, target)
        if self.latency_s:
            answer = replace(answer, delay_s=answer.delay_s + self.latency_s)
        return answer

    def _of(self, host: str, target: str) -> Answer:
        host = host.lower().partition(":")[0].rstrip(".")
        route = self._routes.get((host, target))
        if route is not None:
            page, role = route
            return self._hop(page, role) if role.startswith("hop") else self._page(page, role)
        if host not in self._homes:
            return Answer(421, "text/plain; charset=utf-8", b"no such site\n")
        if target == "/robots.txt":
            return Answer(200, "text/plain; charset=utf-8", _ROBOTS)
        if target == "/":
            return self._home(self._homes[host])
        if target.startswith("/pic/"):
            return self._picture(host, target)
        return Answer(404, "text/plain; charset=utf-8", b"not found\n")

    def _hop(self, page: Page, role: str) -> Answer:
        """Redirect to the page's next target, or in a loop from the last to the first."""
        number = int(role[3:])
        targets = [target for target, _ in _targets(self.world, page)]
        following = targets[(number + 1) % len(targets)]
        status = _REDIRECTS[(page.number + number) % len(_REDIRECTS)]
        return Answer(status, headers=(("Location", following),))

    def _page(self, page: Page, role: str) -> Answer:
        special = _special(self.world, page)
        if special is not None:
            return special
        content_type = "text/html"
        if page.declared in {"header", "both", "conflict"}:
            content_type += f"; charset={page.charset}"
        body = render(self.world, page, refreshed=role == "refreshed")
        manner: Manner = "whole"
        if page.kind == "truncated":
            manner, body = "truncated", body[: int(len(body) * 0.8)]
        elif page.kind == "endless":
            manner = "endless"
        return Answer(
            200,
            content_type,
            body,
            delay_s=1 + page.number % 11 / 10 if page.kind == "slow" else 0.0,
            manner=manner,
            compress=self.world.sites[page.site].gzip and manner == "whole",
        )

    def _home(self, number: int) -> Answer:
        site = self.world.sites[number]
        of_site = (page for page in self.world.pages if (page.site, page.kind) == (number, "page"))
        links = "".join(
            f'<p><a href="{escape(page.target)}">{place}</a></p>'
            for place, page in enumerate(of_site)
        )
        html = (
            '<!DOCTYPE html><html><head><meta name="viewport" content="width=device-width">'
            f"<title>{site.name}</title><style>{site_style(self.world, site)}</style></head>"
            f"<body><header class=head><b>{site.name}</b></header><main class=pad>{links}</main>"
            "</body></html>"
        )
        return Answer(200, f"text/html; charset={site.charset}", encode(html, site.charset))

    def _picture(self, host: str, target: str) -> Answer:
        """Return a picture's file, if the site has it."""
        missing = Answer(404, "text/plain; charset=utf-8", b"not found\n")
        try:
            _, page_hex, number, size = target.removesuffix(".svg").split("-")
            width, height = (int(side) for side in size.split("x"))
            page = self.world.pages[int(page_hex, 16)]
            request = (int(number), (width, height))
        except (ValueError, IndexError):
            return missing
        exists = target == picture_target(self.world, page, *request)
        if not exists or self.world.sites[page.site].host != host or not 0 < height <= 2000:
            return missing
        svg = picture(self.world, page, *request, f' width="{width}" height="{height}"')
        return Answer(200, "image/svg+xml", svg.encode(), compress=True)


def _targets(world: World, page: Page) -> list[tuple[str, str]]:
    """Return the targets of a page, and the role of each."""
    hops = {"redirect": 1, "redirect_chain": _HOPS, "redirect_loop": 3}.get(page.kind, 0)
    if hops:
        names = [token(world.settings.seed, "hop", page.number, hop) for hop in range(hops)]
        targets = [(page.target, "hop0")]
        targets += [(f"/go/{name}", f"hop{hop + 1}") for hop, name in enumerate(names[:-1])]
        if page.kind != "redirect_loop":
            targets.append((f"/to/{names[-1]}", "page"))
        return targets
    if page.kind == "meta_refresh":
        return [(page.target, "page"), (refreshed_target(page), "refreshed")]
    return [(page.target, "page")]


def _special(world: World, page: Page) -> Answer | None:
    """Return the answer for a kind of page without own HTML; ``None`` for others."""
    words = world.words(page)
    if page.kind in {"not_found", "server_error"}:
        status, key = (404, "missing") if page.kind == "not_found" else (500, "broken")
        html = (
            '<!DOCTYPE html><meta name="viewport" content="width=device-width">'
            f"<title>{status}</title><h1>{status}</h1><p>{words.site[key]}</p>"
        )
        return Answer(status, f"text/html; charset={page.charset}", encode(html, page.charset))
    if page.kind == "download":
        name = f"file-{page.number}.bin"
        headers = (("Content-Disposition", f'attachment; filename="{name}"'),)
        return Answer(200, "application/octet-stream", bytes(range(256)) * 64, headers)
    if page.kind == "pdf":
        return Answer(200, "application/pdf", _PDF)
    if page.kind == "no_content":
        return Answer(204)
    if page.kind == "hanging":
        return Answer(200, manner="silent")
    return None


def serve(
    folder: Path, port: int, *, ready_file: Path | None = None, latency_s: float = 0.0
) -> None:
    """Serve a folder made by ``make`` until interrupted or terminated."""
    answers = Answers(read_world(folder), latency_s)
    web_server.serve(answers, f"{len(answers.world.pages)} pages", port, ready_file)
