"""Problems of a submission, with stable codes, and the error that reports them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from now_builder.errors import NowError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a submission.

    Attributes:
        code: stable name for programs, such as ``matrix.shape``.
        field: location: a member of the zip, or a field of ``submission.json``.
        mend: how to fix it, if not obvious.
    """

    code: str
    field: str
    found: str
    expected: str
    mend: str = ""

    def __str__(self) -> str:
        """Format the problem as one line."""
        mend = f" ({self.mend})" if self.mend else ""
        return f"{self.field}: found {self.found}, expected {self.expected}{mend}"


class SubmissionError(NowError):
    """A submission is invalid; the message begins with its name and lists all problems."""

    def __init__(self, *problems: Problem, name: str = "") -> None:
        text = "; ".join(str(problem) for problem in problems)
        super().__init__(f"{name}: {text}" if name else text)
        self.problems = problems


class Problems:
    """A list of problems that are reported at once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collect the problems of a :class:`SubmissionError` raised inside."""
        try:
            yield
        except SubmissionError as error:
            self.found += error.problems

    def refuse_any(self) -> None:
        """Raise a :class:`SubmissionError` with all collected problems, if there are any."""
        if self.found:
            raise SubmissionError(*self.found)
