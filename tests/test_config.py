import itertools
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pasta.config import ConfigError, config_fingerprint, load_config, parse_config, read_yaml, to_dict
from pasta.core_yaml import parse_yaml
from pasta.errors import UserError
from pasta.names import FREE_TEXT


@dataclass(frozen=True)
class Optimizer:
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    kind: Literal["adam", "sgd"] = "adam"

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise UserError(f"learning_rate: {self.learning_rate}, expected a positive number")


@dataclass(frozen=True)
class Source:
    path: Path
    weight: float = 1.0


@dataclass(frozen=True)
class Config:
    name: str
    steps: int = 5
    seed: int | None = None
    shuffle: bool = True
    weight: float | Literal["inf"] = 1.0
    targets: Literal["all"] | list[str] = "all"
    optimizer: Optimizer = field(default_factory=Optimizer)
    second: Optimizer | None = None
    sources: list[Source] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    words: Annotated[str, FREE_TEXT] = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name.startswith("x"):
            raise ValueError(f"name {self.name!r}, of {self.words}: expected another")
        if len(self.weights) > 1:
            raise ValueError(f"weights {list(self.weights.values())}: expected one at most")


class Model(BaseModel):
    name: str
    inner: Optimizer = Optimizer()


@pytest.fixture
def load(tmp_path):
    def load(text: str, *overrides: str, cls=Config):
        path = tmp_path / "a.yaml"
        path.write_text(text)
        return load_config(path, cls, overrides)

    return load


@pytest.fixture
def message(load):
    def message(text: str, *overrides: str, cls=Config) -> str:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides, cls=cls)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return message


def test_a_file_fills_nested_dataclasses(load):
    config = load("name: a\noptimizer: {betas: [0.8, 0.9]}\nsources: [{path: x/y}]\n")
    assert config == Config("a", optimizer=Optimizer(betas=(0.8, 0.9)), sources=[Source(Path("x/y"))])


def test_pydantic_models_are_configurations_too(load, message):
    assert load("name: a\ninner: {kind: sgd}", cls=Model).inner.kind == "sgd"
    assert "did you mean 'inner'" in message("name: a\niner: {}", cls=Model)


@pytest.mark.parametrize(
    ("text", "value"), [("2e-3", 2e-3), ("1E5", 1e5), (".5", 0.5), ("3", 3.0), ("1.", 1.0)]
)
def test_floats_are_read_as_people_write_them(load, text, value):
    assert load(f"name: a\noptimizer: {{learning_rate: {text}}}").optimizer.learning_rate == value


