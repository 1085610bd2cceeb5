// RMSNorm and LayerNorm of rows, with the addition that comes before them in a transformer layer.

#include <cmath>

#include "vector.h"

namespace {

constexpr long kParallelNumbers = 16384;

// Sum over a row of term(vector), lanes beyond the row left out.
template <class T, class Term>
MEGASERVE_INLINE float row_sum(const T* row, int width, const Term& term) {
  Floats sum{};
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) sum += term(load(row + column));
  float total = sum_of_lanes(sum);
  for (; column < width; ++column) total += first_lane(term(broadcast(load_one(row + column))));
  return total;
}

template <class T>
void add(const T* left, const T* right, T* out, int width) {
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) store(out + column, load(left + column) + load(right + column));
  for (; column < width; ++column) store_one(out + column, load_one(left + column) + load_one(right + column));
}

template <class T>
void scale_row(const T* row, float mean, float inverse, const T* weight, const T* bias, T* out, int width) {
  int column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    const Floats scaled = (load(row + column) - mean) * inverse * load(weight + column);
    store(out + column, bias ? scaled + load(bias + column) : scaled);
  }
  for (; column < width; ++column) {
    const float scaled = (load_one(row + column) - mean) * inverse * load_one(weight + column);
    store_one(out + column, bias ? scaled + load_one(bias + column) : scaled);
  }
}

template <class T>
void normalize_row(const T* row, const T* weight, const T* bias, T* out, int width, float eps) {
  float mean = 0.0f;
  // A bias is what LayerNorm has and RMSNorm has not.
  if (bias) mean = row_sum(row, width, [](Floats x) { return x; }) / width;
  const float squares = row_sum(row, width, [mean](Floats x) { return (x - mean) * (x - mean); });
  scale_row(row, mean, 1.0f / std::sqrt(squares / width + eps), weight, bias, out, width);
}

template <class T>
void add_norm(const T* residual, const T* update, const T* weight, const T* bias, T* total, T* out, long rows,
              int width, float eps) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * width >= kParallelNumbers)
  for (long row = 0; row < rows; ++row) {
    const T* input = residual + row * width;
    if (update) {
      add(input, update + row * width, total + row * width, width);
      input = total + row * width;
    }
    normalize_row(input, weight, bias, out + row * width, width, eps);
  }
}

}  // namespace

// residual, update, total, out: (rows, width); weight, bias: (width). total = residual + update, out = its norm. Without
// update (null), out is the norm of residual. Without bias (null) it is RMSNorm, with it LayerNorm. total may be
// residual or update.
extern "C" void add_norm_f32(const float* residual, const float* update, const float* weight, const float* bias,
                             float* total, float* out, int64_t rows, int32_t width, float eps) {
  add_norm(residual, update, weight, bias, total, out, rows, width, eps);
}

extern "C" void add_norm_bf16(const bf16* residual, const bf16* update, const bf16* weight, const bf16* bias,
                              bf16* total, bf16* out, int64_t rows, int32_t width, float eps) {
  add_norm(residual, update, weight, bias, total, out, rows, width, eps);
}
