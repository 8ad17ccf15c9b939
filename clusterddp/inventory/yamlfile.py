"""Reads YAML and JSON with line numbers: every mapping knows the line and the original text of each of its values.

Built over PyYAML's safe resolver; the values are those of inventory/yaml_values.py. Duplicate keys are recorded, not
refused: the last one wins, as in Ansible, and the caller decides.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from clusterddp.errors import InventoryError
from clusterddp.inventory.yaml_size import refuse_expanded
from clusterddp.inventory.yaml_values import Marked, Opaque

# libyaml's parser is ten times as fast and gives the same nodes with the same marks.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
VAULT_TAGS = frozenset({"!vault", "!vault-encrypted"})
_MAP, _MERGE_TAG = "tag:yaml.org,2002:map", "tag:yaml.org,2002:merge"
VAULT_HEADER = "$ANSIBLE_VAULT"
_MAX_DEPTH = 100  # levels; the parser recurses in C, where only the end of the stack would stop it
_MAY_BE_DEEP = re.compile(rf"^ {{{_MAX_DEPTH}}}|(?:[-?] +){{{_MAX_DEPTH}}}", re.MULTILINE)
_MAX_DIGITS = 400  # in a number, since parsing one takes quadratic time
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A file's content: its data, and ``(place, key, earlier line)`` of every duplicate key."""

    data: Any
    duplicates: tuple[tuple[str, Any, int], ...] = ()
    encrypted: bool = False


def decode(data: bytes, shown: str) -> Document:
    """Parse the bytes of a YAML or JSON file; ``InventoryError``, which names it as ``shown``, if they are neither."""
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        where = f"{shown}:{1 + data.count(bytes([10]), 0, error.start)}"
        raise InventoryError(
            f"is not UTF-8 text (byte {error.start})", where=where, remedy="save the file as UTF-8"
        ) from None
    return parse(text, shown)


def parse(text: str, shown: str) -> Document:
    """Parse YAML or JSON text; ``InventoryError``, which names the file as ``shown``, if it is neither."""
    if text.startswith(VAULT_HEADER):
        return Document(data=None, encrypted=True)
    _refuse_deep(text, shown)
    as_json = is_json(text)
    builder = _Builder(shown, as_json=as_json)
    try:
        # Valid JSON has tabs only between tokens, where YAML forbids them; libyaml rejects pairs like \\ud83d\\ude00.
        source, loader = (text.replace("\t", " "), yaml.SafeLoader) if as_json else (text, _Loader)
        node = _compose_checked(source, shown, loader)
        data = None if node is None else builder.value(node)
    except yaml.YAMLError as error:
        raise syntax_error(error, text, shown) from None
    return Document(data=data, duplicates=tuple(builder.duplicates))


def compose(text: str, shown: str) -> Any:
    """The nodes of a YAML text, if their value has a bearable size; None for an empty text.

    Raises ``InventoryError`` if it is nested too deeply, or its aliases and merge keys would make a huge value;
    ``yaml.YAMLError`` if it is not YAML.
    """
    _refuse_deep(text, shown)
    return _compose_checked(text, shown, _Loader)


def _compose_checked(text: str, shown: str, loader: Any) -> Any:
    """The nodes of a YAML text, refused if aliases make its value huge."""
    root = yaml.compose(text, loader)
    if root is not None and "*" in text:  # only an alias (*) can repeat a value
        refuse_expanded(root, shown, len(text))
    return root


def _refuse_deep(text: str, shown: str) -> None:
    """Raise for a text nested deeper than any inventory; one that obviously is not, is not parsed for that."""
    if text.count("[") + text.count("{") < _MAX_DEPTH and not _MAY_BE_DEEP.search(text):
        return
    depth = 0
    try:
        for event in yaml.parse(text, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                mark = event.start_mark
                where = f"{shown}:{mark.line + 1 if mark else 1}"
                raise InventoryError(f"is nested deeper than {_MAX_DEPTH} levels", where=where)
    except yaml.YAMLError:
        return  # reported when the text is read


def is_json(text: str) -> bool:
    """Whether a text is JSON, of which some is no YAML."""
    if text.lstrip()[:1] not in {"{", "["}:
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):  # deep, where the YAML parser failed before it was seen to be too deep
        return False
    return True


