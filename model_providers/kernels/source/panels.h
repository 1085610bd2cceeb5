// What linear layers share whose weights lie in panels of kChunk outputs: (outputs / kChunk, inputs, kChunk).
//
// Every output is one sum in the order of the inputs, so its bits do not depend on the number of rows or of threads.
#pragma once

#include <algorithm>

#include "tile.h"

// Rows that stay in the second cache level while all panels pass by, counted in numbers.
constexpr int kRowsNumbers = 64 * 1024;

inline int rows_at_once(int inputs) { return std::max(kTileRows, kRowsNumbers / inputs / kTileRows * kTileRows); }

inline const float* as_floats(const float* x, float*, long) { return x; }

// For all threads of a parallel region, which share the work and wait for each other.
inline const float* as_floats(const bf16* x, float* scratch, long count) {
#pragma omp for schedule(static)
  for (long at = 0; at < count; at += kLanes) {
    if (at + kLanes <= count)
      store(scratch + at, load(x + at));
    else
      store_first(scratch + at, load_first(x + at, int(count - at)), int(count - at));
  }
  return scratch;
}

// A panel's sums, (rows, kChunk) and sums_stride apart, times the outputs' scales, plus their bias -> out (rows, width).
// scales, bias: or null.
//
// Never inlined: its constants would take registers from the product, whose sums would then go through memory.
template <class T>
__attribute__((noinline)) void write_sums(const float* sums, long sums_stride, const float* scales, const T* bias, T* out,
                                          long out_stride, int rows, int width) {
  for (int r = 0; r < rows; ++r, sums += sums_stride, out += out_stride) {
    if (width == kChunk) {
      for (int vector = 0; vector < kChunk; vector += kLanes) {
        const Floats sum = scales ? load(sums + vector) * load(scales + vector) : load(sums + vector);
        store(out + vector, bias ? sum + load(bias + vector) : sum);
      }
      continue;
    }
    for (int column = 0; column < width; ++column) {
      const float sum = scales ? sums[column] * scales[column] : sums[column];
      store_one(out + column, bias ? sum + load_one(bias + column) : sum);
    }
  }
}
