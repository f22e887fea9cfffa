// All of float_layers.h, in the words of lanes_sixteen.h and lanes_eight.h. Included once for each.

#include "float_product_body.h"

namespace rows {
#include "float_rows_body.h"
} // namespace rows

namespace winograd {
#include "float_winograd_body.h"
} // namespace winograd

namespace attention {
#include "float_attention_body.h"

#include "float_attention_forward_body.h"

#include "float_attention_backward_body.h"
} // namespace attention
