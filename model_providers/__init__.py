"""Megatron-core models, built from resolved arguments and ready to serve."""
