"""The entry point of the command ``envmatrix``; only this module catches errors, prints them and exits."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from envmatrix.errors import EnvmatrixError, ExitCode


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        from envmatrix.block import interrupts
        from envmatrix.cli.command_table import parse, run_command

        with interrupts.handle_signals():
            return run_command(parse(sys.argv[1:] if argv is None else argv))
    except EnvmatrixError as error:
        _tell(f"envmatrix: {error}{_explained(error.topic)}")
        return error.exit_code
    except KeyboardInterrupt:
        _tell("envmatrix: interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has exited (`envmatrix list | head`); keep Python from complaining at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - stays open until the process ends
        return ExitCode.FINE
    except OSError as error:
        place = f" {error.filename}:" if error.filename else ""
        text = f"the system refused:{place} {error.strerror or error}{_remedy(error)}"
        _tell(f"envmatrix: {text}{_explained('system-refused')}")
        return ExitCode.BAD_INPUT
    except Exception as error:
        if hiding_file := _find_hiding_file(error):
            _tell(
                f"envmatrix: {hiding_file} hides a module of Python's own library ({type(error).__name__}: {error})\n"
                "  -> rename it, or take its folder out of PYTHONPATH"
            )
            return ExitCode.BAD_INPUT
        _tell(f"envmatrix: this is a bug in envmatrix: {type(error).__name__}: {error}\n  -> {_keep_traceback()}")
        return ExitCode.BAD_INPUT


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "\n  -> free some space there, then type the command again"
    try:
        os.getcwd()  # noqa: PTH109 - the one call that fails in a folder that is gone
    except FileNotFoundError:
        return "\n  -> the folder that you are in was deleted: `cd` to one that exists"
    return ""


def _explained(topic: str) -> str:
    return f"\n  (more: envmatrix docs {topic})" if topic else ""


def _tell(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - the command line's own voice


def _find_hiding_file(error: Exception) -> str:
    """Return a file that Python imported instead of a module of its own library, from a folder in PYTHONPATH say.

    It may have raised the error, and is not a loaded module then.
    """
    files = [getattr(sys.modules.get(name), "__file__", None) for name in sys.stdlib_module_names]
    trace = error.__traceback__
    while trace:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.stem in sys.stdlib_module_names and not file.with_name("__init__.py").exists():  # not in a package
            files.append(str(file))
        trace = trace.tb_next
    own = (f"{Path(os.__file__).parent}/", "<")
    return next((file for file in files if file and not file.startswith(own) and "-packages" not in file), "")


def _keep_traceback() -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="envmatrix-", suffix=".txt", delete=False) as file:
        traceback.print_exc(file=file)
    return f"please report it with {file.name}"


if __name__ == "__main__":
    sys.exit(main())
