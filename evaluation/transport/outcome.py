"""What one request can come to."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.status import Status


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A reply that was understood. status: answered, or a failure that asking again would not change (EMPTY, ...).

    text: as it came. reasoning: the thinking that the server told apart from it, None when it did not. times: {queue,
    first_token, total} in seconds as the server measured them, those that it says. fingerprint: what the server says it
    answered with (OpenAI's system_fingerprint).
    """

    status: Status
    text: str
    reasoning: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    times: dict[str, float] | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """What a server says about a prompt's own tokens. num_tokens: of the whole prompt.

    token_ids, logprobs, texts and is_greedy are those of its last positions, all of the same length; logprobs has None
    at a prompt's first token. is_greedy: whether the token is the most likely one at its position.
    """

    num_tokens: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    texts: tuple[str | None, ...] = ()
    is_greedy: tuple[bool, ...] = ()
    status: Status = Status.OK


@dataclass(frozen=True, kw_only=True)
class Failure:
    """No usable reply. retry_after: seconds the server asked to wait, None when it did not say."""

    status: Status
    message: str
    http_status: int | None = None
    retry_after: float | None = None


type Reply = Completion | PromptTokens | Failure


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The final reply to a request.

    attempts: requests sent. failed: the replies of the earlier ones, status to number. started_at and finished_at:
    seconds since the epoch, first request to final reply. seconds: duration of the last request. request_id: the last
    request's.
    """

    reply: Reply
    attempts: int
    failed: dict[str, int]
    started_at: float
    finished_at: float
    seconds: float
    request_id: str
