"""Flags that mean something for some request types alone: beside another one they are refused, never ignored."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from evaluation.keys import GenerationParameters
from evaluation.request_types.names import RequestType

_GENERATING = tuple(one for one in RequestType if not one.is_likelihood)
_OF_ONE_PROMPT = tuple(one for one in RequestType if one is not RequestType.MULTI_ROUND)
_TYPES: dict[str, Collection[RequestType]] = {
    "next_turn": (RequestType.MULTI_ROUND,),
    "continuation": (RequestType.MULTIPLE_CHOICE,),
    "prompt": _OF_ONE_PROMPT,
    "prompt_template": _OF_ONE_PROMPT,
    **dict.fromkeys(GenerationParameters.__dataclass_fields__, _GENERATING),
}


def without_defaults() -> argparse.Namespace:
    """What to parse into: these flags are None unless somebody gives them, whatever their defaults are."""
    return argparse.Namespace(**dict.fromkeys(_TYPES))


def refuse_or_complete(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse what was given beside a request type that does not know it, and put defaults where nothing was given."""
    request_type: RequestType = arguments.request_type
    for name, types in _TYPES.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, parser.get_default(name))
        elif request_type not in types:
            known = " or ".join(one.value for one in types)
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag} needs --request-type {known}; {request_type.value} takes none")
