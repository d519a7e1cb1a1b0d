"""Drawings of landscapes, plants and weather; landscapes fill the picture."""

import math
from random import Random

from now_builder.simweb.pen import Number, Pen, around, shade, tone


def sea(pen: Pen, rng: Random, variant: int, width: Number) -> None:
    """A beach, open sea with a sun, or waves with a lighthouse."""
    blue = tone(rng, "#1668b5", 0.05)
    horizon = rng.uniform(30, 46)
    pen.box((0, 0), (width, 100), tone(rng, ("#bfe6fa", "#ffd9a8", "#d5ecf7")[variant], 0.03))
    pen.circle(rng.uniform(0.15, 0.85) * width, horizon - 14, 9, "#fff2b0")
    pen.box((0, horizon), (width, 100), blue)
    for row in range(6):
        y = horizon + 8 + row * 9
        _wave(pen, width, (y, rng.uniform(0, 20)), shade(blue, 0.15 + 0.08 * row))
    if variant == 0:
        edge = rng.uniform(72, 80)
        pen.path(
            f"M0 {edge}Q{width / 3:.0f} {edge - 9:.0f} {width:.0f} {edge + 5:.0f}V100H0Z", "#ffffff"
        )
        pen.path(
            f"M0 {edge + 4:.0f}Q{width / 3:.0f} {edge - 5:.0f} {width:.0f} {edge + 9:.0f}V100H0Z",
            "#f0d79a",
        )
        x = rng.uniform(0.2, 0.8) * width
        pen.path(f"M{x - 16:.0f} 72Q{x:.0f} 50 {x + 16:.0f} 72Z", "#e8483f")
        pen.path(f"M{x - 6:.0f} 72Q{x:.0f} 50 {x + 6:.0f} 72Z", "#ffffff")
        pen.line([(x, 60), (x, 92)], "#8a6a3a", 2)
    elif variant == 2:
        x = rng.uniform(0.2, 0.8) * width
        pen.path(f"M{x - 24:.0f} 100Q{x:.0f} 66 {x + 26:.0f} 100Z", "#5c5a58")
        pen.polygon([(x - 7, 78), (x - 4, 22), (x + 4, 22), (x + 7, 78)], "#ffffff")
        for y in (30, 46, 62):
            pen.box((x - 6, y), (12, 8), "#d8322f")
        pen.box((x - 5, 14), (10, 8), "#ffe27a")


def _wave(pen: Pen, width: Number, start: tuple[Number, Number], color: str) -> None:
    y, shift = start
    steps = int(width / 20) + 2
    pen.path(f"M{-shift:.0f} {y:.0f}" + "q5 -5 10 0t10 0" * steps, "none", color, 2.4)


def forest(pen: Pen, rng: Random, variant: int, width: Number) -> None:
    """Firs, broad-leaved trees, or trunks of a deep wood."""
    green = tone(rng, "#1f6b2e", 0.05)
    pen.box((0, 0), (width, 100), tone(rng, ("#d6ecd9", "#cfe8f5", "#8fbf7f")[variant], 0.03))
    pen.box((0, 76), (width, 24), tone(rng, "#4d8a3a"))
    if variant == 2:
        pen.box((0, 0), (width, 40), shade(green, -0.25))
        for _ in range(int(width / 11)):
            x, w = rng.uniform(0, width), rng.uniform(4, 9)
            pen.box((x, -5), (w, rng.uniform(84, 100)), tone(rng, "#54402c", 0.05))
        for _ in range(int(width / 6)):
            pen.circle(
                rng.uniform(0, width),
                rng.uniform(-4, 28),
                rng.uniform(8, 15),
                tone(rng, green, 0.07),
            )
        return
    for depth in range(3):
        for step in range(int(width / 17) + 1):
            x = step * 17 + rng.uniform(-6, 6) + depth * 6
            size = rng.uniform(0.7, 1.0) * (0.75 + 0.2 * depth)
            with pen.moved(x, 74 + 8 * depth, size):
                _tree(pen, shade(green, 0.28 - 0.14 * depth), variant)


