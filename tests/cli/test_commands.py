import gzip
import io
import json
import os
import re
import subprocess
import sys
import types

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pasta.cli import main
from pasta.cli.commands import run
from pasta.errors import UserError
from tests.support.options import with_options
from tests.support.paths import ROOT

TEA = (
    'Two drinks.<promise topic="tea" tokens="20"/><async> Tea comes from leaves, dried and steeped in water that '
    'must not be too hot.</async><promise topic="coffee" tokens="20"/><async> Coffee comes from beans. '
    '<promise topic="roast" tokens="20"/><async>It is roasted well.</async></async><sync/> Both wake you up.'
)
TEA_PLAIN = (
    "Two drinks. Tea comes from leaves, dried and steeped in water that must not be too hot. Coffee comes from "
    "beans. It is roasted well. Both wake you up."
)


@pytest.fixture
def write(tmp_path):
    def write(*records, name="a.jsonl"):
        path = tmp_path / name
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def check(path, *options):
    return run(["check", str(path), "--tokenizer", "words", *options])


def show(path, *options):
    return run(["show", str(path), "--tokenizer", "words", "--width", "100", *options])


def test_check_accepts_valid_records_and_counts_them(write, capsys):
    path = write(
        {"prompt": "Drinks?", "annotated": TEA, "answer": TEA_PLAIN},
        "",
        {"messages": [{"role": "user", "content": "Hi"}], "annotated": "Hello there."},
        {"prompt": [{"role": "user", "content": "Hi"}], "annotated": "Hello there."},
    )
    assert check(path) == 0
    out = capsys.readouterr().out
    assert "3, 3 valid, 0 invalid" in out
    assert "33.3% of the valid (1)" in out
    assert "0: 2, 2: 1" in out  # nesting depth
    assert "estimates exact       66.7%" in out  # roast's is 5, which rounds up to 10


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"prompt": "x",', "not JSON: "),
        ("[]", "expected an object"),
        ('{"annotated": "a"}', "neither 'prompt' nor 'messages'"),
        ('{"prompt": 1, "annotated": "a"}', "prompt: expected a text or messages, got a number"),
        ('{"prompt": "x", "annotate": "a"}', "no key 'annotated'; keys here: 'prompt', 'annotate'"),
        ('{"prompt": "x", "annotated": null}', "no key 'annotated'"),
        (
            '{"prompt": "x", "annotated": "a\\nb <sync/></async>"}',
            "annotated: line 2, column 10: expected no </async>",
        ),
        (
            '{"prompt": "x", "annotated": "<promise topic=\\"t\\" tokens=\\"7\\"/>"}',
            "expected a positive multiple of 10",
        ),
        (
            '{"prompt": "x", "annotated": "ab", "answer": "aB"}',
            "differ at character 2, expected 'B', got 'b'",
        ),
        ('{"prompt": "x", "annotated": "a", "answer": "ab"}', "differ at character 2, expected 'b', got ''"),
        ('{"messages": [], "annotated": "a"}', "messages: expected a list of objects"),
        (
            '{"messages": [{"role": "assistant", "content": "b"}], "annotated": "a"}',
            "the last message is of role 'assistant'; expected the user's that the answer is to",
        ),
        (
            '{"messages": [{"role": "user"}], "annotated": "a"}',
            "expected 'role' and 'content' in each message",
        ),
        ('{"prompt": "\\ud800", "annotated": "a"}', "half of a surrogate pair"),
    ],
)
def test_check_names_each_bad_line_and_goes_on(write, capsys, line, expected):
    good = {"prompt": "x", "annotated": "a"}
    path = write(good, line, good)
    assert check(path) == 1
    out = capsys.readouterr().out
    assert f"{path}:2: " in out
    assert expected in out
    assert "3, 2 valid, 1 invalid" in out


def test_a_long_check_says_how_far_it_is_and_keeps_no_answer(write, capsys, monkeypatch):
    """100,000 answers took 1.7 GB, and minutes without a word."""
    kept = []
    monkeypatch.setattr("pasta.cli.check._TOLD_RECORDS", 2)
    monkeypatch.setattr("pasta.cli.check.statistics", lambda valid, count: kept.extend(valid) or [])
    path = write(*[{"prompt": "Drinks?", "annotated": TEA}] * 5)
    assert check(path) == 0
    assert capsys.readouterr().err == f"{path}: 2 records so far\n{path}: 4 records so far\n"
    assert [(each.num_threads, hasattr(each, "trace")) for each in kept] == [(4, False)] * 5


