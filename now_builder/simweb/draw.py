"""Draw a picture of a topic: choose a drawing, tint it and place it on a background."""

import colorsys
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from xml.etree import ElementTree as ET

Number = float | int
"""Both types, since the run-time check of annotations does not accept 1 as a float."""
VARIANTS = 3
"""Number of drawings per topic."""

_FOLDER = files("now_builder.simweb") / "pictures"
TOPICS = tuple(sorted(p.name[:-4] for p in _FOLDER.iterdir() if p.name.endswith(".svg")))
"""Names of the topics; pages and pictures never contain them."""

_SIZE = (200, 100)
"""Size of a background or landscape in units; other things are about 100 units wide."""
_TINT = 0.04


@dataclass(frozen=True, slots=True)
class Drawing:
    """A group of a file in ``pictures/``.

    Attributes:
        style: Colour variables, such as ``--a:#f7d117``, and colours mixed from them.
        others: Alternative colours by name of the variable.
        shapes: SVG elements that use the variables.
    """

    style: str
    others: dict[str, list[str]]
    shapes: str

    def placed(self, rng: Random, transform: str) -> str:
        """Return the drawing as an SVG group, with a random variation of each colour variable."""

        def recoloured(match: re.Match[str]) -> str:
            name, color = match.groups()
            return f"--{name}:{tone(rng, rng.choice([color, *self.others.get(name, ())]))}"

        style = re.sub(r"--(\w):(#\w{6})", recoloured, self.style)
        return f'<g style="{style}" transform="{transform}">{self.shapes}</g>'


@dataclass(frozen=True, slots=True)
class Sheet:
    """A file in ``pictures/``: the drawings of a topic or a background.

    Attributes:
        ground: Usual background of the thing; ``None`` for a landscape, which fills the picture.
        turn: Maximum rotation of the thing in degrees.
        crowd: Maximum number of copies in a picture.
    """

    drawings: list[Drawing]
    ground: str | None
    turn: float
    crowd: int


def draw(
    topic: str, rng: Random, width: Number, variant: int | None = None, attributes: str = ""
) -> str:
    """Return a picture of a topic as an SVG element of ``width`` by 100 units."""
    sheet = _read(topic)
    drawing = sheet.drawings[rng.randrange(VARIANTS) if variant is None else variant]
    if sheet.ground is None:
        body = _filling(drawing, rng, width)
    else:
        ground = "plain" if rng.random() < 0.15 else sheet.ground
        body = _filling(rng.choice(_read(f"grounds/{ground}").drawings), rng, width)
        for x, y, scale in _places(rng, width, sheet.crowd):
            angle, mirror = rng.uniform(-sheet.turn, sheet.turn), rng.choice(("", "-"))
            place = f"translate({x:.1f} {y:.1f})rotate({angle:.0f})"
            body += drawing.placed(rng, f"{place}scale({mirror}{scale:.2f} {scale:.2f})")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} 100" '
        'preserveAspectRatio="xMidYMid slice" stroke-linecap="round" stroke-linejoin="round"'
        f"{attributes}>{body}</svg>"
    )


def _filling(drawing: Drawing, rng: Random, width: Number) -> str:
    """Fill the picture with a drawing, slightly enlarged and shifted, perhaps mirrored."""
    scale = max(rng.uniform(1, 1.2), width / _SIZE[0])
    # The middle of a landscape, its subject, must stay inside.
    x = width / 2 + rng.uniform(-1, 1) * min(18, (_SIZE[0] * scale - width) / 2)
    middle = f"translate({-_SIZE[0] / 2:g} {-_SIZE[1] / 2:g})"
    mirrored = f"scale({rng.choice(('', '-'))}{scale:.2f} {scale:.2f})"
    return drawing.placed(rng, f"translate({x:.1f} 50){mirrored}{middle}")


def _places(rng: Random, width: Number, crowd: int) -> list[tuple[Number, Number, Number]]:
    """Choose x, y and scale for each copy of a thing, in a row."""
    count = rng.choice((1, 1, *range(1, crowd + 1)))
    if count == 1:
        scale = min(rng.uniform(0.72, 0.95), width / 105)
        x = width / 2 + rng.uniform(-0.5, 0.5) * max(width - 100 * scale, 0)
        return [(x, 50 + rng.uniform(-1, 1) * (48 - 48 * scale), scale)]
    fitting = max(1, min(count, round(width / 60)))
    cell = width / fitting
    places = []
    for step in range(fitting):
        scale = min(rng.uniform(0.62, 0.85), cell / 100)
        places.append((cell * (step + 0.5), 50 + rng.uniform(-1, 1) * (46 - 46 * scale), scale))
    return places


@cache
def _read(name: str) -> Sheet:
    text = (_FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    # Without namespace and indentation, the groups are serialised unchanged.
    text = re.sub(r"\s*\n\s*", "", text.replace(' xmlns="http://www.w3.org/2000/svg"', ""))
    root = ET.fromstring(text)  # noqa: S314 - a file of this package
    drawings = [
        Drawing(
            style=group.get("style", ""),
            others={k[5:]: v.split() for k, v in group.items() if k.startswith("data-")},
            shapes="".join(ET.tostring(shape, encoding="unicode") for shape in group),
        )
        for group in root
    ]
    return Sheet(
        drawings=drawings,
        ground=root.get("data-ground"),
        turn=float(root.get("data-turn", 0)),
        crowd=int(root.get("data-crowd", 1)),
    )


def tone(rng: Random, color: str) -> str:
    """Vary lightness and saturation of a colour by up to 0.04 (of 1), hue by up to 0.008."""
    red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    return hls(
        hue + rng.uniform(-_TINT, _TINT) / 5,
        light + rng.uniform(-_TINT, _TINT),
        saturation + rng.uniform(-_TINT, _TINT),
    )


def hls(hue: Number, light: Number, saturation: Number) -> str:
    """Return ``#rrggbb`` for hue (modulo 1), lightness and saturation (clipped to [0, 1])."""
    light, saturation = min(max(light, 0), 1), min(max(saturation, 0), 1)
    red, green, blue = colorsys.hls_to_rgb(hue % 1, light, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
