"""From a chat's fields about functions, reasoning and formats to how its answer is made and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from server.api.context import ServerContext
from server.api.openai_protocol import ChatBody
from server.api.tool_fields import NamedToolChoice, Tool
from server.errors import RequestError
from server.frontend.answer_format import AnswerFormat
from server.frontend.chat_options import ChatOptions
from server.frontend.field_checks import check_count, shown
from server.frontend.grammar_fields import text_grammar
from server.frontend.reasoning_parser import ReasoningStart, ReasoningTags, reasoning_start
from server.frontend.tool_formats import CALL_LIST, TOOL_FORMATS, Function, ToolFormat
from server.request import Grammar, ReasoningTokens

_MAX_TOOLS = 128
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_PROMPT_END_TOKENS = 16
_ALWAYS_REASONS = {"deepseek_r1": True, "qwen3": False}
"""By the values of --reasoning-parser: whether text without an opening tag is taken for reasoning."""


class AnswerPlan(NamedTuple):
    """grammar: what the answer must match. format: how its text is read."""

    grammar: Grammar | None
    format: AnswerFormat


def with_tools(options: ChatOptions, body: ChatBody, context: ServerContext) -> ChatOptions:
    """The options, with the functions that the template has to tell the model of. Raises RequestError."""
    tools = offered_tools(body)
    if not tools:
        return options
    if not context.tokenizer.template_uses("tools"):
        raise RequestError(
            "tools: this model's chat template does not use them, so the model would not hear of them; "
            "--chat-template FILE sets another template",
            field="tools",
        )
    definitions = [tool.model_dump(exclude_none=True) for tool in tools]
    return options._replace(variables={**options.variables, "tools": definitions})


def offered_tools(body: ChatBody) -> Sequence[Tool]:
    """The functions that this answer may call. Raises RequestError for fields that contradict each other."""
    tools = body.tools or []
    choice = body.tool_choice
    check_count("tools", len(tools), _MAX_TOOLS, "functions")
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RequestError(f"tools has two functions named {name!r}", field=f"tools[{index}].function.name")
    if isinstance(choice, NamedToolChoice):
        if choice.function.name not in names:
            raise RequestError(
                f"tool_choice names {shown(choice.function.name)}, which is not among tools", field="tool_choice"
            )
    elif choice == "required" and not tools:
        raise RequestError("tool_choice is 'required', which needs tools", field="tool_choice")
    return [] if choice == "none" else tools


def answer_plan(body: ChatBody, context: ServerContext, prompt_token_ids: Sequence[int]) -> AnswerPlan:
    """Raises RequestError for what this server or model cannot do."""
    grammar = body.grammar()
    tools = offered_tools(body)
    if grammar is not None and tools:
        raise RequestError(
            f"{grammar.field} together with tools is not supported; tool_choice 'none' leaves the tools out",
            field=grammar.field,
        )
    reasoning = _reasoning(context, prompt_token_ids)
    tool_format = _tool_format(body, context) if tools else None
    if tool_format is not None:
        grammar = _tools_grammar(body, tools, tool_format, context)
    if grammar is not None and reasoning is not None:
        grammar = msgspec.structs.replace(grammar, reasoning=_reasoning_tokens(reasoning, grammar.field, context))
    return AnswerPlan(
        grammar,
        AnswerFormat(
            reasoning=reasoning,
            include_reasoning=body.include_reasoning is not False,
            tools=tool_format,
            function_names=frozenset(tool.function.name for tool in tools),
            one_call=body.parallel_tool_calls is False,
        ),
    )


def _reasoning(context: ServerContext, prompt_token_ids: Sequence[int]) -> tuple[ReasoningTags, ReasoningStart] | None:
    parser = context.config.reasoning_parser
    if parser is None:
        return None
    tags = context.reasoning_tags
    prompt_end = context.tokenizer.decode(prompt_token_ids[-_PROMPT_END_TOKENS:])
    return tags, reasoning_start(prompt_end, tags, always_reasons=_ALWAYS_REASONS[parser])


def _reasoning_tokens(
    reasoning: tuple[ReasoningTags, ReasoningStart], field: str, context: ServerContext
) -> ReasoningTokens | None:
    tags, start = reasoning
    if start is ReasoningStart.ANSWER:
        return None
    start_id, end_id = (context.tokenizer.backend.token_to_id(tag) for tag in tags)
    if start_id is None or end_id is None:
        if start is ReasoningStart.EITHER_ANSWER:
            return None  # then it does not reason
        raise RequestError(
            f"{field}: what this model must answer can be said only where --reasoning-tags are tokens of its own; "
            f"{tags.opening} and {tags.closing} are not",
            field=field,
        )
    return ReasoningTokens(start_id, end_id, is_open=start is not ReasoningStart.EITHER_ANSWER)


def _is_forced(body: ChatBody) -> bool:
    return body.tool_choice == "required" or isinstance(body.tool_choice, NamedToolChoice)


def _tool_format(body: ChatBody, context: ServerContext) -> ToolFormat:
    parser = context.config.tool_call_parser
    if parser is not None:
        tool_format = TOOL_FORMATS[parser]
        return CALL_LIST if _is_forced(body) and not tool_format.has_grammar else tool_format
    if not _is_forced(body):
        raise RequestError(
            "tools with tool_choice 'auto' need a server that knows the model's way to write calls: start it with "
            f"--tool-call-parser ({', '.join(TOOL_FORMATS)})",
            field="tool_choice",
        )
    return CALL_LIST


def _tools_grammar(
    body: ChatBody, tools: Sequence[Tool], tool_format: ToolFormat, context: ServerContext
) -> Grammar | None:
    """None where the model may answer as it likes."""
    choice = body.tool_choice
    functions = [_function(tool) for tool in tools]
    tag_ids = context.tokenizer.added_ids_of(tool_format.tags)
    several = body.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        chosen = [function for function in functions if function.name == choice.function.name]
        return text_grammar(tool_format.grammar(chosen, several=False, tag_ids=tag_ids), "tools")
    if choice == "required":
        return text_grammar(tool_format.grammar(functions, several=several, tag_ids=tag_ids), "tools")
    strict = next((index for index, function in enumerate(functions) if function.is_strict), None)
    if strict is None:
        return None
    if not tool_format.trigger:
        field = f"tools[{strict}].function.strict"
        raise RequestError(
            f"{field}: this model's calls cannot be told from text before they are complete, so they can be bound to "
            "their schema only by tool_choice 'required' or a named function",
            field=field,
        )
    return text_grammar(tool_format.free_grammar(functions, several=several, tag_ids=tag_ids), "tools")


def _function(tool: Tool) -> Function:
    parameters = tool.function.parameters or _NO_PARAMETERS
    return Function(tool.function.name, parameters, tool.function.strict or False)
