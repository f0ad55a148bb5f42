"""The argument parser of all commands: free order of arguments and options, lists, durations, helpful errors."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from envmatrix.durations_and_sizes import parse_bytes
from envmatrix.errors import InputError, suggestion

#: The parsed command line of a command.
Arguments: TypeAlias = argparse.Namespace
#: A comma between names, but not one inside Slurm's n[1,3].
_COMMA = re.compile(r",(?![^\[\]]*\])")
#: A word that names a program or its file, and no environment.
_PROGRAM = re.compile(r"\A(python[\d.]*|[\w.-]*/.*|.*\.(py|sh))\Z")
#: Characters that web pages and word processors put in place of "--".
_DASHES = "\u2012\u2013\u2014\u2212"


class Parser(argparse.ArgumentParser):
    """The parser of one command. Arguments and options may be in any order; every mistake is an InputError."""

    def __init__(self, **texts: Any) -> None:
        super().__init__(**texts, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.example_lines: tuple[str, ...] = ()
        self._remedies: dict[str, str] = {}
        self._list_options: set[str] = set()
        self._takes_command = False
        self._command_replaces_word = False

    def examples(self, *lines: str) -> None:
        """Show example command lines at the end of the help."""
        self.example_lines = lines
        self.epilog = "\n".join(["examples:", *(f"  {line}" for line in lines)])

    def exit_codes(self, *lines: str) -> None:
        """Show the meaning of the command's exit codes after the examples."""
        self.epilog = "\n".join([self.epilog or "", "", "exit codes:", *(f"  {line}" for line in lines)])

    def declare_remedies(self, remedies: Mapping[str, str]) -> None:
        """Register options and arguments that do not exist, but that people may try, with what to use instead."""
        self._remedies.update(remedies)

    def accept_command(self, text: str, *, instead: bool = False) -> None:
        """Accept all words after ``--`` as a command line in ``arguments.command``.

        ``instead``: they replace the command's own argument.
        """
        self._command_replaces_word = instead
        if instead:
            self.set_defaults(command=[])
            self.usage = f"{self.prog} [options] [{self._get_positional_actions()[0].metavar} | -- PROGRAM ...]"
            self.description = f"{self.description or ''}\n\n-- PROGRAM ...: {text}"
        else:
            self.add_argument("command", nargs="*", metavar="-- COMMAND", help=text)
        self._takes_command = True

    def add_list(
        self, option: str, metavar: str, text: str, *, target: argparse._ActionsContainer | None = None, **more: Any
    ) -> None:
        """Add an option for names, separated by commas or repeated; ``target`` is a group of this parser."""
        declare(target or self, option, metavar, text, name_list, action="extend", **more)
        self._list_options.add(option)

    @property
    def option_names(self) -> frozenset[str]:
        """All declared options, with their dashes."""
        return frozenset(self._option_string_actions)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse the arguments; raise an InputError for anything unknown."""
        words = list(args or ())
        dashes_at = words.index("--") if "--" in words else len(words)
        head = words[:dashes_at] if self._takes_command else words
        self._refuse_unknown(words[:dashes_at])
        parsed, extra = self.parse_known_intermixed_args(head, namespace)
        parsed.spaced_lists = tuple(self._spaced_lists(words[:dashes_at]))
        if extra:
            self._refuse_words(parsed, extra)
        if self._takes_command:
            if parsed.command:
                remedy = f"write `--` before the command: -- {' '.join(parsed.command)}"
                raise InputError(f"unexpected word {parsed.command[0]!r}", remedy=remedy)
            parsed.command = words[dashes_at + 1 :]
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise an argparse error as an InputError, so that one place prints all errors."""
        text = message.removeprefix("argument ").replace("the following arguments are required:", "missing:")
        raise InputError(text, remedy=f"`{self.prog} --help` lists its options")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        """Convert an argument. What is wrong with it is told in the words of its kind."""
        convert: Any = action.type or str
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentError(action, str(error)) from error

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is not among an argument's choices, and suggest the nearest."""
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or str(action.metavar or action.dest)
            raise InputError(f"{name}: cannot be {value!r}", remedy=suggestion(str(value), map(str, action.choices)))

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        """Refuse an unknown option, and suggest its replacement or the nearest option."""
        for word in words:
            name = word.partition("=")[0]
            if name and name[0] in _DASHES:
                raise InputError(
                    f"{name} starts with a typographic dash", remedy=f"type two hyphens: --{name.lstrip(_DASHES)}"
                )
            if not re.match(r"-.*[^\W\d]", name) or name in self._option_string_actions:
                continue
            raise InputError(
                f"unknown option {name}", remedy=self._remedies.get(name) or self._nearest_option_remedy(name)
            )

    def _nearest_option_remedy(self, name: str) -> str:
        long_options = [option for option in self._option_string_actions if option.startswith("--")]
        longer = [option for option in long_options if option.startswith(name) and len(name) > 2]
        similar = get_close_matches(name[2:], [option[2:] for option in long_options], n=1)
        for option in (*longer, *(f"--{word}" for word in similar)):
            return f"did you mean {option}?"
        program_hint = f"; write `--` before a program and its options: {self.prog} -- python train.py"
        return f"`{self.prog} --help` lists its options{program_hint if self._command_replaces_word else ''}"

    def _refuse_words(self, parsed: argparse.Namespace, extra: Sequence[str]) -> NoReturn:
        """Refuse extra words: with two designs, neither may be ignored silently."""
        words = self._get_positional_actions()
        program_hint = (
            f"write `--` before a program: {self._program_command_line(parsed, extra)}"
            if self._command_replaces_word
            else ""
        )
        list_hint = "" if program_hint and any(map(_PROGRAM.search, extra)) else comma_remedy(parsed, extra)
        rename_hint = next((text for name, text in self._remedies.items() if not name.startswith("-")), "")
        remedy = list_hint or rename_hint or program_hint or f"`{self.prog} --help` lists its options"
        if not words:
            raise InputError(f"`{self.prog}` takes options only, but got {extra[0]!r}", remedy=remedy)
        last, name = getattr(parsed, words[-1].dest), words[-1].metavar or words[-1].dest
        raise InputError(f"expected one {name}, but got two: {last!r} and {extra[0]!r}", remedy=remedy)

    def _program_command_line(self, parsed: argparse.Namespace, extra: Sequence[str]) -> str:
        words = [getattr(parsed, place.dest) for place in self._get_positional_actions()]
        return " ".join([self.prog, "--", *(word for word in words if isinstance(word, str)), *extra])

    def _spaced_lists(self, arguments: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each list whose items may be separated by spaces, the former syntax."""
        for index, option in enumerate(arguments):
            if option in self._list_options:
                words = arguments[index + 1 :]
                end = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
                if end > 1:
                    yield option, tuple(words[:end])


def comma_remedy(parsed: argparse.Namespace, words: Sequence[str]) -> str:
    """Return how to write a list if one of ``words`` was meant as an item of it, otherwise ''."""
    for option, items in getattr(parsed, "spaced_lists", ()):
        if any(word in items[1:] for word in words):
            return f"separate a list with commas: {option} {','.join(items)}"
    return ""


def declare(
    target: argparse._ActionsContainer,
    names: str,
    metavar: str | tuple[str, ...],
    text: str,
    kind: Callable[[str], Any] = str,
    **more: Any,
) -> None:
    """Add an argument or an option with a value of this kind; ``names`` are its spellings, ``text`` is its help."""
    target.add_argument(*names.split(), metavar=metavar, type=kind, help=text, **more)


def declare_flag(target: argparse._ActionsContainer, name: str, text: str) -> None:
    """Add an option without a value."""
    target.add_argument(name, action="store_true", help=text)


def size(text: str) -> int:
    """Parse 512MiB or 2G as bytes, none as 0."""
    return 0 if text == "none" else parse_bytes(text)


def name_list(text: str) -> list[str]:
    """Parse names separated by commas."""
    parts = [name.strip() for name in _COMMA.split(text)]
    if not all(parts):
        raise ValueError(f"{text!r} contains an empty name")
    return parts


def nonempty_name(text: str) -> str:
    """Return a name; refuse an empty one."""
    if not text.strip():
        raise ValueError("the name is empty")
    return text


def nonempty_text(text: str) -> str:
    """Return a text; refuse an empty one, which may come from an unset variable."""
    if not text.strip():
        raise ValueError("it is empty")
    return text


def nonempty_path(text: str) -> Path:
    """Return a path; refuse an empty one, which would be the current folder."""
    return Path(nonempty_text(text))


def wrap_in_shell(line: str) -> tuple[str, ...]:
    """Return the command that runs a shell line in /bin/sh, as hyperfine does."""
    return ("/bin/sh", "-c", line) if line else ()


def name_and_folder(text: str) -> tuple[str, Path]:
    """Parse NAME=FOLDER."""
    name, equals, folder = text.partition("=")
    if not name or not equals or not folder:
        raise ValueError(f"{text!r} is not NAME=FOLDER")
    return name, Path(folder)


def whole_number(least: int) -> Callable[[str], int]:
    """Return a parser for whole numbers that are at least ``least``."""

    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else None
        if number is None or number < least:
            raise ValueError(f"{text!r} is not a whole number of {least} or more")
        return number

    return read
