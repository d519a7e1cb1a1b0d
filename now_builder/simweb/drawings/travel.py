"""Drawings of vehicles and buildings, around the origin, about 90 units across."""

from random import Random

from now_builder.simweb.pen import Number, Pen, around, shade, tone


def car(pen: Pen, rng: Random, variant: int) -> None:
    """A saloon, a small car, or a van."""
    paint = tone(rng, rng.choice(("#c81e2b", "#d3222a", "#b3131f")), 0.04)
    windows: tuple[str, ...]
    if variant == 0:
        pen.path("M-48 18V4Q-46-4-34-6L-20-24Q-16-28-8-28H12Q20-28 25-22L34-8Q48-6 48 6V18Z", paint)
        windows = ("M-26-7L-15-21Q-13-23-8-23H-2V-7Z", "M4-7V-23H11Q17-23 20-19L27-7Z")
    elif variant == 1:
        pen.path("M-44 18V0Q-42-8-34-10Q-28-36-2-36Q26-36 32-10Q44-6 44 4V18Z", paint)
        windows = ("M-27-11Q-22-29-4-30V-11Z", "M2-11V-30Q20-29 25-11Z")
    else:
        pen.path("M-48 18V-26Q-48-32-42-32H22Q30-32 34-24L42-4Q48-2 48 6V18Z", paint)
        windows = ("M-42-26H-24V-8H-42Z", "M-19-26H-1V-8H-19Z", "M4-26H20Q25-26 27-21L33-8H4Z")
    for data in windows:
        pen.path(data, "#bfe0f0")
    pen.box((-48, 6), (96, 4), shade(paint, -0.25))
    pen.circle(44, 3, 3.5, "#fff3b0")
    for x in (-26, 26):
        pen.circle(x, 20, 13, "#1b1b1d")
        pen.circle(x, 20, 6, "#c9ccd1")


def bicycle(pen: Pen, rng: Random, variant: int) -> None:
    """A racer, a city bicycle with a basket, or one with small wheels."""
    frame = tone(rng, rng.choice(("#138f86", "#0f9b8e", "#128a7a")), 0.04)
    radius = (22, 21, 15)[variant]
    y = 20 + (22 - radius)
    for x in (-27, 27):
        pen.ring((x, y), radius, "#26282c", 4)
        for dx, dy, _ in around(8, radius - 2, rng.uniform(0, 40)):
            pen.line([(x, y), (x + dx, y + dy)], "#9aa0a6", 0.8)
    seat, bars, crank = (-14, -18), (17, -24), (-4, y)
    for points in ([(-27, y), seat], [(-27, y), crank], [seat, crank], [crank, (18, -14)],
                   [(-13, -12), (18, -14)], [bars, (27, y)]):  # fmt: skip
        pen.line(points, frame, 4.4)
    pen.line([(-23, -20), (-6, -20)], "#2a1c14", 6)
    if variant == 0:
        pen.path("M17-24H28Q34-22 30-14", "none", "#26282c", 4)
    else:
        pen.path("M17-24L16-32H6", "none", "#26282c", 4)
    if variant == 1:
        pen.box((22, -28), (22, 16), "#b98848", 3)
        pen.line([(22, -20), (44, -20)], "#8a5f2a", 2)
        pen.path("M-48 14Q-44-6-22 0", "none", frame, 3)
    pen.circle(*crank, 5, "#26282c")


