"""What a model is made of at serving time: attention, linear and norm modules, and the KV cache."""
