"""Measurements of the engine and the server, and of peers on the same machine."""