def aeroplane(pen: Pen, rng: Random, variant: int) -> None:
    """A jet from the side, one from above, or a propeller plane; with clouds."""
    body = rng.choice(("#f4f6f8", "#e9eef2"))
    accent = tone(rng, "#2458b8")
    for _ in range(2):
        x, y = rng.uniform(-34, 34), rng.choice((-36, 36)) + rng.uniform(-5, 5)
        for dx, r in ((-9, 6), (0, 9), (9, 6)):
            pen.circle(x + dx, y, r, "#ffffff")
    if variant == 0:
        pen.path("M-48-2L-44-30L-34-30L-20-8H26Q46-6 48 4Q44 12 26 12H-30Q-46 10-48-2Z", body)
        pen.path("M-44-30L-34-30L-20-8L-47-8Z", accent)
        pen.polygon([(-6, 6), (14, 6), (-16, 36), (-26, 36)], shade(body, -0.28))
        for x in range(-18, 30, 8):
            pen.box((x, -3), (4, 5), "#3a5f8a", 1.5)
    elif variant == 1:
        pen.polygon([(0, -12), (48, 14), (48, 22), (0, 8), (-48, 22), (-48, 14)], shade(body, -0.2))
        pen.polygon([(0, 26), (20, 40), (20, 45), (0, 40), (-20, 45), (-20, 40)], accent)
        pen.path("M0-50Q8-44 8-30V30Q6 46 0 48Q-6 46-8 30V-30Q-8-44 0-50Z", body)
        pen.path("M-5-38Q0-44 5-38L4-33H-4Z", "#3a5f8a")
    else:
        pen.path("M-46-4Q-40-12-30-8L26-10Q40-8 40 4Q40 14 24 14Q-20 12-46-4Z", accent)
        pen.polygon([(-46, -6), (-46, -26), (-36, -24), (-28, -8)], accent)
        pen.box((-14, -22), (44, 6), body, 3)
        pen.line([(-4, -18), (-4, -6)], "#555555", 2)
        pen.line([(20, -18), (20, -6)], "#555555", 2)
        pen.ellipse((44, 3), (2.5, 20), "#777c82")
        pen.circle(16, 20, 6, "#222222")


def train(pen: Pen, rng: Random, variant: int) -> None:
    """A steam engine, a fast train, or a tram from the front."""
    paint = tone(rng, ("#1f5a3a", "#1f5f46", "#23663f")[variant], 0.04)
    for x in range(-48, 48, 12):
        pen.box((x, 42), (6, 5), "#6b4a2c")
    pen.box((-50, 38), (100, 4), "#6f757c")
    if variant == 0:
        pen.box((-42, -30), (28, 50), paint, 3)
        pen.box((-46, -36), (36, 7), "#222222", 3)
        pen.box((-36, -22), (16, 16), "#f5e3a6", 2)
        pen.box((-16, -10), (52, 30), paint, 8)
        pen.box((18, -30), (10, 22), "#222222", 2)
        for x, y, r in ((26, -38, 7), (14, -44, 9), (0, -46, 8)):
            pen.circle(x, y, r, "#c9ccd0")
        pen.polygon([(34, 20), (48, 34), (34, 34)], "#8a1f1f")
        for x, r in ((-30, 13), (-4, 11), (20, 11)):
            pen.circle(x, 27, r, "#b3261e")
            pen.circle(x, 27, r * 0.4, "#e9d9a0")
    elif variant == 1:
        pen.path("M-50-20H10Q42-16 50 22Q50 34 40 34H-50Z", "#f2f4f5")
        pen.path("M-50 12H46Q50 24 48 28H-50Z", paint)
        pen.path("M14-14Q34-10 40 4H14Z", "#25313d")
        for x in (-44, -26, -8):
            pen.box((x, -12), (13, 13), "#25313d", 2)
    else:
        pen.box((-30, -40), (60, 76), paint, 12)
        pen.box((-24, -26), (48, 30), "#cfe6f2", 5)
        pen.line([(0, -26), (0, 4)], paint, 3)
        pen.box((-16, -37), (32, 8), "#ffcf4a", 2)
        for x in (-19, 19):
            pen.circle(x, 18, 6, "#fff3b0")
        pen.line([(-14, -40), (0, -50), (14, -40)], "#333333", 2)
        pen.box((-32, 26), (64, 8), "#2a2d31", 3)


