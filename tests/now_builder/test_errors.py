"""Messages: one line that can be printed and read, whatever a file put into it."""

from now_builder.errors import FormatError


def test_a_message_that_is_too_long_lacks_its_middle() -> None:
    error = FormatError("a.json", f"found {'9' * 10**6}, expected a number")
    assert len(str(error)) <= 4000
    assert str(error).startswith("a.json: found 999")
    assert str(error).endswith("999, expected a number")
    assert len(str(FormatError("a", "x" * 3997))) == 4000


def test_a_message_is_one_line() -> None:
    assert str(FormatError("a\n", "b\x1b[1m\u202e")) == "a : b\\x1b[1m\\u202e"
