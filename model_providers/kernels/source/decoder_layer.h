// One decoder layer as the kernels read it. Mirrored by the structures in ../decoder_layer.py.
#pragma once

#include <cstdint>

struct Norm {
  const void* weight;
  const void* bias;  // null for RMSNorm
  float eps;
};

struct Linear {
  const void* panels;
  const float* scales;  // of a quantized weight, else null
  const void* bias;     // or null
  int32_t outputs;
  int32_t inputs;
};

enum Activation : int32_t { kSiluGated, kQuickGeluGated, kGelu, kGeluTanh };

struct DecoderLayer {
  Norm attention_norm;
  Norm mlp_norm;
  Linear qkv;
  Linear projection;
  Linear fc1;
  Linear fc2;
  void* keys;    // of this layer in the KV cache
  void* values;
  int32_t activation;
};

// What passes from layer to layer, and what one computes with. A width is the widest that any layer needs.
struct LayerBuffers {
  void* residual;   // (rows, hidden)
  void* update;     // (rows, hidden), what is still to be added to the residual
  void* normed;     // (rows, hidden)
  void* projected;  // (rows, widest of qkv and fc1)
  void* activated;  // (rows, widest of heads and fc2's inputs)
  float* scratch;   // (rows, widest inputs) for bf16, else unused
  int64_t rows;
  int32_t hidden;
  int32_t has_update;  // 0 before the first layer
};
