"""A later turn of a conversation keeps the tokens that its earlier answer was made of.

Text does not say how it was tokenised: an answer that comes back as text may become other tokens than the model chose.
Clients that care (reinforcement learning, prefix caches) send the earlier turn's ids with the assistant's message, as
Megatron's dynamic server returns and takes them (`megatron.core.inference.text_generation_server`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from server.api.context import ServerContext
from server.api.openai_protocol import ChatMessage
from server.frontend.chat_options import ChatOptions
from server.frontend.field_checks import check_token_ids


async def keep_earlier_tokens(
    messages: Sequence[ChatMessage], token_ids: list[int], options: ChatOptions, context: ServerContext
) -> list[int]:
    """`token_ids` of the whole conversation, with those of the last answer's turn as its message gives them.

    Unchanged when that message has no ids. Raises RequestError for ids that do not exist.
    """
    last = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=None)
    if last is None:
        return token_ids
    prompt, generated = messages[last].prompt_token_ids, messages[last].generation_token_ids
    if prompt is None or generated is None:
        return token_ids
    vocab_size = context.client.limits.vocab_size
    check_token_ids(f"messages[{last}].prompt_token_ids", prompt, vocab_size)
    check_token_ids(f"messages[{last}].generation_token_ids", generated, vocab_size)
    earlier = [message.for_template(iter(())) for message in messages[: last + 1]]
    retold = await context.encode_chat(
        earlier, options._replace(add_generation_prompt=False, continue_final_message=False)
    )
    return with_earlier_tokens([*prompt, *generated], retold, token_ids, context.tokenizer.eos_token_ids)


def with_earlier_tokens(
    made: Sequence[int], retold: Sequence[int], current: Sequence[int], eos_token_ids: Collection[int]
) -> list[int]:
    """made: the earlier turn's own tokens. retold: the same turn as its text is tokenised now. current: all turns so.

    What follows the earlier answer begins at the EOS that closes it in `current`.
    """
    own = list(made[:-1] if made and made[-1] in eos_token_ids else made)
    both = min(len(retold), len(current))
    end = next((index for index in reversed(range(both)) if current[index] in eos_token_ids), len(retold) - 1)
    return [*own, *current[end:]]
