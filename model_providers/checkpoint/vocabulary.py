"""Which tensors have a row per token id.

Training pads them to a multiple that depends on its tensor-parallel size, so the number of rows belongs to a
checkpoint's sharding and not to the model: serving pads again for its own size.
"""

VOCABULARY_TENSORS = frozenset({"embedding.word_embeddings.weight", "output_layer.weight"})
