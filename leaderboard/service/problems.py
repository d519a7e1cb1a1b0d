"""HTTP errors as problem documents of RFC 9457."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from leaderboard.core.errors import Problem
from leaderboard.submission.untrusted import shown
from now_builder.config import expected_by

MEDIA_TYPE = "application/problem+json"


class ProblemDocument(BaseModel):
    """The body of every error response.

    Attributes:
        problems: all problems of a submission or request.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    problems: tuple[Problem, ...] = ()


class Refusal(HTTPException):
    """An error response."""

    def __init__(
        self,
        status: int,
        detail: str,
        problems: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.problems = tuple(problems)


def handle_errors(app: FastAPI) -> None:
    """Register handlers that turn every error into a :class:`ProblemDocument`."""
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)


def problem_response(
    status: int,
    detail: str,
    problems: Sequence[Problem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Make an error response."""
    document = ProblemDocument(
        title=HTTPStatus(status).phrase, status=status, detail=detail, problems=tuple(problems)
    )
    tree = document.model_dump(mode="json", exclude=None if problems else {"problems"})
    return JSONResponse(tree, status, headers, MEDIA_TYPE)


def describe_errors(tree: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAPI description in which every error is a :class:`ProblemDocument`."""
    schema = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = tree["components"]["schemas"]
    schemas |= schema.pop("$defs") | {"ProblemDocument": schema}
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    body = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    for route in (route for path in tree["paths"].values() for route in path.values()):
        for status, answer in route["responses"].items():
            if status[0] in "45":
                answer["content"] = body
    return tree


async def _refused(_request: Request, error: HTTPException) -> Response:
    problems = error.problems if isinstance(error, Refusal) else ()
    return problem_response(error.status_code, error.detail, problems, error.headers)


async def _invalid(_request: Request, error: RequestValidationError) -> Response:
    problems = [
        Problem(
            code=f"request.{item['type']}",
            field=".".join(str(part) for part in item["loc"]),
            found=shown(item.get("input")),
            expected=expected_by(item),
            mend="see /openapi.json",
        )
        for item in error.errors()
    ]
    return problem_response(422, "the request is not what /openapi.json says", problems)
