"""Fields of many values, or of one or many, such that an error names one place.

A union's member is chosen by shape; otherwise pydantic would try every member and report the failures of all. A
collection fails at its first wrong item: a body may have millions of them, and each reported one takes memory.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

TokenIds = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
LogitBias = Annotated[dict[str, float], Field(fail_fast=True)]

TAGS = frozenset({"<one>", "<list>", "<nested>", "<text>", "<texts>"})
"""Names of the members, which pydantic puts into the path of an error."""


def _one_or_list(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<one>"


def _list_or_nested(value: Any) -> str:
    return "<nested>" if isinstance(value, list) and value and isinstance(value[0], list) else "<list>"


def _prompt_shape(value: Any) -> str:
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else None
    if isinstance(first, str):
        return "<texts>"
    return "<nested>" if isinstance(first, list) else "<list>"


type IdsOrBatch = Annotated[
    Annotated[TokenIds, Tag("<list>")] | Annotated[list[TokenIds], Field(fail_fast=True), Tag("<nested>")],
    Discriminator(_list_or_nested),
]
type Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[Texts, Tag("<texts>")]
    | Annotated[TokenIds, Tag("<list>")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("<nested>")],
    Discriminator(_prompt_shape),
]
type OneOrList[Member] = Annotated[
    Annotated[Member, Tag("<one>")] | Annotated[list[Member], Field(fail_fast=True), Tag("<list>")],
    Discriminator(_one_or_list),
]
type TextOrList[Member] = Annotated[
    Annotated[str, Tag("<one>")] | Annotated[list[Member], Field(fail_fast=True), Tag("<list>")],
    Discriminator(_one_or_list),
]
