// The one barrier that collectives through shared memory need.
//
// A rank that is early looks for the others in a tight loop for some microseconds, for they are mostly close; then it
// offers its core after each look, for they may be waiting for just that one; then it sleeps until it is woken.

#include "rank_group.h"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstring>

namespace {

constexpr int kSpins = 200;
constexpr int kYields = 200;
// Between looks at whether a process still lives.
constexpr long kSleepNanoseconds = 50'000'000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

RankState& state_of(const RankGroup& group, int rank) {
  return reinterpret_cast<RankState*>(group.memory)[rank];
}

bool has_arrived(const RankState& state, uint32_t piece) {
  // The difference of two counters that wrap around.
  return int32_t(state.arrived.load(std::memory_order_seq_cst) - piece) >= 0;
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

// Not FUTEX_PRIVATE_FLAG: the word is shared with other processes.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec most{0, kSleepNanoseconds};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &most, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool has_ended(const RankGroup& group, int rank) {
  if (!group.processes || group.processes[rank] < 0) return false;
  pollfd process{group.processes[rank], POLLIN, 0};  // readable from its end on, reaped or not
  return poll(&process, 1, 0) > 0;
}

Outcome sleep_until_arrived(const RankGroup& group, int rank, uint32_t piece) {
  RankState& state = state_of(group, rank);
  const double deadline = now() + group.timeout;
  Outcome outcome = kDone;
  // Before the look at `arrived`, as the other side looks at `sleepers` after it has arrived: one of them sees the other.
  state.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const bool ended = has_ended(group, rank);
    const uint32_t seen = state.arrived.load(std::memory_order_seq_cst);
    if (int32_t(seen - piece) >= 0) break;
    if (ended) outcome = kProcessEnded;
    else if (now() >= deadline) outcome = kTimedOut;
    if (outcome != kDone) break;
    sleep_while(state.arrived, seen);
  }
  state.sleepers.fetch_sub(1, std::memory_order_relaxed);
  return outcome;
}

Outcome wait_for(const RankGroup& group, int rank, uint32_t piece) {
  const RankState& state = state_of(group, rank);
  for (int look = 0; look < kSpins; ++look, relax())
    if (has_arrived(state, piece)) return kDone;
  for (int look = 0; look < kYields; ++look, sched_yield())
    if (has_arrived(state, piece)) return kDone;
  return sleep_until_arrived(group, rank, piece);
}

}  // namespace

bool exchange(RankGroup& group, const void* piece, int64_t bytes) {
  const uint32_t number = ++group.pieces;
  RankState& own = state_of(group, group.rank);
  std::memcpy(const_cast<unsigned char*>(slot_of(group, group.rank)), piece, bytes);
  own.piece_bytes[number % 2] = bytes;
  own.arrived.store(number, std::memory_order_seq_cst);
  if (own.sleepers.load(std::memory_order_seq_cst) > 0) wake(own.arrived);
  group.outcome = kDone;
  for (int rank = 0; rank < group.size && group.outcome == kDone; ++rank) {
    group.culprit = rank;
    group.outcome = wait_for(group, rank, number);
    if (group.outcome == kDone && state_of(group, rank).piece_bytes[number % 2] != bytes) group.outcome = kDisagreed;
  }
  return group.outcome == kDone;
}
