"""SmolLM2: written as a Megatron checkpoint, served, asked, and evaluated on the repository's own questions."""

from __future__ import annotations

import json
from pathlib import Path

from server.demo.evaluated import evaluate_with_a_kill
from server.demo.served import DemoError, generate, output_of, post, say, served, show_arguments, stay_up

_QUESTIONS = Path(__file__).parents[2] / "examples" / "general_knowledge_mcq.jsonl"


def demonstrate_text(run: Path, *, leave_up: bool) -> None:
    """Raises DemoError. Logs and results go to `run`."""
    if not _QUESTIONS.is_file():
        raise DemoError(f"{_QUESTIONS} is missing; run the demo from a checkout of the repository")
    say("SmolLM2-135M-Instruct as a Megatron checkpoint")
    built = output_of("the checkpoint", "-m", "model_providers.checkpoint.smollm2")
    checkpoint = built.strip().splitlines()[-1]
    print(checkpoint)
    show_arguments(checkpoint, run / "text_arguments.txt")
    with served(checkpoint, run / "text_server.log") as url:
        _ask(url)
        summary = evaluate_with_a_kill(
            url, str(_QUESTIONS), run / "text_evaluation", kill_after=60, flags=("--max-new-tokens", "16")
        )
        print(f"{summary['output_tokens_per_second']:.0f} output tokens/s")
        if leave_up:
            stay_up(url)


def _ask(url: str) -> None:
    say("three questions over POST /generate")
    for text in ("The capital of France is", "Water is made of hydrogen and"):
        answer = generate(url, text, max_new_tokens=16)
        print(f"{text} ->{answer['text']!r}  ({answer['meta_info']['completion_tokens']} tokens)")
    text = "Once upon a time"
    print(f"{text} (streamed) -> ", end="", flush=True)
    shown = ""
    sampling = {"max_new_tokens": 40, "temperature": 0}
    with post(url, {"text": text, "sampling_params": sampling, "stream": True}) as reply:
        for line in reply:
            data = line.decode().strip().removeprefix("data: ")
            if data and data != "[DONE]":
                so_far = json.loads(data)["text"]
                print(so_far[len(shown) :], end="", flush=True)
                shown = so_far
    print()
