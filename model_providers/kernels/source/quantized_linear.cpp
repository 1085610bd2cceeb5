// x times a transposed weight of 8-bit integers in panels (panels.h), with one float as scale for each output.
//
// The integers are multiplied as floats and each sum by its scale in the end. They become floats in each tile anew: for
// many rows that measures faster than keeping a panel's floats (AMD Zen 3), and always they are a quarter of the bytes.

#include <cfloat>
#include <cmath>
#include <limits>

#include "panels.h"

namespace {

constexpr float kLargestInteger = 127.0f;
// Added to a small number it rounds it to an integer, ties to even, and leaves that in the low bits of the sum.
constexpr float kRounder = 12582912.0f;

// Few rows take as many panels at once as make four vectors: with fewer sums going, each addition would wait for the one
// before. As many rows as then still fit the registers are few.
constexpr int kPanelsOfFewRows = kLanes == 16 ? 4 : 2;
constexpr int kFewRows = kLanes == 4 ? 1 : 3;

// NaN where a number is not finite; 0 where all are so small that the scale could not be told precisely.
template <class T>
float scale_of(const T* row, int inputs) {
  float largest = 0;
  bool finite = true;
  for (int input = 0; input < inputs; ++input) {
    const float size = std::fabs(load_one(row + input));
    finite &= size <= FLT_MAX;
    largest = std::max(largest, size);
  }
  if (!finite) return std::numeric_limits<float>::quiet_NaN();
  const float scale = largest / kLargestInteger;
  return scale < FLT_MIN ? 0 : scale;
}

int8_t round_to_integer(float value) {
  const float shifted = value + kRounder;
  int32_t bits, zero;
  std::memcpy(&bits, &shifted, sizeof bits);
  std::memcpy(&zero, &kRounder, sizeof zero);
  return int8_t(bits - zero);
}

template <class T>
void quantize(const T* weight, int8_t* panels, float* scales, int outputs, int inputs) {
  const int num_panels = (outputs + kChunk - 1) / kChunk;
#pragma omp parallel for schedule(static)
  for (int panel = 0; panel < num_panels; ++panel) {
    int8_t* to = panels + long(panel) * inputs * kChunk;
    for (int column = 0; column < kChunk; ++column) {
      const long output = long(panel) * kChunk + column;
      const T* row = weight + output * inputs;
      const float scale = output < outputs ? scale_of(row, inputs) : 0;
      scales[output] = scale;
      for (int input = 0; input < inputs; ++input)
        to[long(input) * kChunk + column] = scale > 0 ? round_to_integer(load_one(row + input) / scale) : 0;
    }
  }
}

// kPanels neighbouring panels, from one on.
template <class T, int kPanels>
struct QuantizedTiles {
  const float* x;
  const int8_t* panels;
  const float* scales;
  const T* bias;  // or null
  T* out;
  long out_stride;
  int rows, inputs, width;  // width: outputs of these panels

  template <int kRows>
  MEGASERVE_INLINE void run(int row) const {
    constexpr int kSums = kPanels * kChunk;
    const long panel_size = long(inputs) * kChunk, bytes = kPanels * panel_size;
    const int num_panels = (width + kChunk - 1) / kChunk;
    const int8_t* each[kPanels];
    // Where fewer panels are left the last one is computed again.
    for (int panel = 0; panel < kPanels; ++panel) each[panel] = panels + std::min(panel, num_panels - 1) * panel_size;
    Tile<kRows, kPanels> tile;
    tile.clear();
    // The tiles fetch the panels after these while they compute, each its share.
    tile.add_product(x + long(row) * inputs, inputs, each, kChunk, inputs,
                     reinterpret_cast<const char*>(panels) + bytes + bytes * row / rows,
                     std::max(1L, bytes * kRows / (long(rows) * inputs)));
    float sums[kRows * kSums];
    tile.store_to(sums, kSums);
    for (int first = 0; first < width; first += kChunk)
      write_sums(sums + first, kSums, scales + first, bias ? bias + first : nullptr, out + row * out_stride + first,
                 out_stride, kRows, std::min(kChunk, width - first));
  }
};

template <class T, int kPanels>
void multiply(const float* x, const int8_t* panels, const float* scales, const T* bias, T* out, int rows, int outputs,
              int inputs) {
#pragma omp for schedule(static) nowait
  for (int first = 0; first < outputs; first += kPanels * kChunk) {
    const QuantizedTiles<T, kPanels> work{x,
                                          panels + long(first) * inputs,
                                          scales + first,
                                          bias ? bias + first : nullptr,
                                          out + first,
                                          outputs,
                                          rows,
                                          inputs,
                                          std::min(kPanels * kChunk, outputs - first)};
    if constexpr (kPanels > 1)
      run_tile<kFewRows>(work, 0, rows);
    else
      for_each_tile(rows, work);
  }
}

template <class T>
void linear(const T* x, const int8_t* panels, const float* scales, const T* bias, float* scratch, T* out, int rows,
            int outputs, int inputs) {
  const int row_block = rows_at_once(inputs);
#pragma omp parallel
  {
    const float* floats = as_floats(x, scratch, long(rows) * inputs);
    for (int row = 0; row < rows; row += row_block) {
      const int count = std::min(row_block, rows - row);
      const float* from = floats + long(row) * inputs;
      T* to = out + long(row) * outputs;
      if (count <= kFewRows)
        multiply<T, kPanelsOfFewRows>(from, panels, scales, bias, to, count, outputs, inputs);
      else
        multiply<T, 1>(from, panels, scales, bias, to, count, outputs, inputs);
    }
  }
}

}  // namespace

// weight (outputs, inputs) -> panels, scales: padded with zeros to whole panels. A scale is NaN where the output's
// weights are not all finite.
extern "C" void quantize_linear_f32(const float* weight, int8_t* panels, float* scales, int32_t outputs,
                                    int32_t inputs) {
  quantize(weight, panels, scales, outputs, inputs);
}

extern "C" void quantize_linear_bf16(const bf16* weight, int8_t* panels, float* scales, int32_t outputs,
                                     int32_t inputs) {
  quantize(weight, panels, scales, outputs, inputs);
}

// x (rows, inputs) -> out (rows, outputs). scratch: (rows, inputs) floats when x is bf16, else unused.
extern "C" void quantized_linear_f32(const float* x, const int8_t* panels, const float* scales, const float* bias,
                                     float* scratch, float* out, int32_t rows, int32_t outputs, int32_t inputs) {
  linear(x, panels, scales, bias, scratch, out, rows, outputs, inputs);
}

extern "C" void quantized_linear_bf16(const bf16* x, const int8_t* panels, const float* scales, const bf16* bias,
                                      float* scratch, bf16* out, int32_t rows, int32_t outputs, int32_t inputs) {
  linear(x, panels, scales, bias, scratch, out, rows, outputs, inputs);
}
