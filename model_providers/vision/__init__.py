"""Image encoders and projections of LLaVA models: Megatron's modules, run over packed image tokens."""
