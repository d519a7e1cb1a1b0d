"""Drawings of games, instruments and other things; boards and keyboards fill the picture."""

import math
from random import Random

from now_builder.simweb.pen import Number, Pen, around, shade, tone


def clock(pen: Pen, rng: Random, variant: int) -> None:
    """A wall clock, an alarm clock, or a wrist watch."""
    case = tone(rng, ("#c9a227", "#3f6fa8", "#4a4f57")[variant], 0.05)
    radius = (46, 36, 30)[variant]
    if variant == 1:
        for side in (-1, 1):
            pen.circle(26 * side, -32, 13, shade(case, 0.2))
            pen.line([(20 * side, 30), (30 * side, 46)], shade(case, -0.3), 6)
        pen.line([(0, -36), (0, -46)], shade(case, -0.3), 5)
    elif variant == 2:
        pen.box((-16, -50), (32, 100), "#5b3620", 4)
        pen.box((28, -4), (9, 8), case, 2)
    pen.circle(0, 0, radius, case)
    pen.circle(0, 0, radius * 0.84, "#fdfbf5")
    for x, y, angle in around(12, radius * 0.7):
        inner = 0.84 if angle % 90 == 0 else 0.93
        pen.line([(x * inner, y * inner), (x, y)], "#222222", 3 if angle % 90 == 0 else 1.6)
    for length, width in ((0.42, 4.4), (0.64, 2.8)):
        turn = rng.uniform(0, 2 * math.pi)
        tip = (radius * length * math.cos(turn), radius * length * math.sin(turn))
        pen.line([(0, 0), tip], "#1b1b1b", width)
    pen.circle(0, 0, 3, "#c62828")


def football(pen: Pen, rng: Random, variant: int, width: Number) -> None:
    """A ball on grass, a ball before the goal, or a pitch from above."""
    grass = tone(rng, "#2f9a3f", 0.04)
    if variant == 2:
        _pitch(pen, rng, grass, width)
        return
    pen.box((0, 0), (width, 100), grass if variant == 0 else tone(rng, "#b9e0f2", 0.03))
    bottom = 0 if variant == 0 else 60
    for step in range(int(width / 18) + 1):
        if step % 2:
            pen.box((step * 18, bottom), (18, 100), shade(grass, -0.12))
        elif variant == 1:
            pen.box((step * 18, bottom), (18, 100), grass)
    if variant == 1:
        left, right = 0.12 * width, 0.88 * width
        for step in range(1, 12):
            string = left + (right - left) * step / 12
            pen.line([(string, 16), (string, 62)], "#eef4f6", 0.8)
        for row in (26, 36, 46, 56):
            pen.line([(left, row), (right, row)], "#eef4f6", 0.8)
        pen.line([(left, 64), (left, 14), (right, 14), (right, 64)], "#ffffff", 3.4)
    x, y = rng.uniform(0.3, 0.7) * width, (52, 72)[variant] + rng.uniform(-6, 6)
    with pen.moved(x, y, rng.uniform(0.7, 0.95) * (1, 0.62)[variant], rng.uniform(0, 72)):
        _soccer_ball(pen)


def _soccer_ball(pen: Pen) -> None:
    pen.ellipse((2, 6), (43, 41), "#1d5c28")
    pen.circle(0, 0, 42, "#ffffff")
    pen.polygon([(x, y) for x, y, _ in around(5, 14, -90)], "#17191c")
    for x, y, angle in around(5, 38, -90):
        pen.line([(x * 0.36, y * 0.36), (x * 0.72, y * 0.72)], "#17191c", 2)
        with pen.moved(x * 0.93, y * 0.93, 1, angle + 90):
            pen.polygon([(-11, 0), (0, 9), (11, 0), (8, -5), (-8, -5)], "#17191c")


