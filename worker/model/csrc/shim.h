// What Rust needs of libtorch beyond tch's bindings. Every function that can fail returns nullptr (or
// false, or -1) and leaves a message for ringtune_last_error, so that no C++ exception crosses into Rust.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringtune {

// The message of this thread's last failed call.
std::string &last_error();

// Runs `body`; on an exception keeps its message and returns `failure`.
template <typename Result, typename Body> Result guarded(Result failure, Body body) {
    try {
        return body();
    } catch (const c10::Error &error) {
        last_error() = error.what_without_backtrace();
    } catch (const std::exception &error) {
        last_error() = error.what();
    } catch (...) {
        last_error() = "an exception of unknown type";
    }
    return failure;
}

// Operations with frozen weights have no gradient for them. One that requires a gradient is refused, instead of being
// left without. An undefined tensor is frozen.
void check_frozen(const char *operation, const char *name, const at::Tensor &weight);

// Writes tensors to `results`, whose owner they get; true.
bool hand_over(at::TensorList tensors, at::Tensor **results);

// What attention in bf16 runs on: libtorch's own kernels, the tiled ones with vdpbf16ps, or the tiled ones with
// oneDNN's product on AMX.
enum class AttentionKernel : int { Libtorch = 0, Avx512 = 1, Amx = 2 };

// The fastest that this processor can do.
AttentionKernel attention_kernel();

// softmax(query keyT / sqrt(width)) value, with gradient: query [batch, queries, heads, width], key and value
// [batch, keys, heads, width].
at::Tensor attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                     AttentionKernel kernel);

// bf16 weights [outputs, inputs, k, k] (k odd) in oneDNN's order for inputs of this size; with `backward`, for the
// gradient's way back.
at::Tensor pack_convolution(const at::Tensor &weight, at::IntArrayRef input_size, bool backward);

// The convolution that keeps the size, with gradient for the input only; see convolution.cpp.
at::Tensor packed_convolution(const at::Tensor &input, const at::Tensor &forward_weight,
                              const at::Tensor &backward_weight, const at::Tensor &bias);

} // namespace ringtune

// The boundary: all that Rust calls, and nothing else. src/native.rs declares the same, which a test compares word by
// word; a definition that differs does not compile. Whoever is given an at::Tensor * owns it.
extern "C" {

// shim.cpp

const char *ringtune_last_error();
const char *ringtune_libtorch_version();
// A tensor over memory that Rust keeps alive: `release(owner)` is called once, when the last view is gone.
at::Tensor *ringtune_from_blob(void *data, const int64_t *shape, size_t dimensions, int kind, void *owner,
                               void (*release)(void *));
// The same values in channels-last order ([N, C, H, W] stored as N, H, W, C); no copy if they already are.
at::Tensor *ringtune_channels_last(const at::Tensor *tensor);
at::Tensor *ringtune_attention(const at::Tensor *query, const at::Tensor *key, const at::Tensor *value, int kernel);
int ringtune_attention_kernel();
at::Tensor *ringtune_pack_convolution(const at::Tensor *weight, const int64_t *input_size, size_t dimensions,
                                      bool backward);
at::Tensor *ringtune_packed_convolution(const at::Tensor *input, const at::Tensor *forward_weight,
                                        const at::Tensor *backward_weight, const at::Tensor *bias);
// Compute threads of the calling thread's operations.
bool ringtune_set_threads(int threads);
// Process-wide and only before the first parallel work; a second call fails.
bool ringtune_set_interop_threads(int threads);
int ringtune_get_threads();
// "AVX512", "AVX2", ...: the kernels ATen dispatches to. The caller frees it with ringtune_free_string.
char *ringtune_cpu_capability();
void ringtune_free_string(char *text);

// group_norm.cpp

// Of `x` and `skip` side by side; `skip` may be null, and so may `added`: [batch, channels], added to them first.
// Gives the result and its inputs, two tensors or three: going on with those, their gradients are added in one sweep.
bool ringtune_group_norm(const at::Tensor *x, const at::Tensor *skip, const at::Tensor *added, int64_t groups,
                         const at::Tensor *weight, const at::Tensor *bias, double epsilon, bool silu,
                         at::Tensor **results);

// fused.cpp

// Gives the result and its input, two tensors.
bool ringtune_layer_norm(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias, double epsilon,
                         at::Tensor **results);
at::Tensor *ringtune_geglu(const at::Tensor *x);

// residual.cpp

// `bias` may be null.
at::Tensor *ringtune_linear_add(const at::Tensor *input, const at::Tensor *weight, const at::Tensor *bias,
                                const at::Tensor *residual);

// convolution.cpp

at::Tensor *ringtune_packed_convolution_add(const at::Tensor *input, const at::Tensor *forward_weight,
                                            const at::Tensor *backward_weight, const at::Tensor *bias,
                                            const at::Tensor *residual);

// allocator.cpp

// From here on tensors are allocated as is described there.
bool ringtune_install_allocator();
bool ringtune_release_memory();

} // extern "C"
