"""Byte code for this Python's version: without docstrings, assertions, annotations, and without ``typing``.

Importing ``typing`` alone takes a third as long as starting Python, and each of our processes on a host would pay it.
Type information is removed from the syntax tree: annotations, names that stand for types, and the imports only they
need; ``typing.NamedTuple`` becomes our own (schema/named_tuple.py). Sources stay as they are.
"""

import ast
import importlib.util
import marshal
import struct
from types import CodeType
from typing import List, Set, Union

_NAMED_TUPLE, _NAMES = ".shared.schema.named_tuple", ("NamedTuple", "field_at", "new_tuple")
_UNCHECKED = 1  # a .pyc file's flags (PEP 552): a digest in place of a time, and nobody compares it


def pyc(source: bytes, name: str, package: str) -> bytes:
    """Compile a module of ``package`` to the bytes of its ``.pyc`` file; tracebacks show ``name``."""
    code = marshal.dumps(compile_module(source, name, package))
    return importlib.util.MAGIC_NUMBER + struct.pack("<I8s", _UNCHECKED, b"") + code


def compile_module(source: bytes, name: str, package: str) -> CodeType:
    """Compile a module's source, without types, to a code object."""
    module = without_types(ast.parse(source, name), package)
    return compile(module, name, "exec", dont_inherit=True, optimize=2)


def without_types(module: ast.Module, package: str) -> ast.Module:
    """Remove what only a type checker reads from a module; its behaviour stays the same."""
    typing = {alias.asname or alias.name for node in _typing_imports(module) for alias in node.names}
    for node in module.body:
        if isinstance(node, ast.Assign) and _is_made_by(node.value, typing):
            node.value = ast.copy_location(ast.Constant(None), node.value)
    _TypeRemover(typing).visit(module)
    used = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    for imported in _typing_imports(module):
        named = any(alias.name == "NamedTuple" for alias in imported.names)
        imported.names = [
            one for one in imported.names if (one.asname or one.name) in used and one.name != "NamedTuple"
        ]
        index = module.body.index(imported)
        made = ast.ImportFrom(package + _NAMED_TUPLE, [ast.alias(one) for one in _NAMES], 0)
        module.body[index : index + 1] = ([imported] if imported.names else []) + (
            [ast.copy_location(made, imported)] if named else []
        )
    return ast.fix_missing_locations(module)


def _typing_imports(module: ast.Module) -> List[ast.ImportFrom]:
    return [one for one in module.body if isinstance(one, ast.ImportFrom) and one.module == "typing" and not one.level]


def _is_made_by(value: ast.expr, names: Set[str]) -> bool:
    """Whether an expression, like ``Dict[str, Any]`` or ``TypeVar("T")``, is made by a name from ``typing``."""
    maker = value.value if isinstance(value, ast.Subscript) else value.func if isinstance(value, ast.Call) else None
    return isinstance(maker, ast.Name) and maker.id in names


class _TypeRemover(ast.NodeTransformer):
    """Removes annotations, type checkers' branches and base classes from ``typing``, whose names are given."""

    def __init__(self, typing: Set[str]) -> None:
        self.typing = typing

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases):
            _name_fields(node)
        else:
            node.bases = [base for base in node.bases if not self._is_typing(base)]
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> Union[ast.AST, List[ast.stmt]]:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return [self.visit(one) for one in node.orelse]
        return self.generic_visit(node)

    def _is_typing(self, base: ast.expr) -> bool:
        """Whether a base class comes from ``typing``, such as ``Protocol`` or ``Generic[T]``."""
        name = base.value if isinstance(base, ast.Subscript) else base
        return isinstance(name, ast.Name) and name.id in self.typing


def _name_fields(node: ast.ClassDef) -> None:
    """Give ``class A(NamedTuple): b: int = 1`` its ``__new__(_cls, b=1)`` and the attribute ``b``."""
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    names = [one.target.id for one in fields if isinstance(one.target, ast.Name)]
    listed = "".join("%s, " % name for name in names)
    lines = ["__slots__ = ()", "_fields = %r" % (tuple(names),)]
    lines.append("def __new__(_cls, %s): return new_tuple(_cls, (%s))" % (listed, listed))
    lines += ["%s = field_at(%d)" % (name, place) for place, name in enumerate(names)]
    made = ast.parse("\n".join(lines)).body
    for part in [inner for one in made for inner in ast.walk(one)]:
        ast.copy_location(part, node)
    new = made[2]
    if isinstance(new, ast.FunctionDef):
        new.args.defaults = [one.value for one in fields if one.value]
    rest = [one for one in node.body if not isinstance(one, ast.AnnAssign)]
    documented = isinstance(rest[0], ast.Expr) if rest else False
    node.body = [*rest[:documented], *made, *rest[documented:]]
