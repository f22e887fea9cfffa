// What Rust needs of libtorch beyond tch's bindings. Every function that can fail returns nullptr (or
// false) and leaves a message for ringtune_last_error, so that no C++ exception crosses into Rust.
#pragma once

#include <ATen/ATen.h>

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
