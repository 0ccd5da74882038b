"""What becomes of a template's syntax tree before it is compiled: what is not allowed is refused, operations that
Jinja would compile to bare Python go through the sandbox, and every body that can run more than once pays first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.visitor import NodeTransformer

CHARGE, CONCAT, COMPARE, SLICE, KEY = "<charge>", "<concat>", "<compare>", "<slice>", "<key>"
"""Filters that only this module can name: no template can write such a name."""

_ALLOWED: frozenset[type[nodes.Node]] = frozenset(
    (
        *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Macro, nodes.CallBlock),
        *(nodes.FilterBlock, nodes.With, nodes.Assign, nodes.AssignBlock, nodes.ExprStmt, nodes.Name, nodes.NSRef),
        *(nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter),
        *(nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare),
        *(nodes.Operand, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Add, nodes.Sub, nodes.Mod, nodes.Pow),
        *(nodes.Not, nodes.Neg, nodes.Pos, nodes.And, nodes.Or, nodes.Continue, nodes.Break),
    )
)
_WORKING = (nodes.Getattr, nodes.Getitem, nodes.Call, nodes.Filter, nodes.Test, nodes.BinExpr, nodes.Concat)
_WORDS: dict[type[nodes.Node], str] = {nodes.FromImport: "import", nodes.ScopedEvalContextModifier: "autoescape"}


def rewrite(tree: nodes.Template) -> None:
    """Prepares a tree for compiling, in place. Raises SecurityError for what chat templates may not use."""
    _Rewriter().visit(tree)


class _Rewriter(NodeTransformer):
    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if type(node) not in _ALLOWED:
            word = _WORDS.get(type(node), type(node).__name__.lower())
            raise SecurityError(f"{{% {word} %}} in line {node.lineno}: a chat template stands alone")
        return super().visit(node, *args, **kwargs)

    def visit_Template(self, node: nodes.Template) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body, 1))
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name in ("self", "super"):
            raise SecurityError(f"{node.name!r} in line {node.lineno}: a chat template stands alone")
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_price_tag([node.test], 2, node.lineno), node.test, lineno=node.lineno)
        node.body.insert(0, _charge(node.body, 2, node.lineno))
        if node.else_:
            node.else_.insert(0, _charge(node.else_, 1, node.lineno))
        return node

    def visit_If(self, node: nodes.If) -> nodes.Node:
        self.generic_visit(node)
        for body in (node.body, node.else_):
            if _price(body) > (8, 0) or _price(body)[1]:
                body.insert(0, _charge(body, 0, node.lineno))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge([*node.body, *node.defaults], 24, node.lineno))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge([*node.body, *node.defaults], 24, node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(CONCAT, node.nodes[0], node.nodes[1:])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        parts: list[nodes.Expr] = []
        left = node.expr
        for operand in node.ops:
            if operand.op in ("eq", "ne") and (_is_scalar(left) or _is_scalar(operand.expr)):
                part: nodes.Expr = nodes.Compare(left, [operand], lineno=node.lineno)
            else:
                part = _through(COMPARE, left, [nodes.Const(operand.op, lineno=node.lineno), operand.expr])
            parts.append(part)
            left = operand.expr
        whole = parts[0]
        for part in parts[1:]:
            whole = nodes.And(whole, part, lineno=node.lineno)
        return whole

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _through(SLICE, node.node, [e or nodes.Const(None, lineno=node.lineno) for e in ends])

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not _is_scalar(node.key):
            node.key = _through(KEY, node.key, [])
        return node


def _is_scalar(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const)


def _through(name: str, value: nodes.Expr, args: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(value, name, args, [], None, None, lineno=value.lineno)


def _charge(body: list[nodes.Node], extra: int, lineno: int = 1) -> nodes.ExprStmt:
    return nodes.ExprStmt(_price_tag(body, extra, lineno), lineno=lineno)


def _price_tag(body: list[Any], extra: int, lineno: int) -> nodes.Filter:
    work, chars = _price(body)
    steps = nodes.Const((work + extra + 7) // 8, lineno=lineno)
    return _through(CHARGE, steps, [nodes.Const(chars, lineno=lineno)])


def _price(body: Iterable[nodes.Node]) -> tuple[int, int]:
    """Work in eighths of a step, and characters, that running through nodes once takes.

    Bodies inside that pay for themselves are left out; what depends on sizes is paid when it runs.
    """
    work, chars = 0, 0
    stack = list(body)
    while stack:
        node = stack.pop()
        kind = type(node)
        work += 8 if isinstance(node, _WORKING) else 1
        if isinstance(node, nodes.Filter) and node.name == CHARGE:
            continue
        if isinstance(node, nodes.TemplateData):
            chars += len(node.data)
        elif isinstance(node, nodes.List | nodes.Tuple | nodes.Dict):
            chars += 16 + 4 * len(node.items) + (64 if kind is nodes.Dict else 0)
        elif isinstance(node, nodes.Output):
            work += 2 * len(node.nodes)
        if isinstance(node, nodes.For):
            work += 8
            stack.append(node.iter)
        elif isinstance(node, nodes.If):
            work += 8
            stack += [node.test, *node.elif_]
        elif isinstance(node, nodes.Macro):
            work += 8
            chars += 64
        elif isinstance(node, nodes.CallBlock):
            work += 16
            stack.append(node.call)
        else:
            stack += node.iter_child_nodes()
    return work, chars
