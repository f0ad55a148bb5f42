"""One grammar for every command: words and options in any order, lists, durations, and messages about mistakes."""

import re
import shlex
import shutil
import subprocess

import pytest

from envmatrix.__main__ import main
from envmatrix.cli.command_table import COMMANDS, GROUPS, command_parser, parse
from envmatrix.cli.completion import SHELLS
from envmatrix.cli.console_io import read_launcher_options
from envmatrix.cli.shared_options import read_image_and_launcher
from envmatrix.errors import InputError

#: A value for every required word, so that only the tested option is wrong.
WORDS = {
    "atlas": ["show"],
    "compare": ["a"], "figure": ["forest"], "evidence": ["e"], "exec": ["e"], "export": ["e"],
    "context": ["e"], "reproduce": ["a.tar.gz"], "completion": ["bash"],
}  # fmt: skip


def refused(*argv):
    with pytest.raises(InputError) as caught:
        parse(argv)
    return str(caught.value)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_examples_that_parse(name, capsys):
    parser = command_parser(name)
    assert parser.example_lines
    assert len(parser.example_lines) <= 2
    assert parser.example_lines[-1] in parser.format_help()
    for line in parser.example_lines:
        command = re.search(r"envmatrix ([^|)]|(?<=torch)\)|\)')+", line)[0]
        found = parse(shlex.split(command.rstrip('"'))[1:])
        assert found.execute.__module__ == f"envmatrix.cli.{name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_an_option_it_does_not_know(name):
    parser = command_parser(name)
    assert "unknown option --nonsense" in refused(name, *WORDS.get(name, []), "--nonsense", "x")
    assert "unknown option --ünsinn" in refused(name, *WORDS.get(name, []), "--ünsinn=x")
    for option in (word for word in parser._option_string_actions if len(word) > 5):
        assert f"did you mean {option}?" in refused(name, f"{option}x")
        assert "unknown option" in refused(name, option[:-1]), "an abbreviation"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_one_word_too_many(name):
    parser = command_parser(name)
    places = [action for action in parser._get_positional_actions() if action.dest != "command"]
    if any(action.nargs == "*" for action in places):
        return
    words = WORDS.get(name, []) if name in WORDS else ["factors"] if name == "list" else ["w"] * len(places)
    words = [*words, *["w"] * (len(places) - len(words))]
    assert "'one-more'" in refused(name, *words, "one-more")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_empty_word_is_told(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([name, ""]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_commands_are_grouped():
    assert list(GROUPS) == ["run", "look", "share", "build"]
    assert len(COMMANDS) == sum(map(len, GROUPS.values())) == 30


@pytest.mark.parametrize("command", ["plan", "bench"])
def test_a_design_is_a_word(command):
    # Only `bench` first checks whether there is a matrix or a program (tests/local/test_any_program.py).
    assert parse([command]).design == (None if command == "bench" else "default")
    assert parse([command, "quick", "--budget", "10m"]).design == "quick"
    assert parse([command, "--budget", "10m", "quick"]).design == "quick"
    assert "'quick'" in refused(command, "quick", "default")
    assert "the design as a separate word" in refused(command, "--design", "quick")


@pytest.mark.parametrize("argv", [["compare", "a"], ["bench"], ["plan"]])
def test_a_list_is_written_with_commas_or_by_giving_its_option_again(argv):
    found = parse([*argv, "--environments", "a,b", "--environments", "c"])
    assert found.environments == ["a", "b", "c"]
    assert parse([*argv, "--environments=a"]).environments == ["a"]
    assert "empty name" in refused(*argv, "--environments", "a,,b")
    assert "empty name" in refused(*argv, "--environments", "")


def value(found, option):
    names = {**vars(found), **read_launcher_options(found)}
    return names["engines" if option == "--engine" else option[2:]]


def test_every_list_takes_commas_and_repeats():
    lists = ["--engine", "--environments", "--workloads", "--nodelist", "--modules"]
    found = parse(["bench", *(word for name in lists for word in (name, "x,y", name, "z"))])
    assert all(list(value(found, name)) == ["x", "y", "z"] for name in lists)
    assert value(parse(["bench", "--nodelist", "n[1-2,5],m3"]), "--nodelist") == ("n[1-2,5]", "m3")


def test_a_list_with_blanks_is_told_the_commas(tmp_path, monkeypatch, capsys):
    assert "separate a list with commas: --workloads a,b" in refused("bench", "quick", "--workloads", "a", "b")
    assert "--nodelist n1,n2,n3" in refused("bench", "--nodelist", "n1", "n2", "n3")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--environments", "tcmalloc", "mimalloc", "--seed", "1"]) == 2
    assert (
        "no design 'mimalloc'\n  -> separate a list with commas: --environments tcmalloc,mimalloc"
        in capsys.readouterr().err
    )
    (tmp_path / "results" / "a").mkdir(parents=True)
    (tmp_path / "results" / "a" / "run.json").write_text("{}")
    assert main(["compare", "a", "--environments", "baseline", "tcmalloc"]) == 2
    assert "--environments baseline,tcmalloc" in capsys.readouterr().err
    assert main(["bench", "--environments", "tcmalloc", "nosuch", "--budget", "1s"]) == 2
    assert "--environments tcmalloc,nosuch" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("9m30s", 570), ("90", 90)])