def rocket(pen: Pen, rng: Random, variant: int) -> None:
    """A rocket in flight, a shuttle, or a rocket beside a ringed planet."""
    red = tone(rng, "#e2382e", 0.04)
    if variant == 2:
        pen.circle(-24, 20, 20, tone(rng, "#c98a4a"))
        pen.path("M-52 30Q-24 26 4 8", "none", "#f0d9a0", 4)
    scale = 0.72 if variant == 2 else 1
    with pen.moved(18 if variant == 2 else 0, -8 if variant == 2 else 0, scale, 25):
        pen.path("M-9 28Q-14 44 0 52Q14 44 9 28Z", "#ffae1f")
        pen.path("M-5 28Q-7 38 0 43Q7 38 5 28Z", "#fff1a8")
        pen.path("M-16 6L-32 30L-12 26Z", red)
        pen.path("M16 6L32 30L12 26Z", red)
        pen.path("M0-50C18-34 20 0 13 29H-13C-20 0-18-34 0-50Z", "#eef1f4")
        pen.path("M0-50C8-43 12-34 14-26H-14C-12-34-8-43 0-50Z", red)
        pen.circle(0, -10, 8, "#3c4654")
        pen.circle(0, -10, 5.5, "#7fd0ee")
        if variant == 1:
            for side in (-1, 1):
                pen.box((side * 20 - 5, -16), (10, 46), "#d98a3a", 5)


def house(pen: Pen, rng: Random, variant: int) -> None:
    """A cottage, a half-timbered house with two floors, or a log cabin."""
    roof = tone(rng, "#a8422a", 0.04)
    wall = tone(rng, ("#f6e7c8", "#f3efe4", "#9c6b3c")[variant], 0.03)
    if variant == 0:
        pen.box((18, -40), (10, 22), "#8a4a3a")
        pen.box((-36, -6), (72, 50), wall)
        pen.polygon([(-46, -4), (0, -44), (46, -4)], roof)
        windows = ((-26, 6), (12, 6))
    elif variant == 1:
        pen.box((-32, -18), (64, 64), wall)
        pen.polygon([(-40, -16), (-18, -46), (18, -46), (40, -16)], roof)
        for points in ([(-32, 14), (32, 14)], [(-32, -16), (-32, 46)], [(32, -16), (32, 46)],
                       [(-32, 14), (-10, -16)], [(32, 14), (10, -16)]):  # fmt: skip
            pen.line(points, "#5b3a22", 4)
        windows = ((-24, 20), (10, 20))
    else:
        pen.box((-40, -2), (80, 46), wall)
        for y in range(4, 44, 8):
            pen.line([(-40, y), (40, y)], "#6e4622", 2)
        pen.polygon([(-48, 0), (-2, -42), (48, 0)], roof)
        windows = ((-30, 10), (14, 10))
    for x, y in windows:
        pen.box((x, y), (15, 15), "#ffffff")
        pen.box((x + 1.5, y + 1.5), (12, 12), "#8cc7e6")
        pen.line([(x + 7.5, y + 1), (x + 7.5, y + 14)], "#ffffff", 1.5)
    pen.box((-7, 20), (14, 25), "#6b3f22", 2)
    pen.box((-50, 44), (100, 6), "#69a84f")


def castle(pen: Pen, rng: Random, variant: int) -> None:
    """A keep with two towers, one with pointed roofs, or a single tower on a hill."""
    stone = tone(rng, "#8e8a84", 0.04)
    if variant == 2:
        pen.path("M-50 50Q0 6 50 50Z", "#5c8a4a")
        towers = [(-12, -36, 24, 70)]
    else:
        towers = [(-46, -26, 24, 72), (22, -26, 24, 72)]
        _battlement(pen, (-24, -4, 48, 50), stone)
    for tower in towers:
        x, y, w, _ = tower
        _battlement(pen, tower, shade(stone, 0.12))
        if variant == 1:
            pen.polygon([(x - 3, y), (x + w / 2, y - 24), (x + w + 3, y)], "#3f5fa8")
        pen.box((x + w / 2 - 3, y + 14), (6, 14), "#3a3733", 3)
        pen.line([(x + w / 2, y - 6), (x + w / 2, y - 22)], "#4a4a4a", 1.6)
        pen.polygon([(x + w / 2, y - 22), (x + w / 2 + 12, y - 18), (x + w / 2, y - 14)], "#d62f3a")
    x = 0
    pen.path(f"M{x - 9} 46V24Q{x - 9} 12 {x} 12Q{x + 9} 12 {x + 9} 24V46Z", "#4a3220")


