"""A handler as a user would write it: parse a Python source file, and return one row for each function in it.

Run it on any topic whose messages are Python sources:

    rocketcrew run functions:measure --topic sources --group functions --embedded
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rocketcrew import Message, handler

SCHEMA = """
    module string, package string, function string, line int, length int, arguments int,
    complexity int, nesting int, has_docstring boolean
"""

BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@handler(schema=SCHEMA)
def measure(message: Message) -> Iterator[dict[str, object]]:
    """Rows for every function of one file. A file that does not parse raises: it is retried and dead-lettered."""
    tree = ast.parse(message.body, filename=message.keys or "message")
    for name, node in functions_in(tree, ""):
        yield {
            "module": message.keys,
            "package": message.tags,
            "function": name,
            "line": node.lineno,
            "length": (node.end_lineno or node.lineno) - node.lineno + 1,
            "arguments": count_arguments(node.args),
            "complexity": complexity(node),
            "nesting": nesting(node),
            "has_docstring": ast.get_docstring(node, clean=False) is not None,
        }


def functions_in(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function below `node` with its dotted name, also those inside classes and other functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            yield prefix + child.name, child
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            yield from functions_in(child, f"{prefix}{child.name}.")
        else:
            yield from functions_in(child, prefix)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def complexity(function: ast.AST) -> int:
    """McCabe's cyclomatic complexity: one, and one more for every way the flow may branch."""
    total = 1
    for node in own_nodes(function):
        if isinstance(node, BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
    return total


def nesting(function: ast.AST) -> int:
    """How deep blocks stand inside each other; an `elif` stands beside its `if`."""
    deepest = 0
    waiting = [(node, 0) for node in ast.iter_child_nodes(function)]
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            waiting.append((node.orelse[0], depth))
            waiting.extend((child, depth + 1) for child in (node.test, *node.body))
        else:
            depth += isinstance(node, BLOCKS)
            waiting.extend((child, depth) for child in ast.iter_child_nodes(node))
        deepest = max(deepest, depth)
    return deepest


def count_arguments(arguments: ast.arguments) -> int:
    """Declared parameters, `*args` and `**kwargs` one each."""
    named = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    return named + (arguments.vararg is not None) + (arguments.kwarg is not None)
