"""Batch evaluation over HTTP: append-only truth, resumable, scored without inference."""
