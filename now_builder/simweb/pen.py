"""Pictures as lists of painted paths, written as SVG or as a canvas script."""

import colorsys
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

Number = float | int
"""Both, since annotations are checked at run time, where 1 is no float."""
Matrix = tuple[Number, Number, Number, Number, Number, Number]
Point = tuple[Number, Number]
IDENTITY: Matrix = (1, 0, 0, 1, 0, 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """A path (SVG path data), how it is painted, and the matrix that maps it to the picture.

    Colours may be ``none``; ``width`` is that of the stroke, in units of the path.
    """

    data: str
    fill: str
    stroke: str
    width: Number
    matrix: Matrix


@dataclass(slots=True)
class Pen:
    """Collects shapes; ``moved`` shifts, turns and scales what is drawn inside it."""

    shapes: list[Shape] = field(default_factory=list)
    matrix: Matrix = IDENTITY

    @contextmanager
    def moved(
        self, x: Number, y: Number, scale: Number = 1, angle: Number = 0, *, flip: bool = False
    ) -> Iterator[None]:
        """Draw around the point (x, y), turned clockwise by ``angle`` degrees, perhaps mirrored."""
        before = self.matrix
        turn = math.radians(angle)
        cos, sin = scale * math.cos(turn), scale * math.sin(turn)
        mirror = -1 if flip else 1
        self.matrix = _product(before, (cos * mirror, sin * mirror, -sin, cos, x, y))
        try:
            yield
        finally:
            self.matrix = before

    def path(self, data: str, fill: str = "none", stroke: str = "none", width: Number = 1) -> None:
        """Paint a path of SVG path data."""
        self.shapes.append(Shape(data, fill, stroke, width, self.matrix))

    def ellipse(
        self, center: Point, radii: Point, fill: str, stroke: str = "none", width: Number = 2
    ) -> None:
        """Paint an ellipse."""
        (x, y), (rx, ry) = center, radii
        arc = f"A{_n(rx)} {_n(ry)} 0 1 0 "
        data = f"M{_n(x - rx)} {_n(y)}{arc}{_n(x + rx)} {_n(y)}{arc}{_n(x - rx)} {_n(y)}Z"
        self.path(data, fill, stroke, width)

    def circle(self, x: Number, y: Number, radius: Number, fill: str) -> None:
        """Paint a disc."""
        self.ellipse((x, y), (radius, radius), fill)

    def ring(self, center: Point, radius: Number, stroke: str, width: Number) -> None:
        """Paint a circle's line."""
        self.ellipse(center, (radius, radius), "none", stroke, width)

    def box(self, corner: Point, size: Point, fill: str, radius: Number = 0) -> None:
        """Paint a rectangle, its corners rounded by ``radius``."""
        (x, y), (w, h) = corner, size
        r = min(radius, w / 2, h / 2)
        if r <= 0:
            data = f"M{_n(x)} {_n(y)}h{_n(w)}v{_n(h)}h{_n(-w)}Z"
        else:
            data = (
                f"M{_n(x + r)} {_n(y)}h{_n(w - 2 * r)}q{_n(r)} 0 {_n(r)} {_n(r)}"
                f"v{_n(h - 2 * r)}q0 {_n(r)} {_n(-r)} {_n(r)}h{_n(2 * r - w)}"
                f"q{_n(-r)} 0 {_n(-r)} {_n(-r)}v{_n(2 * r - h)}q0 {_n(-r)} {_n(r)} {_n(-r)}Z"
            )
        self.path(data, fill)

    def polygon(self, points: Sequence[Point], fill: str) -> None:
        """Paint a polygon."""
        self.path("M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points) + "Z", fill)

    def line(self, points: Sequence[Point], stroke: str, width: Number) -> None:
        """Paint a polyline with round ends."""
        data = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self.path(data, "none", stroke, width)


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes on a canvas of ``width`` by 100 units."""

    width: Number
    shapes: tuple[Shape, ...]

    def to_svg(self, attributes: str = "") -> str:
        """Write as an SVG element; ``attributes`` are further ones, such as a class."""
        paths = "".join(_svg_path(shape) for shape in self.shapes)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(self.width)} 100" '
            f'preserveAspectRatio="xMidYMid slice" stroke-linecap="round" '
            f'stroke-linejoin="round"{attributes}>{paths}</svg>'
        )

    def to_script(self, canvas: str, pixels: Point) -> str:
        """Write as a script that paints the canvas with the id ``canvas``, of ``pixels`` px."""
        scale = max(pixels[0] / self.width, pixels[1] / 100)
        left, top = (pixels[0] - self.width * scale) / 2, (pixels[1] - 100 * scale) / 2
        view = (scale, 0, 0, scale, left, top)
        rows = [
            [s.data, s.fill, s.stroke, s.width, *(round(v, 3) for v in _product(view, s.matrix))]
            for s in self.shapes
        ]
        return (
            f"(function(c,a){{c.lineCap=c.lineJoin='round';a.forEach(function(s){{"
            f"var p=new Path2D(s[0]);c.setTransform(s[4],s[5],s[6],s[7],s[8],s[9]);"
            f"if(s[1]!='none'){{c.fillStyle=s[1];c.fill(p)}}"
            f"if(s[2]!='none'){{c.strokeStyle=s[2];c.lineWidth=s[3];c.stroke(p)}}}})}})"
            f"(document.getElementById({json.dumps(canvas)}).getContext('2d'),"
            f"{json.dumps(rows, separators=(',', ':'))})"
        )


def tone(rng: Random, color: str, amount: Number = 0.06) -> str:
    """Vary a colour a little.

    Lightness and saturation change by ``amount`` (of 1) at most, hue by a fifth of it.
    """
    red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    return hls(
        hue + rng.uniform(-amount, amount) / 5,
        light + rng.uniform(-amount, amount),
        saturation + rng.uniform(-amount, amount),
    )


def shade(color: str, change: Number) -> str:
    """Make a colour lighter (up to 1) or darker (down to -1)."""
    target = 255 if change > 0 else 0
    channels = [int(color[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(c + (target - c) * abs(change)):02x}" for c in channels)


def hls(hue: Number, light: Number, saturation: Number) -> str:
    """Return ``#rrggbb`` of hue (wraps), lightness and saturation (clipped to [0, 1])."""
    light, saturation = min(max(light, 0), 1), min(max(saturation, 0), 1)
    red, green, blue = colorsys.hls_to_rgb(hue % 1, light, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def around(
    count: int, radius: Number, start: Number = 0, center: Point = (0, 0)
) -> list[tuple[Number, Number, Number]]:
    """Return points (x, y, angle in degrees) evenly on a circle, clockwise from the right."""
    angles = [start + 360 * place / count for place in range(count)]
    return [
        (
            center[0] + radius * math.cos(math.radians(angle)),
            center[1] + radius * math.sin(math.radians(angle)),
            angle,
        )
        for angle in angles
    ]


def _svg_path(shape: Shape) -> str:
    paint = f' fill="{shape.fill}"'
    if shape.stroke != "none":
        paint += f' stroke="{shape.stroke}" stroke-width="{_n(shape.width)}"'
    place = ""
    if shape.matrix != IDENTITY:
        place = f' transform="matrix({" ".join(_fine(value) for value in shape.matrix)})"'
    return f'<path d="{shape.data}"{paint}{place}/>'


def _product(outer: Matrix, inner: Matrix) -> Matrix:
    a, b, c, d, e, f = outer
    g, h, i, j, k, m = inner
    return (
        a * g + c * h,
        b * g + d * h,
        a * i + c * j,
        b * i + d * j,
        a * k + c * m + e,
        b * k + d * m + f,
    )


def _n(value: Number) -> str:
    """Write a number with one digit after the point, without an idle zero."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def _fine(value: Number) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
