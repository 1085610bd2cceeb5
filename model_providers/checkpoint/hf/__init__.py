"""Hugging Face checkpoints as Megatron ones: one file per model family, stating how it differs."""
