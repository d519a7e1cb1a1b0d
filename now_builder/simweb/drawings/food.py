"""Drawings of things to eat and drink, around the origin, about 90 units across."""

from random import Random

from now_builder.simweb.pen import Number, Pen, around, shade, tone


def banana(pen: Pen, rng: Random, variant: int) -> None:
    """One banana, a bunch, or one half peeled."""
    yellow = tone(rng, "#f7d117")
    if variant == 1:
        for angle in (-34, -12, 10, 32)[: rng.randint(3, 4)]:
            with pen.moved(-18, -22, 0.95, angle), pen.moved(26, 22):
                _one_banana(pen, tone(rng, yellow, 0.03))
        pen.box((-28, -36), (16, 14), "#7a5a1e", 4)
    elif variant == 2:
        pen.path("M-13 44C-20 10-18-8-12-12L12-12C18-8 20 10 13 44Q0 50-13 44Z", yellow)
        pen.path("M-11-8C-13-36-6-46 0-46C6-46 13-36 11-8Z", "#fff4c2")
        pen.path("M-12-10C-26-18-36-4-38 16C-28 6-20 6-14 12Z", shade(yellow, -0.08))
        pen.path("M12-10C26-18 36-4 38 16C28 6 20 6 14 12Z", shade(yellow, -0.12))
        pen.path("M-6-10C-10 4-4 16 0 22C4 16 10 4 6-10Z", shade(yellow, 0.2))
    else:
        _one_banana(pen, yellow)


def _one_banana(pen: Pen, yellow: str) -> None:
    pen.path("M-38-30C-38 16 2 42 42 22L44 12C14 18-16 4-27-34Z", yellow)
    pen.path("M-33-24C-28 10 6 32 42 18", "none", shade(yellow, -0.18), 2)
    pen.path("M-40-30L-40-42L-30-43L-27-34Z", "#8a6a1f")
    pen.path("M42 22L48 17L44 12Z", "#5f4a16")


def strawberry(pen: Pen, rng: Random, variant: int) -> None:
    """A whole berry, one cut in half, or a heap of small ones."""
    red = tone(rng, "#e0202f")
    if variant == 2:
        for x, y in ((-24, 12), (24, 14), (0, 18), (-2, -20)):
            with pen.moved(x, y, 0.55, rng.uniform(-25, 25)):
                _one_strawberry(pen, tone(rng, red, 0.03))
        return
    _one_strawberry(pen, red)
    if variant == 1:
        pen.path("M0 38C-22 24-30 2-24-16C-12-24 12-24 24-16C30 2 22 24 0 38Z", "#ff8d8d")
        pen.path("M0 28C-12 16-16 2-12-8C-4-14 4-14 12-8C16 2 12 16 0 28Z", "#fff0ea")


def _one_strawberry(pen: Pen, red: str) -> None:
    pen.path("M0 46C-30 30-42 0-34-22C-20-34 20-34 34-22C42 0 30 30 0 46Z", red)
    for row, y in enumerate((-12, 2, 16, 30)):
        for x in range(-24 + 6 * row, 25 - 6 * row, 12):
            pen.ellipse((x, y), (1.8, 3), "#ffe08a")
    for leaf, _, angle in around(5, 6, -162):
        with pen.moved(leaf, -28, 1, angle * 0.6 - 54):
            pen.path("M0 4C-8-4-8-14 0-20C8-14 8-4 0 4Z", "#2f9e3f")
    pen.line([(0, -30), (4, -46)], "#2f7d32", 4)


def watermelon(pen: Pen, rng: Random, variant: int) -> None:
    """A slice, a whole striped fruit, or a wedge."""
    green, red = tone(rng, "#1f7a35"), tone(rng, "#f2415a", 0.04)
    seeds: tuple[tuple[Number, Number], ...]
    if variant == 0:
        pen.path("M-46-14A46 46 0 0 0 46-14Z", green)
        pen.path("M-40-14A40 40 0 0 0 40-14Z", "#e8f5c8")
        pen.path("M-36-14A36 36 0 0 0 36-14Z", red)
        seeds = ((-22, -6), (-8, -4), (8, -6), (22, -6), (-14, 6), (0, 8), (14, 6))
    elif variant == 1:
        pen.ellipse((0, 0), (46, 38), green)
        for x in (-30, -15, 0, 15, 30):
            pen.path(f"M{x} -34Q{x * 1.5} -16 {x} 0Q{x * 1.5} 16 {x} 34", "none", "#0d4a1d", 5)
        pen.line([(0, -38), (6, -46)], "#6b4a1c", 4)
        seeds = ()
    else:
        pen.path("M0-44L44 30Q0 56-44 30Z", green)
        pen.path("M0-44L40 24Q0 46-40 24Z", "#e8f5c8")
        pen.path("M0-44L36 18Q0 38-36 18Z", red)
        seeds = ((0, -14), (-9, 4), (9, 4), (-18, 16), (0, 20), (18, 16))
    for x, y in seeds:
        pen.ellipse((x, y), (2, 3.4), "#2b1713")


