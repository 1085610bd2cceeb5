"""Fields that may be one thing or a list of them: the member is chosen by shape, so that an error names one place.

Without this pydantic would try every member and report the failures of all.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

TokenIds = list[int]

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
    Annotated[TokenIds, Tag("<list>")] | Annotated[list[TokenIds], Tag("<nested>")], Discriminator(_list_or_nested)
]
type Prompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Tag("<texts>")]
    | Annotated[TokenIds, Tag("<list>")]
    | Annotated[list[TokenIds], Tag("<nested>")],
    Discriminator(_prompt_shape),
]
type OneOrList[Member] = Annotated[
    Annotated[Member, Tag("<one>")] | Annotated[list[Member], Tag("<list>")], Discriminator(_one_or_list)
]
type TextOrList[Member] = Annotated[
    Annotated[str, Tag("<one>")] | Annotated[list[Member], Tag("<list>")], Discriminator(_one_or_list)
]
