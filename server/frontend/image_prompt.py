"""A prompt with images: text segments tokenised, and for each image as many places as it has tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from server.frontend.image_store import StoredImage
from server.frontend.tokenizer import PromptTokenizer
from server.request import EngineImage

# What surrounds an image, by Megatron's --image-tag-type. Source: examples/multimodal's multimodal tokenizer.
_TAGS = {"": ("", ""), "nvlm": ("<Image>", "</Image>"), "internvl": ("<img>", "</img>")}
_IMAGE_TOKEN = "<image>"

Segment = str | int


class ImagePrompt(NamedTuple):
    """token_ids: placeholders where the images are."""

    token_ids: list[int]
    images: tuple[EngineImage, ...]


class ImagePromptEncoder:
    """image_tag_type: Megatron's argument of that name. vocab_size: ids below it exist."""

    def __init__(self, tokenizer: PromptTokenizer, image_tag_type: str, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._before, self._after = (tokenizer.encode_control(tag) if tag else [] for tag in _TAGS[image_tag_type])
        token_id = tokenizer.backend.token_to_id(_IMAGE_TOKEN)
        # Never looked up, but it counts as a token of the prompt for penalties: better one that is no word.
        self._placeholder = token_id if token_id is not None and token_id < vocab_size else 0

    def plain(self, segments: Sequence[Segment], images: Sequence[StoredImage]) -> ImagePrompt:
        """Of a `/generate` text: control tokens in it are text."""
        beginning = self._tokenizer.encode_plain("", is_beginning=True)
        return self._encode(beginning, segments, images, lambda t: self._tokenizer.encode_plain(t, is_beginning=False))

    def chat(self, segments: Sequence[Segment], images: Sequence[StoredImage]) -> ImagePrompt:
        """Of a rendered conversation, see `PromptTokenizer.render_chat`."""
        return self._encode([], segments, images, self._tokenizer.encode_rendered)

    def _encode(
        self,
        beginning: list[int],
        segments: Sequence[Segment],
        images: Sequence[StoredImage],
        encode: Callable[[str], list[int]],
    ) -> ImagePrompt:
        token_ids = list(beginning)
        placed = []
        for segment in segments:
            if isinstance(segment, str):
                token_ids += encode(segment)
                continue
            image = images[segment]
            token_ids += self._before
            placed.append(engine_image(image, len(token_ids)))
            token_ids += [self._placeholder] * image.num_tokens
            token_ids += self._after
        return ImagePrompt(token_ids, tuple(placed))


def engine_image(image: StoredImage, first_token: int) -> EngineImage:
    """The image at its place in a prompt."""
    return EngineImage(
        digest=image.digest,
        first_token=first_token,
        num_tokens=image.num_tokens,
        pixels_file=str(image.file),
        shape=image.shape,
        imgs_sizes=image.imgs_sizes,
    )
