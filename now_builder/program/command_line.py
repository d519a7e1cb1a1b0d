"""The command line of the three programs: lazy commands, settings as options, exit codes."""

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
from now_builder.program.stopping import CommandStopped, stop_message, stoppable

PACKAGES = ("now_builder", "leaderboard", "pc2_baseline")
LOG_LEVEL = "NOW_LOG"
"""Environment variable with the lowest level to print, such as debug or warning."""

Function = TypeVar("Function", bound=Callable[..., None])


@dataclass(frozen=True)
class Fields:
    """Mark a parameter as a settings object, to be replaced by an option for each of its fields.

    An option has the field's name, type, default and description. Limits are checked when the
    object is made: a value out of range raises a ``ConfigError`` that names the field.

    Attributes:
        model: The settings class as ``module:Class``; imported when the command is called.
        short: Second name of an option, such as one letter, by field.
    """

    model: str
    short: Mapping[str, str] = field(default_factory=dict)


def say_version(
    show: Annotated[bool, typer.Option("--version", help="Print it.")] = False,  # noqa: FBT002
) -> None:
    """Print the version if requested; a program without a command has no other option."""
    if show:
        typer.echo(version("noise-of-web"))
        raise typer.Exit


class Program(typer.Typer):
    """A Typer application that builds a command and its options only when the command is called.

    Use it like ``typer.Typer``; the list of commands needs only their docstrings. A parameter
    marked with ``Fields`` becomes an option for each field of a settings class. Help is plain text,
    because importing Rich takes twice as long as everything else.
    """

    def __init__(
        self,
        name: str,
        help: str,  # noqa: A002 - Typer's name
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
            name: Name of the command; by default the function's name.
            kept: Work that the same command resumes after a stop, such as "finished epochs are
                kept"; by default it starts over.
            ends_by_signal: Whether the command handles signals itself, as a server does.
            **about: Passed to ``typer.Typer.command``.
        """

        def register(function: Function) -> Function:
            word = name or function.__name__.replace("_", "-")

            def make() -> TyperCommand:
                program = typer.Typer(add_completion=False, rich_markup_mode=None)
                command = _with_options(function, f"{self.info.name} {word}")
                program.command(word, **about)(
                    command if ends_by_signal else stoppable(command, kept)
                )
                return cast("TyperCommand", get_command(program))

            lazy = cast("type[TyperCommand]", partial(_LazyCommand, make))
            register_listing = typer.Typer.command(
                self, word, cls=lazy, help=inspect.getdoc(function), **about
            )
            register_listing(lambda: None)
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


class _LazyCommand(TyperCommand):
    """A command as its group lists it; it builds the real command when it is called."""

    def __init__(self, make: Callable[[], TyperCommand], **about: Any) -> None:
        super().__init__(**about)
        self._make = make

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Return the context of the real command, which parses, prints help and runs."""
        return self._make().make_context(*arguments, **options)


def _with_options(function: Callable[..., None], origin: str) -> Callable[..., None]:
    """Replace the parameter marked with ``Fields``, if there is one, by an option for each field.

    The function gets the settings object that is made from their values.
    """
    parameters: list[inspect.Parameter] = []
    settings: tuple[str, Any] | None = None
    for parameter in inspect.signature(function).parameters.values():
        marks = getattr(parameter.annotation, "__metadata__", ())
        fields = next((mark for mark in marks if isinstance(mark, Fields)), None)
        if fields is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        settings = parameter.name, resolve_name(fields.model)
        items = settings[1].model_fields.items()
        parameters += [_option(name, item, fields.short.get(name)) for name, item in items]
    if settings is None:
        return function
    from now_builder.config import build

    argument, model = settings

    def command(*, typer_context: Any, **values: Any) -> None:
        tree = {name: values.pop(name) for name in model.model_fields}
        # Only options that the user typed: package takes the others from an existing release.
        source_of = typer_context.get_parameter_source
        tree = {name: tree[name] for name in tree if source_of(name).name != "DEFAULT"}
        function(**values, **{argument: build(model, tree, origin)})

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
    flag = "--" + name.rstrip("_").replace("_", "-")  # `with_` stands for the keyword `with`
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
    """Print a record as one line on standard error; from warnings on, the line names the level."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        sys.stderr.write(f"{level}{self.format(record)}\n")


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Drop asyncio's report of each connection that closes when a signal reaches the browser."""
    error_type = record.exc_info[0] if record.exc_info else None
    if record.getMessage().startswith("pipe closed by peer"):
        return False
    return error_type is None or error_type.__name__ != "CancelledError"


def set_up_logging() -> None:
    """Print the log of our packages, from INFO on or from the level in ``NOW_LOG`` on.

    Of other loggers, only asyncio's is changed: it does not report cancelled connections.

    Raises:
        NowError: If ``NOW_LOG`` is not a level.
    """
    name = os.environ.get(LOG_LEVEL, "info")
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        raise NowError(f"{LOG_LEVEL}={name}: expected debug, info, warning, error or critical")
    logging.getLogger("asyncio").addFilter(_is_no_cancellation)
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(level)
        if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
            logger.addHandler(_Stderr())


def run(app: typer.Typer) -> NoReturn:
    """Run a command line on ``sys.argv`` and exit.

    These end in one line on standard error: a user's mistake, a path that cannot be read or
    written and a missing package of an extra (exit code 1), Ctrl-C (130) and SIGTERM (143).
    """
    line = ""
    code: str | int | None = None
    try:
        set_up_logging()
        app(prog_name=app.info.name)
    except NowError as error:
        line, code = f"error: {error}", 1
    except OSError as error:
        if error.filename is None:  # a network error, for example
            raise
        line = f"error: {error.filename}: cannot be read or written ({error.strerror})"
        code = 1
    except ModuleNotFoundError as error:
        from now_builder.program.missing_package import describe_missing

        problem = describe_missing(error, [str(app.info.name), *sys.argv[1:]])
        if problem is None:
            raise
        line, code = f"error: {problem}", 1
    except CommandStopped as stop:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C kills the process at once
        line, code = str(stop), stop.code
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer turns a Ctrl-C before the command starts into an exit with code 130 and no message.
        code = 130 if isinstance(end, KeyboardInterrupt) else end.code
        line = stop_message(None) if code == 130 else ""
    if line:
        sys.stderr.write(f"{line}\n")
    sys.exit(code)
