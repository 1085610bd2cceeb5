"""Rows in: VLMEvalKit TSV and JSONL files, read into `Item`s."""

from evaluation.datasets.item import Content, Image, Item, Message
from evaluation.datasets.load import Dataset, load_dataset, with_sound_images

__all__ = ["Content", "Dataset", "Image", "Item", "Message", "load_dataset", "with_sound_images"]
