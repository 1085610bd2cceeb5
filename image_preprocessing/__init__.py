"""Decoding and planning of images, free of torch."""
