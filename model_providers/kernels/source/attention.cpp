// Causal attention with grouped queries, straight from a paged KV cache, for decode and (chunked) prefill alike.
//
// Keys lie transposed in their blocks, (blocks, kv_heads, head_dim, block_size), values plainly, (blocks, kv_heads,
// block_size, head_dim), so that scores and outputs are both products with rows of 16 neighbouring numbers.
//
// A query's result depends on the query, its position, and the keys and values before it, to the last bit: each split
// of the keys is reduced by itself, and splits are merged from the first to the last, whichever threads did them.

#include <algorithm>
#include <vector>

#include "attention.h"
#include "rotary.h"
#include "softmax.h"
#include "tile.h"

namespace {

// A thread's memory for one item, kept between items.
struct Scratch {
  std::vector<float> queries, scores, outputs, totals, largest, sums;

  void reserve(int rows, int head_dim, int score_stride) {
    grow(queries, rows * head_dim);
    grow(scores, rows * score_stride);
    grow(outputs, rows * head_dim);
    grow(totals, rows * head_dim);
    grow(largest, rows);
    grow(sums, rows);
  }

 private:
  static void grow(std::vector<float>& numbers, int count) {
    if (int(numbers.size()) < count) numbers.resize(count);
  }
};

// Fetches a piece of memory that will be needed soon: pieces lie apart, and hardware foresees nothing beyond a page.
template <class T>
void prefetch(const T* piece, long count) {
  const char* from = reinterpret_cast<const char*>(piece);
  for (long byte = 0; byte < count * long(sizeof(T)); byte += 64) __builtin_prefetch(from + byte, 0, 2);
}

// scores (rows, tokens of a split) = queries (rows, head_dim) times the split's transposed keys.
template <class T>
struct ScoreTiles {
  const float* queries;
  const T* keys;         // of this KV head in block 0
  const T* values;       // the same, to be fetched
  const int32_t* table;  // the split's blocks
  float* scores;
  long block_stride;
  int head_dim, block_size, score_stride, num_tokens;

  template <int kRows>
  MEGASERVE_INLINE void run(int row) const {
    const float* own = queries + row * head_dim;
    float* out = scores + row * score_stride;
    for (int token = 0; token < num_tokens;) {
      const T* chunk = keys_at(token);
      if (row == 0 && token % block_size == 0) fetch_ahead(token);
      const int width = std::min(kChunk, block_size - token % block_size);
      if constexpr (kChunksAtOnce<kRows> == 2) {
        const int next = token + kChunk;
        if (width == kChunk && next < num_tokens && block_size - next % block_size >= kChunk) {
          if (row == 0 && next % block_size == 0) fetch_ahead(next);
          const T* const pair[] = {chunk, keys_at(next)};
          Tile<kRows, 2> tile;
          tile.clear();
          tile.add_product(own, head_dim, pair, block_size, head_dim);
          tile.store_to(out + token, score_stride);
          token = next + kChunk;
          continue;
        }
      }
      Tile<kRows> tile;
      tile.clear();
      if (width == kChunk) {
        tile.add_product(own, head_dim, &chunk, block_size, head_dim);
        tile.store_to(out + token, score_stride);
      } else {
        tile.add_narrow_product(own, head_dim, chunk, block_size, head_dim, width);
        tile.store_narrow(out + token, score_stride, width);
      }
      token += width;
    }
  }

 private:
  MEGASERVE_INLINE const T* keys_at(int token) const {
    return keys + table[token / block_size] * block_stride + token % block_size;
  }

  MEGASERVE_INLINE void fetch_ahead(int token) const {
    const long count = long(head_dim) * block_size;
    prefetch(values + table[token / block_size] * block_stride, count);
    const int ahead = token + kBlocksAhead * block_size;
    if (ahead < num_tokens) prefetch(keys + table[ahead / block_size] * block_stride, count);
  }

  static constexpr int kBlocksAhead = 2;
};

// outputs (rows, head_dim) = weights (rows, tokens of a split) times the split's values, block after block.
template <class T>
struct OutputTiles {
  const float* weights;
  const T* values;       // of this KV head in block 0
  const int32_t* table;  // the split's blocks
  float* outputs;
  long block_stride;
  int head_dim, block_size, score_stride, num_tokens;

