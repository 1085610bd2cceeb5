"""Which tensors have a row per token id.

Training pads them to a multiple that depends on its tensor-parallel size, so the number of rows belongs to a
checkpoint's sharding and not to the model: serving pads again for its own size.
"""

_OF_GPT = ("embedding.word_embeddings.weight", "output_layer.weight")
# In LLaVA the language model's name comes before its tensors'.
VOCABULARY_TENSORS = frozenset(prefix + name for prefix in ("", "language_model.") for name in _OF_GPT)
