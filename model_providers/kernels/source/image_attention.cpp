// Attention inside images: every token of an image sees every token of the same image. There is no cache and no mask.
//
// Keys and values of each image and head are first rewritten as float32: keys in panels of 16 tokens, (panels, head_dim,
// 16), values in rows that are padded to 16 dimensions. Both products then read rows of 16 neighbouring numbers.
//
// A token's result depends on its own image alone, to the last bit: keys are reduced in splits that are counted from the
// image's first token, and merged in that order.

#include <algorithm>
#include <vector>

#include "softmax.h"
#include "tile.h"

namespace {

constexpr int kSplit = 128;       // keys of one split, a multiple of kChunk
constexpr int kMostQueries = 64;  // of one item: with their scores of a split they stay in the second cache level

// Queries of one image, for each head.
struct Item {
  int image, first_query, num_queries;
};

// scores (rows, kSplit) = queries (rows, head_dim) times a split's panels of keys.
struct ScoreTiles {
  const float* queries;
  const float* panels;
  float* scores;
  int head_dim, num_panels;

  template <int kRows>
  MEGASERVE_INLINE void run(int row) const {
    int panel = 0;
    if constexpr (kChunksAtOnce<kRows> == 2)
      for (; panel + 2 <= num_panels; panel += 2) run_panels<kRows, 2>(row, panel);
    for (; panel < num_panels; ++panel) run_panels<kRows, 1>(row, panel);
  }

 private:
  template <int kRows, int kChunks>
  MEGASERVE_INLINE void run_panels(int row, int panel) const {
    const float* chunks[kChunks];
    for (int chunk = 0; chunk < kChunks; ++chunk) chunks[chunk] = panels + long(panel + chunk) * head_dim * kChunk;
    Tile<kRows, kChunks> tile;
    tile.clear();
    tile.add_product(queries + row * head_dim, head_dim, chunks, kChunk, head_dim);
    tile.store_to(scores + row * kSplit + panel * kChunk, kSplit);
  }
};

// outputs (rows, width) = weights (rows, kSplit) times a split's values (tokens, width).
struct OutputTiles {
  const float* weights;
  const float* values;
  float* outputs;
  int width, num_tokens;

  template <int kRows>
  MEGASERVE_INLINE void run(int row) const {
    int dim = 0;
    if constexpr (kChunksAtOnce<kRows> == 2)
      for (; dim + 2 * kChunk <= width; dim += 2 * kChunk) run_chunks<kRows, 2>(row, dim);
    for (; dim < width; dim += kChunk) run_chunks<kRows, 1>(row, dim);
  }

 private:
  template <int kRows, int kChunks>
  MEGASERVE_INLINE void run_chunks(int row, int dim) const {
    const float* chunks[kChunks];
    for (int chunk = 0; chunk < kChunks; ++chunk) chunks[chunk] = values + dim + chunk * kChunk;
    Tile<kRows, kChunks> tile;
    tile.clear();
    tile.add_product(weights + row * kSplit, kSplit, chunks, width, num_tokens);
    tile.store_to(outputs + row * width + dim, width);
  }
};

// A thread's memory for one item, kept between items.
struct Scratch {
  std::vector<float> queries, scores, outputs, totals;
  std::vector<SoftmaxParts> parts;

  void reserve(int width) {
    if (int(totals.size()) >= kMostQueries * width) return;
    for (std::vector<float>* numbers : {&queries, &outputs, &totals}) numbers->resize(kMostQueries * width);
    scores.resize(kMostQueries * kSplit);
    parts.resize(kMostQueries);
  }
};

template <class T>
class ImageAttention {
 public:
  ImageAttention(const T* qkv, const int32_t* starts, float* rewritten, T* out, int num_images, int heads, int head_dim,
                 float scale)
      : qkv_(qkv), starts_(starts), rewritten_(rewritten), out_(out), heads_(heads), head_dim_(head_dim),
        width_(round_up(head_dim, kChunk)), scale_(scale), padded_starts_(num_images + 1) {
    for (int image = 0; image < num_images; ++image) {
      padded_starts_[image + 1] = padded_starts_[image] + round_up(length(image), kChunk);
      const int blocks = (length(image) + kMostQueries - 1) / kMostQueries;
      for (int block = 0, first = 0; block < blocks; ++block) {
        const int count = (length(image) - first + blocks - block - 1) / (blocks - block);
        items_.push_back({image, first, count});
        first += count;
      }
    }
  }

  void run() const {
    const long pieces = long(padded_starts_.size() - 1) * heads_, work = long(items_.size()) * heads_;
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (long piece = 0; piece < pieces; ++piece) rewrite(int(piece / heads_), int(piece % heads_));
#pragma omp for schedule(dynamic, 1)
      for (long number = 0; number < work; ++number) run_item(items_[number / heads_], int(number % heads_));
    }
  }

