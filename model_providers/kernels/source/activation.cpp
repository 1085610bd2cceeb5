// Nonlinearities between an MLP's two linear layers.

#include <algorithm>

#include "vector.h"

namespace {

constexpr long kParallelNumbers = 16384;
constexpr long kPieceNumbers = 2048;  // that a thread takes at once, a multiple of kLanes

struct Silu {
  MEGASERVE_INLINE Floats operator()(Floats x) const { return x / (1.0f + exponential(-x)); }
};

struct QuickGelu {
  MEGASERVE_INLINE Floats operator()(Floats x) const { return x / (1.0f + exponential(-1.702f * x)); }
};

// By the tanh approximation of the normal distribution: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
struct GeluTanh {
  MEGASERVE_INLINE Floats operator()(Floats x) const {
    const Floats inner = 1.5957691216f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(-inner));
  }
};

// By the normal distribution itself; its error function after Abramowitz and Stegun, 7.1.26 (error below 1.5e-7).
struct Gelu {
  MEGASERVE_INLINE Floats operator()(Floats x) const {
    const Floats scaled = x * 0.70710678119f;
    const Floats size = select(scaled < Floats{}, -scaled, scaled);
    const Floats t = 1.0f / (1.0f + 0.3275911f * size);
    Floats series = broadcast(1.061405429f);
    series = series * t - 1.453152027f;
    series = series * t + 1.421413741f;
    series = series * t - 0.284496736f;
    series = series * t + 0.254829592f;
    const Floats beyond = 0.5f * series * t * exponential(-size * size);  // the tail's probability
    return x * select(scaled < Floats{}, beyond, 1.0f - beyond);
  }
};

// out[i] = function(in[i]); the last numbers fill a vector with zeros, so that none is computed in another way.
template <class Function, class T>
void apply_to_piece(const T* in, T* out, int count) {
  int at = 0;
  for (; at + kLanes <= count; at += kLanes) store(out + at, Function()(load(in + at)));
  if (at < count) store_first(out + at, Function()(load_first(in + at, count - at)), count - at);
}

template <class Function, class T>
void apply(const T* in, T* out, long count) {
#pragma omp parallel for schedule(static) if (count >= kParallelNumbers)
  for (long at = 0; at < count; at += kPieceNumbers)
    apply_to_piece<Function>(in + at, out + at, int(std::min(kPieceNumbers, count - at)));
}

// in (rows, 2 * width) holds gate and up side by side -> out (rows, width) = function(gate) * up.
template <class Function, class T>
void apply_gated(const T* in, T* out, long rows, int width) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * width >= kParallelNumbers)
  for (long row = 0; row < rows; ++row) {
    const T* gate = in + row * 2 * width;
    const T* up = gate + width;
    T* to = out + row * width;
    int column = 0;
    for (; column + kLanes <= width; column += kLanes)
      store(to + column, Function()(load(gate + column)) * load(up + column));
    if (column < width) {
      const int rest = width - column;
      store_first(to + column, Function()(load_first(gate + column, rest)) * load_first(up + column, rest), rest);
    }
  }
}

}  // namespace

#define MEGASERVE_GATED(name, Function)                                                        \
  extern "C" void name##_f32(const float* in, float* out, int64_t rows, int32_t width) {       \
    apply_gated<Function>(in, out, rows, width);                                               \
  }                                                                                            \
  extern "C" void name##_bf16(const bf16* in, bf16* out, int64_t rows, int32_t width) {        \
    apply_gated<Function>(in, out, rows, width);                                               \
  }

#define MEGASERVE_PLAIN(name, Function)                                                        \
  extern "C" void name##_f32(const float* in, float* out, int64_t rows, int32_t width) {       \
    apply<Function>(in, out, rows * width);                                                    \
  }                                                                                            \
  extern "C" void name##_bf16(const bf16* in, bf16* out, int64_t rows, int32_t width) {        \
    apply<Function>(in, out, rows * width);                                                    \
  }

MEGASERVE_GATED(silu_gated, Silu)
MEGASERVE_GATED(quick_gelu_gated, QuickGelu)
MEGASERVE_PLAIN(silu, Silu)
MEGASERVE_PLAIN(quick_gelu, QuickGelu)
MEGASERVE_PLAIN(gelu, Gelu)
MEGASERVE_PLAIN(gelu_tanh, GeluTanh)
