// What Rust needs of libtorch beyond tch's bindings. Every function that can fail returns nullptr (or
// false, or -1) and leaves a message for ringtune_last_error, so that no C++ exception crosses into Rust.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Tells a recording (profile.cpp) what is computed from here to the end of the block: one of our kernels, and the tensors
// that say how much there is to do. Costs a look at a flag where nothing is recorded. worker/src/bench/class.rs knows
// the names.
#define RINGTUNE_RECORD(kernel, ...) RECORD_FUNCTION("ringtune::" kernel, std::vector<c10::IValue>({__VA_ARGS__}))

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

// None of a null pointer.
inline std::optional<at::Tensor> present(const at::Tensor *tensor) {
    return tensor == nullptr ? std::nullopt : std::optional<at::Tensor>(*tensor);
}

// Writes tensors to `results`, whose owner they get; true.
bool hand_over(at::TensorList tensors, at::Tensor **results);

// What attention runs on: libtorch's own kernels; in bf16 the tiled ones with vdpbf16ps, or those on AMX; in fp32 those of
// float_layers.h, where they are used, with all but the first.
enum class AttentionKernel : int { Libtorch = 0, Avx512 = 1, Amx = 2, Floats = 3 };

// The fastest that may be used here.
AttentionKernel attention_kernel();

// softmax(query keyT / sqrt(width)) value, with gradient: query [batch, queries, heads, width], key and value
// [batch, keys, heads, width].
at::Tensor attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                     AttentionKernel kernel);

// The same of queries, keys and values that lie together: [batch, tokens, 3, heads, width].
at::Tensor self_attention(const at::Tensor &together, AttentionKernel kernel);

// How a convolution's square kernel moves: over its input in steps of `stride`, with `padding` zeros around it; or,
// transposed, over its output, of which `padding` is cut off.
struct ConvolutionGeometry {
    int64_t stride;
    int64_t padding;
    bool transposed;
};

// bf16 weights [outputs, inputs, k, k] or [outputs, inputs], channels last; `turned`: inputs and outputs
// exchanged and the kernel turned by 180 degrees, which is what the gradient of a layer that keeps the size computes with.
at::Tensor weights_in_order(const at::Tensor &weight, bool turned);

// bf16 weights [outputs, inputs, k, k] ([inputs, outputs, k, k] of a transposed one) in the order of what convolves inputs of
// this size (frozen_layers.h, or oneDNN); with `backward`, for the way back of gradients of this size. Packed weights of the way forward are packed anew.
at::Tensor pack_convolution(const at::Tensor &weight, at::IntArrayRef input_size, ConvolutionGeometry geometry,
                            bool backward);

// The convolution, plus `residual` if there is one, rounded once; with gradients for both, for the input where there are
// backward weights. See convolution.cpp.
at::Tensor packed_convolution(const at::Tensor &input, const at::Tensor &forward_weight,
                              const std::optional<at::Tensor> &backward_weight, const at::Tensor &bias,
                              const std::optional<at::Tensor> &residual, ConvolutionGeometry geometry);

} // namespace ringtune

// The boundary: all that Rust calls, and nothing else. src/native/mod.rs declares the same, which a test compares word by
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
at::Tensor *ringtune_self_attention(const at::Tensor *together, int kernel);
int ringtune_attention_kernel();
// Numbers of instructions.h's Set: the best in use, and the best to use from here on.
int ringtune_instructions();
void ringtune_limit_instructions(int most);
// All families of float_layers.h, or none.
void ringtune_use_floats_with_avx512(bool all);
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
// `weight_end` and `bias_end` may be null: the handles of a weight and a bias that are trained (weight_gradient.cpp).
bool ringtune_group_norm(const at::Tensor *x, const at::Tensor *skip, const at::Tensor *added, int64_t groups,
                         const at::Tensor *weight, const at::Tensor *bias, const at::Tensor *weight_end,
                         const at::Tensor *bias_end, double epsilon, bool silu, at::Tensor **results);

// fused.cpp

