"""The `fusionscope` command: which commands there are, and what errors become.

Command modules load when their command runs, so that `fusionscope --help` answers at once.
"""

from __future__ import annotations

import difflib
import importlib
import io
import signal
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

#: (command, module under fusionscope.cli, function, line of the help)
COMMANDS = (
    ("capture", "capture", "capture", "Trace decode forwards of the built-in model and store them as a run."),
    ("import", "import_", "import_", "Store traces of other tools as a run."),
    ("runs", "runs", "runs", "List the stored runs."),
    ("tag", "tag", "tag", "Give a run tags, such as main."),
    ("show", "show", "show", "Say what is in a run: launches, kernel time, busy time, ranks, labels."),
    ("attribute", "attribute", "attribute", "Say which boundary each launch of a forward belongs to."),
    ("ranks", "ranks", "ranks", "Put ranks side by side: transfer, wait, and who comes last."),
    ("suggest", "suggest", "suggest", "Find chains of small kernels that repeat, ranked by their ceiling."),
    ("estimate", "estimate", "estimate", "Predict what fusing a boundary saves, with its interval and verdict."),
    ("compare", "compare", "compare", "Compare two runs: whether the fusion fired, and what it changed."),
    ("summary", "summary", "summary", "Write the Markdown of a pull request from two runs."),
    ("ci", "ci", "ci", "Compare, write what to keep, tell the job, and fail on a gate."),
    ("comment", "comment", "comment", "Write a summary as the one comment of a pull request."),
    ("report", "report", "report", "Write a run, or two, as one HTML file with plots, for attaching."),
    ("export", "export", "export", "Write a run for other tools: Perfetto, Chrome, CSV, Parquet, one file."),
    ("check", "check", "check", "Check exact numbers of a run: launches, fused sites."),
    ("dashboard", "dashboard", "dashboard", "Show the runs in a browser."),
    ("scrub", "scrub", "scrub", "Write a trace or a run without private details, to share it."),
    ("doctor", "doctor", "doctor", "Say what can be captured here, what cannot, and how to get it."),
    ("rules", "rules", "rules", "Try a file of your own boundaries on a run."),
    ("ab", "ab", "ab", "Measure two arms in turn, with an interval, a noise floor and a verdict."),
    ("knockout", "knockout", "knockout", "Disable a boundary on a copy of the live graph: its true ceiling."),
    ("bench", "bench", "bench", "Time a boundary between its producer and consumer in one graph, and alone."),
    ("tune", "tune", "tune", "Measure which path is fastest at each boundary, for the path auto."),
    ("serving", "serving", "serving", "Put serving runs before and after beside the forward's prediction."),
    ("amdahl", "amdahl", "amdahl", "Amdahl's law: what a speed-up of a share of the time gains."),
)

HELP = """If this boundary of the decode forward is fused, how much faster is the forward, and is that above the noise?

Example: fusionscope capture --model glm-5.3-flash --tp 4
"""


class LazyGroup(TyperGroup):
    """Loads a command's module when the command is run; the list of commands needs none of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, _, _, _ in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in that carries the command's line of the help; `resolve_command` loads the real one."""
        lines = {name: line for name, _, _, line in COMMANDS}
        if cmd_name not in lines:
            return None
        return TyperCommand(cmd_name, help=lines[cmd_name], short_help=lines[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        for command, module, function, _ in COMMANDS:
            if command == name:
                return name, load(command, module, function), args[1:]
        if name and not name.startswith("-"):
            near = difflib.get_close_matches(name, [command for command, _, _, _ in COMMANDS], n=2)
            ctx.fail(f"No such command {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
        return super().resolve_command(ctx, args)


def load(name: str, module: str, function: str) -> Any:
    """The Click command of one module of fusionscope.cli."""
    from fusionscope.cli.command import Command

    loaded = importlib.import_module(f"fusionscope.cli.{module}")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=getattr(loaded, "COMMAND", Command))(getattr(loaded, function))
    return get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    help=HELP,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        from fusionscope.profiler.runinfo import tool_version

        typer.echo(f"fusionscope {tool_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main(args: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 the answer is "no", 2 wrong use or unreadable input."""
    command = get_command(app)
    try:
        code = command.main(args=args, prog_name="fusionscope", standalone_mode=False)
        if code == 130:
            # Typer makes an exit of a Ctrl-C.
            raise KeyboardInterrupt
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        print("Interrupted.", file=sys.stderr)
        return 130
    except (BrokenPipeError, SystemExit) as gone:
        if isinstance(gone, SystemExit) and "Pacify" not in type(sys.stdout).__name__:
            raise
        # The reader of our output went away (`fusionscope runs | head`), which Typer also tells as an exit.
        import os

        sys.stdout = sys.__stdout__ or sys.stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        message = sentence(error)
        if message is None:
            raise
        from fusionscope.cli.output import say

        say(message)
        return 2
    return code if isinstance(code, int) else 0


def sentence(error: Exception) -> str | None:
    """What a person reads of an error that is meant for people; None for a fault of the program."""
    if hasattr(error, "format_message"):  # Click's and Typer's errors of use
        context = getattr(error, "ctx", None)
        where = getattr(context, "command_path", None) or "fusionscope"
        told = str(error.format_message()).rstrip(".")
        return f"{told}{'' if told.endswith('?') else '.'} See `{where} --help`."
    bases = {base.__name__ for base in type(error).__mro__}
    # fusion_runtime knows nothing of the profiler and has errors of its own.
    if bases & {"FusionScopeError", "RuntimeContractError"}:
        return " ".join(str(error).split())
    return None


def run() -> None:
    """Entry point of the `fusionscope` script."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # To be ended is Ctrl-C from afar: what is done is kept, and no temporary folder stays behind.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows fewer letters than a kernel's name has gets a question mark, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(main())
