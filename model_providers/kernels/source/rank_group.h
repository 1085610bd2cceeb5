// Ranks of one machine and the memory that they share. `RankGroup` is mirrored by ../rank_group.py, the layout too.
#pragma once

#include <atomic>
#include <cstdint>

struct RankGroup {
  // The segment as this process maps it, zeros at first: a RankState for each rank, then two slots for each rank.
  unsigned char* memory;
  // pidfd of each rank's process, or -1 for one that is not watched; null when none is.
  const int32_t* processes;
  int64_t slot_bytes;  // a multiple of 64
  double timeout;      // seconds that this rank waits for another
  int32_t rank;
  int32_t size;
  uint32_t pieces;  // exchanged so far; wraps around
  int32_t outcome;  // of the last call: an Outcome
  int32_t culprit;  // the rank it is about, where it is not kDone
};

enum Outcome : int32_t { kDone = 0, kTimedOut = 1, kProcessEnded = 2, kDisagreed = 3 };

// What a rank tells the others; apart by two cache lines, which processors fetch in pairs.
struct alignas(128) RankState {
  std::atomic<uint32_t> arrived;   // number of the last piece in its slot; what the others sleep on
  std::atomic<uint32_t> sleepers;  // how many of them do
  int64_t piece_bytes[2];          // of the pieces in its two slots
};

// Lay `bytes` of `piece`, slot_bytes at most, into this rank's slot and wait until every rank has laid its own. False
// when that has failed, with outcome and culprit set; then the group is of no more use.
//
// A rank may read the slots until its next exchange. One wait is enough, for there are two slots: whoever writes the
// first one again has seen all others arrive at the second, so none reads the first any more.
bool exchange(RankGroup& group, const void* piece, int64_t bytes);

// Where a rank's part of the piece that was exchanged last lies.
inline const unsigned char* slot_of(const RankGroup& group, int rank) {
  const unsigned char* slots = group.memory + group.size * sizeof(RankState);
  return slots + (2 * rank + group.pieces % 2) * group.slot_bytes;
}
