// Rotates new keys and writes them with their values into the paged cache.

#include <cfloat>
#include <cmath>
#include <vector>

#include "attention.h"
#include "rotary.h"
#include "vector.h"

namespace {

constexpr int kParallelTokens = 8;

// A sequence that comes to NaN fails alone: it must not leave it to whoever gets its blocks next.
inline float finite(float value) {
  if (value != value) return 0.0f;
  return value > FLT_MAX ? FLT_MAX : value < -FLT_MAX ? -FLT_MAX : value;
}

// The same for a number that is stored as it is.
template <class T>
inline void store_finite(T* to, float value) {
  store_one(to, finite(value));
}

template <>
inline void store_finite(bf16* to, float value) {
  constexpr float largest = 3.3895313892515355e38f;  // of bf16; more would round to infinity
  const float bounded = finite(value);
  store_one(to, bounded > largest ? largest : bounded < -largest ? -largest : bounded);
}

template <class T>
void write_token(const AttentionStep& step, const T* qkv, T* keys, T* values, int token, int kv_head, float* rotated) {
  const int head_dim = step.head_dim, block_size = step.block_size;
  const long row_stride = long(step.num_kv_heads) * (step.group + 2) * head_dim;
  const T* key = qkv + token * row_stride + (long(kv_head) * (step.group + 2) + step.group) * head_dim;
  const T* value = key + head_dim;
  const long block = step.slots[token] / block_size, offset = step.slots[token] % block_size;
  const long piece = (block * step.num_kv_heads + kv_head) * head_dim * block_size;
  rotate(step, token, key, rotated);
  for (int dim = 0; dim < head_dim; ++dim) store_finite(keys + piece + long(dim) * block_size + offset, rotated[dim]);
  for (int dim = 0; dim < head_dim; ++dim) store_finite(values + piece + offset * head_dim + dim, load_one(value + dim));
}

template <class T>
void write_cache(const AttentionStep* step, const T* qkv, T* keys, T* values) {
#pragma omp parallel if (step->num_tokens >= kParallelTokens)
  {
    std::vector<float> rotated(step->head_dim);
#pragma omp for schedule(static)
    for (int token = 0; token < step->num_tokens; ++token)
      for (int kv_head = 0; kv_head < step->num_kv_heads; ++kv_head)
        write_token(*step, qkv, keys, values, token, kv_head, rotated.data());
  }
}

}  // namespace

extern "C" void write_cache_f32(const AttentionStep* step, const float* qkv, float* keys, float* values) {
  write_cache(step, qkv, keys, values);
}

extern "C" void write_cache_bf16(const AttentionStep* step, const bf16* qkv, bf16* keys, bf16* values) {
  write_cache(step, qkv, keys, values);
}
