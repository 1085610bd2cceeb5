"""Rows in: VLMEvalKit TSV and JSONL files, read into `Item`s."""

from evaluation.datasets.item import Image, Item
from evaluation.datasets.load import Dataset, load_dataset

__all__ = ["Dataset", "Image", "Item", "load_dataset"]