def test_check_survives_bytes_and_nesting_that_no_record_has(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    deep = '<promise topic="x" tokens="10"/><async>' * 3000 + "</async>" * 3000
    record = json.dumps({"prompt": "x", "annotated": deep}).encode()
    path.write_bytes(b"\xef\xbb\xbf" + record + b'\n{"prompt": "\xff"}\n' + b"[" * 100_000 + b"\n")
    assert check(path) == 1
    out = capsys.readouterr().out
    assert f"{path}:1: annotated: line 1, column 3901: expected chunks nested at most 100 levels deep" in out
    assert f"{path}:2: byte 13 is not UTF-8" in out
    assert f"{path}:3: not JSON that can be read: nested too deeply" in out


def test_check_names_a_number_of_thousands_of_digits_and_goes_on(write, capsys):
    good = {"prompt": "x", "annotated": "a"}
    endless = '{"annotated": ' + "9" * 5000 + "}"
    path = write(good, endless, good)
    assert check(path) == 1
    out = capsys.readouterr().out
    assert f"{path}:2: not JSON: a number of thousands of digits" in out
    assert "3, 2 valid, 1 invalid" in out
    with pytest.raises(UserError, match=r"a.jsonl:2: not JSON: a number of thousands of digits"):
        show(path, "--record", "2")


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "LONG"],
        ["show", "LONG"],
        ["check", "FILE", "--tokenizer", "LONG"],
        ["compare", "LONG", "LONG"],
        ["alpaca", "annotations", "LONG"],
        ["alpaca", "export", "LONG", "pasta", "--out", "x"],
        ["simulate", "--config", "LONG"],
        ["simulate", "--config", "CONFIG", "--set", "costs={file: LONG}"],
        ["simulate", "--config", "CONFIG", "--set", "trace.source=LONG"],
    ],
)
def test_a_name_too_long_for_the_system_is_one_line(write, monkeypatch, capsys, arguments):
    file = write({"prompt": "x", "annotated": "a"})
    names = {"LONG": "a" * 300, "FILE": str(file), "CONFIG": str(ROOT / "configs/simulate/atlas.yaml")}
    for name, value in names.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert "a" * 50 in lines[0]


def test_a_ctrl_c_while_modules_are_imported_is_one_line(monkeypatch, capsys):
    class Importing(types.ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "pasta.cli.commands", Importing("pasta.cli.commands"))
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_check_reads_another_field(write):
    assert check(write({"prompt": "x", "output": "a"}), "--field", "output") == 0


@pytest.mark.parametrize(
    ("arguments", "content", "expected"),
    [
        (["check", "FILE"], None, "FILE: no such file; expected a file of annotated answers"),
        (["check", "FILE"], "\n", "holds no records"),
        (["check", "FILE", "--tokenizer", "no/such"], "{}", "no such directory; expected atlas, words, or a"),
        (["check", "FILE", "--tokenizer", "."], "{}", "no tokenizer can be read there"),
        (["show", "FILE"], "\n", "is empty"),
        (["show", "FILE", "--record", "2"], '{"prompt": "x", "annotated": "a"}', "has 1 records"),
        (["show", "FILE", "--record", "2"], "plain text", "is one answer in text form"),
        (["show", "FILE"], '\n{"prompt": "x"}', "FILE:2: no key 'annotated'"),
        (["show", "FILE"], "a</async>", "FILE: line 1, column 2: expected no </async> outside a chunk"),
    ],
)
def test_misuse_is_one_line(tmp_path, monkeypatch, arguments, content, expected):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "FILE").write_text(content)
    with pytest.raises(UserError) as caught:
        run([*arguments[:2], *with_options(["--tokenizer", "words"], arguments[2:])])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["check", "show"])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "-"])
