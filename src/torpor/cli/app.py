"""The commands, put together, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from torpor.cli import (
    audit,
    bench,
    capacity,
    cp,
    doctor,
    exec,
    explore,
    history,
    life,
    network,
    output,
    ports,
    process,
    sandbox,
    serve,
    shell,
    snapshot,
    states,
    template,
    token,
    top,
    tree,
    up,
    usage,
    version,
    volume,
)
from torpor.errors import InvalidRequest, TorporError

EPILOG = "Everything starts with a server: `torpor up`. Then: `torpor create agent`, `torpor exec ID 'uname -a'`."

app = typer.Typer(
    name="torpor",
    help="One durable microVM per AI-agent run: created in a blink, used for every step, asleep while nothing is to be "
    "done, deleted at the end.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SANDBOXES, _TIME, _COPIES = "Sandboxes", "Sleep and wake", "Snapshots and copies"
_ACCOUNT, _SERVER = "What they do and cost", "The server"
_COMMANDS: dict[str, dict[str, Callable[..., object]]] = {
    _SANDBOXES: {
        "create": sandbox.create,
        "list": sandbox.list_all,
        "show": sandbox.show,
        "exec": exec.exec_command,
        "shell": shell.shell,
        "ps": process.ps,
        "attach": process.attach,
        "kill": process.kill,
        "cp": cp.cp,
        "ports": ports.ports,
        "url": ports.url,
        "network": network.network,
        "rm": sandbox.rm,
    },
    _TIME: {
        "hibernate": states.hibernate,
        "wake": states.wake,
        "pause": states.pause,
        "resume": states.resume,
        "ttl": life.ttl,
        "idle": life.idle,
    },
    _COPIES: {
        "snapshots": snapshot.list_all,
        "rollback": snapshot.rollback,
        "restore": sandbox.restore,
        "fork": sandbox.fork,
        "explore": explore.explore,
        "tree": tree.tree,
    },
    _ACCOUNT: {
        "top": top.top,
        "usage": usage.usage,
        "logs": history.logs,
        "audit": audit.audit,
    },
    _SERVER: {
        "up": up.up,
        "down": up.down,
        "serve": serve.serve,
        "doctor": doctor.doctor,
        "capacity": capacity.capacity,
        "bench": bench.bench,
        "version": version.version,
    },
}
_CLASSES = {"exec": exec.ExecCommand}
for panel, commands in _COMMANDS.items():
    for name, command in commands.items():
        app.command(name, cls=_CLASSES.get(name), rich_help_panel=panel)(command)
app.add_typer(snapshot.app, name="snapshot", rich_help_panel=_COPIES)
app.add_typer(template.app, name="template", rich_help_panel=_SERVER)
app.add_typer(volume.app, name="volume", rich_help_panel=_SANDBOXES)
app.add_typer(token.app, name="token", rich_help_panel=_ACCOUNT)


def _show_version(wanted: bool) -> None:
    if wanted:
        version.version()
        raise typer.Exit


@app.callback()
def torpor(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Take what is said before a command."""
    del show_version


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code: 0, 1 for an error, 2 for a wrong use, 130 for Ctrl-C, or its own."""
    output.use_json(False)
    try:
        outcome = app(list(arguments), prog_name="torpor", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except output.ReaderGone:
        return output.gone()
    except (TorporError, OSError) as error:
        return output.fail(error)
    except Exception as error:
        return _misused(error)
    return outcome if isinstance(outcome, int) else 0


def _misused(error: Exception) -> int:
    """Report a wrong use. typer keeps the class of its usage errors to itself, but not what they can do."""
    context = getattr(error, "ctx", None)
    if not hasattr(error, "format_message"):
        raise error
    command = context.command_path if context else "torpor"
    if type(error).__name__ == "NoArgsIsHelpError":
        output.say(error.format_message())
        return 2
    output.fail(InvalidRequest(error.format_message(), hint=f"see `{command} --help`"))
    return 2
