"""Schedules requests, runs the model and samples, on rank 0 of a tensor-parallel group."""
