"""Batch evaluation over HTTP: append-only truth, resumable, scored without inference.

Reading order: `cli` (one command), `datasets` (rows in), `prompts`, `keys` and `plan` (what will be asked), `transport`
(asking), `runner` (many at once), `run_directory` (what is kept), `scorers`, `summary` and `export` (what comes out).
"""