def _pitch(pen: Pen, rng: Random, grass: str, width: Number) -> None:
    pen.box((0, 0), (width, 100), grass)
    for step in range(0, int(width / 14) + 1, 2):
        pen.box((step * 14, 0), (14, 100), shade(grass, -0.12))
    white = "#ffffff"
    for start, size in (
        ((5, 6), (width - 10, 88)),
        ((5, 28), (22, 44)),
        ((width - 27, 28), (22, 44)),
    ):
        (x, y), (w, h) = start, size
        pen.line([(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)], white, 1.8)
    pen.line([(width / 2, 6), (width / 2, 94)], white, 1.8)
    pen.ring((width / 2, 50), 16, white, 1.8)
    for color in ("#d8262f", "#2a4fd0"):
        for _ in range(5):
            pen.circle(rng.uniform(12, width - 12), rng.uniform(12, 88), 3.4, color)
    pen.circle(rng.uniform(0.3, 0.7) * width, rng.uniform(30, 70), 5, white)


def basketball(pen: Pen, rng: Random, variant: int) -> None:
    """A ball, a ball in the hoop, or a backboard."""
    orange = tone(rng, "#d9691e", 0.03)
    if variant == 0:
        _orange_ball(pen, orange)
        return
    pen.box((-46, -46), (92, 56), "#f7f7f7", 3)
    pen.line([(-46, -46), (46, -46), (46, 10), (-46, 10), (-46, -46)], "#c62828", 3)
    pen.line([(-16, -26), (16, -26), (16, 2), (-16, 2), (-16, -26)], "#c62828", 3)
    ball = (0, -8, 0.42) if variant == 1 else (28, 34, 0.38)
    with pen.moved(*ball):
        _orange_ball(pen, orange)
    pen.ellipse((0, 12), (24, 5), "none", "#e0451f")
    for step in range(7):
        x = -22 + step * 44 / 6
        pen.line([(x, 13), (x * 0.55, 46)], "#dfe3e6", 1.6)
    for y, half in ((22, 18), (32, 15), (42, 13)):
        pen.line([(-half, y), (half, y)], "#dfe3e6", 1.6)


def _orange_ball(pen: Pen, orange: str) -> None:
    pen.circle(0, 0, 46, orange)
    pen.circle(-12, -14, 22, shade(orange, 0.12))
    black = "#2a1408"
    pen.line([(-46, 0), (46, 0)], black, 3)
    pen.line([(0, -46), (0, 46)], black, 3)
    pen.path("M-32-33Q-8 0-32 33", "none", black, 3)
    pen.path("M32-33Q8 0 32 33", "none", black, 3)


