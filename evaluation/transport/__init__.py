"""Asking the server: payloads and replies, failures by kind, retries, waiting for a restart."""