def pizza(pen: Pen, rng: Random, variant: int) -> None:
    """A whole pizza, one with a slice taken, or a slice."""
    crust, cheese, salami = tone(rng, "#c98a3a"), tone(rng, "#f6c95b", 0.04), tone(rng, "#b9301f")
    spots: list[tuple[Number, Number]]
    if variant == 2:
        pen.path("M0 48L-38-30Q0-48 38-30Z", cheese)
        pen.path("M-42-28Q0-50 42-28L38-38Q0-60-38-38Z", crust)
        spots = [(-14, -20), (13, -17), (0, 4), (3, 26)]
        size = 8.0
    else:
        pen.circle(0, 0, 47, crust)
        pen.circle(0, 0, 40, "#d9532c")
        pen.circle(0, 0, 38, cheese)
        spots = [(0, 0)]
        spots += [(x, y) for x, y, _ in around(6, 25, rng.uniform(0, 60))]
        size = 7.5
    for x, y in spots:
        pen.circle(x, y, size, salami)
        pen.circle(x - 2, y - 2, size / 3, shade(salami, 0.3))
    for x, y in spots[-4:]:
        pen.ellipse((x * 0.55 + 5, y * 0.55 + 6), (4, 2), "#2f8a35")
    if variant == 1:
        pen.polygon([(0, 0), (52, -22), (52, 22)], "#fdf6e8")


def sushi(pen: Pen, rng: Random, variant: int) -> None:
    """Rolls from above, a slice of salmon on rice, or a plate of both."""
    salmon = tone(rng, "#ff8a4c", 0.04)
    if variant == 0:
        for x, y in ((-23, -20), (23, -20), (-23, 24), (23, 24)):
            with pen.moved(x, y, 0.9):
                _roll(pen, rng.choice((salmon, "#5fb04a", "#d93a3a")))
    elif variant == 1:
        for y in (-20, 22):
            with pen.moved(0, y, 0.95, rng.uniform(-8, 8)):
                _nigiri(pen, salmon)
    else:
        pen.box((-48, -36), (96, 72), "#2a2320", 8)
        pen.box((-45, -33), (90, 66), "#3d332e", 6)
        with pen.moved(0, -14, 0.8):
            _nigiri(pen, salmon)
        for x in (-28, 0, 28):
            with pen.moved(x, 18, 0.58):
                _roll(pen, salmon)
    pen.line([(-46, 46), (46, 42)], "#a8703a", 3)


def _roll(pen: Pen, middle: str) -> None:
    pen.circle(0, 0, 23, "#15261c")
    pen.circle(0, 0, 19, "#fbfaf3")
    pen.circle(0, 0, 9, middle)


def _nigiri(pen: Pen, salmon: str) -> None:
    pen.ellipse((0, 8), (38, 13), "#fbfaf3")
    pen.path("M-42 4Q-38-16 0-17Q38-16 42 4Q20-2 0-2Q-20-2-42 4Z", salmon)
    for x in (-24, -10, 4, 18):
        pen.line([(x, -3), (x + 8, -14)], "#ffd9bd", 2.4)


def coffee(pen: Pen, rng: Random, variant: int) -> None:
    """A cup from the side, a cup from above, or a paper cup with beans."""
    brown = tone(rng, "#5a3319", 0.04)
    china = rng.choice(("#ffffff", "#f4ede2", "#e9e2d6"))
    if variant == 0:
        pen.ellipse((0, 38), (44, 8), shade(china, -0.15))
        pen.path("M28-10Q52-12 48 8Q44 24 24 22", "none", china, 7)
        pen.path("M-34-14H34Q34 34 12 36H-12Q-34 34-34-14Z", china)
        pen.ellipse((0, -14), (34, 9), shade(china, -0.1))
        pen.ellipse((0, -13), (30, 7), brown)
        for x in (-12, 2, 16):
            pen.path(f"M{x} -26q-7 -7 0 -12q7 -6 0 -12", "none", "#b9aca0", 3)
    elif variant == 1:
        pen.circle(0, 0, 47, shade(china, -0.1))
        pen.circle(0, 0, 36, china)
        pen.circle(0, 0, 30, brown)
        pen.circle(0, 0, 24, "#a86f3e")
        pen.path("M0 18C-20 2-16-14-7-14C-2-14 0-10 0-8C0-10 2-14 7-14C16-14 20 2 0 18Z", "#f5e4cc")
        pen.box((40, -6), (14, 12), china, 5)
    else:
        pen.path("M-26-26H26L19 46H-19Z", "#f7f1e6")
        pen.path("M-24-6H24L21 26H-21Z", "#8a5a30")
        pen.box((-30, -36), (60, 12), brown, 4)
        for x, y in ((-38, 40), (36, 38), (44, 24), (-42, 24)):
            pen.ellipse((x, y), (7, 5), brown)
            pen.line([(x - 5, y), (x + 5, y)], "#2a160a", 1.2)


