"""The process that answers HTTP, and the engine behind it."""