def test_a_compressed_file_is_one_line_that_says_so(tmp_path, monkeypatch, command, name):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"prompt": "x", "annotated": "a"}\n'))
    with file.open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        with pytest.raises(UserError, match="it is compressed; unpack it with gunzip"):
            run([command, name, "--tokenizer", "words"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["show", "--width", "0"], "'0' is not a positive integer"),
        (["show", "--width", "100000000"], "'100000000', expected at most 10,000"),
        (["stand-in", "--port", "65536"], "'65536', expected a port from 0 to 65535"),
        (["stand-in", "--port", "-1"], "'-1', expected a port from 0 to 65535"),
        *(
            (["stand-in", "--judge-error", error], f"'{error}', expected a probability from 0 to 1")
            for error in ("7", "nan", "x")
        ),
    ],
)
def test_wrong_arguments_exit_with_2(capsys, arguments, told):
    with pytest.raises(SystemExit) as caught:
        run(arguments)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_no_tokenizer_is_loaded_for_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("pasta.cli.check.codec_source", lambda name: pytest.fail("a tokenizer was loaded"))
    with pytest.raises(UserError, match="no such file"):
        run(["check", str(tmp_path / "gone")])


def test_show_draws_every_thread_of_a_record(write, capsys):
    assert (
        show(
            write({"prompt": "Hi", "annotated": "a"}, {"prompt": "Drinks?", "annotated": TEA}),
            "--record",
            "2",
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "prompt: Drinks?"
    drawn = {line.split()[0]: line for line in lines[3:7]}
    assert list(drawn) == ["main", "tea", "coffee", "roast"]
    assert drawn["main"].count("┳") == 2
    assert drawn["main"].count("◆") == 1
    assert "·" in drawn["main"]
    assert drawn["coffee"].count("┳") == 1
    assert drawn["tea"].endswith("17/20 tokens")
    assert "critical path" in lines[-3]


@pytest.mark.parametrize("word", ["which ", "很", "cafe\u0301 "])
def test_show_keeps_the_prompt_to_the_width_that_it_takes_in_a_terminal(write, capsys, word):
    show(write({"prompt": word * 100, "annotated": "a"}))
    line = capsys.readouterr().out.splitlines()[0]
    wide = sum({"很": 2, "\u0301": 0}.get(letter, 1) for letter in line)
    assert 98 <= wide <= 100
    assert line.endswith("…")


def test_show_reads_one_answer_in_text_form_from_stdin():
    done = subprocess.run(
        [sys.executable, "-m", "pasta.cli", "show", "--tokenizer", "words", "--width", "60"],
        input=TEA, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert "coffee" in done.stdout
    assert "\033" not in done.stdout
    assert all(len(line) <= 60 for line in done.stdout.splitlines()[:5])


@pytest.mark.parametrize("begin", ["{name} is a place for a name. ", "{\n  key: 1\n}\n"])
def test_show_reads_an_answer_in_text_form_that_begins_with_a_brace(tmp_path, capsys, begin):
    (tmp_path / "FILE").write_text(begin + TEA)
    assert show(tmp_path / "FILE") == 0
    assert "coffee" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{}", '{ "prompt": "x"'])
def test_show_reads_a_broken_record_as_one(tmp_path, content):
    (tmp_path / "FILE").write_text(content)
    with pytest.raises(UserError, match=r"FILE:1: (no key 'annotated'|not JSON: )"):
        show(tmp_path / "FILE")


@pytest.mark.parametrize("command", [["show"], ["check", "-"]])
def test_a_closed_standard_input_is_one_line(monkeypatch, command):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match=r"^standard input: is closed; expected a file of annotated answers"):
        run([*command, "--tokenizer", "words"])


def test_show_falls_back_to_ascii():
    done = subprocess.run(
        [sys.executable, "-m", "pasta.cli", "show", "--tokenizer", "words", "--width", "60"],
        input=TEA.encode(), capture_output=True, check=True, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert b"====+" in done.stdout


@pytest.mark.slow
def test_the_command_counts_with_the_packaged_tokenizer_by_default(write):
    path = write({"prompt": "Drinks?", "annotated": TEA, "answer": TEA_PLAIN})
    done = subprocess.run(
        [sys.executable, "-m", "pasta.cli", "check", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1, 1 valid, 0 invalid" in done.stdout
    assert re.search(r"tokens counted with +(atlas|words)$", done.stdout, re.MULTILINE)


def test_tokens_are_counted_with_any_tokenizer(write, tmp_path, capsys):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", clean_up_tokenization_spaces=False
    )
    fast.save_pretrained(tmp_path / "bytes")
    path = write({"prompt": "x", "annotated": "four<sync/>"})
    assert run(["check", str(path), "--tokenizer", str(tmp_path / "bytes")]) == 0
    assert "tokens an answer      mean 5.0" in capsys.readouterr().out
