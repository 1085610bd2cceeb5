// A small product of matrices kept in registers: up to kTileRows rows by kChunk columns.
//
// Every number of the result is a sum in the order of the depth, whatever the number of rows: a row's bits do not depend
// on the rows beside it.
#pragma once

#include "vector.h"

constexpr int kChunk = 16;
constexpr int kChunkVectors = kChunk / kLanes;
// As many rows as accumulators, the loaded chunk and one broadcast number fit the registers.
constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 6 : 2;

// kChunks chunks of columns, which need not be neighbours, side by side: more sums at once where there are few rows.
template <int kRows, int kChunks = 1>
struct Tile {
  static constexpr int kVectors = kChunks * kChunkVectors;
  Floats sums[kRows][kVectors];

  MEGASERVE_INLINE void clear() {
    for (int row = 0; row < kRows; ++row)
      for (int vector = 0; vector < kVectors; ++vector) sums[row][vector] = Floats{};
  }

  // Adds left (rows, depth) times right, for each chunk (depth, kChunk). On the way, memory that is needed next is
  // fetched: fetch_step bytes from `fetch` on for each k.
  template <class T>
  MEGASERVE_INLINE void add_product(const float* left, long left_stride, const T* const* right, long right_stride,
                                    int depth, const char* fetch = nullptr, long fetch_step = 0) {
    for (int k = 0; k < depth; ++k) {
      if (fetch_step) __builtin_prefetch(fetch + k * fetch_step);
      if constexpr (kRows < kVectors) {
        // Fewer registers hold the rows' factors than the chunks' numbers.
        Floats factors[kRows];
        for (int row = 0; row < kRows; ++row) factors[row] = broadcast(left[k + row * left_stride]);
        for (int vector = 0; vector < kVectors; ++vector) {
          const Floats numbers = load_vector(right, k * right_stride, vector);
          for (int row = 0; row < kRows; ++row) sums[row][vector] += factors[row] * numbers;
        }
      } else {
        Floats numbers[kVectors];
        for (int vector = 0; vector < kVectors; ++vector) numbers[vector] = load_vector(right, k * right_stride, vector);
        add_outer(left + k, left_stride, numbers);
      }
    }
  }

  // The same for one chunk of fewer columns.
  template <class T>
  MEGASERVE_INLINE void add_narrow_product(
      const float* left, long left_stride, const T* right, long right_stride, int depth, int width) {
    static_assert(kChunks == 1);
    for (int k = 0; k < depth; ++k) {
      T padded[kChunk] = {};
      std::memcpy(padded, right + k * right_stride, width * sizeof(T));
      Floats numbers[kVectors];
      for (int vector = 0; vector < kVectors; ++vector) numbers[vector] = load(padded + vector * kLanes);
      add_outer(left + k, left_stride, numbers);
    }
  }

  MEGASERVE_INLINE void store_to(float* out, long out_stride) const {
    for (int row = 0; row < kRows; ++row)
      for (int vector = 0; vector < kVectors; ++vector)
        store(out + row * out_stride + vector * kLanes, sums[row][vector]);
  }

  MEGASERVE_INLINE void store_narrow(float* out, long out_stride, int width) const {
    static_assert(kChunks == 1);
    for (int row = 0; row < kRows; ++row) std::memcpy(out + row * out_stride, sums[row], width * sizeof(float));
  }

 private:
  template <class T>
  static MEGASERVE_INLINE Floats load_vector(const T* const* right, long offset, int vector) {
    return load(right[vector / kChunkVectors] + offset + vector % kChunkVectors * kLanes);
  }

  MEGASERVE_INLINE void add_outer(const float* left, long left_stride, const Floats* numbers) {
    for (int row = 0; row < kRows; ++row) {
      const Floats factor = broadcast(left[row * left_stride]);
      for (int vector = 0; vector < kVectors; ++vector) sums[row][vector] += factor * numbers[vector];
    }
  }
};

// Chunks that a tile of so few rows takes at once.
template <int kRows>
constexpr int kChunksAtOnce = kRows * 2 <= kTileRows ? 2 : 1;

template <int kRows, class Work>
MEGASERVE_INLINE void run_tile(const Work& work, int first_row, int rows) {
  if (rows == kRows) {
    work.template run<kRows>(first_row);
    return;
  }
  if constexpr (kRows > 1) run_tile<kRows - 1>(work, first_row, rows);
}

// Calls work.template run<rows>(first_row) for tiles of similar height that together cover num_rows: a low tile keeps too
// few sums going at once to be fast.
template <class Work>
inline void for_each_tile(int num_rows, const Work& work) {
  for (int tiles = (num_rows + kTileRows - 1) / kTileRows, row = 0; tiles > 0; --tiles) {
    const int rows = (num_rows - row + tiles - 1) / tiles;
    run_tile<kTileRows>(work, row, rows);
    row += rows;
  }
}
