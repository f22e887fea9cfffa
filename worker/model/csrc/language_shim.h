// The boundary of language.cpp, language_step.cpp, language_products.cpp, causal_attention.cpp and dropped_attention.cpp:
// what src/gpt2/native.rs calls, and nothing else; see shim.h.
// All tensors are contiguous. Activations are all fp32 or all bf16; whatever else is a float is fp32. Targets of
// gradients are written, or with `add` added to.
#pragma once

#include "dropout.h"
#include "shim.h"

extern "C" {

// language.cpp

// wte[ids] + wpe: tables [vocabulary, width] and [positions, width], ids [batch, tokens]; gives [batch * tokens,
// width].
at::Tensor *ringtune_language_embed(const at::Tensor *wte, const at::Tensor *wpe, const at::Tensor *ids);
// The rows of x [rows, width] summed into the rows of `target` that are their `places` [rows], in the order of rows. Rows that are
// nobody's place become zeros, with `add` they stay.
bool ringtune_language_put_rows(const at::Tensor *x, const at::Tensor *places, bool add, at::Tensor *target);
// The rows of `gradient` [batch * tokens, width] of the positions `first` …, summed over the batch.
bool ringtune_language_place_backward(const at::Tensor *gradient, int64_t tokens, int64_t first, bool add,
                                      at::Tensor *target);
// x [rows, width] fp32 + added, and its layer norm; `added`, of activations, and `bias` may be null. Gives the sum (x
// itself where nothing is added), the norm and its statistics [rows, 2].
bool ringtune_language_norm(const at::Tensor *x, const at::Tensor *added, const at::Tensor *weight,
                            const at::Tensor *bias, double epsilon, bool low, at::Tensor **results);
// Adds the gradient of the norm's x to `residual`, in place. Gives it once more, as an activation (of fp32 itself), and
// the gradients of weight and bias, [2, width].
bool ringtune_language_norm_backward(const at::Tensor *gradient, const at::Tensor *x, const at::Tensor *statistics,
                                     const at::Tensor *weight, at::Tensor *residual, at::Tensor **results);
at::Tensor *ringtune_language_gelu(const at::Tensor *x);
// x [rows, width]; in place of the gradient. Gives the sums of what that becomes over the rows, [width] fp32.
at::Tensor *ringtune_language_gelu_backward(const at::Tensor *x, at::Tensor *gradient);
// target [width]: the sums over the rows of x.
bool ringtune_language_column_sums(const at::Tensor *x, bool add, at::Tensor *target);
// Gives the losses [rows] of logits [rows, vocabulary], whose rows may lie apart; with `gradient`, the logits become its
// gradient times `scale`.
at::Tensor *ringtune_language_cross_entropy(at::Tensor *logits, const at::Tensor *targets, bool gradient, double scale);
// target (+)= x, of any kind of activation. 1: all of the target is finite then; 0: not; -1: failure.
int ringtune_language_put(const at::Tensor *x, bool add, at::Tensor *target);
// The same: target [rows, width] (+)= x [width, rows], whose rows may lie apart.
int ringtune_language_put_turned(const at::Tensor *x, bool add, at::Tensor *target);
// x [samples * tokens, width], of any kind of activation, times 0 or the mask's scale, in place; a token is a row.
bool ringtune_language_drop(at::Tensor *x, const ringtune_mask *mask);
// language_step.cpp

// Numbers whose squares are one sum.
int64_t ringtune_language_part();
// The sums of the squares of so many numbers of x each, in double precision; the last of what is left.
bool ringtune_language_squares(const at::Tensor *x, double *parts);
// Zeros, whose memory is the system's again as far as whole pages go.
bool ringtune_language_forget(at::Tensor *x);
// 1: all are finite; 0: not; -1: failure.
int ringtune_language_finite(const at::Tensor *x);
// One step of AdamW on `parameter`, `mean` and `square`, in place; `low`, its bf16 copy, may be null. `numbers`: the
// eight of language::AdamW.
bool ringtune_language_adamw(const at::Tensor *gradient, const double *numbers, at::Tensor *parameter, at::Tensor *mean,
                             at::Tensor *square, at::Tensor *low);

// language_products.cpp

// x [rows, inputs] times a weight [inputs, outputs], plus `bias` [outputs], which may be null; all activations.
at::Tensor *ringtune_language_times(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias);
// x [rows, outputs] times the same weight turned: [rows, inputs].
at::Tensor *ringtune_language_times_turned(const at::Tensor *x, const at::Tensor *weight);

// causal_attention.cpp

// Attention of each token to itself and those before it: together [batch, tokens, 3, heads, width]. Gives the output
// [batch, tokens, heads, width] and what the way back needs. `kernel`: of AttentionKernel. `mask`: of the probabilities,
// as attention_kernels.h has it; null: nothing is dropped.
bool ringtune_causal_attention(const at::Tensor *together, const ringtune_mask *mask, int kernel, at::Tensor **results);
// Gives the gradient of `together`.
at::Tensor *ringtune_causal_attention_backward(const at::Tensor *together, const at::Tensor *output,
                                               const at::Tensor *kept, const at::Tensor *gradient,
                                               const ringtune_mask *mask, int kernel);

} // extern "C"
