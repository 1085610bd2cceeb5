"""A LLaVA of two million parameters trained on easy-vqa: served, asked about a picture, evaluated on held-out ones.

easy-vqa asks about ten questions per picture, so both caches must show: embeddings by picture, and the part of the KV
cache that questions on one picture share.
"""

from __future__ import annotations

import base64
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from server.demo.evaluated import evaluate_with_a_kill
from server.demo.served import DemoError, generate, get_json, say, served, show_arguments, stay_up

CHECKPOINT = Path(__file__).parents[2] / "examples" / "demo_vlm"
NUM_QUESTIONS = 1000


def demonstrate_pictures(run: Path, *, leave_up: bool) -> None:
    """Raises DemoError. Logs and results go to `run`."""
    if not CHECKPOINT.is_dir():
        raise DemoError(f"{CHECKPOINT} is missing; run the demo from a checkout of the repository")
    picture = _picture(7)
    show_arguments(str(CHECKPOINT), run / "pictures_arguments.txt")
    with served(str(CHECKPOINT), run / "pictures_server.log") as url:
        _ask(url, picture)
        before = _counters(url)
        summary = evaluate_with_a_kill(
            url,
            "easy-vqa:test",
            run / "pictures_evaluation",
            kill_after=300,
            flags=("--limit", str(NUM_QUESTIONS), "--max-new-tokens", "4"),
        )
        _print_speed(summary, before, _counters(url))
        if leave_up:
            stay_up(url)


def _picture(index: int) -> Path:
    spec = find_spec("easy_vqa")
    if spec is None or spec.origin is None:
        raise DemoError("the pictures are in the package easy-vqa: pip install --no-deps easy-vqa==1.0")
    return Path(spec.origin).parent / "data" / "test" / "images" / f"{index}.png"


def _ask(url: str, picture: Path) -> None:
    say(f"questions about {picture.name} over POST /generate, and one without a picture")
    data = base64.b64encode(picture.read_bytes()).decode()
    for question in (
        "what is the color of the shape?",
        "what shape does the image contain?",
        "is there not a black shape in the image?",
    ):
        answer = generate(url, f"<image>{question}", max_new_tokens=4, image_data=data)
        meta = answer["meta_info"]
        cost = (
            f"{meta['encoder_seconds'] * 1000:.1f} ms in the encoder" if meta["images_encoded"] else "not encoded again"
        )
        print(f"{question} ->{answer['text']}  ({meta['image_tokens']} image tokens, {cost})")
    answer = generate(url, "what is the color of the shape?", max_new_tokens=4)
    print(f"the same without a picture ->{answer['text']}  (a guess)")


def _counters(url: str) -> dict[str, Any]:
    stats: dict[str, Any] = get_json(url, "/server_info")["stats"]
    return stats


def _print_speed(summary: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    grown = {name: after[name] - before[name] for name in after if name.startswith("total_")}
    questions = summary["items"]
    without_encoder = questions - grown["total_images_encoded"]
    print(f"{summary['requests_per_second']:.0f} questions/s")
    print(
        f"{grown['total_images_encoded']} pictures encoded for {questions} questions: image-cache hit rate "
        f"{without_encoder / questions:.1%}, {grown['total_encoder_seconds']:.1f} s in the encoder"
    )
    share = grown["total_cached_tokens"] / grown["total_prompt_tokens"]
    print(f"{share:.0%} of the prompts' tokens came from the prefix cache")
