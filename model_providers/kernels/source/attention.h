// What one step's attention reads, the same for all layers. Mirrored by `AttentionStep` in ../attention_step.py.
#pragma once

#include <cstdint>

struct AttentionStep {
  // The packed batch: query_starts (sequences + 1) rows of the batch, kv_lengths (sequences) with the new tokens,
  // block_tables (sequences, table_width), slots and positions (tokens).
  const int32_t* query_starts;
  const int32_t* kv_lengths;
  const int32_t* block_tables;
  const int64_t* slots;
  const int64_t* positions;
  // (positions, rotary_dim / 2) each, or null without rotary embedding.
  const float* cosines;
  const float* sines;
  // (items, kItemFields), written by plan_attention.
  int32_t* items;
  // (partials, kv_heads, group, head_dim + 2), for what threads compute of one query apart.
  float* partials;
  int32_t num_sequences;
  int32_t num_tokens;
  int32_t table_width;
  int32_t num_kv_heads;
  int32_t group;  // query heads that share a KV head
  int32_t head_dim;
  int32_t block_size;
  int32_t rotary_dim;
  int32_t interleaved;
  int32_t num_items;
  int32_t num_partials;
  float scale;
};

// One piece of work, for each KV head: queries of one sequence against splits of its keys.
struct AttentionItem {
  int32_t sequence;
  int32_t first_row;     // of the batch
  int32_t num_queries;
  int32_t kv_length;     // that the first query sees
  int32_t first_split;
  int32_t end_split;
  int32_t partial;       // where the splits' results go; -1: all splits are here, and so is the result
};

constexpr int kItemFields = sizeof(AttentionItem) / sizeof(int32_t);

// Keys are reduced in splits of this many tokens, counted from the start of the sequence, then split by split in order.
// It is what fixes the order of every sum, so it depends on nothing but the block size.
constexpr int kSplitTokens = 128;

inline int split_tokens(int block_size) {
  return block_size >= kSplitTokens ? block_size : kSplitTokens / block_size * block_size;
}