  template <int kRows>
  MEGASERVE_INLINE void run(int row) const {
    int dim = 0;
    if constexpr (kChunksAtOnce<kRows> == 2)
      for (; dim + 2 * kChunk <= head_dim; dim += 2 * kChunk) run_chunks<kRows, 2>(row, dim);
    for (; dim + kChunk <= head_dim; dim += kChunk) run_chunks<kRows, 1>(row, dim);
    if (dim < head_dim) run_narrow<kRows>(row, dim);
  }

 private:
  template <int kRows, int kChunks>
  MEGASERVE_INLINE void run_chunks(int row, int dim) const {
    Tile<kRows, kChunks> tile;
    tile.clear();
    for (int token = 0; token < num_tokens; token += block_size) {
      const T* chunks[kChunks];
      for (int chunk = 0; chunk < kChunks; ++chunk) chunks[chunk] = values_at(token) + dim + chunk * kChunk;
      tile.add_product(weights_at(row, token), score_stride, chunks, head_dim, depth_at(token));
    }
    tile.store_to(outputs + row * head_dim + dim, head_dim);
  }

  template <int kRows>
  MEGASERVE_INLINE void run_narrow(int row, int dim) const {
    Tile<kRows> tile;
    tile.clear();
    for (int token = 0; token < num_tokens; token += block_size)
      tile.add_narrow_product(weights_at(row, token), score_stride, values_at(token) + dim, head_dim,
                              depth_at(token), head_dim - dim);
    tile.store_narrow(outputs + row * head_dim + dim, head_dim, head_dim - dim);
  }

  MEGASERVE_INLINE const T* values_at(int token) const { return values + table[token / block_size] * block_stride; }
  MEGASERVE_INLINE const float* weights_at(int row, int token) const { return weights + row * score_stride + token; }
  MEGASERVE_INLINE int depth_at(int token) const { return std::min(block_size, num_tokens - token); }
};

template <class T>
class Attention {
 public:
  Attention(const AttentionStep& step, const T* qkv, const T* keys, const T* values, T* out)
      : step_(step), qkv_(qkv), keys_(keys), values_(values), out_(out) {}

  void run_item(const AttentionItem& item, int kv_head) const {
    static thread_local Scratch scratch;
    const int group = step_.group, head_dim = step_.head_dim;
    const int rows = item.num_queries * group;
    const int split = split_tokens(step_.block_size);
    const int score_stride = round_up(split, kChunk);
    scratch.reserve(rows, head_dim, score_stride);
    load_queries(item, kv_head, scratch.queries.data());
    for (int number = item.first_split; number < item.end_split; ++number) {
      const int begin = number * split;
      // Queries before the split see nothing of it.
      const int first_query = std::max(0, begin - item.kv_length + 1);
      const int seen_by_last = std::min(split, item.kv_length + item.num_queries - 1 - begin);
      const int first = first_query * group;
      attend_split(item, kv_head, number, seen_by_last, first, rows, score_stride, scratch);
    }
    if (item.partial < 0) {
      for (int row = 0; row < rows; ++row)
        finish(output(item.first_row + row / group, kv_head, row % group), &scratch.totals[row * head_dim],
               scratch.sums[row], head_dim);
    }
  }

  // Puts together what run_item left in partials; only the item with a query's first split does.
  void merge_partials(const AttentionItem& item, int num_splits, int kv_head) const {
    const int group = step_.group, head_dim = step_.head_dim;
    for (int row = 0; row < group; ++row) {
      float* total = partial(item.partial, kv_head, row);
      SoftmaxParts parts = {total[head_dim], total[head_dim + 1]};
      for (int number = 1; number < num_splits; ++number) {
        const float* next = partial(item.partial + number, kv_head, row);
        merge(total, parts, next, {next[head_dim], next[head_dim + 1]}, head_dim);
      }
      finish(output(item.first_row, kv_head, row), total, parts.sum, head_dim);
    }
  }

 private:
  // (queries * group, head_dim), rotated and scaled.
  void load_queries(const AttentionItem& item, int kv_head, float* queries) const {
    const int group = step_.group, head_dim = step_.head_dim;
    const long row_stride = long(step_.num_kv_heads) * (group + 2) * head_dim;
    for (int query = 0; query < item.num_queries; ++query) {
      const int token = item.first_row + query;
      const T* heads = qkv_ + token * row_stride + long(kv_head) * (group + 2) * head_dim;
      for (int head = 0; head < group; ++head) {
        float* to = queries + (query * group + head) * head_dim;
        rotate(step_, token, heads + head * head_dim, to);
        for (int dim = 0; dim < head_dim; ++dim) to[dim] *= step_.scale;
      }
    }
  }

