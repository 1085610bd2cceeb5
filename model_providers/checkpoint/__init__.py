"""Reading, writing and importing Megatron checkpoints without executing anything in them."""