 private:
  int length(int image) const { return starts_[image + 1] - starts_[image]; }

  // A head's query, key or value (part 0, 1 or 2) of a token of the batch.
  const T* numbers(long token, int head, int part) const {
    return qkv_ + ((token * heads_ + head) * 3 + part) * head_dim_;
  }

  // Where an image's keys of a head are, and after them its values.
  float* keys(int image, int head) const {
    const long padded = padded_starts_[image + 1] - padded_starts_[image];
    return rewritten_ + (padded_starts_[image] * heads_ + head * padded) * (head_dim_ + width_);
  }
  float* values(int image, int head) const {
    return keys(image, head) + (padded_starts_[image + 1] - padded_starts_[image]) * head_dim_;
  }

  void rewrite(int image, int head) const {
    float* keys_to = keys(image, head);
    float* values_to = values(image, head);
    const int padded = round_up(length(image), kChunk);
    for (int token = 0; token < padded; ++token) {
      const bool exists = token < length(image);
      const T* key = numbers(starts_[image] + token, head, 1);
      float* column = keys_to + long(token / kChunk) * head_dim_ * kChunk + token % kChunk;
      for (int dim = 0; dim < head_dim_; ++dim) column[dim * kChunk] = exists ? load_one(key + dim) : 0.0f;
      if (!exists) continue;
      const T* value = numbers(starts_[image] + token, head, 2);
      for (int dim = 0; dim < width_; ++dim)
        values_to[long(token) * width_ + dim] = dim < head_dim_ ? load_one(value + dim) : 0.0f;
    }
  }

  void run_item(const Item& item, int head) const {
    static thread_local Scratch scratch;
    scratch.reserve(width_);
    const int rows = item.num_queries;
    const long first_row = starts_[item.image] + item.first_query;
    float* queries = scratch.queries.data();
    for (int row = 0; row < rows; ++row)
      for (int dim = 0; dim < head_dim_; ++dim)
        queries[row * head_dim_ + dim] = load_one(numbers(first_row + row, head, 0) + dim) * scale_;
    for (int begin = 0; begin < length(item.image); begin += kSplit) attend_split(item, head, begin, scratch);
    for (int row = 0; row < rows; ++row)
      finish(out_ + ((first_row + row) * heads_ + head) * head_dim_, &scratch.totals[row * width_],
             scratch.parts[row].sum, head_dim_);
  }

  // Attends to the keys from `begin` on and adds the result to what came before.
  void attend_split(const Item& item, int head, int begin, Scratch& scratch) const {
    const int rows = item.num_queries, tokens = std::min(kSplit, length(item.image) - begin);
    float* scores = scratch.scores.data();
    float* totals = scratch.totals.data();
    float* outputs = begin == 0 ? totals : scratch.outputs.data();
    for_each_tile(rows, ScoreTiles{scratch.queries.data(), keys(item.image, head) + long(begin) * head_dim_, scores,
                                   head_dim_, round_up(tokens, kChunk) / kChunk});
    SoftmaxParts parts[kMostQueries];
    for (int row = 0; row < rows; ++row) parts[row] = exponentiate(scores + row * kSplit, tokens, tokens);
    for_each_tile(rows, OutputTiles{scores, values(item.image, head) + long(begin) * width_, outputs, width_, tokens});
    for (int row = 0; row < rows; ++row) {
      if (begin == 0)
        scratch.parts[row] = parts[row];
      else
        merge(totals + row * width_, scratch.parts[row], outputs + row * width_, parts[row], width_);
    }
  }

  const T* qkv_;
  const int32_t* starts_;
  float* rewritten_;
  T* out_;
  int heads_, head_dim_, width_;
  float scale_;
  std::vector<long> padded_starts_;  // where images begin when each is padded to a multiple of kChunk tokens
  std::vector<Item> items_;
};

}  // namespace

// qkv: (tokens, heads, 3, head_dim). starts: (num_images + 1), where each image's tokens begin. rewritten: heads *
// (head_dim + width) floats, width being head_dim rounded up to 16, for each token, images rounded up to 16 tokens.
// out: (tokens, heads, head_dim).
extern "C" void attend_images_f32(const float* qkv, const int32_t* starts, float* rewritten, float* out,
                                  int32_t num_images, int32_t heads, int32_t head_dim, float scale) {
  ImageAttention<float>(qkv, starts, rewritten, out, num_images, heads, head_dim, scale).run();
}

extern "C" void attend_images_bf16(const bf16* qkv, const int32_t* starts, float* rewritten, bf16* out,
                                   int32_t num_images, int32_t heads, int32_t head_dim, float scale) {
  ImageAttention<bf16>(qkv, starts, rewritten, out, num_images, heads, head_dim, scale).run();
}
