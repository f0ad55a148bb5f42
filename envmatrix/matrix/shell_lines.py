"""Split shell text into commands and words, without running anything: for files that set variables and modules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_QUOTED = r"""'[^']*'|"(?:\\[\s\S]|[^"\\])*\""""
_EXPANSION = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\$\{[^}]*\}|`[^`]*`"
_TOKEN = re.compile(
    rf"""(?P<blank>(?:[ \t\r\f\v]|\\\n)+) | (?P<comment>\#[^\n]*)
    | (?P<heredoc><<(?!<)(?P<tabs>-?)[ \t]*(?P<until>(?:\\.|{_QUOTED}|[\w.-])+)) | (?P<redirect>\d*(?:<<<|[<>]+)[&|]?)
    | (?P<end>\n|;+&?|&&|\|[|&]?|&|[()])
    | (?P<word>(?:\\[\s\S]|{_QUOTED}|{_EXPANSION}|[^\s'"\\;&|()<>`])+)""",
    re.VERBOSE,
)
#: A word of a line in which `; & | ( ) < >` and `#` mean nothing, such as an ENV of a Dockerfile.
WORD = re.compile(rf"""(?:\\[\s\S]|{_QUOTED}|[^\s'"\\])+""")
_PIECE = re.compile(
    r"""\\(?P<escaped>[\s\S])|'(?P<single>[^']*)'|"(?P<double>(?:\\[\s\S]|[^"\\])*)"|(?P<plain>[^'"\\]+)"""
)
#: The word that ends what each of these words begins.
_ENDS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_JOINING = ("&&", "||", "|", "|&")
_SILENT = {"then", "else", "elif", "do", "!", "time"}
#: After these, `&&` is only a way to write two lines: they are not conditions.
_NO_CONDITION = {"export", "declare", "typeset", "module", "ml", "source", ".", "cd", "conda", "mamba", "micromamba"}


@dataclass
class Command:
    """A simple command. ``certain``: it runs whenever the script does; ``alone``: its line has nothing else.

    ``line`` is the one on which it, or the first of those that `&&` and the like join with it, begins.
    ``raw`` are its words as written, ``words`` without their quotes. ``error`` says why a line cannot be read.
    """

    number: int
    raw: list[str] = field(default_factory=list)
    certain: bool = True
    alone: bool = True
    error: str = ""
    line: int = 0

    @property
    def words(self) -> list[str]:
        """Return the words without their quotes."""
        return [unquote(word) for word in self.raw]


def unquote(raw: str) -> str:
    """Return a word without its quotes and backslashes."""
    return "".join(_unquoted_piece(piece) for piece in _PIECE.finditer(raw))


def _unquoted_piece(piece: re.Match[str]) -> str:
    if piece["escaped"] is not None:
        return piece["escaped"].replace("\n", "")
    if piece["double"] is not None:
        return re.sub(r'\\(["\\$`\n])', lambda match: match[1].replace("\n", ""), piece["double"])
    return piece["single"] if piece["single"] is not None else piece["plain"]


def has_shell_expansion(raw: str) -> bool:
    """Return whether only a shell can tell the value of a word: variables, commands, or a home folder."""
    return bool(re.search(r"[$`]", raw) or re.match(r"(?:[A-Za-z_]\w*=)?~|[A-Za-z_]\w*=.*:~", raw))


def read_commands(text: str) -> Iterator[Command]:
    """Yield the commands of a script in its order, those inside of conditions, loops and functions too."""
    parser = _Parser(text)
    while parser.position < len(text):
        yield from parser.step()
    yield from parser.finish("\n")


class _Parser:
    """Reads one token after the other. ``open`` are the words that will end what has begun."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.counted, self.line = text, 0, 0, 1
        self.open: list[str] = []
        self.documents: list[tuple[str, bool]] = []
        self.condition = self.after_redirect = self.has_more = False
        self.command, self.begin, self.end = Command(1), 0, ""

    def number(self, position: int) -> int:
        """Return the line of a position; positions only grow."""
        self.line += self.text.count("\n", self.counted, position)
        self.counted = position
        return self.line

    def step(self) -> Iterator[Command]:
        token = _TOKEN.match(self.text, self.position)
        if token is None:
            line = self.number(self.position)
            self.position = (self.text.find("\n", self.position) + 1) or len(self.text)
            self.command = Command(line)
            yield Command(line, error="no closing quotation")
            return
        self.position = token.end()
        if token["end"]:
            yield from self.finish(token["end"])
        elif token["heredoc"]:
            self.documents.append((unquote(token["until"]), bool(token["tabs"])))
        elif token["redirect"]:
            self.after_redirect = self.has_more = True
        elif token["word"]:
            self.add(token["word"], token.start())

    def add(self, word: str, position: int) -> None:
        if self.after_redirect:
            self.after_redirect = False
        elif self.command.raw:
            self.command.raw.append(word)
            if self.command.raw[0] == "function" and word == "{":
                self.open.append("}")
        elif self.open and word == self.open[-1]:
            self.open.pop()
        elif word in _ENDS:
            self.open.append(_ENDS[word])
        elif word not in _SILENT:
            number = self.number(position)
            self.begin = self.begin or number
            self.command = Command(number, [word], not (self.open or self.condition), line=self.begin)

    def finish(self, end: str) -> Iterator[Command]:
        """End a command, and skip the documents that follow its line."""
        command, self.command = self.command, Command(0)
        goes_on = end == "\n" and not command.raw and self.end in _JOINING
        if not goes_on:
            command.alone, self.has_more = end == "\n" and not self.has_more, end != "\n"
            command.certain &= end not in ("|", "|&", "&", "(")
            is_safe = not self.condition and command.raw[:1] and command.raw[0] in _NO_CONDITION
            self.condition = not is_safe if end == "&&" else end in _JOINING
            self.end = end
        if command.raw:
            yield command
        if end == "(":
            self.open.append(")")
        elif end == ")" and self.open[-1:] == [")"]:
            self.open.pop()
        if end == "\n":
            self.begin = self.begin if goes_on else 0
            for until, has_tabs in self.documents:
                self.skip_document(until, has_tabs)
            self.documents = []

    def skip_document(self, until: str, has_tabs: bool) -> None:
        while self.position < len(self.text):
            end = self.text.find("\n", self.position)
            line = self.text[self.position : end if end >= 0 else None]
            self.position += len(line) + 1
            if (line.lstrip("\t") if has_tabs else line).rstrip("\r") == until:
                return
