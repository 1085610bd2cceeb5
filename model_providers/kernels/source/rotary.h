// Rotary position embedding of one head, in float.
#pragma once

#include "attention.h"
#include "vector.h"

// from (head_dim) of the token in row `token` of the batch -> to (head_dim); dimensions beyond rotary_dim pass through.
template <class T>
MEGASERVE_INLINE void rotate(const AttentionStep& step, int token, const T* from, float* to) {
  const int half = step.rotary_dim / 2;
  for (int dim = 2 * half; dim < step.head_dim; ++dim) to[dim] = load_one(from + dim);
  if (half == 0) return;
  const float* cosines = step.cosines + long(step.positions[token]) * half;
  const float* sines = step.sines + long(step.positions[token]) * half;
  if (step.interleaved) {
    for (int pair = 0; pair < half; ++pair) {
      const float first = load_one(from + 2 * pair), second = load_one(from + 2 * pair + 1);
      to[2 * pair] = first * cosines[pair] - second * sines[pair];
      to[2 * pair + 1] = second * cosines[pair] + first * sines[pair];
    }
    return;
  }
  int pair = 0;
  for (; pair + kLanes <= half; pair += kLanes) {
    const Floats first = load(from + pair), second = load(from + half + pair);
    const Floats cosine = load(cosines + pair), sine = load(sines + pair);
    store(to + pair, first * cosine - second * sine);
    store(to + half + pair, second * cosine + first * sine);
  }
  for (; pair < half; ++pair) {
    const float first = load_one(from + pair), second = load_one(from + half + pair);
    to[pair] = first * cosines[pair] - second * sines[pair];
    to[half + pair] = second * cosines[pair] + first * sines[pair];
  }
}
