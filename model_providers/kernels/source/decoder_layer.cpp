// Decoder layers one kernel after another, without a caller in between: that costs as much as the kernels do where a
// step has few rows. They are the very functions that are called one by one elsewhere, so the bits are the same.

#include "decoder_layer.h"

#include "attention.h"
#include "vector.h"

// The kernels of one number format under names of their own. activations: in the order of Activation.
#define MEGASERVE_FORMAT(Format, T, suffix)                                                                           \
  extern "C" void add_norm_##suffix(const T*, const T*, const T*, const T*, T*, T*, int64_t, int32_t, float);         \
  extern "C" void linear_##suffix(const T*, const T*, const T*, float*, T*, int32_t, int32_t, int32_t);               \
  extern "C" void quantized_linear_##suffix(const T*, const int8_t*, const float*, const T*, float*, T*, int32_t,     \
                                            int32_t, int32_t);                                                        \
  extern "C" void write_cache_##suffix(const AttentionStep*, const T*, T*, T*);                                       \
  extern "C" void attend_##suffix(const AttentionStep*, const T*, const T*, const T*, T*);                            \
  extern "C" void silu_gated_##suffix(const T*, T*, int64_t, int32_t);                                                \
  extern "C" void quick_gelu_gated_##suffix(const T*, T*, int64_t, int32_t);                                          \
  extern "C" void gelu_##suffix(const T*, T*, int64_t, int32_t);                                                      \
  extern "C" void gelu_tanh_##suffix(const T*, T*, int64_t, int32_t);                                                 \
  namespace {                                                                                                         \
  struct Format {                                                                                                     \
    using Number = T;                                                                                                 \
    static constexpr auto add_norm = add_norm_##suffix;                                                               \
    static constexpr auto linear = linear_##suffix;                                                                   \
    static constexpr auto quantized_linear = quantized_linear_##suffix;                                               \
    static constexpr auto write_cache = write_cache_##suffix;                                                         \
    static constexpr auto attend = attend_##suffix;                                                                   \
    static constexpr decltype(&gelu_##suffix) activations[] = {silu_gated_##suffix, quick_gelu_gated_##suffix,        \
                                                               gelu_##suffix, gelu_tanh_##suffix};                    \
  };                                                                                                                  \
  }

MEGASERVE_FORMAT(Float32, float, f32)
MEGASERVE_FORMAT(BFloat16, bf16, bf16)

namespace {

template <class Kernels>
class Layer {
 public:
  using T = typename Kernels::Number;

  Layer(const DecoderLayer& layer, const LayerBuffers& buffers) : layer_(layer), buffers_(buffers) {}

  void attention_half(const AttentionStep& step) const {
    T* projected = static_cast<T*>(buffers_.projected);
    T* attended = static_cast<T*>(buffers_.activated);
    T* keys = static_cast<T*>(layer_.keys);
    T* values = static_cast<T*>(layer_.values);
    add_norm(layer_.attention_norm, buffers_.has_update);
    multiply(layer_.qkv, buffers_.normed, projected);
    Kernels::write_cache(&step, projected, keys, values);
    Kernels::attend(&step, projected, keys, values, attended);
    multiply(layer_.projection, attended, buffers_.update);
  }

  void mlp_half() const {
    T* projected = static_cast<T*>(buffers_.projected);
    T* activated = static_cast<T*>(buffers_.activated);
    add_norm(layer_.mlp_norm, true);
    multiply(layer_.fc1, buffers_.normed, projected);
    Kernels::activations[layer_.activation](projected, activated, buffers_.rows, layer_.fc2.inputs);
    multiply(layer_.fc2, activated, buffers_.update);
  }

 private:
  // The residual takes the update in, and its norm is in `normed`.
  void add_norm(const Norm& norm, bool has_update) const {
    T* residual = static_cast<T*>(buffers_.residual);
    Kernels::add_norm(residual, has_update ? static_cast<const T*>(buffers_.update) : nullptr,
                      static_cast<const T*>(norm.weight), static_cast<const T*>(norm.bias), residual,
                      static_cast<T*>(buffers_.normed), buffers_.rows, buffers_.hidden, norm.eps);
  }

  void multiply(const Linear& linear, const void* x, void* out) const {
    const T* from = static_cast<const T*>(x);
    const T* bias = static_cast<const T*>(linear.bias);
    T* to = static_cast<T*>(out);
    const int32_t rows = int32_t(buffers_.rows);
    if (linear.scales)
      Kernels::quantized_linear(from, static_cast<const int8_t*>(linear.panels), linear.scales, bias, buffers_.scratch,
                                to, rows, linear.outputs, linear.inputs);
    else
      Kernels::linear(from, static_cast<const T*>(linear.panels), bias, buffers_.scratch, to, rows, linear.outputs,
                      linear.inputs);
  }

  const DecoderLayer& layer_;
  const LayerBuffers& buffers_;
};

template <class Kernels>
void run_layers(const DecoderLayer* layers, int count, LayerBuffers buffers, const AttentionStep& step) {
  for (int number = 0; number < count; ++number) {
    const Layer<Kernels> layer(layers[number], buffers);
    layer.attention_half(step);
    layer.mlp_half();
    buffers.has_update = 1;
  }
}

}  // namespace

#define MEGASERVE_LAYERS(suffix, Kernels)                                                                             \
  /* All of them: residual and update in, residual and update out. */                                                 \
  extern "C" void run_layers_##suffix(const DecoderLayer* layers, int32_t count, const LayerBuffers* buffers,         \
                                      const AttentionStep* step) {                                                    \
    run_layers<Kernels>(layers, count, *buffers, *step);                                                              \
  }                                                                                                                   \
  /* The halves of one, for ranks that must add their updates up after each. */                                       \
  extern "C" void attention_half_##suffix(const DecoderLayer* layer, const LayerBuffers* buffers,                     \
                                          const AttentionStep* step) {                                                \
    Layer<Kernels>(*layer, *buffers).attention_half(*step);                                                           \
  }                                                                                                                   \
  extern "C" void mlp_half_##suffix(const DecoderLayer* layer, const LayerBuffers* buffers) {                         \
    Layer<Kernels>(*layer, *buffers).mlp_half();                                                                      \
  }

MEGASERVE_LAYERS(f32, Float32)
MEGASERVE_LAYERS(bf16, BFloat16)