def _battlement(pen: Pen, place: tuple[Number, Number, Number, Number], stone: str) -> None:
    x, y, w, h = place
    pen.box((x, y), (w, h), stone)
    for step in range(int(w // 12) + 1):
        if x + step * 12 + 7 <= x + w + 1:
            pen.box((x + step * 12, y - 6), (7, 7), stone)
    for row in range(1, int(h / 12)):
        pen.line(
            [(x + 3 + row % 2 * 6, y + row * 12), (x + 9 + row % 2 * 6, y + row * 12)],
            shade(stone, -0.2),
            1.6,
        )


def tent(pen: Pen, rng: Random, variant: int) -> None:
    """A ridge tent, a dome tent, or a tent beside a camp fire."""
    cloth = tone(rng, rng.choice(("#b7c42e", "#c4cf2a", "#a9b82a")), 0.04)
    x, scale = (-14, 0.8) if variant == 2 else (0, 1)
    with pen.moved(x, 0, scale):
        if variant == 1:
            pen.path("M-46 38Q-42-30 0-32Q42-30 46 38Z", cloth)
            pen.path("M-46 38Q-42-30 0-32Q-22 0-22 38Z", shade(cloth, -0.18))
            pen.path("M-12 38Q-10 0 2-6Q16 4 18 38Z", "#3a3320")
        else:
            pen.polygon([(-48, 38), (0, -38), (48, 38)], cloth)
            pen.polygon([(-48, 38), (0, -38), (-14, 38)], shade(cloth, -0.2))
            pen.polygon([(-14, 38), (0, -18), (16, 38)], "#3a3320")
            pen.line([(0, -38), (0, -46)], "#6b4a2a", 3)
        pen.line([(-48, 38), (-52, 44)], "#8a7a5a", 2)
        pen.line([(48, 38), (52, 44)], "#8a7a5a", 2)
    if variant == 2:
        pen.line([(24, 42), (44, 34)], "#5b3a20", 5)
        pen.line([(24, 34), (44, 42)], "#5b3a20", 5)
        pen.path("M34 34Q20 22 32 2Q36 14 42 12Q48 26 34 34Z", "#ff8a1a")
        pen.path("M34 34Q28 26 34 16Q42 26 34 34Z", "#ffe07a")


def balloon(pen: Pen, rng: Random, variant: int) -> None:
    """A hot-air balloon, one with zigzags, or two in the sky."""
    colors = [("#e33d3d", "#ffd23f"), ("#8e3fb5", "#ffd23f"), ("#e33d3d", "#3f8fe0")]
    main, other = rng.choice(colors)
    if variant == 2:
        with pen.moved(-18, 6, 0.72):
            _one_balloon(pen, (main, other), 0)
        with pen.moved(28, -18, 0.48):
            _one_balloon(pen, ("#ff8f2a", "#3fb58e"), 1)
    else:
        _one_balloon(pen, (main, other), variant)


def _one_balloon(pen: Pen, colors: tuple[str, str], variant: int) -> None:
    main, other = colors
    pen.line([(-10, 18), (-7, 36)], "#6b5030", 1.6)
    pen.line([(10, 18), (7, 36)], "#6b5030", 1.6)
    pen.path(
        "M-11 22C-36 6-40-12-38-20C-34-40-16-48 0-48C16-48 34-40 38-20C40-12 36 6 11 22Z", main
    )
    if variant == 0:
        pen.path("M-5 22C-20 0-20-30 0-48C-30-40-28 0-11 22Z", other)
        pen.path("M5 22C20 0 20-30 0-48C30-40 28 0 11 22Z", other)
    else:
        pen.path(
            "M-38-20L-26-8L-13-20L0-8L13-20L26-8L38-20L37-8L26 4L13-8L0 4L-13-8L-26 4L-37-8Z", other
        )
    pen.box((-9, 36), (18, 12), "#8a5a2a", 2)