def cake(pen: Pen, rng: Random, variant: int) -> None:
    """A birthday cake, a slice, or a cupcake."""
    cream = tone(rng, rng.choice(("#f7a8c4", "#f9bcd0", "#f291b5")), 0.03)
    sponge = tone(rng, "#b3713a", 0.03)
    if variant == 0:
        pen.box((-42, 4), (84, 38), sponge, 4)
        pen.box((-30, -22), (60, 28), sponge, 4)
        for x, y, w in ((-42, 4, 84), (-30, -22, 60)):
            pen.box((x, y), (w, 10), cream, 4)
            for step in range(int(w / 12)):
                pen.circle(x + 6 + 12 * step, y + 10, 6, cream)
        for x in (-18, 0, 18):
            pen.box((x - 2, -38), (4, 16), rng.choice(("#4aa3df", "#7ac74f", "#ffd54a")))
            pen.ellipse((x, -43), (3, 5), "#ffb020")
        pen.box((-48, 42), (96, 5), "#c9cdd2", 2)
    elif variant == 1:
        pen.path("M-44 4L40-22L46 4V40L-44 40Z", "#fbe3b5")
        pen.path("M-44 4L40-22L46 4Z", cream)
        pen.box((-44, 4), (90, 9), cream)
        pen.box((-44, 22), (90, 6), "#c62d42")
        pen.circle(24, -18, 8, "#d4182f")
        pen.line([(24, -26), (30, -38)], "#2e7d32", 2.5)
    else:
        pen.path("M-30 6H30L22 46H-22Z", "#6db7d9")
        for x in (-18, -6, 6, 18):
            pen.line([(x, 8), (x * 0.8, 44)], "#4c94b8", 2)
        for x, y, r in (
            (-20, 0, 16),
            (20, 0, 16),
            (0, 0, 18),
            (-10, -16, 14),
            (10, -16, 14),
            (0, -28, 11),
        ):
            pen.circle(x, y, r, tone(rng, cream, 0.02))
        pen.circle(0, -40, 7, "#d4182f")


def ice_cream(pen: Pen, rng: Random, variant: int) -> None:
    """A cone with scoops, an ice lolly, or a sundae."""
    flavours = ["#f6b3c8", "#a9dfc4", "#fff1cf", "#8a5a3c", "#c9b3ee"]
    rng.shuffle(flavours)
    if variant == 0:
        pen.polygon([(-22, 0), (22, 0), (0, 48)], "#d9994a")
        for shift in (-12, 0, 12):
            pen.line([(shift, 2), (shift / 2 + 5, 28)], "#a86c28", 1.5)
            pen.line([(shift, 2), (shift / 2 - 5, 28)], "#a86c28", 1.5)
        pen.circle(-13, -10, 17, flavours[0])
        pen.circle(13, -10, 17, flavours[1])
        pen.circle(0, -30, 17, flavours[2])
    elif variant == 1:
        pen.box((-5, 20), (10, 28), "#d8b078", 4)
        pen.box((-24, -48), (48, 74), flavours[0], 24)
        pen.box((-24, -14), (48, 40), flavours[1], 8)
        pen.box((-15, -34), (6, 50), shade(flavours[0], -0.12), 3)
        pen.box((9, -34), (6, 50), shade(flavours[0], -0.12), 3)
    else:
        for x, y, place in ((-18, -10, 0), (18, -10, 1), (0, -24, 2)):
            pen.circle(x, y, 18, flavours[place])
        pen.path("M-40 0H40Q34 30 6 32V40H20V46H-20V40H-6V32Q-34 30-40 0Z", "#9fd3ea")
        pen.line([(16, -22), (30, -48)], "#c98a3a", 6)
        pen.circle(-2, -42, 6, "#d4182f")