def _tree(pen: Pen, green: str, variant: int) -> None:
    pen.box((-2.5, -12), (5, 14), "#5d4127")
    if variant == 0:
        for y, half in ((-8, 16), (-24, 13), (-38, 9)):
            pen.polygon([(-half, y), (half, y), (0, y - 24)], green)
    else:
        for x, y, r in ((-9, -20, 11), (9, -20, 11), (0, -32, 13)):
            pen.circle(x, y, r, green)


def mountain(pen: Pen, rng: Random, variant: int, width: Number) -> None:
    """Snowy peaks, a volcano, or ridges behind a lake."""
    rock = tone(rng, ("#6f7b8a", "#5b4b4a", "#7d7f93")[variant], 0.05)
    pen.box((0, 0), (width, 100), tone(rng, ("#9fc9ee", "#f3b98a", "#c9dcec")[variant], 0.03))
    if variant == 1:
        x = rng.uniform(0.35, 0.65) * width
        pen.circle(x - 6, 16, 9, "#8d8a8c")
        pen.circle(x + 6, 9, 12, "#a5a2a3")
        pen.polygon([(x - 75, 100), (x - 13, 28), (x + 13, 28), (x + 75, 100)], rock)
        pen.polygon([(x - 13, 28), (x + 13, 28), (x + 5, 46), (x, 36), (x - 6, 52)], "#e8432a")
    else:
        places = [step * 42 + rng.uniform(-9, 9) for step in range(int(width / 42) + 2)]
        for x in places:
            top = rng.uniform(14, 34)
            pen.polygon([(x - 46, 100), (x, top), (x + 46, 100)], tone(rng, rock, 0.05))
            pen.polygon([(x, top), (x + 46, 100), (x + 14, 100)], shade(rock, -0.25))
            pen.polygon(
                [
                    (x - 14, top + 24),
                    (x, top),
                    (x + 14, top + 24),
                    (x + 5, top + 18),
                    (x - 4, top + 26),
                ],
                "#ffffff",
            )
    if variant == 2:
        pen.box((0, 78), (width, 22), tone(rng, "#4f8fb0"))
        for _ in range(5):
            x, y = rng.uniform(0, width), rng.uniform(82, 97)
            pen.line([(x, y), (x + 18, y)], "#b9d9e6", 1.4)
    elif variant == 0:
        pen.path(f"M0 100V86Q{width / 2:.0f} 74 {width:.0f} 90V100Z", tone(rng, "#6b8f5a"))


def desert(pen: Pen, rng: Random, variant: int, width: Number) -> None:
    """Dunes, cacti on sand, or pyramids."""
    sand = tone(rng, "#e39a45", 0.05)
    pen.box((0, 0), (width, 100), tone(rng, ("#ffd98c", "#ffe9b8", "#f7c46a")[variant], 0.03))
    pen.circle(rng.uniform(0.15, 0.85) * width, rng.uniform(14, 26), 11, "#fff5c9")
    if variant == 2:
        for scale, place in ((1.0, 0.35), (0.65, 0.75)):
            x = (place + rng.uniform(-0.1, 0.1)) * width
            pen.polygon(
                [(x - 44 * scale, 78), (x, 78 - 60 * scale), (x + 44 * scale, 78)], "#c47f33"
            )
            pen.polygon(
                [(x, 78 - 60 * scale), (x + 44 * scale, 78), (x + 12 * scale, 78)], "#96591f"
            )
    heights = (52, 66, 80) if variant == 0 else (74, 86)
    for row, y in enumerate(heights):
        x = rng.uniform(0.2, 0.8) * width
        pen.path(
            f"M0 {y + rng.uniform(-4, 8):.0f}Q{x:.0f} {y - 20:.0f} {width:.0f} {y + 8}V100H0Z",
            shade(sand, -0.1 * row),
        )
    if variant == 1:
        for place in (0.25, 0.7):
            x = (place + rng.uniform(-0.12, 0.12)) * width
            with pen.moved(x, 88, rng.uniform(0.8, 1.15)):
                pen.box((-6, -56), (12, 58), "#2e7d4a", 6)
                pen.path("M-4-20H-16Q-20-20-20-26V-36", "none", "#2e7d4a", 7)
                pen.path("M4-28H14Q19-28 19-34V-44", "none", "#2e7d4a", 7)


