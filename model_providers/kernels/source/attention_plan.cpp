// Cuts one step's attention into items of similar cost. How it is cut moves no bit of the result.

#include <algorithm>

#include "attention.h"

namespace {

// Rows (queries x group) of one item: scores of a split stay in the first or second cache level.
constexpr int kMostRows = 48;
// Items a thread should find, so that the last ones to finish do not hold a step up.
constexpr int kItemsPerThread = 4;

int num_splits(int kv_length, int block_size) {
  const int split = split_tokens(block_size);
  return (kv_length + split - 1) / split;
}

}  // namespace

// Upper bounds for the arrays of a step: items (kItemFields int32 each) and partials.
extern "C" void bound_attention_plan(const AttentionStep* step, int32_t* bounds) {
  const int most_queries = std::max(1, kMostRows / step->group);
  int items = 0, partials = 0;
  for (int sequence = 0; sequence < step->num_sequences; ++sequence) {
    const int queries = step->query_starts[sequence + 1] - step->query_starts[sequence];
    const int splits = num_splits(step->kv_lengths[sequence], step->block_size);
    items += queries == 1 ? splits : (queries + most_queries - 1) / most_queries;
    partials += queries == 1 ? splits : 0;
  }
  bounds[0] = items;
  bounds[1] = partials;
}

// Writes step->items, num_items and num_partials. Long pieces come first.
extern "C" void plan_attention(AttentionStep* step, int32_t num_threads) {
  const int most_queries = std::max(1, kMostRows / step->group);
  auto* items = reinterpret_cast<AttentionItem*>(step->items);
  long all_splits = 0;
  for (int sequence = 0; sequence < step->num_sequences; ++sequence) {
    const int queries = step->query_starts[sequence + 1] - step->query_starts[sequence];
    all_splits += long(queries) * num_splits(step->kv_lengths[sequence], step->block_size);
  }
  // A decode query with more splits than this is shared among threads. Every item is there once for each KV head.
  const long fair = std::max(1L, all_splits * step->num_kv_heads / (kItemsPerThread * num_threads));
  int count = 0, partials = 0;
  for (int sequence = 0; sequence < step->num_sequences; ++sequence) {
    const int first_row = step->query_starts[sequence];
    const int queries = step->query_starts[sequence + 1] - first_row;
    const int kv_length = step->kv_lengths[sequence];
    if (queries <= 1) continue;
    for (int begin = (queries - 1) / most_queries * most_queries; begin >= 0; begin -= most_queries) {
      const int own = std::min(most_queries, queries - begin);
      const int seen_by_first = kv_length - queries + begin + 1;
      items[count++] = {sequence, first_row + begin, own, seen_by_first, 0,
                        num_splits(seen_by_first + own - 1, step->block_size), -1};
    }
  }
  for (int sequence = 0; sequence < step->num_sequences; ++sequence) {
    if (step->query_starts[sequence + 1] - step->query_starts[sequence] != 1) continue;
    const int kv_length = step->kv_lengths[sequence];
    const int splits = num_splits(kv_length, step->block_size);
    const int first_row = step->query_starts[sequence];
    if (splits <= fair) {
      items[count++] = {sequence, first_row, 1, kv_length, 0, splits, -1};
      continue;
    }
    for (int begin = 0; begin < splits; begin += int(fair))
      items[count++] = {sequence, first_row, 1, kv_length, begin, std::min(splits, begin + int(fair)), partials};
    partials += splits;
  }
  step->num_items = count;
  step->num_partials = partials;
}
