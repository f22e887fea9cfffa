#include "shim.h"

#include "float_layers.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/from_blob.h>
#include <torch/version.h>

#include <cstdlib>
#include <cstring>

namespace ringtune {

std::string &last_error() {
    thread_local std::string message;
    return message;
}

void check_frozen(const char *operation, const char *name, const at::Tensor &weight) {
    TORCH_CHECK(!weight.defined() || !weight.requires_grad(), operation, " has no gradient for its ", name,
                ", which must not require one");
}

bool hand_over(at::TensorList tensors, at::Tensor **results) {
    for (const at::Tensor &tensor : tensors) {
        *results++ = new at::Tensor(tensor);
    }
    return true;
}

} // namespace ringtune

using ringtune::guarded;

extern "C" {

const char *ringtune_last_error() { return ringtune::last_error().c_str(); }

const char *ringtune_libtorch_version() { return TORCH_VERSION; }

at::Tensor *ringtune_from_blob(void *data, const int64_t *shape, size_t dimensions, int kind, void *owner,
                               void (*release)(void *)) {
    return guarded<at::Tensor *>(nullptr, [&] {
        auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(kind)).device(at::kCPU);
        auto tensor = at::from_blob(
            data, at::IntArrayRef(shape, dimensions), [owner, release](void *) { release(owner); }, options);
        return new at::Tensor(std::move(tensor));
    });
}

at::Tensor *ringtune_channels_last(const at::Tensor *tensor) {
    return guarded<at::Tensor *>(
        nullptr, [&] { return new at::Tensor(tensor->contiguous(at::MemoryFormat::ChannelsLast)); });
}

at::Tensor *ringtune_attention(const at::Tensor *query, const at::Tensor *key, const at::Tensor *value, int kernel) {
    return guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(
            ringtune::attention(*query, *key, *value, static_cast<ringtune::AttentionKernel>(kernel)));
    });
}

at::Tensor *ringtune_self_attention(const at::Tensor *together, int kernel) {
    return guarded<at::Tensor *>(nullptr, [&] {
        return new at::Tensor(ringtune::self_attention(*together, static_cast<ringtune::AttentionKernel>(kernel)));
    });
}

int ringtune_attention_kernel() {
    return guarded(-1, [] { return static_cast<int>(ringtune::attention_kernel()); });
}

int ringtune_instructions() { return static_cast<int>(ringtune::instructions::in_use()); }

void ringtune_limit_instructions(int most) {
    ringtune::instructions::limit(static_cast<ringtune::instructions::Set>(most));
}

void ringtune_use_floats_with_avx512(bool all) { ringtune::floats::use_with_avx512(all ? ~0u : 0u); }

bool ringtune_set_threads(int threads) {
    return guarded(false, [&] {
        at::set_num_threads(threads);
        return true;
    });
}

bool ringtune_set_interop_threads(int threads) {
    return guarded(false, [&] {
        at::set_num_interop_threads(threads);
        return true;
    });
}

int ringtune_get_threads() {
    return guarded(-1, [] { return at::get_num_threads(); });
}

char *ringtune_cpu_capability() {
    return guarded<char *>(nullptr, [] { return strdup(at::get_cpu_capability().c_str()); });
}

void ringtune_free_string(char *text) { free(text); }

} // extern "C"