def sunflower(pen: Pen, rng: Random, variant: int) -> None:
    """A big head, a flower on its stem, or three of them."""
    yellow = tone(rng, "#ffb90a", 0.03)
    if variant == 0:
        _sunflower_head(pen, rng, yellow, 20)
    elif variant == 1:
        pen.line([(0, -12), (2, 50)], "#3c8a34", 6)
        pen.path("M2 34Q22 14 36 26Q24 42 2 38Z", "#4b9e3d")
        pen.path("M0 40Q-20 22-36 34Q-22 48 0 44Z", "#3c8a34")
        with pen.moved(0, -14, 0.72):
            _sunflower_head(pen, rng, yellow, 16)
    else:
        for x, y in ((-26, -6), (26, -10), (0, 12)):
            pen.line([(x, y), (x * 0.6, 50)], "#3c8a34", 4)
        for x, y in ((-26, -6), (26, -10), (0, 14)):
            with pen.moved(x, y, 0.5):
                _sunflower_head(pen, rng, yellow, 14)


def _sunflower_head(pen: Pen, rng: Random, yellow: str, petals: int) -> None:
    for x, y, angle in around(petals, 32, rng.uniform(0, 20)):
        with pen.moved(x, y, 1, angle):
            pen.ellipse((0, 0), (16, 6.5), tone(rng, yellow, 0.04))
    pen.circle(0, 0, 22, "#4a2a12")
    for x, y, _ in (*around(9, 14), *around(5, 7, 20)):
        pen.circle(x, y, 2.4, "#8a5a25")


def tulip(pen: Pen, rng: Random, variant: int) -> None:
    """One tulip, a row of them, or a bunch in a vase."""
    colors = ["#e0357a", "#c2185b", "#8e3fb5", "#f06292"]
    rng.shuffle(colors)
    if variant == 0:
        _one_tulip(pen, colors[0])
    elif variant == 1:
        for place, x in enumerate((-32, 0, 32)):
            with pen.moved(x, rng.uniform(-4, 4), 0.8):
                _one_tulip(pen, colors[place])
    else:
        for place, (x, angle) in enumerate(((-16, -18), (16, 18), (0, 0))):
            with pen.moved(x, -12, 0.68, angle):
                _one_tulip(pen, colors[place])
        pen.path("M-18 8H18L24 34Q22 48 12 48H-12Q-22 48-24 34Z", "#7fb4c9")
        pen.box((-19, 6), (38, 6), "#5d93a8", 3)


def _one_tulip(pen: Pen, color: str) -> None:
    pen.line([(0, -6), (0, 48)], "#4a9b48", 5)
    pen.path("M0 46C-26 34-26 10-24 4C-12 14-2 28 0 46Z", "#5cb356")
    pen.path("M0 46C26 34 24 16 22 10C12 18 2 30 0 46Z", "#3f8a40")
    pen.path("M-20-36C-26-6-12 2 0 2C12 2 26-6 20-36L9-22L0-44L-9-22Z", color)
    pen.path("M0-44C-12-26-10-6 0 2C10-6 12-26 0-44Z", shade(color, 0.22))


def mushroom(pen: Pen, rng: Random, variant: int) -> None:
    """A fly agaric, brown mushrooms, or a group in grass."""
    if variant == 1:
        for x, size in ((-22, 0.75), (20, 0.9)):
            with pen.moved(x, 8, size):
                _one_mushroom(pen, tone(rng, "#9a6233"), spots=False)
    elif variant == 2:
        for x, y, size in ((-26, 14, 0.55), (26, 14, 0.6), (0, 0, 0.85)):
            with pen.moved(x, y, size):
                _one_mushroom(pen, tone(rng, "#c8361f"), spots=True)
        for x in range(-44, 45, 6):
            pen.line([(x, 48), (x + rng.uniform(-4, 4), 34)], "#4f9440", 2.5)
    else:
        _one_mushroom(pen, tone(rng, "#cf2a1d"), spots=True)