def test_yaml_is_version_1_2(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: no\nb: 010\nc: 0x10\nd: 2024-01-01\ne: 1:30\nf: ~\ng: .inf\nh: 'true'\ni: TRUE\n")
    values = read_yaml(path)
    assert values == {
        "a": "no", "b": 10, "c": 16, "d": "2024-01-01", "e": "1:30", "f": None,
        "g": float("inf"), "h": "true", "i": True,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["/mnt/🍵 é", "a\U0010ffffb", '"\\', "𝕏"])
def test_values_that_json_has_escaped_are_read_as_they_were(text):
    assert parse_yaml(json.dumps({text: [text]}), "a.yaml") == {text: [text]}


def test_anchors_and_merge_keys_work(load):
    config = load("name: a\noptimizer: &o {kind: sgd}\nsecond: {<<: *o, learning_rate: 1}")
    assert config.second == Optimizer(1.0, kind="sgd")


def test_an_override_changes_one_place_and_not_its_aliases(load):
    config = load(
        "name: a\noptimizer: &o {kind: sgd}\nsecond: *o\nextra: {one: &d {a: {b: 1}}, two: {<<: *d}}",
        "second.kind=adam",
        "extra.two.a.b=2",
    )
    assert (config.optimizer.kind, config.second.kind) == ("sgd", "adam")
    assert config.extra == {"one": {"a": {"b": 1}}, "two": {"a": {"b": 2}}}


def test_overrides_are_applied_on_top(load):
    config = load(
        "name: a\nsources: [{path: x}]",
        "optimizer.learning_rate=1e-4",
        "second.kind=sgd",
        "sources.0.weight=2",
    )
    assert config.optimizer.learning_rate == 1e-4
    assert config.second == Optimizer(kind="sgd")
    assert config.sources[0].weight == 2.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: a\noptimizer: {learning_rte: 1}", "a.yaml: optimizer: unknown key 'learning_rte' (did you mean "),
        ("name: a\nsecond: {knd: adam}", "second: unknown key 'knd' (did you mean 'kind'?)"),
        ("name: a\nsources: [{pth: x}]", "sources.0: unknown key 'pth' (did you mean 'path'?)"),
        ("name: a\nzzz: 1", "unknown key 'zzz' (known keys: extra, name, optimizer, second, "),
        ("steps: 3", "a.yaml: missing key 'name'"),
        ("name: a\nsources: [{weight: 1}]", "missing key 'sources.0.path'"),
        ("name: 5", "a.yaml: name: expected a valid string, got 5"),
        ("name: a\nsteps: '5'", "steps: expected a valid integer, got '5'"),
        ("name: a\noptimizer: {learning_rate: .nan}", "optimizer.learning_rate: expected a finite number, got nan"),
        ("name: a\nsources: [{path: x, weight: -.inf}]", "sources.0.weight: expected a finite number, got -inf"),
        ("name: a\noptimizer: {learning_rate: 1e999}", "learning_rate: expected a finite number, got inf"),
        ("name: a\nsteps: true", "steps: expected a valid integer, got True"),
        ("name: a\nsteps: 1.5", "steps: expected a valid integer"),
        ("name: a\nshuffle: 1", "shuffle: expected a valid boolean, got 1"),
        ("name: a\nshuffle: yes", "shuffle: expected a valid boolean, got 'yes'"),
        ("name: a\nweight: many", "a.yaml: weight: expected a valid number or 'inf', got 'many'"),
        ("name: a\ntargets: one", "a.yaml: targets: expected 'all' or a valid array, got 'one'"),
        ("name: a\nseed: x", "seed: expected a valid integer, got 'x'"),
        ("name: a\noptimizer: {kind: adm}", "optimizer.kind: expected 'adam' or 'sgd', got 'adm'"),
        ("name: a\noptimizer: 3", "optimizer: expected a mapping of keys to values, got 3"),
        ("name: a\noptimizer: {learning_rate: -1}", "optimizer: learning_rate: -1.0, expected a positive number"),
        ("", "a.yaml: is empty; expected a mapping of keys to values"),
        ("# nothing\n", "a.yaml: is empty"),
        ("- a", "a.yaml: expected a mapping of keys to values, got ['a']"),
        ("name: a\nname: b", "a.yaml:2:1: key 'name' is given twice"),
        ("name: a\noptimizer: {kind: adam, kind: sgd}", "key 'kind' is given twice"),
        ("name: [a", "a.yaml:1:9: expected ',' or ']'"),
        ("name: !!python/name:os.system x", "a.yaml:1:7: tag '!!python/name:os.system': expected plain values"),
        ("? [a]\n: 1", "unhashable key"),
        ("name: *x", "undefined alias 'x'"),
        ("name: \x00", "a.yaml: not YAML"),
        ("1: 2", "a.yaml:1:1: key 1: expected text; put it in quotes"),
        ("~: 2", "a.yaml:1:1: key None: expected text"),
        ("name: a\n2.5: b", "a.yaml:2:1: key 2.5: expected text"),
        ("name: a\nshuffle: !!bool 'abc'", "a.yaml:2:10: 'abc' is no bool"),
        ("name: a\nsteps: !!int 'abc'", "a.yaml:2:8: 'abc' is no int"),
        ("name: a\nsteps: !!float 'abc'", "a.yaml:2:8: 'abc' is no float"),
        ("name: !!timestamp 'abc'", "a.yaml:1:7: tag '!!timestamp': expected plain values"),
        ("name: !mine x", "a.yaml:1:7: tag '!mine': expected plain values"),
        ("name: a\n---\nname: b", "a.yaml:2:1: another document begins here, expected one (---)"),
        ("name: !!binary 'abc'", "a.yaml:1:7: tag '!!binary': expected plain values"),
        ("name: !!str [a]", "a.yaml:1:7: expected a scalar node"),
        ("name: !!int {a: 1}", "expected a scalar node"),
        ("name: a\nsources: &a [*a]", "a.yaml:2:14: an alias of the value that it stands in"),
        ("&a {name: *a}", "an alias of the value that it stands in"),
        ("name: " + "[" * 3000, "a.yaml:1:107: nested too deeply, expected at most 100 levels"),
        ("name: " + "{a: " * 3000, "nested too deeply"),
        ("name: " + "[" * 100_000, "nested too deeply"),
        ("name: " + "- " * 3000 + "a", "a.yaml:1:7: "),
        ("a: &a [1, 1]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in itertools.pairwise("abcdefghijklmnopqr")),
         "expected at most 100000 values, aliases included"),
        ("name: a\nsteps: " + "9" * 5000, "a.yaml:2:8: "),
        ("name: a\nsteps: 1" + "0" * 30, "expected an integer of at most 64 bits"),
        ("name: a\nsources: [{path: 'a', weight: -1" + "0" * 30 + "}]", "expected an integer of at most 64 bits"),
        ('name: "a\\0b"', "a.yaml:1:7: 'a\\x00b': expected text without NUL characters"),
        ('name: "\\UFFFFFFFF"', "a.yaml: not YAML"),
        ('name: "\\ud800"', "a.yaml:1:7: '\\ud800': expected text without NUL characters and halves of"),
        ('"\\ud800": 1', "a.yaml:1:1: '\\ud800': expected text without"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_it(message, text, expected):
    assert expected in message(text)


def test_a_number_that_is_none_is_said_once(message):
    override = "optimizer.learning_rate=.nan"
    assert message("name: a", override) == (
        f"override '{override}': optimizer.learning_rate: expected a finite number, got nan"
    )


@pytest.mark.parametrize("text", ['""', "'  '", r'"a\nb"', r'"a\tb"', r'"a\e[31m"', r'"\N"'])
@pytest.mark.parametrize(("values", "key"), [
    ("name: {}", "name"),
    ("name: a\nsources: [{{path: {}}}]", "sources.0.path"),
    ("name: a\nweights: {{{}: 1}}", "weights"),
])  # fmt: skip
def test_a_name_or_path_is_one_line_of_text(message, values, key, text):
    said = message(values.format(text))
    assert f"a.yaml: {key}: expected one line of text, got " in said


@pytest.mark.parametrize("text", ["'a '", "' a'", r'"a\u00a0"'])
@pytest.mark.parametrize(("values", "key"), [
    ("name: {}", "name"),
    ("name: a\nsources: [{{path: {}}}]", "sources.0.path"),
    ("name: a\nweights: {{{}: 1}}", "weights"),
])  # fmt: skip
def test_a_name_or_path_has_no_space_around_it(message, values, key, text):
    """Two names would look alike in tables and file listings."""
    said = message(values.format(text))
    assert f"a.yaml: {key}: expected no space at the beginning or end, got " in said


@pytest.mark.parametrize("text", ["a" * 256, "b/" + "é" * 128 + "/b", "b/" * 2500])
def test_a_name_is_no_longer_than_names_of_files(message, text):
    said = message(f"name: a\nsources: [{{path: {text}}}]")
    assert "sources.0.path: expected at most 255 bytes a name, 4095 a path, got '" in said
    assert len(said) <= 400


def test_a_url_may_be_longer(load):
    assert load(f"name: http://a/{'b' * 5000}").name.endswith("b")


def test_free_text_and_values_that_are_passed_on_may_be_anything(load):
    config = load(r'{name: a, words: "a\n\tb", extra: {"": "\n", a: [""]}}')
    assert (config.words, config.extra) == ("a\n\tb", {"": "\n", "a": [""]})
    assert load("{name: a, words: ''}").words == ""


def test_a_blank_name_in_an_override_names_the_override(message):
    assert message("name: a", "name=''") == "override \"name=''\": name: expected one line of text, got ''"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{name: 'xa://X'}", "a.yaml: name 'xa://xxx"),
        ("{name: xa, words: Y}", "name 'xa', of y y y"),
        ("{name: a, X: 1}", "a.yaml: unknown key 'xxx"),
        ("{name: a, optimizer: {X: 1}}", "a.yaml: optimizer: unknown key 'xxx"),
        ("{name: a, steps: [X, X]}", "a.yaml: steps: expected a valid integer, got ['xxx"),
        ("{name: a, weights: {X: a}}", "a.yaml: weights: expected at most 255 bytes a name"),
        (
            "{name: a, weights: {" + ", ".join(f"a{n}: {n}" for n in range(3000)) + "}}",
            "]: expected one at most",
        ),
    ],
)
def test_a_long_value_is_cut_in_a_message(message, text, expected):
    said = message(text.replace("X", "x" * 1000).replace("Y", "y " * 2500))
    assert expected in said
    assert len(said) <= 400


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "optimizer.learning_rate=abc",
            "override 'optimizer.learning_rate=abc': optimizer.learning_rate: expected a",
        ),
        (
            "optimizer.learning_rte=1",
            "override 'optimizer.learning_rte=1': optimizer: unknown key 'learning_rte'",
        ),
        ("optimiser.kind=sgd", "override 'optimiser.kind=sgd': unknown key 'optimiser'"),
        ("name.b=1", "'name' in"),
        ("name", "override 'name': expected key=value, such as optimisation.learning_rate=2e-3"),
        ("a..b=1", "expected key=value"),
        ("sources.0.weight=1", "which has no '0'"),
        ("steps=[1", "override 'steps=[1':1:3: expected"),
        ("steps=" + "[" * 3000, ":1:102: nested too deeply"),
        (".".join("a" * 3000) + "=1", "expected key=value"),
        ("sources.²=1", "which has no '²'"),
        ("sources." + "9" * 5000 + "=1", "which has no '999"),
        ("second=" + "{a: " * 99 + "1" + "}" * 99, "second: unknown key 'a'"),
        ("second" + ".a" * 99 + "=" + "[" * 99 + "]" * 99, "second: unknown key 'a'"),
        (
            "optimizer.learning_rate=.inf",
            "override 'optimizer.learning_rate=.inf': optimizer.learning_rate: expected a",
        ),
        ("steps=!!bool 3", "override 'steps=!!bool 3':1:1: '3' is no bool"),
        ("name=*.parquet", "; expected text that begins with '*' in quotes: --set 'name=\"*.parquet\"'"),
    ],
)
def test_a_mistake_in_an_override_names_the_override(message, override, expected):
    assert expected in message("name: a\nsources: []", override)


