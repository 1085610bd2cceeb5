// What sampling and scoring want of each row of logits, without a second matrix of the same size.

#include <algorithm>
#include <cmath>

#include "vector.h"

namespace {

// Vectors that are added up by themselves first, so that a large vocabulary loses no digits.
constexpr long kVectorsOfPart = 64;

MEGASERVE_INLINE float largest_of_row(const float* row, long width) {
  Floats largest = broadcast(-INFINITY);
  long column = 0;
  for (; column + kLanes <= width; column += kLanes) largest = larger(load(row + column), largest);
  float result = largest_lane(largest);
  for (; column < width; ++column) result = row[column] > result ? row[column] : result;
  return result;
}

__attribute__((noinline)) float log_sum_exp(const float* row, long width) {
  const float largest = largest_of_row(row, width);
  Floats sum{};
  long column = 0;
  while (column + kLanes <= width) {
    const long end = std::min(width, column + kVectorsOfPart * kLanes);
    Floats part{};
    for (; column + kLanes <= end; column += kLanes) part += exponential(load(row + column) - largest);
    sum += part;
  }
  float total = sum_of_lanes(sum);
  for (; column < width; ++column) total += first_lane(exponential(broadcast(row[column] - largest)));
  return largest + std::log(total);
}

bool has_nan(const float* row, long width) {
  Ints found{};
  long column = 0;
  for (; column + kLanes <= width; column += kLanes) {
    const Floats numbers = load(row + column);
    found |= numbers != numbers;
  }
  bool result = false;
  for (int lane = 0; lane < kLanes; ++lane) result |= found[lane] != 0;
  for (; column < width; ++column) result |= row[column] != row[column];
  return result;
}

}  // namespace

// logits (rows, width), a row every `stride` numbers -> out (rows).
extern "C" void log_sum_exp_f32(const float* logits, int64_t stride, float* out, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows > 1)
  for (int64_t row = 0; row < rows; ++row) out[row] = log_sum_exp(logits + row * stride, width);
}

// The largest number of each row, NaN if there is any, and the first place where it is.
extern "C" void largest_f32(const float* logits, int64_t stride, float* values, int64_t* indices, int64_t rows,
                            int64_t width) {
#pragma omp parallel for schedule(static) if (rows > 1)
  for (int64_t row = 0; row < rows; ++row) {
    const float* numbers = logits + row * stride;
    const float largest = largest_of_row(numbers, width);
    const bool nan = has_nan(numbers, width);
    values[row] = nan ? NAN : largest;
    indices[row] = nan ? 0 : std::find(numbers, numbers + width, largest) - numbers;
  }
}