def _one_mushroom(pen: Pen, cap: str, *, spots: bool) -> None:
    pen.path("M-12 0C-10 20-16 40-18 44Q0 50 18 44C16 40 10 20 12 0Z", "#f3e7d0")
    pen.path("M-14 8Q0 16 14 8L12 0H-12Z", "#dcc9a6")
    pen.path("M-46 4C-44-30-20-44 0-44C20-44 44-30 46 4Q0 14-46 4Z", cap)
    for x, y, r in ((-24, -14, 6), (0, -28, 7), (22, -16, 6), (-6, -6, 4.5), (34, -2, 4)):
        if spots:
            pen.circle(x, y, r, "#fff8ee")


def umbrella(pen: Pen, rng: Random, variant: int) -> None:
    """An umbrella in the rain, a striped one, or a cloud raining on one."""
    color = tone(rng, rng.choice(("#6a3fb5", "#7a35a8", "#5b3fc4")), 0.04)
    for _ in range(22):
        x, y = rng.uniform(-48, 48), rng.uniform(-48, 46)
        pen.line([(x, y), (x - 3, y + 8)], "#5f95c9", 1.8)
    if variant == 2:
        for x, y, r in ((-18, -34, 12), (0, -40, 15), (18, -34, 12)):
            pen.circle(x, y, r, "#7d8896")
    top = -18 if variant == 2 else -38
    pen.path(f"M0 {top}V34Q0 46 9 44Q15 42 14 34", "none", "#3d3a44", 4)
    y = top + 40
    pen.path(
        f"M-46 {y}Q-42 {top} 0 {top}Q42 {top} 46 {y}"
        f"Q34 {y - 9} 23 {y}Q12 {y - 9} 0 {y}Q-12 {y - 9}-23 {y}Q-34 {y - 9}-46 {y}Z",
        color,
    )
    other = shade(color, 0.45) if variant == 1 else shade(color, 0.14)
    pen.path(f"M0 {top}Q-26 {top + 10}-23 {y}Q-12 {y - 9} 0 {y}Z", other)
    pen.path(f"M0 {top}Q40 {top + 6} 46 {y}Q34 {y - 9} 23 {y}Q22 {top + 20} 0 {top}Z", other)


def snowman(pen: Pen, rng: Random, variant: int) -> None:
    """A snowman with a hat, one with a scarf, or one of three balls with a broom."""
    balls: tuple[tuple[Number, Number, Number], ...]
    balls = ((0, 26, 24), (0, -8, 17)) if variant != 2 else ((0, 30, 20), (0, 2, 15), (0, -20, 11))
    for x, y, r in balls:
        pen.circle(x, y, r + 1.4, "#b9cbdc")
        pen.circle(x, y, r, "#ffffff")
    _, y, r = balls[-1]
    for side in (-0.35, 0.35):
        pen.circle(side * r, y - 3, 2, "#222222")
    pen.polygon([(0, y), (r + 8, y + 4), (0, y + 5)], "#f08a24")
    for dy in (16, 26, 36):
        pen.circle(0, y + r * 0.4 + dy, 2.4, "#333333")
    if variant != 1:
        pen.box((-r, y - r - 2), (2 * r, 5), "#2a2a33", 2)
        pen.box((-r * 0.65, y - r - 18), (r * 1.3, 18), "#2a2a33", 2)
    color = tone(rng, "#d22f3c")
    if variant != 0:
        pen.box((-r * 0.85, y + r * 0.7), (r * 1.7, 7), color, 3)
        pen.box((r * 0.3, y + r * 0.7), (7, 20), shade(color, -0.15), 3)
    pen.line([(-18, 14), (-44, -4)], "#6b4a2a", 3)
    pen.line([(18, 14), (44, -4)], "#6b4a2a", 3)
    if variant == 2:
        pen.line([(42, 44), (44, -20)], "#8a5f33", 3)
        pen.path("M36-20L52-20L48-42L40-42Z", "#d6a64a")


def flakes(pen: Pen, rng: Random, width: Number) -> None:
    """Falling snow over the whole picture."""
    for _ in range(26):
        pen.circle(rng.uniform(0, width), rng.uniform(0, 100), rng.uniform(0.8, 2.2), "#ffffff")


def stars(pen: Pen, rng: Random, width: Number) -> None:
    """A starry sky over the whole picture."""
    for _ in range(34):
        radius = math.exp(rng.uniform(-0.9, 0.5))
        pen.circle(rng.uniform(0, width), rng.uniform(0, 100), radius, "#fff7d6")
