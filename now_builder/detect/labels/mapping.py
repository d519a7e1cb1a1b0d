"""Map elements to classes by role, tag or input type; a TOML file can change the mapping."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from now_builder.config import Strict, build, read_toml
from now_builder.errors import ConfigError

IGNORE = "ignore"
"""Name of no class, for boxes that are not background either."""

CLASSES: tuple[tuple[str, str], ...] = (
    ("text", "文本"), ("heading", "标题"), ("link", "链接"), ("button", "按钮"), ("icon", "图标"),
    ("image", "图片"), ("banner", "横幅"), ("input", "输入框"), ("select", "下拉框"),
    ("checkbox", "复选框"), ("switch", "开关"), ("tab", "标签页"), ("navigation bar", "导航栏"),
    ("list item", "列表项"), ("card", "卡片"), ("dialog", "弹窗"), ("media", "媒体"),
    ("page indicator", "页面指示器"),
)  # fmt: skip
"""English and Chinese name of each class, by number.

Differs:
    The 18 class names of MUI-zh, on which APT was trained, are not public; these are ours.
"""

NAMES = tuple(english for english, _ in CLASSES)

_ROLES = {
    "alert": "dialog", "alertdialog": "dialog", "application": "media", "article": "card",
    "banner": "banner", "button": "button", "checkbox": "checkbox", "combobox": "select",
    "dialog": "dialog", "figure": "image", "heading": "heading", "iframe": "media", "img": "image",
    "link": "link", "listbox": "select", "listitem": "list item", "menubar": "navigation bar",
    "menuitem": "tab", "menuitemcheckbox": "checkbox", "menuitemradio": "checkbox",
    "meter": "page indicator", "navigation": "navigation bar", "option": "tab",
    "paragraph": "text", "progressbar": "page indicator", "radio": "checkbox", "row": "list item",
    "scrollbar": "page indicator", "searchbox": "input", "slider": "switch", "spinbutton": "input",
    "switch": "switch", "tab": "tab", "tablist": "navigation bar", "textbox": "input",
    "toolbar": "navigation bar", "tooltip": "dialog", "video": "media",
}  # fmt: skip
_TAGS = {
    "audio": "media", "button": "button", "canvas": "image", "dialog": "dialog", "embed": "media",
    "figure": "image", "h1": "heading", "h2": "heading", "h3": "heading", "h4": "heading",
    "h5": "heading", "h6": "heading", "iframe": "media", "img": "image", "li": "list item",
    "meter": "page indicator", "nav": "navigation bar", "object": "media", "picture": "image",
    "progress": "page indicator", "select": "select", "summary": "button", "svg": "image",
    "textarea": "input", "tr": "list item", "video": "media",
}  # fmt: skip
_INPUTS = {
    "button": "button", "checkbox": "checkbox", "image": "button", "radio": "checkbox",
    "range": "switch", "reset": "button", "submit": "button",
}  # fmt: skip
_GROUPS = {
    "text": ("text", "heading", "link"),
    "control": ("button", "input", "select", "checkbox", "switch", "tab", "page indicator"),
    "picture": ("icon", "image", "banner", "media"),
    "container": ("navigation bar", "list item", "card", "dialog"),
}
GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}
"""Group (COCO's supercategory) of each class of :data:`CLASSES`."""


class ClassMapping(Strict):
    """Classes, and the mapping of a page's elements to them.

    Rules by appearance (a small image is an icon, a padded link a button, a repeated block a card)
    use the names of :data:`CLASSES`; ``looks`` then renames the result.

    Attributes:
        classes: English and Chinese name of each class, by number.
        roles: Class by ARIA role; takes precedence.
        tags: Class by tag, if the role has none.
        inputs: Class by the type of an ``<input>``; other types are ``input``.
        looks: Class by name of :data:`CLASSES`; others keep their names.
    """

    classes: tuple[tuple[str, str], ...] = Field(CLASSES, min_length=1)
    roles: dict[str, str] = _ROLES
    tags: dict[str, str] = _TAGS
    inputs: dict[str, str] = _INPUTS
    looks: dict[str, str] = Field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        """English names by number."""
        return tuple(english for english, _ in self.classes)

    def final(self, name: str) -> str:
        """Return the class for a name of :data:`CLASSES`, or ``ignore``."""
        renamed = self.looks.get(name, name)
        return renamed if renamed in self.class_names else IGNORE

    def problems(self) -> Iterator[str]:
        """Yield the problems of the fields that were set."""
        names, expected = self.class_names, ", ".join([*self.class_names, IGNORE])
        for place, name in enumerate(names):
            if name in ("", IGNORE) or name in names[:place]:
                yield f"classes.{place}: found {name!r:.80}, expected a unique name"
        for key in self.looks.keys() - set(NAMES):
            yield f"looks.{key}: found {key!r:.80}, expected one of {', '.join(NAMES)}"
        for field in sorted(self.model_fields_set - {"classes"}):
            allowed = {*names, IGNORE, *(() if field == "looks" else self.looks)}
            for key, name in getattr(self, field).items():
                if name not in allowed:
                    yield f"{field}.{key}: found class {name!r:.80}, expected one of {expected}"


def read_mapping(path: Path) -> ClassMapping:
    """Read a mapping file; each of its tables replaces the whole default table.

    Raises:
        ConfigError: If it is missing, or has an unknown field or class.
    """
    mapping = build(ClassMapping, read_toml(path), str(path))
    for problem in mapping.problems():
        raise ConfigError(f"{path}: {problem}")
    return mapping


DEFAULT = ClassMapping()
