"""What every test shares: no model hub, and SmolLM2 as a Megatron checkpoint and in Hugging Face's implementation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Set before any test module imports torch or transformers; processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))


@pytest.fixture(scope="session")
def smollm2_checkpoint() -> Path:
    """SmolLM2-135M-Instruct as a Megatron torch_dist checkpoint (fp32), built at first use on this machine."""
    from model_providers.checkpoint.smollm2 import ensure_smollm2

    return ensure_smollm2()


@pytest.fixture(scope="session")
def smollm2_hf(smollm2_checkpoint: Path) -> PreTrainedModel:
    """The same weights in Hugging Face's implementation, fp32, in evaluation mode: the slow truth."""
    import torch
    from transformers import AutoModelForCausalLM

    from model_providers.checkpoint.smollm2 import smollm2_hf_directory

    return AutoModelForCausalLM.from_pretrained(smollm2_hf_directory(), dtype=torch.float32).eval()
