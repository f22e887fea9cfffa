#include "shim.h"

namespace ringtune {

at::Tensor attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value) {
    return at::scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        .transpose(1, 2);
}

} // namespace ringtune