@pytest.mark.parametrize(
    ("text", "overrides", "said"),
    [
        ("name: a", ["steps=3", "optimizer.learning_rate=-1.0", "steps=2"],
         "override 'optimizer.learning_rate=-1.0': optimizer: learning_rate: -1.0, expected a positive number"),
        ("name: a\nweights: {a: 1.0}", ["weights.b=2.0", "steps=2"],
         "override 'weights.b=2.0': weights [1.0, 2.0]: expected one at most"),
        ("name: a", ["second={}", "sources=[{}]", "steps=2"], "override 'sources=[{}]': missing key 'sources.0.path'"),
        ("name: a", ["extra={}", "weights.b.c=2"], "override 'weights.b.c=2': weights.b: expected a valid number, got"),
        ("name: a\noptimizer: {learning_rate: -1.0}", ["optimizer.kind=sgd", "steps=2"],
         "a.yaml: optimizer: learning_rate: -1.0, expected a positive number"),
    ],
)  # fmt: skip
def test_what_a_check_of_several_keys_says_names_the_override_that_it_is_about(
    message, text, overrides, said
):
    assert said in message(text, *overrides)


def test_a_missing_or_unreadable_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.yaml: no such file"):
        load_config(tmp_path / "nothing.yaml", Config)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, Config)
    (tmp_path / "b.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"cannot be read \(byte 1 is not UTF-8 text\)"):
        load_config(tmp_path / "b.yaml", Config)


def test_values_that_no_file_can_hold_are_refused():
    with pytest.raises(ConfigError, match="expected plain values"):
        parse_config({"name": object()}, Config, "here")


def test_to_dict_reads_back_to_an_equal_configuration(load):
    config = load("name: a\nsources: [{path: x/y}]\nsecond: {kind: sgd}")
    assert parse_config(to_dict(config), Config, "here") == config


def test_a_fingerprint_depends_on_values_alone(load):
    assert config_fingerprint(load("name: a\nsteps: 5\n")) == config_fingerprint(
        load("steps: 0x5\nname: 'a'\n")
    )
    assert config_fingerprint(load("name: a")) != config_fingerprint(load("name: b"))
    # Stable across processes and releases: a changed fingerprint makes every stage of a pipeline run again.
    assert config_fingerprint({"b": [1, 2.5], "a": "é"}) == config_fingerprint({"a": "é", "b": (1, 2.5)})
    assert config_fingerprint({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


@given(st.floats(allow_nan=False))
def test_every_float_survives_yaml(value):
    text = repr(value).replace("inf", ".inf")
    assert float(parse_yaml(text, "here")) == value


MAIN = """
import sys
from pasta.entrypoint import run_main
from pasta.errors import UserError
def main():
    {body}
run_main(main)
"""


@pytest.mark.parametrize(
    ("body", "code", "stderr"),
    [
        ("raise UserError('a.yaml: two\\nlines')", 2, "error: a.yaml: two lines\n"),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        ("return 1", 1, ""),
        ("return None", 0, ""),
        ("open('a' * 300)", 2, f"error: {'a' * 300!r}: File name too long\n"),
        ("print('\\udcff')", 0, ""),
    ],
)
def test_a_command_ends_with_its_exit_code_and_at_most_one_line(body, code, stderr):
    done = subprocess.run(
        [sys.executable, "-c", MAIN.format(body=body)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, stderr)


@pytest.mark.parametrize(
    ("body", "begin", "end"),
    [
        ("raise UserError('key: ' + 'a' * 5000 + ': expected b')", "error: key: aaaa", "aaa: expected b\n"),
        ("open('a' * 5000)", "error: 'aaaa", "aaa': File name too long\n"),
    ],
)
def test_a_long_message_loses_its_middle(body, begin, end):
    done = subprocess.run(
        [sys.executable, "-c", MAIN.format(body=body)], capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith(begin)
    assert done.stderr.endswith(end)
    assert " … " in done.stderr
    assert len(done.stderr) <= len("error: ") + 400 + len("\n")


def test_a_reader_that_goes_away_ends_a_command_quietly():
    script = MAIN.format(body="print('x\\n' * 1_000_000)")
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -c "$1" | head -1', sys.executable, script],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (141, "x\n", "")


def test_a_bug_keeps_its_stack_trace():
    done = subprocess.run(
        [sys.executable, "-c", MAIN.format(body="1 / 0")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("body", ["return 0", "sys.stdout.isatty()", "print('x', sys.stdout.encoding)"])
def test_a_command_whose_stdout_is_closed_ends_with_its_exit_code(body):
    command = shlex.join([sys.executable, "-c", MAIN.format(body=body)]) + " >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_whose_stderr_is_closed_says_nothing_on_stdout():
    command = shlex.join([sys.executable, "-c", MAIN.format(body="raise UserError('a')")]) + " 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("text", ["/data/run #2/out", "#2", "'a' # b"])
def test_an_override_s_value_is_not_cut_at_a_comment(tmp_path, text):
    """A job wrote to /data/run."""
    path = tmp_path / "a.yaml"
    path.write_text("name: a\n")
    with pytest.raises(
        ConfigError, match=r"override .*: '#' begins a comment, .*in quotes: --set 'name=\"…\"'$"
    ):
        load_config(path, _Named, [f"name={text}"])


@pytest.mark.parametrize(
    ("text", "value"), [("a#2", "a#2"), ('"a #2"', "a #2"), ("'a #2'", "a #2"), ("|-\n  a #2", "a #2")]
)
def test_an_override_s_value_may_hold_what_is_no_comment(tmp_path, text, value):
    path = tmp_path / "a.yaml"
    path.write_text("name: a  # a comment\n")
    assert load_config(path, _Named, [f"name={text}"]) == _Named(value)


@dataclass(frozen=True)
class _Named:
    name: str
