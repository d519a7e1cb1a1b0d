"""The command line of the three programs: late commands, settings as options, exit codes."""

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Annotated, Any, NoReturn, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from now_builder.errors import NowError
from now_builder.program.stopping import CommandStopped, how_to_go_on, stoppable

PACKAGES = ("now_builder", "leaderboard", "pc2_baseline")
LOG_LEVEL = "NOW_LOG"
"""Environment variable: the least level that is printed, such as debug or warning."""

Function = TypeVar("Function", bound=Callable[..., None])


@dataclass(frozen=True)
class Fields:
    """Mark a command's parameter whose value is a settings object, with an option per field.

    An option has the field's name, type, default and description. Limits are checked when the
    object is made: a value out of range is a ``ConfigError`` that names the field.

    Attributes:
        model: The settings class as ``module:Class``; imported when the command is named.
        short: A second name of an option, such as one letter, by field.
    """

    model: str
    short: Mapping[str, str] = field(default_factory=dict)


def say_version(
    asked: Annotated[bool, typer.Option("--version", help="Print it.")] = False,  # noqa: FBT002
) -> None:
    """Print the version, if asked: the one option of a program without a command."""
    if asked:
        typer.echo(version("noise-of-web"))
        raise typer.Exit


class Program(typer.Typer):
    """A Typer application that makes a command, options and all, when it is named.

    It is used as ``typer.Typer`` is; listing the commands reads only their docstrings. A parameter
    marked with ``Fields`` becomes an option for each field of a settings class. Help is plain text,
    since Rich takes twice as long as all the rest.
    """

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - Typer's word
    ) -> None:
        super().__init__(
            name=name,
            help=help,
            cls=_PanelGroup,
            context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
        )

    def command(
        self,
        name: str | None = None,
        *,
        kept: str | None = None,
        ends_by_signal: bool = False,
        **about: Any,
    ) -> Callable[[Function], Function]:
        """Register a function as a command; its docstring is the help.

        Args:
            name: The word that calls it; the function's name if not given.
            kept: What the same command goes on with after a stop, such as "finished epochs are
                kept"; by default it starts again.
            ends_by_signal: Whether it handles signals itself, as a service does.
            **about: As for ``typer.Typer.command``.
        """

        def register(function: Function) -> Function:
            word = name or function.__name__.replace("_", "-")

            def make() -> TyperCommand:
                alone = typer.Typer(add_completion=False, rich_markup_mode=None)
                command = _with_options(function, f"{self.info.name} {word}")
                alone.command(word, **about)(
                    command if ends_by_signal else stoppable(command, kept)
                )
                return cast("TyperCommand", get_command(alone))

            late = cast("type[TyperCommand]", partial(_LateCommand, make))
            listing = typer.Typer.command(
                self, word, cls=late, help=inspect.getdoc(function), **about
            )
            listing(lambda: None)
            return function

        return register


class _PanelGroup(TyperGroup):
    """A group that lists its commands by panel, each with the first paragraph of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            summary = " ".join((command.help or "").split("\n\n")[0].split())
            panels.setdefault(command.rich_help_panel or "Commands", []).append((name, summary))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


class _LateCommand(TyperCommand):
    """A command as its group lists it; named on the command line, it makes the real one."""

    def __init__(self, make: Callable[[], TyperCommand], **about: Any) -> None:
        super().__init__(**about)
        self._make = make

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Return the context of the real command, which then parses, helps and runs."""
        return self._make().make_context(*arguments, **options)


def _with_options(function: Callable[..., None], origin: str) -> Callable[..., None]:
    """Replace the parameter marked with ``Fields``, if there is one, by options."""
    parameters: list[inspect.Parameter] = []
    found: tuple[str, type] | None = None
    for parameter in inspect.signature(function).parameters.values():
        marks = getattr(parameter.annotation, "__metadata__", ())
        fields = next((mark for mark in marks if isinstance(mark, Fields)), None)
        if fields is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        model = resolve_name(fields.model)
        found = parameter.name, model
        parameters += [
            _option(name, item, fields.short.get(name)) for name, item in model.model_fields.items()
        ]
    if found is None:
        return function
    return _gathering(function, parameters, found, origin)


