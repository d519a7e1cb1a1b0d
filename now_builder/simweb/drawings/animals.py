"""Drawings of animals, around the origin, about 90 units across."""

from random import Random

from now_builder.simweb.pen import Pen, shade, tone


def cat(pen: Pen, rng: Random, variant: int) -> None:
    """A cat's face, a sitting cat, or a lying one."""
    fur = tone(rng, rng.choice(("#e08a3c", "#d97f33", "#5a5a62", "#3a3a40")), 0.04)
    if variant == 0:
        with pen.moved(0, 4, 1.05):
            _cat_face(pen, fur)
    elif variant == 1:
        pen.path("M22 40Q50 36 42 4Q40-8 34-2", "none", shade(fur, -0.12), 8)
        pen.path("M-22 46Q-32-2 0-8Q32-2 22 46Z", fur)
        pen.ellipse((0, 30), (11, 15), shade(fur, 0.55))
        with pen.moved(0, -20, 0.62):
            _cat_face(pen, fur)
    else:
        pen.path("M34 26Q52 18 46-4", "none", shade(fur, -0.12), 8)
        pen.ellipse((8, 20), (38, 20), fur)
        for x in (2, 14, 26):
            pen.line([(x, 4), (x + 2, 18)], shade(fur, -0.3), 4)
        pen.ellipse((-14, 38), (14, 6), shade(fur, 0.2))
        with pen.moved(-24, -4, 0.56):
            _cat_face(pen, fur)


def _cat_face(pen: Pen, fur: str) -> None:
    for side in (-1, 1):
        pen.polygon([(38 * side, -6), (34 * side, -46), (8 * side, -30)], fur)
        pen.polygon([(33 * side, -16), (31 * side, -38), (15 * side, -28)], "#f4a9b0")
    pen.ellipse((0, 4), (40, 35), fur)
    for x in (-9, 0, 9):
        pen.line([(x, -30), (x * 0.7, -18)], shade(fur, -0.35), 3.5)
    for side in (-1, 1):
        pen.ellipse((16 * side, -2), (8, 9), "#c9e265")
        pen.ellipse((16 * side, -2), (2.6, 8), "#15150f")
        for y in (14, 20, 26):
            pen.line([(14 * side, 17), (42 * side, y)], "#f7f3ec", 1.3)
    pen.ellipse((0, 20), (15, 10), shade(fur, 0.6))
    pen.polygon([(-5, 12), (5, 12), (0, 18)], "#e0707c")
    pen.path("M0 18Q-5 26-10 22M0 18Q5 26 10 22", "none", "#5a2f2f", 1.6)


def fish(pen: Pen, rng: Random, variant: int) -> None:
    """A goldfish, a striped clownfish, or a school of small fish, with bubbles."""
    orange = tone(rng, "#ff7a1a", 0.04)
    for _ in range(5):
        pen.ellipse((rng.uniform(-46, 46), rng.uniform(-46, 0)), (3, 3), "#d9f3ff")
    if variant == 2:
        for x, y in ((-22, -22), (22, -8), (-10, 14), (24, 30)):
            with pen.moved(x, y, 0.45):
                _one_fish(pen, tone(rng, orange, 0.06), 0)
    else:
        _one_fish(pen, orange, variant)


def _one_fish(pen: Pen, color: str, variant: int) -> None:
    pen.path("M26 0Q48-30 50-22Q44 0 50 22Q48 30 26 0Z", shade(color, -0.12))
    pen.path("M-6-20Q6-44 20-18Z", shade(color, -0.12))
    pen.path("M-4 20Q4 38 14 17Z", shade(color, -0.12))
    pen.path("M-46 2Q-26-28 4-22Q24-16 32 0Q24 16 4 22Q-26 28-46 2Z", color)
    if variant == 1:
        pen.path("M-22-18Q-14 0-22 20L-12 23Q-4 0-12-22Z", "#ffffff")
        pen.path("M8-21Q16 0 8 21L16 18Q24 0 16-18Z", "#ffffff")
    else:
        for x in (-8, 4, 16):
            pen.path(f"M{x} -10q6 5 0 10q6 5 0 10", "none", shade(color, 0.35), 2)
    pen.circle(-31, -4, 5, "#ffffff")
    pen.circle(-32, -4, 2.6, "#111111")


def butterfly(pen: Pen, rng: Random, variant: int) -> None:
    """A butterfly with round, pointed or spotted wings."""
    wing = tone(rng, ("#2f6fe0", "#3a59d6", "#1f8fe0")[variant], 0.04)
    rim = "#15182e"
    upper = (
        "M2-2C10-46 50-50 48-20C46 2 20 6 2 2Z",
        "M2-2C20-30 46-48 50-40C50-10 28 4 2 4Z",
        "M2-2C6-40 36-52 46-34C52-14 28 6 2 2Z",
    )[variant]
    lower = "M2 2C24 4 40 14 34 34C24 50 6 34 2 8Z"
    for flip in (False, True):
        with pen.moved(0, 0, 1, 0, flip=flip):
            for data in (lower, upper):
                pen.path(data, wing, rim, 3.5)
            pen.circle(32, -24, 7 if variant == 2 else 4, "#ffd23f" if variant == 2 else "#bfe1ff")
            pen.circle(22, 22, 6, "#ff8f3f" if variant else "#9ad0ff")
            pen.line([(6, 0), (36, -14)], rim, 1.5)
            pen.path("M1-18Q6-36 14-40", "none", rim, 1.8)
    pen.ellipse((0, 2), (4, 22), rim)


def penguin(pen: Pen, rng: Random, variant: int) -> None:
    """A penguin from the front, one from the side, or a mother and her chick."""
    black = tone(rng, "#1d222b", 0.03)
    if variant == 2:
        with pen.moved(-14, 0, 0.95):
            _front_penguin(pen, black)
        with pen.moved(28, 22, 0.5):
            _front_penguin(pen, "#8a929e")
    elif variant == 1:
        pen.path(
            "M-6-44C22-46 28-20 28 8C28 34 18 46-2 46C-22 46-16 20-18-10C-20-34-14-43-6-44Z", black
        )
        pen.path("M-14-16C-20 10-20 44-2 44C12 42 6 8-2-12Z", "#ffffff")
        pen.path("M10-10C34 4 32 26 26 34C16 22 8 8 10-10Z", shade(black, 0.2))
        pen.polygon([(-16, -34), (-38, -28), (-16, -26)], "#f59a1c")
        pen.circle(-8, -33, 3, "#ffffff")
        pen.box((-16, 43), (26, 6), "#f59a1c", 3)
    else:
        _front_penguin(pen, black)


def _front_penguin(pen: Pen, black: str) -> None:
    for side in (-1, 1):
        pen.path(
            f"M{24 * side}-10Q{46 * side} 10 {36 * side} 28Q{26 * side} 18 {22 * side} 6Z", black
        )
        pen.ellipse((13 * side, 45), (11, 4.5), "#f59a1c")
    pen.ellipse((0, 12), (30, 34), black)
    pen.circle(0, -24, 22, black)
    pen.ellipse((0, 18), (21, 27), "#ffffff")
    for side in (-1, 1):
        pen.ellipse((8 * side, -22), (9, 11), "#ffffff")
        pen.circle(7 * side, -24, 3, "#111111")
    pen.polygon([(-7, -16), (7, -16), (0, -6)], "#f59a1c")
