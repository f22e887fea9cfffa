#include "frozen_layers.h"

#include "backends.h"
#include "bf16_tensors.h"
#include "blocks.h"
#include "shim.h"
#include "tiled_product.h"
#include "vector_layers.h"

namespace ringtune::frozen {

namespace {

const Bf16 *values_of(const at::Tensor &tensor) { return static_cast<const Bf16 *>(tensor.const_data_ptr()); }

// What a recording says of packed weights: a tensor of the plain ones' sizes.
at::Tensor plain_sizes(const at::Tensor &packed, bool convolution) {
    const Layer layer = *layer_of(packed);
    const at::Tensor one = packed.view(-1).narrow(0, 0, 1);
    return convolution ? one.expand({layer.outputs, layer.inputs, layer.side, layer.side})
                       : one.expand({layer.outputs, layer.inputs});
}

void run(const at::Tensor &input, const Pictures &pictures, const at::Tensor &packed,
         const std::optional<at::Tensor> &bias, const std::optional<at::Tensor> &residual, const at::Tensor &result) {
    TORCH_CHECK(input.scalar_type() == at::kBFloat16 && (!bias || bias->scalar_type() == at::kBFloat16) &&
                    (!residual || residual->scalar_type() == at::kBFloat16),
                "a packed layer takes bf16, not ", input.scalar_type());
    const at::Tensor offset = bias ? bias->contiguous() : at::Tensor();
    const Operands operands{values_of(input), values_of(packed), bias ? values_of(offset) : nullptr,
                            residual ? values_of(*residual) : nullptr,
                            static_cast<Bf16 *>(result.mutable_data_ptr())};
    if (flash::amx_supported()) {
        tiled::multiply(flash::amx_backend(), *layer_of(packed), pictures, operands);
    } else {
        const auto backend = flash::vector_backend();
        vectors::multiply({backend, at::get_num_threads()}, *layer_of(packed), pictures, operands);
    }
}

} // namespace

bool takes(const at::Tensor &weight) {
    if (weight.scalar_type() != at::kBFloat16 || (weight.dim() != 2 && weight.dim() != 4)) {
        return false;
    }
    const Layer layer{weight.size(1), weight.size(0), weight.dim() == 2 ? 1 : weight.size(2)};
    const bool square = weight.dim() == 2 || weight.size(2) == weight.size(3);
    return square && flash::supported() && fits(layer);
}

at::Tensor packed(const at::Tensor &ordered) {
    const Layer layer{ordered.size(1), ordered.size(0), ordered.dim() == 2 ? 1 : ordered.size(2)};
    const blocks::Lasting lasting;
    const at::Tensor result = at::empty({layer.outputs / WIDTH, layer.inputs / WIDTH, layer.places(), UNIT},
                                        ordered.options().memory_format(at::MemoryFormat::Contiguous));
    auto *target = static_cast<Bf16 *>(result.mutable_data_ptr());
    flash::on_threads(layer.outputs / WIDTH, [&](int64_t begin, int64_t end) {
        if (flash::amx_supported()) {
            tiled::pack(layer, values_of(ordered), begin, end, target);
        } else {
            vectors::pack(layer, values_of(ordered), begin, end, target);
        }
    });
    return result;
}

std::optional<Layer> layer_of(const at::Tensor &packed) {
    if (packed.is_mkldnn() || packed.dim() != 4 || packed.size(3) != UNIT || packed.scalar_type() != at::kBFloat16 ||
        !packed.is_contiguous()) {
        return std::nullopt;
    }
    const int64_t places = packed.size(2);
    return Layer{packed.size(1) * WIDTH, packed.size(0) * WIDTH, places == 9 ? 3 : places};
}

at::Tensor convolve(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias,
                    const std::optional<at::Tensor> &residual) {
    const auto last = at::MemoryFormat::ChannelsLast;
    const at::Tensor x = input.contiguous(last);
    const std::optional<at::Tensor> added = residual ? std::optional(residual->contiguous(last)) : std::nullopt;
    const Pictures pictures{x.size(0), x.size(2), x.size(3)};
    const at::Tensor result = at::empty({x.size(0), layer_of(packed)->outputs, x.size(2), x.size(3)},
                                        x.options().memory_format(last));
    if (added) {
        RINGTUNE_RECORD("convolution_add", input, *added, plain_sizes(packed, true));
        run(x, pictures, packed, bias, added, result);
    } else {
        RINGTUNE_RECORD("convolution", input, plain_sizes(packed, true));
        run(x, pictures, packed, bias, added, result);
    }
    return result;
}

at::Tensor multiply(const at::Tensor &input, const at::Tensor &packed, const std::optional<at::Tensor> &bias,
                    const std::optional<at::Tensor> &residual) {
    const at::Tensor x = input.contiguous();
    const std::optional<at::Tensor> added = residual ? std::optional(residual->contiguous()) : std::nullopt;
    auto shape = x.sizes().vec();
    const Pictures pictures{1, 1, x.numel() / shape.back()};
    shape.back() = layer_of(packed)->outputs;
    const at::Tensor result = at::empty(shape, x.options());
    if (added) {
        RINGTUNE_RECORD("linear_add", input, plain_sizes(packed, false), *added);
        run(x, pictures, packed, bias, added, result);
    } else {
        RINGTUNE_RECORD("linear", input, plain_sizes(packed, false));
        run(x, pictures, packed, bias, added, result);
    }
    return result;
}

} // namespace ringtune::frozen