@pytest.mark.parametrize(
    "argv", [["bench", "--budget"], ["resume", "--budget"], ["bench", "--time"], ["exec", "--limit"]]
)
def test_a_duration_is_written_alike_everywhere(argv, text, seconds):
    found = parse([argv[0], *WORDS.get(argv[0], []), argv[1], text])
    assert value(found, argv[1]) == seconds


@pytest.mark.parametrize("text", ["soon", "-5m", "0s", "1d", "9 30", "1:30:00", "", "9" * 400 + "h", "nan", "10M"])
@pytest.mark.parametrize(
    "argv", [["bench", "--budget"], ["resume", "--budget"], ["bench", "--time"], ["exec", "--limit"]]
)
def test_a_wrong_duration_is_told_the_form(argv, text):
    said = refused(argv[0], *WORDS.get(argv[0], []), f"{argv[1]}={text}")
    assert f"{argv[1]}: " in said
    assert "such as 30s, 5m, 9m30s or 2h" in said


@pytest.mark.parametrize(
    "argv", [["--limit", "10m", "e"], ["e", "--limit", "10m"], ["--limit=10m", "e"], ["e", "--limit", "600"]]
)
def test_exec_takes_options_on_either_side_of_the_environment(argv):
    found = parse(["exec", *argv, "--", "python", "-c", "print()", "--limit", "x", "--", "--matrix"])
    assert (found.environment, found.limit) == ("e", 600)
    assert found.command == ["python", "-c", "print()", "--limit", "x", "--", "--matrix"]


def test_a_command_stands_behind_two_hyphens():
    assert "-- python train.py" in refused("exec", "e", "python", "train.py")
    assert "-- python train.py" in refused("init", "python", "train.py")
    assert parse(["exec", "e"]).command == []
    assert parse(["init", "--", "python", "ü.py"]).command == ["python", "ü.py"]


