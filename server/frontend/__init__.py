"""Between HTTP and the engine: tokens in, text out."""
