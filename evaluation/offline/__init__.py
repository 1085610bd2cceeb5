"""Offline mode: the engine in this process, without HTTP, on one rank or many (`torchrun ... -m evaluation --offline`).

`session` (one evaluation), `engine` (the engine, asked through the server's own routes, so a prompt becomes the same
tokens as over HTTP), `asgi_wire` (how), `ranks` (who is there, barriers, gathering), `shares` (who asks what), `timing`
(what the ranks gained). Nothing else in `evaluation` may import the server.
"""
