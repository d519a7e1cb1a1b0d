"""What is wrong with a submission: problems with stable codes, and the error that carries them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from now_builder.errors import NowError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a submission.

    Attributes:
        code: Stable name for machines, such as ``matrix.shape``.
        field: Where it is: a member of the zip, a field of ``submission.json``.
        found: What is there.
        expected: What should be.
        mend: How to get there, where that is not plain.
    """

    code: str
    field: str
    found: str
    expected: str
    mend: str = ""

    def __str__(self) -> str:
        """Say it in a line."""
        mend = f" ({self.mend})" if self.mend else ""
        return f"{self.field}: found {self.found}, expected {self.expected}{mend}"


class SubmissionError(NowError):
    """A submission that the evaluator refuses.

    Args:
        problems: All that was found wrong, one or more.
        name: What messages call the submission.
    """

    def __init__(self, *problems: Problem, name: str = "") -> None:
        text = "; ".join(str(problem) for problem in problems)
        super().__init__(f"{name}: {text}" if name else text)
        self.problems = problems


class Problems:
    """Collects what is wrong, so that a submitter hears of all of it at once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Keep what a refusal inside says, and go on after it."""
        try:
            yield
        except SubmissionError as error:
            self.found += error.problems

    def refuse_any(self) -> None:
        """Refuse, if anything was found.

        Raises:
            SubmissionError: With all of it.
        """
        if self.found:
            raise SubmissionError(*self.found)