def syntax_error(error: yaml.YAMLError, text: str, shown: str) -> InventoryError:
    """The error for a text that is not YAML, without the line itself, which may hold a secret."""
    if not isinstance(error, yaml.MarkedYAMLError):
        at = getattr(error, "position", 0)  # of a character that is not allowed in YAML
        where = f"{shown}:{text.count(chr(10), 0, at) + 1}"
        return InventoryError(f"is not YAML: {error}".replace("\n", " "), where=where)
    mark = error.problem_mark or error.context_mark
    where = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
    problem = " ".join(str(part) for part in (error.context, error.problem) if part)
    remedy = "quote values that begin with {, [, *, &, !, % or @, and indent with spaces"
    return InventoryError(f"is not YAML: {problem}".replace("\n", " "), where=where, remedy=remedy)


class _Builder:
    """Makes values of composed nodes, each node once, so that anchors are shared as in YAML."""

    def __init__(self, file: str, *, as_json: bool) -> None:
        self.file = file
        self.as_json = as_json
        self.duplicates: list[tuple[str, Any, int]] = []
        self._made: dict[tuple[int, bool], Any] = {}
        self._open: set[int] = set()
        self._constructor = yaml.constructor.SafeConstructor()
        self._resolver: Any = yaml.resolver.Resolver()

    def value(self, node: yaml.Node, *, unsafe: bool = False) -> Any:
        """The value of a node; strings under ``!unsafe`` are opaque."""
        unsafe = unsafe or node.tag == "!unsafe"
        key = (id(node), unsafe)
        if key not in self._made:
            if id(node) in self._open:
                raise self._error(node, "an anchor that contains itself")
            self._open.add(id(node))
            self._made[key] = self._make(node, unsafe=unsafe)
            self._open.discard(id(node))
        return self._made[key]

    def _make(self, node: yaml.Node, *, unsafe: bool) -> Any:
        """Make the value of a node that has none yet."""
        if isinstance(node, yaml.MappingNode) and node.tag in {_MAP, "!unsafe"}:
            return self._mapping(node, unsafe=unsafe)
        if isinstance(node, yaml.SequenceNode) and node.tag in {"tag:yaml.org,2002:seq", "!unsafe"}:
            return [self.value(item, unsafe=unsafe) for item in node.value]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, unsafe=unsafe)
        return self._construct(node)  # !!set, !!omap, !!pairs; raises for any other tag

    def _scalar(self, node: yaml.ScalarNode, *, unsafe: bool) -> Any:
        if node.tag in VAULT_TAGS:
            return Opaque(kind="vault", text=node.value)
        if node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS:
            raise self._error(node, f"a number of more than {_MAX_DIGITS} digits")
        if self.as_json:
            return _json_scalar(node)
        if node.tag == "!unsafe":
            tag = self._resolver.resolve(yaml.ScalarNode, node.value, (True, False))
            node = yaml.ScalarNode(tag, node.value, node.start_mark, node.end_mark)
        value = self._construct(node)
        return Opaque(kind="unsafe", text=value) if unsafe and isinstance(value, str) else value

    def _construct(self, node: yaml.Node) -> Any:
        try:
            return self._constructor.construct_object(node, deep=True)
        except (ValueError, TypeError, OverflowError, LookupError, AttributeError):  # PyYAML checks no explicit tag
            raise self._error(node, f"{node.value!r} is not a value of its kind") from None

    def _mapping(self, node: yaml.MappingNode, *, unsafe: bool) -> Marked:
        made = Marked(self.file, node.start_mark.line + 1)
        self._find_duplicates(node, made)
        self._constructor.flatten_mapping(node)  # the merge key <<
        for key_node, value_node in node.value:
            key = self._key(key_node)
            made[key] = self.value(value_node, unsafe=unsafe)
            made.lines[key] = key_node.start_mark.line + 1
            made.texts.pop(key, None)
            if isinstance(value_node, yaml.ScalarNode):
                made.texts[key] = value_node.value
        return made

    def _find_duplicates(self, node: yaml.MappingNode, made: Marked) -> None:
        """Record duplicate keys before merge keys are flattened: to override a merged key is no duplicate."""
        first: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == _MERGE_TAG:
                continue
            key, line = self._key(key_node), key_node.start_mark.line + 1
            if key in first:
                made.duplicates.append((key, line, first[key]))
                self.duplicates.append((f"{self.file}:{line}:{key}", key, first[key]))
            first.setdefault(key, line)

    def _key(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, "a mapping or list as a key (an unquoted {{ … }}?)")
        return self.value(node)

    def _error(self, node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _json_scalar(node: yaml.ScalarNode) -> Any:
    """A scalar by JSON's rules: YAML 1.1 would read 1e5 as text and split a pair of surrogates."""
    return join_surrogates(node.value) if node.style == '"' else json.loads(node.value)


def join_surrogates(text: str) -> str:
    """The text with each pair of surrogates as the character that it stands for."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
