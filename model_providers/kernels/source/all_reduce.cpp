// Collectives between ranks of one machine: what torch.distributed does by sockets, through memory that they share.

#include <algorithm>
#include <cstring>

#include "rank_group.h"
#include "vector.h"

namespace {

constexpr long kParallelNumbers = 16384;

// Every number is added up in the order of ranks and rounded once, wherever in the message it lies and on whichever
// rank: all ranks get the same bits, and a row's do not depend on the other rows.
template <class T>
void add_up(const RankGroup& group, T* out, long count) {
  const T* const first = reinterpret_cast<const T*>(slot_of(group, 0));
  const long next_rank = 2 * group.slot_bytes / long(sizeof(T));
  const int size = group.size;
#pragma omp parallel for schedule(static) if (count >= kParallelNumbers)
  for (long at = 0; at < count; at += kLanes) {
    const T* part = first + at;
    const int lanes = int(std::min<long>(kLanes, count - at));
    Floats total = lanes == kLanes ? load(part) : load_first(part, lanes);
    for (int rank = 1; rank < size; ++rank) {
      part += next_rank;
      total += lanes == kLanes ? load(part) : load_first(part, lanes);
    }
    if (lanes == kLanes)
      store(out + at, total);
    else
      store_first(out + at, total, lanes);
  }
}

template <class T>
void all_reduce(RankGroup& group, T* part, int64_t count) {
  const int64_t most = group.slot_bytes / int64_t(sizeof(T));
  for (int64_t begin = 0; begin < count; begin += most) {
    const int64_t length = std::min(most, count - begin);
    if (!exchange(group, part + begin, length * int64_t(sizeof(T)))) return;
    add_up(group, part + begin, length);
  }
}

// Bytes begin to end of a rank's rows, to their places in rows of all ranks' side by side.
void place(const RankGroup& group, int rank, int64_t begin, int64_t end, int64_t row_bytes, unsigned char* out) {
  const unsigned char* from = slot_of(group, rank);
  while (begin < end) {
    const int64_t row = begin / row_bytes, within = begin % row_bytes;
    const int64_t length = std::min(row_bytes - within, end - begin);
    std::memcpy(out + (row * group.size + rank) * row_bytes + within, from, length);
    from += length;
    begin += length;
  }
}

}  // namespace

// part (count): this rank's on entry, the sum over all ranks afterwards. All ranks call it with the same count. Look at
// group->outcome afterwards; where it is not kDone, part is of no use.
extern "C" void all_reduce_f32(RankGroup* group, float* part, int64_t count) {
  group->outcome = kDone;
  all_reduce(*group, part, count);
}

extern "C" void all_reduce_bf16(RankGroup* group, bf16* part, int64_t count) {
  group->outcome = kDone;
  all_reduce(*group, part, count);
}

// shard (rows, row_bytes) of each rank -> out (rows, size, row_bytes). A rank that does not want it passes null. All call
// it with the same shape; group->outcome as above.
extern "C" void gather_shards(RankGroup* group, const unsigned char* shard, unsigned char* out, int64_t rows,
                              int64_t row_bytes) {
  group->outcome = kDone;
  const int64_t bytes = rows * row_bytes;
  for (int64_t begin = 0; begin < bytes; begin += group->slot_bytes) {
    const int64_t end = std::min(bytes, begin + group->slot_bytes);
    if (!exchange(*group, shard + begin, end - begin)) return;
    if (!out) continue;
    for (int rank = 0; rank < group->size; ++rank) place(*group, rank, begin, end, row_bytes, out);
  }
}
