"""YAML by version 1.2's core schema, with PyYAML's parser: the one reader of YAML text.

``2e-3`` is a number, ``no`` a string, ``010`` ten, and ``"\\ud83c\\udf75"`` one character, as in JSON. Refused, each
with its line and column: a key that is repeated or no text, other tags than the core schema's, a value inside itself,
nesting beyond ``MAX_DEPTH``, aliases that stand for more than ``MAX_VALUES`` values, integers beyond 64 bits, and text
that no path or JSON can hold.
"""

import re
from collections.abc import Callable
from typing import Any, NoReturn

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode

from pasta.errors import UserError
from pasta.rows import MAX_DEPTH, short_repr

MAX_VALUES = 100_000
_TAG = "tag:yaml.org,2002:"
_INT64 = range(-(2**63), 2**63)

# How a plain scalar of each type looks, its possible first characters, and its value:
# https://yaml.org/spec/1.2.2/#1032-tag-resolution
_SCALARS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", "~nN", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "-+0123456789",
        lambda text: int(text, 0 if text[:2] in ("0x", "0o") else 10),
    ),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}

# What PyYAML says about a file of several documents.
_PROBLEMS = {"but found another document": "another document begins here, expected one (---)"}


def parse_yaml(text: str, source: str) -> Any:
    """The value of YAML text. Raises UserError in one line that begins with ``source`` and the place in it."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        problem = _PROBLEMS.get(error.problem or "", error.problem or error.context)
        raise UserError(f"{where}: {problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # OverflowError: "\UFFFFFFFF"
        raise UserError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._open: list[Node | None] = []
        self._num_values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose a node and what is in it, within the limits."""
        mark = self.peek_event().start_mark
        is_alias = self.check_event(yaml.AliasEvent)
        if len(self._open) > MAX_DEPTH:
            raise ConstructorError(
                None, None, f"nested too deeply, expected at most {MAX_DEPTH} levels", mark
            )
        before = self._num_values
        self._open.append(parent)
        node = super().compose_node(parent, index)
        if is_alias and node in self._open:
            raise ConstructorError(None, None, "an alias of the value that it stands in", mark)
        self._open.pop()
        self._num_values += self._sizes[id(node)] if is_alias else 1
        self._sizes[id(node)] = self._num_values - before
        if self._num_values > MAX_VALUES:
            raise ConstructorError(
                None, None, f"expected at most {MAX_VALUES} values, aliases included", mark
            )
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping with text for keys, each once."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, dict | list):
                break  # the call below reports that it cannot be a key
            if not isinstance(key, str):
                problem = f"key {short_repr(key)}: expected text; put it in quotes"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            if key in seen:
                raise ConstructorError(
                    None, None, f"key {short_repr(key)} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def refuse_tag(self, node: Node) -> NoReturn:
        """Raise ConstructorError for a tag that the core schema has not."""
        tag = str(node.tag).replace(_TAG, "!!")
        raise ConstructorError(None, None, f"tag {short_repr(tag)}: expected plain values", node.start_mark)

    def construct_text(self, node: ScalarNode) -> str:
        """A string that a path, JSON and UTF-8 can hold."""
        text: str = _with_pairs_joined(self.construct_scalar(node))
        if "\0" in text or not _is_unicode(text):
            problem = (
                f"{short_repr(text)}: expected text without NUL characters and halves of surrogate pairs"
            )
            raise ConstructorError(None, None, problem, node.start_mark)
        return text


def _with_pairs_joined(text: str) -> str:
    """``text`` with each pair of surrogates as the character that it stands for: so JSON escapes characters beyond 16
    bits, and our own commands write values as JSON."""
    if _is_unicode(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _configure() -> None:
    _Loader.yaml_implicit_resolvers = {}
    _Loader.yaml_constructors = {}

    def add(name: str, pattern: re.Pattern[str], first: str, convert: Callable[[str], Any]) -> None:
        def construct(loader: _Loader, node: ScalarNode) -> Any:
            text = loader.construct_scalar(node)
            try:
                if not pattern.match(text):
                    raise ValueError
                value = convert(text)
            except ValueError:
                raise ConstructorError(
                    None, None, f"{short_repr(text)} is no {name}", node.start_mark
                ) from None
            if name == "int" and value not in _INT64:
                expected = "expected an integer of at most 64 bits (a larger number is written as 1e30)"
                raise ConstructorError(None, None, f"{short_repr(text)}: {expected}", node.start_mark)
            return value

        _Loader.add_implicit_resolver(_TAG + name, pattern, [*first, *([""] if name == "null" else [])])
        _Loader.add_constructor(_TAG + name, construct)

    for name, (pattern, first, convert) in _SCALARS.items():
        add(name, re.compile(f"^(?:{pattern})\\Z"), first, convert)
    # YAML 1.2's core schema has no `<<`, but YAML files use it.
    _Loader.add_implicit_resolver(_TAG + "merge", re.compile(r"^(?:<<)\Z"), ["<"])
    _Loader.add_constructor(_TAG + "str", _Loader.construct_text)
    _Loader.add_constructor(_TAG + "seq", _Loader.construct_yaml_seq)  # type: ignore[type-var]
    _Loader.add_constructor(_TAG + "map", _Loader.construct_yaml_map)  # type: ignore[type-var]
    _Loader.add_constructor(None, _Loader.refuse_tag)


_configure()