def chess(pen: Pen, rng: Random, variant: int, width: Number) -> None:
    """A board from above, a knight before a board, or a row of pieces."""
    light, dark = tone(rng, "#f0dcb4", 0.02), tone(rng, "#7a4a28", 0.03)
    cell = (14, 20, 25)[variant]
    for row in range(100 // cell + 1):
        for column in range(int(width / cell) + 1):
            color = dark if (row + column) % 2 else light
            pen.box((column * cell, row * cell), (cell, cell), color)
    if variant == 0:
        for _ in range(9):
            column, row = rng.randrange(max(int(width / cell), 1)), rng.randrange(7)
            with pen.moved(column * cell + cell / 2, row * cell + cell / 2, 0.13):
                _pawn(pen, rng.choice(("#17140f", "#fffdf6")))
    elif variant == 1:
        with pen.moved(width / 2 + rng.uniform(-8, 8), 52, 0.92, 0, flip=rng.random() < 0.5):
            _knight(pen, rng.choice(("#17140f", "#fffdf6")))
    else:
        colors = ("#17140f", "#fffdf6")
        for step in range(max(int(width / 40), 2)):
            with pen.moved(22 + step * 40, 54, 0.7):
                (_pawn, _queen, _knight)[step % 3](pen, colors[step % 2])


def _pawn(pen: Pen, color: str) -> None:
    pen.path("M-24 44Q-10 20-9-4H9Q10 20 24 44Z", color, "#7a6a52", 2)
    pen.ellipse((0, -20), (17, 17), color, "#7a6a52")
    pen.box((-28, 42), (56, 9), color, 4)


def _queen(pen: Pen, color: str) -> None:
    pen.path("M-22 44Q-12 10-26-30L-12-14L0-42L12-14L26-30Q12 10 22 44Z", color, "#7a6a52", 2)
    pen.circle(0, -44, 6, color)
    pen.box((-28, 42), (56, 9), color, 4)


def _knight(pen: Pen, color: str) -> None:
    pen.path(
        "M-22 44Q-22 20-4 4Q-16 8-30 8L-36-4Q-22-18-14-34L-12-48L-2-38Q28-32 26 10Q26 30 22 44Z",
        color,
        "#7a6a52",
        2,
    )
    pen.circle(-10, -22, 3, "#b5651d")
    pen.box((-30, 42), (60, 9), color, 4)


def guitar(pen: Pen, rng: Random, variant: int) -> None:
    """An acoustic guitar, an electric one, or a ukulele, aslant."""
    wood = tone(rng, ("#c9853f", "#20242c", "#e0a860")[variant], 0.04)
    with pen.moved(0, 0, 1.05, rng.uniform(28, 50)):
        pen.box((-4, -52), (8, 56), "#4a2f1c", 1)
        pen.box((-7, -60), (14, 14), "#2f1d12", 3)
        for y in range(-42, 0, 8):
            pen.line([(-4, y), (4, y)], "#d9d2c2", 1)
        if variant == 1:
            pen.path("M-8-2Q-30-20-24 4Q-32 20-24 40Q0 54 24 40Q32 20 22 6Q28-16 8-2Z", wood)
            pen.path("M-10 8Q-20 24-10 38Q6 42 14 30Q8 14 6 4Z", "#f2f2f0")
            for y in (12, 24):
                pen.box((-9, y), (18, 6), "#8d939b", 2)
        else:
            for y, r in ((4, 19), (30, 26)):
                pen.circle(0, y, r, wood)
            pen.ring((0, 30), 24, shade(wood, -0.25), 1.6)
            pen.circle(0, 12, 9, "#2a170b")
            pen.box((-12, 36), (24, 5), "#3a2414", 2)
        for x in (-2.4, 0, 2.4):
            pen.line([(x, -50), (x, 38)], "#f3efe6", 0.7)


def piano(pen: Pen, rng: Random, variant: int, width: Number) -> None:
    """Keys from above, keys with notes over them, or a grand piano."""
    if variant == 2:
        pen.box((0, 0), (width, 100), tone(rng, "#b03a3a", 0.05))
        pen.box((0, 74), (width, 26), tone(rng, "#8a5f38", 0.03))
        with pen.moved(width / 2 + rng.uniform(-10, 10), 52):
            pen.path("M-44-4Q-40-46 6-44Q34-40 40-6Z", "#15161a")
            pen.path("M-34-6Q-28-36 6-35Q24-33 30-6Z", "#c49a45")
            pen.box((-48, -4), (96, 16), "#1f2026", 3)
            pen.box((-44, 10), (60, 6), "#ffffff")
            for x in range(-40, 16, 7):
                pen.box((x, 10), (3, 4), "#111111")
            for x in (-40, 36):
                pen.box((x, 12), (6, 32), "#15161a")
        return
    top = 0 if variant == 0 else rng.uniform(34, 46)
    pen.box((0, 0), (width, 100), "#26262b" if variant == 0 else tone(rng, "#ece6da", 0.03))
    key = rng.uniform(11, 15)
    start = top + (14 if variant == 0 else 0)
    for step in range(int(width / key) + 1):
        pen.box((step * key + 0.6, start), (key - 1.2, 100 - start), "#fdfdfb", 2)
    for step in range(int(width / key) + 1):
        if step % 7 not in {0, 3}:
            pen.box((step * key - key * 0.3, start), (key * 0.6, (100 - start) * 0.6), "#121214", 1)
    if variant == 1:
        for _ in range(4):
            note, y = rng.uniform(8, width - 8), rng.uniform(20, top - 6)
            stem = note + 4.4
            pen.ellipse((note, y), (5, 3.6), "#121214")
            pen.line([(stem, y), (stem, y - 16), (stem + 6, y - 12)], "#121214", 1.8)
