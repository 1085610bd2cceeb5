"""HTTP routes: validation in, JSON and event streams out."""
