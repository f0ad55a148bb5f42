"""The ``envmatrix mcp`` command."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from envmatrix.cli import console_io, shared_options
from envmatrix.cli.argument_parser import Arguments, Parser, declare_flag
from envmatrix.errors import EnvmatrixError, ExitCode, InputError
from envmatrix.version import __version__

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

_INSTRUCTIONS = """\
Results of envmatrix: how much faster a program runs when only its environment changes. A ratio above 1 is faster than
the reference; low and high are its 95 % interval. Rely on the verdict (faster, slower, same, undecided), not on the
ratio alone: undecided means that it takes more blocks. Report the warnings and flags of an effect along with it."""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    shared_options.add(parser, "--results")
    declare_flag(parser, "--allow-run", "add tools that start `bench`, which runs programs as you, and stop it")
    parser.examples("envmatrix mcp --results results", "envmatrix mcp --allow-run")


def run(arguments: Arguments) -> None:
    """Serve until the client closes standard input; a run that was started here ends with the server."""
    server = _make_server()
    from envmatrix.api.mcp_tools import BackgroundBench, ServedRuns

    if not (arguments.results.is_dir() or arguments.allow_run):
        raise InputError(
            f"no such folder: {arguments.results}", remedy="pass the folder that contains the runs: --results DIR"
        )
    bench = BackgroundBench(arguments.results) if arguments.allow_run else None
    runs = ServedRuns(arguments.results, bench)
    for tool in (runs.list_runs, runs.run_status, runs.report, runs.explain, runs.compare):
        _add_tool(server, tool, read_only=True)
    with contextlib.ExitStack() as ending:
        if bench:
            ending.callback(bench.close)
            _add_tool(server, bench.start_run, read_only=False)
            _add_tool(server, bench.stop_run, read_only=False)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # else a signal can leave a traceback on stderr
        try:
            server.run("stdio")
        except KeyboardInterrupt:
            ending.close()
            console_io.print_progress("envmatrix: interrupted")
            os._exit(ExitCode.INTERRUPTED)  # Python would wait for the SDK's thread, which waits for the client


def _make_server() -> MCPServer:
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as error:
        raise InputError(
            f"the MCP SDK cannot be imported ({error})", remedy=f"{sys.executable} -m pip install 'envmatrix[mcp]'"
        ) from error
    return MCPServer("envmatrix", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")


def _add_tool(server: MCPServer, method: Callable[..., dict[str, object]], *, read_only: bool) -> None:
    """Add a method as a tool. Clients get our own messages; of any other error, its traceback goes to stderr only."""
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    @functools.wraps(method)
    def tool(**arguments: object) -> dict[str, object]:
        try:
            return method(**arguments)
        except EnvmatrixError as error:
            raise ToolError(str(error)) from error
        except OSError as error:
            place = f" {error.filename}:" if error.filename else ""
            raise ToolError(f"the system refused:{place} {error.strerror or error}") from error

    server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=read_only, open_world_hint=not read_only))