  void attend_split(const AttentionItem& item, int kv_head, int number, int num_tokens, int first, int rows,
                    int score_stride, Scratch& scratch) const {
    const int group = step_.group, head_dim = step_.head_dim, block_size = step_.block_size;
    const int split = split_tokens(block_size);
    const long head_stride = long(head_dim) * block_size;
    const long block_stride = step_.num_kv_heads * head_stride;
    const int32_t* table = step_.block_tables + long(item.sequence) * step_.table_width + number * (split / block_size);
    float* scores = scratch.scores.data() + first * score_stride;
    const T* keys = keys_ + kv_head * head_stride;
    const T* values = values_ + kv_head * head_stride;
    for_each_tile(rows - first,
                  ScoreTiles<T>{scratch.queries.data() + first * head_dim, keys, values, table, scores, block_stride,
                                head_dim, block_size, score_stride, num_tokens});
    std::vector<SoftmaxParts>& parts = row_parts(rows);
    for (int row = first; row < rows; ++row) {
      const int seen = std::min(split, item.kv_length + row / group - number * split);
      parts[row] = exponentiate(scratch.scores.data() + row * score_stride, seen, num_tokens);
    }
    float* outputs = scratch.outputs.data();
    for_each_tile(rows - first, OutputTiles<T>{scores, values, table, outputs + first * head_dim, block_stride,
                                               head_dim, block_size, score_stride, num_tokens});
    for (int row = first; row < rows; ++row) keep(item, kv_head, number, row, parts[row], scratch);
  }

  // Merges a split's result into its query's, or leaves it for merge_partials.
  void keep(const AttentionItem& item, int kv_head, int number, int row, SoftmaxParts parts, Scratch& scratch) const {
    const int head_dim = step_.head_dim;
    const float* output = scratch.outputs.data() + row * head_dim;
    if (item.partial >= 0) {
      float* to = partial(item.partial + number, kv_head, row);
      std::copy(output, output + head_dim, to);
      to[head_dim] = parts.largest;
      to[head_dim + 1] = parts.sum;
      return;
    }
    float* total = scratch.totals.data() + row * head_dim;
    SoftmaxParts so_far = {scratch.largest[row], scratch.sums[row]};
    if (number == 0) {
      std::copy(output, output + head_dim, total);
      so_far = parts;
    } else {
      merge(total, so_far, output, parts, head_dim);
    }
    scratch.largest[row] = so_far.largest;
    scratch.sums[row] = so_far.sum;
  }

  static std::vector<SoftmaxParts>& row_parts(int rows) {
    static thread_local std::vector<SoftmaxParts> parts;
    if (int(parts.size()) < rows) parts.resize(rows);
    return parts;
  }

  float* partial(int number, int kv_head, int row) const {
    return step_.partials + ((long(number) * step_.num_kv_heads + kv_head) * step_.group + row) * (step_.head_dim + 2);
  }

  T* output(int token, int kv_head, int head) const {
    const long heads = long(step_.num_kv_heads) * step_.group;
    return out_ + (token * heads + kv_head * step_.group + head) * step_.head_dim;
  }

  const AttentionStep& step_;
  const T* qkv_;
  const T* keys_;
  const T* values_;
  T* out_;
};

template <class T>
void attend(const AttentionStep* step, const T* qkv, const T* keys, const T* values, T* out) {
  const Attention<T> attention(*step, qkv, keys, values, out);
  const auto* items = reinterpret_cast<const AttentionItem*>(step->items);
  const int kv_heads = step->num_kv_heads;
  const int split = split_tokens(step->block_size);
#pragma omp parallel
  {
#pragma omp for schedule(dynamic, 1)
    for (int work = 0; work < step->num_items * kv_heads; ++work)
      attention.run_item(items[work / kv_heads], work % kv_heads);
    if (step->num_partials > 0) {
#pragma omp for schedule(dynamic, 1)
      for (int work = 0; work < step->num_items * kv_heads; ++work) {
        const AttentionItem& item = items[work / kv_heads];
        if (item.partial >= 0 && item.first_split == 0)
          attention.merge_partials(item, (item.kv_length + split - 1) / split, work % kv_heads);
      }
    }
  }
}

}  // namespace

extern "C" void attend_f32(
    const AttentionStep* step, const float* qkv, const float* keys, const float* values, float* out) {
  attend(step, qkv, keys, values, out);
}

extern "C" void attend_bf16(
    const AttentionStep* step, const bf16* qkv, const bf16* keys, const bf16* values, bf16* out) {
  attend(step, qkv, keys, values, out);
}
