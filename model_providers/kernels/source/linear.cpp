// x times a transposed weight, whose numbers were rewritten once into panels (panels.h).

#include <vector>

#include "panels.h"

namespace {

// Weight: what the panel is stored as, float or T.
template <class Weight, class T>
struct PanelTiles {
  const float* x;
  const Weight* panel;
  const T* bias;  // of the panel's outputs, or null
  T* out;
  long out_stride;
  int rows, inputs, width;
  const T* next;  // the panel after this one, which the tiles fetch while they compute, each its share

  template <int kRows>
  MEGASERVE_INLINE void run(int row) const {
    const long bytes = long(inputs) * kChunk * sizeof(T);
    // One or two rows of float32 do nothing but stream the weight, which the hardware foresees better by itself.
    const bool fetches = rows > 2 || sizeof(T) < sizeof(float);
    Tile<kRows> tile;
    tile.clear();
    tile.add_product(x + long(row) * inputs, inputs, &panel, kChunk, inputs,
                     reinterpret_cast<const char*>(next) + bytes * row / rows,
                     fetches ? std::max(1L, bytes * kRows / (long(rows) * inputs)) : 0);
    float sums[kRows * kChunk];
    tile.store_to(sums, kChunk);
    write_sums<T>(sums, kChunk, nullptr, bias, out + row * out_stride, out_stride, kRows, width);
  }
};

template <class T>
void pack(const T* weight, T* panels, int outputs, int inputs) {
  const int num_panels = (outputs + kChunk - 1) / kChunk;
#pragma omp parallel for schedule(static)
  for (int panel = 0; panel < num_panels; ++panel) {
    T* to = panels + long(panel) * inputs * kChunk;
    for (int column = 0; column < kChunk; ++column) {
      const long output = long(panel) * kChunk + column;
      for (int input = 0; input < inputs; ++input)
        to[long(input) * kChunk + column] = output < outputs ? weight[output * inputs + input] : T{};
    }
  }
}

// More tiles than this share a bf16 panel when it is widened once instead of for each of them.
constexpr int kTilesOfWidenedPanel = 2;

template <class T>
void multiply_panel(const PanelTiles<T, T>& work) {
  for_each_tile(work.rows, work);
}

template <>
void multiply_panel(const PanelTiles<bf16, bf16>& work) {
  if (work.rows <= kTilesOfWidenedPanel * kTileRows) {
    for_each_tile(work.rows, work);
    return;
  }
  static thread_local std::vector<float> widened;
  const int count = work.inputs * kChunk;
  if (int(widened.size()) < count) widened.resize(count);
  for (int at = 0; at < count; at += kLanes) store(widened.data() + at, load(work.panel + at));
  for_each_tile(work.rows, PanelTiles<float, bf16>{work.x, widened.data(), work.bias, work.out, work.out_stride,
                                                   work.rows, work.inputs, work.width, work.next});
}

template <class T>
void linear(const T* x, const T* panels, const T* bias, float* scratch, T* out, int rows, int outputs, int inputs) {
  const int num_panels = (outputs + kChunk - 1) / kChunk;
  const int row_block = rows_at_once(inputs);
#pragma omp parallel
  {
    const float* floats = as_floats(x, scratch, long(rows) * inputs);
    for (int row = 0; row < rows; row += row_block) {
#pragma omp for schedule(static) nowait
      for (int panel = 0; panel < num_panels; ++panel) {
        const int first = panel * kChunk;
        const T* own = panels + long(first) * inputs;
        multiply_panel(PanelTiles<T, T>{floats + long(row) * inputs, own, bias ? bias + first : nullptr,
                                        out + long(row) * outputs + first, outputs, std::min(row_block, rows - row),
                                        inputs, std::min(kChunk, outputs - first), own + long(kChunk) * inputs});
      }
    }
  }
}

}  // namespace

extern "C" void pack_linear_f32(const float* weight, float* panels, int32_t outputs, int32_t inputs) {
  pack(weight, panels, outputs, inputs);
}

extern "C" void pack_linear_bf16(const bf16* weight, bf16* panels, int32_t outputs, int32_t inputs) {
  pack(weight, panels, outputs, inputs);
}

// x (rows, inputs) -> out (rows, outputs). scratch: (rows, inputs) floats when x is bf16, else unused.
extern "C" void linear_f32(const float* x, const float* panels, const float* bias, float* scratch, float* out,
                           int32_t rows, int32_t outputs, int32_t inputs) {
  linear(x, panels, bias, scratch, out, rows, outputs, inputs);
}

extern "C" void linear_bf16(const bf16* x, const bf16* panels, const bf16* bias, float* scratch, bf16* out,
                            int32_t rows, int32_t outputs, int32_t inputs) {
  linear(x, panels, bias, scratch, out, rows, outputs, inputs);
}