// Gives the result and its input, two tensors. `weight_end`, `bias_end`: as of group_norm.cpp.
bool ringtune_layer_norm(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias,
                         const at::Tensor *weight_end, const at::Tensor *bias_end, double epsilon, at::Tensor **results);
at::Tensor *ringtune_geglu(const at::Tensor *x);

// linear.cpp

// `bias` may be null; `halves`: fp32 may be multiplied by kernels of our own, on AMX by bf16 halves; see linear.cpp.
at::Tensor *ringtune_linear(const at::Tensor *input, const at::Tensor *weight, const at::Tensor *bias, bool halves);
// bf16 weights [outputs, inputs] in the order of what multiplies by them; with `backward`, for the gradient's way back.
at::Tensor *ringtune_pack_linear(const at::Tensor *weight, bool backward);
// `backward_weight` (then there is no gradient for the input), `bias` and `residual` may be null.
at::Tensor *ringtune_packed_linear(const at::Tensor *input, const at::Tensor *forward_weight,
                                   const at::Tensor *backward_weight, const at::Tensor *bias,
                                   const at::Tensor *residual);

// convolution.cpp

at::Tensor *ringtune_pack_convolution(const at::Tensor *weight, const int64_t *input_size, size_t dimensions,
                                      int64_t stride, int64_t padding, bool transposed, bool backward);
// `backward_weight` and `residual` may be null.
at::Tensor *ringtune_packed_convolution(const at::Tensor *input, const at::Tensor *forward_weight,
                                        const at::Tensor *backward_weight, const at::Tensor *bias,
                                        const at::Tensor *residual, int64_t stride, int64_t padding, bool transposed);

// allocator.cpp

// From here on tensors are allocated as is described there.
bool ringtune_install_allocator();
// blocks.h says what each of these does.
bool ringtune_release_memory();
bool ringtune_trim_memory();
bool ringtune_reserve_memory(size_t bytes);

// plain_convolution.cpp

// Whether kernels of our own compute a convolution with fp32 weights of `side` x `side`: they read them as they come from a
// file, [outputs, inputs, side, side] without gaps, and leave others to libtorch, which is fastest with weights channels last.
bool ringtune_convolution_has_kernels(int64_t inputs, int64_t outputs, int64_t side, int64_t stride, int64_t padding);

// With plain weights [outputs, inputs, k, k]; `bias` and `residual`, which has the result's shape, may be null.
at::Tensor *ringtune_convolution(const at::Tensor *input, const at::Tensor *weight, const at::Tensor *bias,
                                 const at::Tensor *residual, int64_t stride, int64_t padding);

// weight_gradient.cpp

// The result of a layer as it is, behind which the gradients of its trained weights are made, each of its handle; all handles may
// be null. Of a linear layer `side` is 0, and its weights may be up to three (`parts`) one above the other.
at::Tensor *ringtune_with_weight_gradient(const at::Tensor *result, const at::Tensor *input, const at::Tensor *first,
                                          const at::Tensor *second, const at::Tensor *third, const at::Tensor *bias,
                                          int64_t parts, int64_t side, int64_t stride, int64_t padding);
// The gradients of `ends`, given that of `output`; undefined ones of what has none. The graph is gone then.
bool ringtune_gradients(const at::Tensor *output, const at::Tensor *gradient, at::Tensor **ends, size_t count,
                        at::Tensor **results);

// profile.cpp

// Records what operators take, from here until it is stopped; fails where a recording is on.
bool ringtune_profile_start();
// What was recorded, as profile.cpp describes it. The caller frees it with ringtune_free_string.
char *ringtune_profile_stop();
// A stretch of the caller's own in the recording, until its end, on one thread; `name` stays alive until then. Null, which
// needs no end, where nothing is recorded.
void *ringtune_scope_begin(const char *name);
void ringtune_scope_end(void *scope);

// threads.cpp

// From here on each thread of the team that the calling thread computes with runs on its processor; with none, where it did before.
bool ringtune_place_threads(const int *processors, size_t count);
// Puts threads in their places that were started since; does nothing where none have one.
bool ringtune_settle_threads();

} // extern "C"
