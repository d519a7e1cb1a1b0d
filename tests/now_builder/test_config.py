"""Settings: strict, overridable, and clear about what is wrong."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, Field, SerializeAsAny

from now_builder.config import Strict, build, read_toml, to_toml, with_overrides
from now_builder.errors import ConfigError, FormatError, NowError


class Inner(Strict):
    rate: float = Field(default=0.5, ge=0, le=1)
    names: list[str] = Field(default_factory=list)


class Outer(Strict):
    inner: Inner = Field(default_factory=Inner)
    seed: int = 0


def test_an_override_sets_one_value_and_leaves_the_tree_it_was_given_alone() -> None:
    tree = {"inner": {"rate": 0.1}}
    changed = with_overrides(tree, ["inner.rate=0.9", "seed=3", "inner.names=['a', 'b']"])
    assert changed == {"inner": {"rate": 0.9, "names": ["a", "b"]}, "seed": 3}
    assert tree == {"inner": {"rate": 0.1}}


def test_an_override_that_is_not_toml_is_text_and_one_of_the_wrong_form_is_refused() -> None:
    for text in ("bpe", "9" * 4301, "[" * 2000):
        assert with_overrides({}, [f"data.tokenizer={text}"]) == {"data": {"tokenizer": text}}
    for override in ("no-equals", "=1", "seed.deeper=1"):
        with pytest.raises(ConfigError, match="--set"):
            with_overrides({"seed": 1}, [override])


def test_each_wrong_field_is_named_with_what_was_found() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, {"inner": {"rate": 7}, "sead": 1}, "run.toml")
    message = str(caught.value)
    assert message.startswith("run.toml: ")
    assert "inner.rate" in message
    assert "found 7" in message
    assert "sead" in message


NEAREST = "no such field (did you mean"


class Kind(Strict):
    name: str

    @classmethod
    def read_by(cls, tree: Any) -> type[Strict]:
        return Two if tree["name"] == "two" else One


class One(Kind):
    name: Literal["one", "first"] = "one"
    margin: float = 0.2
    largest_page_size: int = 3


class Two(Kind):
    name: Literal["two"] = "two"
    classes: int = 3


class Whole(Strict):
    inner: Inner = Inner()
    kind: Annotated[
        SerializeAsAny[Kind], BeforeValidator(lambda tree: Kind.read_by(tree).model_validate(tree))
    ] = One()
    parts: tuple[Inner, ...] = ()
    maybe: Inner | None = None


PROBLEMS = {
    "iner.rate=1": f"iner.rate: {NEAREST} inner.rate",
    "ineer={rate=1,x=2}": f"ineer: {NEAREST} inner",
    "inner.Names=1": f"inner.Names: {NEAREST} inner.names",
    "rate=1": f"rate: {NEAREST} inner.rate",
    "inner.parts=1": f"inner.parts: {NEAREST} parts",
    "kind.margn=1": f"kind.margn: {NEAREST} kind.margin",
    "kind.clases=1": "kind.clases: no such field",
    "maybe.rat=1": f"maybe.rat: {NEAREST} maybe.rate",
    "parts=[{rat=1}]": f"parts.0.rat: {NEAREST} parts.rate",
    "zzz=1": "zzz: no such field",
    "kind.margin='x'": "kind.margin: expected a valid number, unable to parse",
    "kind.name='on'": "kind.name: expected 'one' or 'first' (did you mean one?) (found 'on')",
    "parts=3": "parts: expected a valid tuple (found 3)",
}


def test_an_unknown_field_is_told_the_nearest_one() -> None:
    for override, problem in PROBLEMS.items():
        for name in ("one", "first"):
            tree = with_overrides({"kind": {"name": name}}, [override])
            with pytest.raises(ConfigError) as caught:
                build(Whole, tree, "--set")
            assert str(caught.value).startswith(f"--set: {problem}")


def test_a_message_is_short_however_long_names_and_lists_of_fields_are() -> None:
    with pytest.raises(ConfigError) as caught:
        build(Outer, {"9" * 9000: 1, **{f"field {n}": n for n in range(900)}}, "run.toml")
    message = str(caught.value)
    assert len(message) < 1200
    assert "field 10" in message
    assert message.endswith("; 889 more")


def test_settings_survive_a_round_trip_through_toml(tmp_path: Path) -> None:
    settings = Outer(inner=Inner(rate=0.25, names=["ж", "中"]), seed=9)
    path = tmp_path / "run.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    assert build(Outer, read_toml(path), "run.toml") == settings


def test_a_missing_or_broken_file_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    for content in (None, b"a = ", b"\xff\xfe", b"a = " + b"9" * 4301, b"a = " + b"[" * 2000):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"broken\.toml"):
            read_toml(path)


def test_an_error_is_one_line_that_can_be_printed_whatever_is_in_a_file() -> None:
    assert str(FormatError("网站.h5", "a\nb\x1b[2J \ud800\n")) == "网站.h5: a b\\x1b[2J \\ud800"
    with pytest.raises(NowError) as caught:
        build(Outer, {"\n\u202e": 1}, "x.toml")
    assert str(caught.value) == "x.toml:  \\u202e: no such field"


def test_a_message_that_is_too_long_lacks_its_middle() -> None:
    error = FormatError("a.json", f"found {'9' * 10**6}, expected a number")
    assert len(str(error)) <= 4000
    assert str(error).startswith("a.json: found 999")
    assert str(error).endswith("999, expected a number")
    assert len(str(FormatError("a", "x" * 3997))) == 4000
