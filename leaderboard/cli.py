"""The command now-leaderboard and the functions of its subcommands."""

from collections.abc import Callable

from leaderboard.commands import board, judge
from now_builder.program.command_line import Program, run, say_version

app = Program(
    name="now-leaderboard",
    help="Judge a similarity matrix (images x captions) on a Noise-of-Web release: recalls both "
    "ways, rSum with its interval, and a board that shows it beside the paper's rows.",
)

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Judge a matrix": {
        "pack": judge.pack,
        "validate": judge.validate,
        "score": judge.score,
        "recall": judge.recall,
        "compare": judge.compare,
        "verify": judge.verify,
    },
    "Keep a board": {
        "submit": board.submit,
        "reproduce": board.reproduce,
        "withdraw": board.withdraw,
        "check-store": board.check_store,
        "dataset-report": board.dataset_report,
        "export": board.export,
        "export-site": board.export_site,
    },
}
for panel, commands in COMMANDS.items():
    for name, function in commands.items():
        app.command(name, rich_help_panel=panel)(function)

blind_app = Program(name="now-leaderboard blind", help="Rounds whose pairing only the judge knows.")
blind_app.command("make")(board.make_round)
blind_app.command("close")(board.close_round)
app.add_typer(blind_app, name="blind", rich_help_panel="Keep a board")


app.callback(invoke_without_command=True)(say_version)


def main() -> None:
    """Entry point."""
    run(app)
