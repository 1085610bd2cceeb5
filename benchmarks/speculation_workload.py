"""Prompts whose answers repeat them: copies, renamings and changed records, made of the standard library's sources.

Each prompt ends where the repetition begins, so that base models and small ones go on with it, too.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator

from benchmarks.errors import SetupError
from benchmarks.workload import library_sources

_LEAST_CHARACTERS, _MOST_CHARACTERS = 350, 700
_RECORDS = 6


def repeating_prompts(encode: Callable[[str], list[int]], count: int) -> list[list[int]]:
    """The three kinds in turn. Raises SetupError when the sources give too few."""
    prompts = [encode(text) for kinds in zip(_copies(), _renamings(), _edits(), strict=False) for text in kinds]
    if len(prompts) < count:
        raise SetupError(f"the standard library's sources give {len(prompts)} prompts, not {count}")
    return prompts[:count]


def _copies() -> Iterator[str]:
    for function in _functions(of_even_lines=True):
        yield f"A Python function:\n```python\n{function}\n```\nThe same function once more:\n```python\n"


def _renamings() -> Iterator[str]:
    for function in _functions(of_even_lines=False):
        name = function.partition("(")[0].removeprefix("def ")
        yield (
            f"A Python function:\n```python\n{function}\n```\n"
            f"The same function, renamed to new_{name}:\n```python\ndef new_{name}("
        )


def _edits() -> Iterator[str]:
    """Records about functions, one line of JSON each."""
    records = [
        {"name": node.name, "line": node.lineno, "arguments": [argument.arg for argument in node.args.args]}
        for tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    for begin in range(0, len(records) - _RECORDS, _RECORDS):
        some = records[begin : begin + _RECORDS]
        lines = "\n".join(json.dumps({"status": "new"} | record) for record in some)
        first = json.dumps({"status": "checked"} | some[0])
        yield f'Records:\n{lines}\n\nThe same records with status "checked":\n{first}\n'


def _functions(*, of_even_lines: bool) -> Iterator[str]:
    """Sources of functions outside classes. of_even_lines: which half of them."""
    for text, tree in zip(library_sources(), _trees(), strict=True):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and (node.lineno % 2 == 0) == of_even_lines:
                source = ast.get_source_segment(text, node) or ""
                if _LEAST_CHARACTERS <= len(source) <= _MOST_CHARACTERS:
                    yield source


def _trees() -> list[ast.Module]:
    return [ast.parse(text) for text in library_sources()]
