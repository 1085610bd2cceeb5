// The softmax of attention, taken split by split of the keys: each split relative to its own largest score, then merged.
#pragma once

#include <algorithm>
#include <cmath>

#include "vector.h"

constexpr int round_up(int count, int multiple) { return (count + multiple - 1) / multiple * multiple; }

struct SoftmaxParts {
  float largest, sum;
};

// Scores of `count` tokens become e^(score - largest); what follows them up to `end` becomes 0.
static __attribute__((noinline)) SoftmaxParts exponentiate(float* scores, int count, int end) {
  const int padded = round_up(count, kLanes);
  std::fill(scores + count, scores + padded, -INFINITY);
  Floats largest = load(scores);
  for (int token = kLanes; token < padded; token += kLanes) largest = larger(load(scores + token), largest);
  const float bound = largest_lane(largest);
  Floats sum{};
  for (int token = 0; token < padded; token += kLanes) {
    const Floats weight = exponential(load(scores + token) - bound);
    store(scores + token, weight);
    sum += weight;
  }
  if (padded < end) std::fill(scores + padded, scores + end, 0.0f);
  return {bound, sum_of_lanes(sum)};
}

// total = total and output together, each relative to its own largest score. Never inlined: the compiler is free in how
// it fuses multiplications with additions, and every caller must get the same bits.
static __attribute__((noinline)) void merge(
    float* total, SoftmaxParts& into, const float* output, SoftmaxParts from, int head_dim) {
  const float largest = std::max(into.largest, from.largest);
  const float keep = first_lane(exponential(broadcast(into.largest - largest)));
  const float take = first_lane(exponential(broadcast(from.largest - largest)));
  for (int dim = 0; dim < head_dim; ++dim) total[dim] = total[dim] * keep + output[dim] * take;
  into = {largest, into.sum * keep + from.sum * take};
}

template <class T>
void finish(T* out, const float* total, float sum, int head_dim) {
  const float inverse = 1.0f / sum;
  int dim = 0;
  for (; dim + kLanes <= head_dim; dim += kLanes) store(out + dim, load(total + dim) * inverse);
  for (; dim < head_dim; ++dim) store_one(out + dim, total[dim] * inverse);
}
