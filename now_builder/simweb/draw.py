"""Draw a picture of a topic: which drawing, where, how often, how large, on what ground."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from now_builder.simweb.drawings import animals, food, nature, things, travel
from now_builder.simweb.pen import Number, Pen, Picture, shade, tone

VARIANTS = 3
Thing = Callable[[Pen, Random, int], None]
Scene = Callable[[Pen, Random, int, Number], None]
Ground = Callable[[Pen, Random, Number], None]


@dataclass(frozen=True, slots=True)
class Drawing:
    """How a topic is drawn.

    Attributes:
        thing: Draws around the origin, to be placed once or several times; or
        scene: Fills the whole picture.
        ground: Where the thing is mostly found; without it, on any colour.
        turn: Largest angle by which the thing is turned, in degrees.
        crowd: Most copies in a picture.
    """

    thing: Thing | None = None
    scene: Scene | None = None
    ground: Ground | None = None
    turn: Number = 12
    crowd: int = 3


_PLAIN = (
    "#ffffff", "#f3f1ec", "#ece7df", "#e3e9ee", "#dfe8e0", "#efe3dc", "#e9e2ee", "#d5dbe0",
    "#c9d3cf", "#d9cfc4", "#f7efe0", "#dde6f0",
)  # fmt: skip
_SKY = ("#a9d8f5", "#bfe3f7", "#8fc7ee", "#cfe6f2", "#f6dcc0")


def draw(topic: str, rng: Random, width: Number, variant: int | None = None) -> Picture:
    """Draw a picture of a topic, of height 100; by default of any variant."""
    drawing = TOPICS[topic]
    variant = rng.randrange(VARIANTS) if variant is None else variant
    pen = Pen()
    if drawing.scene is not None:
        drawing.scene(pen, rng, variant, width)
    elif drawing.thing is not None:
        _lay_ground(pen, rng, drawing.ground, width)
        for x, y, scale in _places(rng, width, drawing.crowd):
            angle = rng.uniform(-drawing.turn, drawing.turn)
            with pen.moved(x, y, scale, angle, flip=rng.random() < 0.5):
                drawing.thing(pen, rng, variant)
    return Picture(width, tuple(pen.shapes))


def _places(rng: Random, width: Number, crowd: int) -> list[tuple[Number, Number, Number]]:
    """Choose where copies stand: x, y and scale each, in a row or in two."""
    count = rng.choice((1, 1, *range(1, crowd + 1)))
    fitting = max(1, min(count, round(width / 60)))
    if count == 1:
        scale = min(rng.uniform(0.72, 0.95), width / 105)
        x = width / 2 + rng.uniform(-0.5, 0.5) * max(width - 100 * scale, 0)
        return [(x, 50 + rng.uniform(-1, 1) * (48 - 48 * scale), scale)]
    places = []
    for step in range(fitting):
        cell = width / fitting
        scale = min(rng.uniform(0.62, 0.85), cell / 100)
        free = 46 - 46 * scale
        places.append((cell * (step + 0.5), 50 + rng.uniform(-1, 1) * free, scale))
    return places


def _lay_ground(pen: Pen, rng: Random, ground: Ground | None, width: Number) -> None:
    if ground is None or rng.random() < 0.15:
        pen.box((0, 0), (width, 100), tone(rng, rng.choice(_PLAIN), 0.02))
        if rng.random() < 0.4:
            y = rng.uniform(62, 84)
            pen.box((0, y), (width, 100 - y), tone(rng, rng.choice(_PLAIN), 0.04))
        return
    ground(pen, rng, width)


def _sky(pen: Pen, rng: Random, width: Number) -> None:
    pen.box((0, 0), (width, 100), tone(rng, rng.choice(_SKY), 0.03))


def _grass(pen: Pen, rng: Random, width: Number) -> None:
    _sky(pen, rng, width)
    y = rng.uniform(70, 84)
    green = tone(rng, "#7fb560", 0.05)
    pen.path(f"M0 {y:.0f}Q{width / 2:.0f} {y - 8:.0f} {width:.0f} {y + 3:.0f}V100H0Z", green)


def _moss(pen: Pen, rng: Random, width: Number) -> None:
    pen.box((0, 0), (width, 100), tone(rng, "#a9bf8f", 0.05))
    pen.box((0, rng.uniform(74, 86)), (width, 40), tone(rng, "#6b5a3a", 0.05))


def _meadow(pen: Pen, rng: Random, width: Number) -> None:
    green = tone(rng, "#cfe8a8", 0.05)
    pen.box((0, 0), (width, 100), green)
    for _ in range(14):
        x, y = rng.uniform(0, width), rng.uniform(50, 100)
        pen.line([(x, y), (x + rng.uniform(-3, 3), y - 9)], shade(green, -0.25), 1.6)


def _slate(pen: Pen, rng: Random, width: Number) -> None:
    pen.box((0, 0), (width, 100), tone(rng, rng.choice(("#5d6b74", "#6f6558", "#4d5a57")), 0.04))


def _rain(pen: Pen, rng: Random, width: Number) -> None:
    pen.box((0, 0), (width, 100), tone(rng, "#b9c3cd", 0.05))


def _snow(pen: Pen, rng: Random, width: Number) -> None:
    pen.box((0, 0), (width, 100), tone(rng, "#7fb2dc", 0.06))
    y = rng.uniform(66, 80)
    pen.path(f"M0 {y:.0f}Q{width / 3:.0f} {y - 9:.0f} {width:.0f} {y + 4:.0f}V100H0Z", "#f2f7fb")
    nature.flakes(pen, rng, width)


def _water(pen: Pen, rng: Random, width: Number) -> None:
    pen.box((0, 0), (width, 100), tone(rng, rng.choice(("#1f9fb8", "#2387b5", "#2bb0b0")), 0.04))
    for _ in range(4):
        x = rng.uniform(0, width)
        pen.path(f"M{x:.0f} 100q-7 -12 0 -22q7 -10 0 -20", "none", "#2f7d4a", 3.4)


def _space(pen: Pen, rng: Random, width: Number) -> None:
    pen.box((0, 0), (width, 100), tone(rng, rng.choice(("#141a3a", "#1c1540", "#0f2038")), 0.03))
    nature.stars(pen, rng, width)


def _road(pen: Pen, rng: Random, width: Number) -> None:
    _sky(pen, rng, width)
    y = rng.uniform(58, 70)
    pen.box((0, y), (width, 100 - y), tone(rng, "#6d7176", 0.04))
    for step in range(int(width / 22) + 1):
        pen.box((step * 22, 88), (12, 2.4), "#f2efe2")


TOPICS: dict[str, Drawing] = {
    "banana": Drawing(food.banana, turn=40),
    "strawberry": Drawing(food.strawberry, turn=35, crowd=4),
    "watermelon": Drawing(food.watermelon, turn=20),
    "pizza": Drawing(food.pizza, turn=180, crowd=2),
    "sushi": Drawing(food.sushi, ground=_slate, turn=10, crowd=2),
    "coffee": Drawing(food.coffee, turn=4),
    "cake": Drawing(food.cake, turn=4),
    "ice_cream": Drawing(food.ice_cream, turn=14),
    "sea": Drawing(scene=nature.sea),
    "forest": Drawing(scene=nature.forest),
    "mountain": Drawing(scene=nature.mountain),
    "desert": Drawing(scene=nature.desert),
    "sunflower": Drawing(nature.sunflower, ground=_sky, turn=8),
    "tulip": Drawing(nature.tulip, turn=6),
    "mushroom": Drawing(nature.mushroom, ground=_moss, turn=8),
    "clock": Drawing(things.clock, turn=6, crowd=2),
    "umbrella": Drawing(nature.umbrella, ground=_rain, turn=14, crowd=2),
    "snowman": Drawing(nature.snowman, ground=_snow, turn=4, crowd=2),
    "cat": Drawing(animals.cat, turn=8, crowd=2),
    "fish": Drawing(animals.fish, ground=_water, turn=14),
    "butterfly": Drawing(animals.butterfly, ground=_meadow, turn=40),
    "penguin": Drawing(animals.penguin, ground=_snow, turn=4),
    "car": Drawing(travel.car, ground=_road, turn=2, crowd=2),
    "bicycle": Drawing(travel.bicycle, turn=4, crowd=2),
    "tent": Drawing(travel.tent, ground=_grass, turn=2, crowd=2),
    "aeroplane": Drawing(travel.aeroplane, ground=_sky, turn=20, crowd=2),
    "train": Drawing(travel.train, ground=_sky, turn=0, crowd=1),
    "rocket": Drawing(travel.rocket, ground=_space, turn=30, crowd=2),
    "house": Drawing(travel.house, ground=_grass, turn=0, crowd=2),
    "castle": Drawing(travel.castle, ground=_sky, turn=0, crowd=1),
    "football": Drawing(scene=things.football),
    "basketball": Drawing(things.basketball, turn=30, crowd=2),
    "chess": Drawing(scene=things.chess),
    "guitar": Drawing(things.guitar, turn=20, crowd=2),
    "piano": Drawing(scene=things.piano),
    "balloon": Drawing(travel.balloon, ground=_sky, turn=5),
}
"""Every topic that can be drawn. The names never leave this process."""
