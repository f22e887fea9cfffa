// The boundary of text.cpp: what src/gpt2/text/native.rs calls, and nothing else; see shim.h. All tensors are contiguous;
// activations are all fp32 or all bf16.
#pragma once

#include "shim.h"

extern "C" {

// x [1, width] times the rows of a matrix [rows, width], both of one kind of activation, with `bias` [rows], which may be
// null. Gives [1, rows], of that kind, or with `to_floats` fp32.
at::Tensor *ringtune_text_times_rows(const at::Tensor *x, const at::Tensor *matrix, const at::Tensor *bias,
                                     bool to_floats);
// Copies keys and values of `together` [tokens, 3, heads, width] to the caches [heads, positions, width], behind the
// `past` that are there.
bool ringtune_text_remember(const at::Tensor *together, int64_t past, at::Tensor *keys, at::Tensor *values);
// Attention of each token of `together` to the `past` ones, to those before it, and to itself, all of which the caches
// have. Gives [tokens, heads * width].
at::Tensor *ringtune_text_attend(const at::Tensor *together, int64_t past, const at::Tensor *keys,
                                 const at::Tensor *values);

} // extern "C"
