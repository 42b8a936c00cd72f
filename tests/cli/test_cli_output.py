"""One answer in four forms: text, a table, JSON and YAML."""

import io
import json
from contextlib import redirect_stdout

import pytest
import yaml
from cli_runner import Cli
from cli_terminal import terminal

import snapkv
from snapkv.cli import main
from snapkv.reading.reader import Reader

pytestmark = pytest.mark.slow

EVIL = "two\nlines\x1b[31m\u202e"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def cli(cli: Cli) -> Cli:
    cli.patch.setattr(Reader, "age_s", lambda self, timestamp: 7.5)  # status is asked twice
    cli.ok("put", "a", "1", "wide/日本", "grün", "--note", "first\nnote")
    cli.ok("put", "a", '{"x": [1, 2]}', "--writer", "bob")
    cli.ok("put", "binary", "-", stdin=b"\xff\x00")
    cli.ok("rm", "a")
    return cli


ANSWERS = [
    ["get", "binary"],
    ["ls"],
    ["ls", "--long"],
    ["log"],
    ["history", "a"],
    ["diff", "0", "rev:4"],
    ["diff", "rev:4"],
    ["watch", "--since", "0", "--timeout", "0s"],
    ["status"],
    ["check"],
]


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_yaml_has_the_fields_of_json_in_a_document_each(cli: Cli, words: list[str]) -> None:
    expected = cli.ok(*words, "--json").json
    assert expected
    answer = cli.ok(*words, "-o", "yaml")
    assert list(yaml.safe_load_all(answer.out)) == expected
    assert answer.out.count("---\n") == len(expected)
    assert cli.ok(*words, "--output", "json").out == cli.ok(*words, "--json").out
    assert cli.ok(*words, "-o", "text").raw == cli.ok(*words).raw


@pytest.mark.parametrize("words", ANSWERS[:-2], ids=" ".join)
def test_a_table_has_a_heading_and_a_row_for_each_record(cli: Cli, words: list[str]) -> None:
    records = cli.ok(*words, "--json").json
    head, *lines = cli.ok(*words, "-o", "table").lines
    changes = [change for record in records for change in record.get("changes", [record])]
    assert len(lines) == len(changes)
    assert head == head.upper()
    assert not any(line.endswith(" ") for line in lines)


def test_facts_are_a_table_of_two_columns(cli: Cli) -> None:
    head, *lines = cli.ok("status", "-o", "table").lines
    assert head.split() == ["FACT", "VALUE"]
    assert [line.split() for line in lines] == [line.split() for line in cli.ok("status").lines]


def test_columns_of_a_table_are_aligned(cli: Cli) -> None:
    cli.ok("put", "a", "x" * 1_234)
    head, first, second, third = cli.ok("ls", "-l", "-o", "table").lines
    assert head == "REVISION  SIZE  KEY        VALUE"
    assert first == f'       7  1234  a          "{"x" * 60}"... (1,234 bytes)'
    assert second == "       5     2  binary     0xff00"
    assert third == '       3     5  wide/日本  "grün"', "wide characters take two columns"
    head, newest, *_ = cli.ok("log", "-o", "table", "-n", "1").lines
    assert head.split() == ["TIME", "REVISION", "WRITER", "NOTE", "META"]
    assert head.index("WRITER") == newest.index("ann@laptop")


def test_a_long_table_goes_on_with_the_widths_of_its_beginning(cli: Cli) -> None:
    with snapkv.open(cli.url) as store:
        store.multi_save({f"key/{n:04}": b"v" for n in range(2_500)})
        store.save("last/" + "x" * 50, b"v")
    lines = cli.ok("ls", "-l", "-o", "table").lines
    assert len(lines) == 1 + 2_500 + 3
    assert {line.index('"v"') for line in lines if "key/" in line} == {lines[0].index("VALUE")}
    assert lines[-2].endswith(f'last/{"x" * 50}  "v"')


def test_a_table_on_a_terminal_has_colours(cli: Cli) -> None:
    with terminal(cli, "--no-pager", "log", "-o", "table") as screen:
        pass
    assert b"\x1b[1mTIME" in screen.shown


def test_what_does_not_print_is_escaped_in_every_form(cli: Cli) -> None:
    cli.ok("put", EVIL, EVIL, "--note", EVIL, "--writer", EVIL)
    for words in (["ls", "-l"], ["log"], ["history", EVIL], ["diff", "-1h"], ["get", EVIL]):
        for form in ("text", "table", "json", "yaml"):
            if (words[0], form) == ("get", "text"):
                continue  # exact bytes for a pipe
            shown = cli.ok(*words, "-o", form).out
            assert not {"\x1b", "\u202e"} & set(shown), (words, form)
    (found,) = yaml.safe_load_all(cli.ok("get", EVIL, "-o", "yaml").out)
    assert (found["key"], found["value"]) == (EVIL, EVIL)


