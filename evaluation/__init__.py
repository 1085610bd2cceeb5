"""Batch evaluation over HTTP: append-only truth, resumable, scored without inference.

Reading order: `cli` and `evaluate` (one command), `datasets` (rows in), `prompts`, `request_types`, `keys` and `plan`
(what will be asked), `transport` (asking), `asking` and `runner` (many at once), `answers` and `thinking` (from a reply
to a record), `run_directory` (what is kept), `scorers`, `scoring`, `summary`, `export` and `report` (what comes out).
"""