@pytest.mark.parametrize(
    ("argv", "now"),
    [
        (["bench", "python", "train.py"], "write `--` before a program: envmatrix bench -- python train.py"),
        (
            ["bench", "--environments", "tcmalloc", "python", "train.py"],
            "write `--` before a program: envmatrix bench -- python train.py",
        ),
        (["tune", "python", "train.py"], "write `--` before a program: envmatrix tune -- python train.py"),
        (
            ["bench", "python", "train.py", "--epochs", "1"],
            "write `--` before a program and its options: envmatrix bench -- python",
        ),
        (["bench", "--runs", "10", "--", "true"], "--max-blocks N"),
        (["bench", "-N", "--", "true"], "bash -c 'LINE'"),
        (["bench", "--export-json=x", "--", "true"], "summary.json"),
        (["bench", "-P", "n", "1", "9", "--", "true"], "--parameter-list NAME 1,2,3"),
    ],
)
def test_who_knows_hyperfine_or_forgets_the_hyphens_is_told_what_is_written_here(argv, now):
    assert now in refused(*argv)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["train.py"], "envmatrix bench -- python train.py"),
        (["run.sh"], "envmatrix bench -- ./run.sh"),
        (["bin/train"], "envmatrix bench -- bin/train"),
        (["-r", "10", "--", "true"], "for hyperfine's -r 10, use --max-blocks 10"),
    ],
)
def test_a_program_that_stands_where_a_design_does_is_told(tmp_path, monkeypatch, capsys, words, remedy):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    assert remedy in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "now"),
    [
        (["history", "--out", "x"], "did you mean --output?"),
        (["figure", "forest", "--out=x"], "did you mean --output?"),
        (["build", "--design", "quick"], "envmatrix build DESIGN"),
        (["context", "tcmalloc", "build/context"], "--output DIR"),
        (["reproduce", "a.tar.gz", "--run", "x"], "ARCHIVE RUN"),
        (["selftest", "--run", "x"], "RUN"),
    ],
)
def test_a_spelling_of_another_command_is_told_the_one_of_this(argv, now):
    said = refused(*argv)
    assert "unknown option" in said or ", but got two" in said
    assert now in said


def test_typographic_dashes_and_options_before_the_command_are_told():
    assert "typographic dash" in refused("bench", "\u2014budget", "5m")
    assert "envmatrix list --json" in refused("--json", "list")
    assert "envmatrix check --matrix 'my own.yaml'" in refused("--matrix", "my own.yaml", "check")


def test_a_word_of_build_is_a_design_or_environments(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["quick", "tcmalloc"], "'quick' is a design, but you passed 2 names"),
        (["nosuch"], "no design or environment named 'nosuch'"),
        (["quik"], "did you mean 'quick'?"),
        (["design:nosuch"], "no design 'nosuch'"),
    ):
        assert main(["build", *words]) == 2
        assert said in capsys.readouterr().err


@pytest.fixture
def completion(tmp_path, capsys):
    def write(shell):
        if not shutil.which(shell):
            pytest.skip(f"{shell} is not installed")
        assert main(["completion", shell]) == 0
        script = tmp_path / "completion"
        script.write_text(capsys.readouterr().out)
        return script

    return write


def said_by(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell != "tcsh"])
def test_the_shell_itself_reads_its_completion(shell, completion):
    script = completion(shell)
    said_by(shell, "-n", script)
    assert all(name in script.read_text() for name in COMMANDS)


def test_bash_completes_commands_and_options(completion):
    ask = (
        f'. {completion("bash")}; line() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMPREPLY=(); '
        '$(complete -p envmatrix | grep -o "_[a-z_]*") envmatrix "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[@]}"; }; '
    )
    assert said_by("bash", "-c", f"{ask} line envmatrix ben") == ["bench"]
    assert said_by("bash", "-c", f"{ask} line envmatrix bench --bud") == ["--budget"]
    assert said_by("bash", "-c", f"{ask} line envmatrix figure f") == ["forest"]
    assert not any(word.endswith(".toml") for word in said_by("bash", "-c", f"{ask} line envmatrix list --results ''"))


def test_fish_completes_commands_and_options(completion):
    script = completion("fish")
    assert said_by("fish", "-c", f"source {script}; complete -C 'envmatrix ben'")[0] == "bench"
    assert said_by("fish", "-c", f"source {script}; complete -C 'envmatrix bench --bud'")[0] == "--budget"


def test_gpus_are_those_of_a_container_here_and_those_of_a_node_elsewhere():
    here = read_image_and_launcher(parse(["exec", "e", "--gpus", "0, 1"]))
    assert (here.gpus, here.launcher_options) == (("0", "1"), {})
    node = read_image_and_launcher(
        parse(["evidence", "e", "--launcher", "slurm", "--gpus", "a100:2", "--image", "x.sif"])
    )
    assert (node.gpus, node.launcher_options, node.image) == (("all",), {"gpus": "a100:2"}, "x.sif")
    assert read_image_and_launcher(parse(["evidence", "e"])).gpus == ()