def test_lines_of_a_text_are_lines_of_yaml(cli: Cli) -> None:
    cli.ok("put", "config", "one: 1\ntwo: zwölf\n")
    assert "value: |\n  one: 1\n  two: zwölf\n" in cli.ok("get", "config", "-o", "yaml").out


@pytest.mark.parametrize(
    "variables",
    [
        ASCII,
        *(
            pytest.param({"PYTHONIOENCODING": name}, marks=pytest.mark.long)
            for name in ("ascii", "latin-1")
        ),
        {"PYTHONIOENCODING": "utf-8"},
    ],
    ids=["locale", "ascii", "latin-1", "utf-8"],
)
def test_yaml_is_read_back_whatever_the_encoding_of_the_output(
    cli: Cli, variables: dict[str, str]
) -> None:
    cli.ok("put", "ключ", "ü\n日本", "grün", "\\u043a", "plain", "日本 😀", "--note", "ü")
    cli.environment |= variables
    for words in (["ls", "-l"], ["log"], ["diff", "0"], ["watch", "--since", "0", "-n", "1"]):
        answer = cli.process(*words, "-o", "yaml")
        assert (answer.code, answer.err) == (0, "")
        expected = cli.ok(*words, "--json").json
        assert list(yaml.safe_load_all(answer.raw)) == expected, words
        is_utf8 = variables.get("PYTHONIOENCODING") == "utf-8"
        assert answer.raw.isascii() is not is_utf8, words
    assert {"key": "ключ"} in cli.ok("ls", "--json").json


def test_yaml_in_a_stream_without_an_encoding_has_all_characters(cli: Cli) -> None:
    stream = io.StringIO()
    with redirect_stdout(stream):
        assert main(["ls", "-o", "yaml", "--store", cli.url]) == 0
    assert "key: wide/日本\n" in stream.getvalue()


def test_the_format_may_come_before_the_command(cli: Cli) -> None:
    assert cli.ok("-o", "yaml", "ls").out == cli.ok("ls", "-o", "yaml").out


def test_formats_that_contradict_are_an_error_before_anything_is_done(cli: Cli) -> None:
    for form in ("yaml", "table"):
        for words in (
            ["put", "new", "1", "--json", "-o", form],
            ["-o", form, "put", "n", "1", "--json"],
        ):
            answer = cli(*words)
            assert answer.code == 2
            assert answer.err == f"snapkv: --json and --output {form}: give one of the two\n"
    assert cli("put", "new", "1", "-o", "xml").err == (
        "snapkv: --output takes text, table, json, yaml, not 'xml': choose one\n"
    )
    assert cli("get", "new").code == 1
    assert json.loads(cli.ok("ls", "--json", "-o", "json").lines[0]) == {"key": "binary"}


def test_commands_that_write_answer_in_every_form(cli: Cli) -> None:
    (committed,) = yaml.safe_load_all(cli.ok("put", "n", "1", "-o", "yaml").out)
    assert committed["writer"] == "ann@laptop"
    head, row = cli.ok("tick", "-o", "table").lines
    assert head.split() == ["TIMESTAMP", "TIME", "REVISION", "WRITER", "NOTE"]
    assert len(row.split()) == 4


def test_log_and_history_have_aligned_columns(cli: Cli) -> None:
    cli.ok("put", "a", '{"n": [1, 2]}', "--writer", "ann", "--note", "first")
    cli.ok("put", "a", "2", "--writer", "longer@name", "--note", "second")
    second, first = cli.ok("log").lines[:2]
    assert first.index('"first"') == second.index('"second"')
    second, first = cli.ok("history", "a").lines[:2]
    assert first.index("ann") == second.index("longer@name")
    assert first.index('"first"') == second.index('"second"')


def test_a_preview_of_json_is_compact_and_has_no_escapes(cli: Cli) -> None:
    cli.ok("put", "a", '{\n  "name": "café two",\n  "n": [1.50, 2]\n}')
    shown = '{"name":"café two","n":[1.50,2]}'
    for words in (["ls", "-l"], ["history", "a"], ["diff", "0"]):
        assert shown in cli.ok(*words).out
    cli.ok("put", "a", "[section]\nkey = value")
    assert r'"[section]\nkey = value"' in cli.ok("ls", "-l").out
