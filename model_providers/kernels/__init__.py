"""CPU kernels in C++ behind a plain C interface: `build` compiles them, `library` loads the best one for this CPU."""