def _gathering(
    function: Callable[..., None],
    parameters: list[inspect.Parameter],
    settings: tuple[str, Any],
    origin: str,
) -> Callable[..., None]:
    """Return a function of those parameters that calls ``function`` with a settings object."""
    from now_builder.config import build

    name, model = settings

    def command(*, typer_context: Any, **values: Any) -> None:
        tree = {item: values.pop(item) for item in model.model_fields}
        # So that the model knows which were given: package takes the others from the release.
        source_of = typer_context.get_parameter_source
        tree = {item: tree[item] for item in tree if source_of(item).name != "DEFAULT"}
        function(**values, **{name: build(model, tree, origin)})

    context = inspect.Parameter(
        "typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
    )
    parameters = [context, *parameters]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    command.__doc__ = function.__doc__
    return command


def _option(name: str, item: Any, short: str | None) -> inspect.Parameter:
    """Return an option for a field of a settings class."""
    flag = "--" + name.rstrip("_").replace("_", "-")  # with_: a keyword is no name of a parameter
    if item.annotation in (bool, bool | None):
        flag = f"{flag}/--no-{flag[2:]}"
    option = typer.Option(flag, *([short] if short else []), help=item.description)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty
        if item.is_required()
        else item.get_default(call_default_factory=True),
        annotation=Annotated[item.annotation, option],
    )


class _Stderr(logging.Handler):
    """Print a record as a line on the current standard error, with the level of a warning."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        kind = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        sys.stderr.write(f"{kind}{self.format(record)}\n")


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Filter: asyncio reports each connection that a signal ends, if it reached the browser too."""
    kind = record.exc_info[0] if record.exc_info else None
    if record.getMessage().startswith("pipe closed by peer"):
        return False
    return kind is None or kind.__name__ != "CancelledError"


def set_up_logging() -> None:
    """Print what our packages log, from INFO or from the level that ``NOW_LOG`` names.

    Loggers of libraries are left as they are, but for cancelled connections of asyncio.

    Raises:
        NowError: If ``NOW_LOG`` names no level.
    """
    named = os.environ.get(LOG_LEVEL, "info")
    level = logging.getLevelNamesMapping().get(named.upper())
    if level is None:
        raise NowError(f"{LOG_LEVEL}={named}: expected debug, info, warning, error or critical")
    logging.getLogger("asyncio").addFilter(_is_no_cancellation)
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(level)
        if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
            logger.addHandler(_Stderr())


def run(app: typer.Typer) -> NoReturn:
    """Run a command line on ``sys.argv`` and exit.

    A user's mistake, a path that cannot be read or written, or a package of an extra that is
    missing ends in one line on standard error and exit code 1, Ctrl-C and SIGTERM in one line and
    exit code 130 or 143.
    """
    try:
        set_up_logging()
        app(prog_name=app.info.name)
    except NowError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except OSError as error:
        if error.filename is None:  # of a connection, say
            raise
        what = f"cannot be read or written ({error.strerror})"
        sys.stderr.write(f"error: {error.filename}: {what}\n")
        sys.exit(1)
    except ModuleNotFoundError as error:
        from now_builder.program.missing_package import describe_missing

        line = describe_missing(error, [str(app.info.name), *sys.argv[1:]])
        if line is None:
            raise
        sys.stderr.write(f"error: {line}\n")
        sys.exit(1)
    except CommandStopped as stop:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends what is left at once
        sys.stderr.write(f"{stop}\n")
        sys.exit(stop.code)
    except (KeyboardInterrupt, SystemExit) as ended:
        # Before the command began; Typer makes an exit with code 130 of it, without a word.
        code = 130 if isinstance(ended, KeyboardInterrupt) else ended.code
        if code == 130:
            sys.stderr.write(f"{how_to_go_on(None)}\n")
        sys.exit(code)
    sys.exit(0)
