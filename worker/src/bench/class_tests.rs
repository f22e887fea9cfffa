use super::*;
use crate::engine::OperatorScope;

/// An operator on bf16 tensors; an empty size is no tensor.
fn operator(name: &str, inputs: &[&[i64]], outputs: &[&[i64]]) -> Operator {
    let shapes = |all: &[&[i64]]| {
        let shape = |sizes: &&[i64]| TensorShape { element_bytes: 2, sizes: sizes.to_vec() };
        all.iter().map(|sizes| (!sizes.is_empty()).then(|| shape(sizes))).collect()
    };
    Operator {
        name: name.to_owned(),
        scope: OperatorScope::Operator,
        thread: 1,
        start: 0,
        end: 1,
        sequence: (0, 0),
        inputs: shapes(inputs),
        outputs: shapes(outputs),
    }
}

fn work(name: &str, inputs: &[&[i64]], outputs: &[&[i64]]) -> Work {
    classify(&operator(name, inputs, outputs)).unwrap_or_else(|| panic!("{name} is of no class"))
}

const IMAGE: &[i64] = &[1, 320, 64, 64];
/// 2 x 9 x 320 x 320 x 64 x 64.
const CONVOLUTION: f64 = 7_549_747_200.0;

#[test]
fn a_convolution_is_counted_alike_whoever_computes_it_and_in_both_directions() {
    let filter: &[i64] = &[320, 320, 3, 3];
    for (name, inputs, outputs) in [
        ("ringtune::convolution", &[IMAGE, filter][..], &[][..]),
        ("ringtune::convolution_add", &[IMAGE, IMAGE, filter], &[]),
        ("aten::conv2d", &[IMAGE, filter, &[320]], &[IMAGE]),
        ("aten::convolution_backward", &[IMAGE, IMAGE, filter], &[IMAGE, &[], &[]]),
    ] {
        let Work { class, shape, flop, bytes } = work(name, inputs, outputs);
        assert_eq!((class, shape.as_str(), flop), (Class::Convolution3x3, "320->320 at 64x64", CONVOLUTION));
        // Input, weights and output, and a residual or the input whose size counts.
        let images = (bytes - 2.0 * 921_600.0) / (2.0 * 1_310_720.0);
        assert!([2.0, 3.0].contains(&images), "{name}: {images} images");
    }
    // A weight of which only the shape is known.
    let mut packed = operator("ringtune::convolution", &[IMAGE, filter], &[]);
    packed.inputs[1] = Some(TensorShape { element_bytes: 0, sizes: filter.to_vec() });
    assert_eq!(classify(&packed), Some(work("ringtune::convolution", &[IMAGE, filter], &[])));
    let pointwise = work("ringtune::convolution", &[IMAGE, &[640, 320, 1, 1]], &[]);
    assert_eq!((pointwise.class, pointwise.shape.as_str()), (Class::Convolution1x1, "320->640 at 64x64"));
    assert_eq!(pointwise.flop, 2.0 * 320.0 * 640.0 * 4096.0);
}

#[test]
fn a_strided_convolution_counts_the_positions_of_its_output() {
    let (half, filter): (&[i64], &[i64]) = (&[1, 320, 32, 32], &[320, 320, 3, 3]);
    let forward = work("aten::conv2d", &[IMAGE, filter, &[320]], &[half]);
    let backward = work("aten::convolution_backward", &[half, IMAGE, filter], &[IMAGE]);
    assert_eq!((forward.flop, backward.flop), (CONVOLUTION / 4.0, CONVOLUTION / 4.0));
    assert_eq!(forward.shape, "320->320 at 64x64, changes the size");
}

#[test]
fn products_are_counted_alike_whatever_order_their_weights_are_in() {
    let (tokens, weight): (&[i64], &[i64]) = (&[1, 4096, 320], &[2560, 320]);
    for (name, inputs) in [
        ("aten::linear", &[tokens, weight, &[2560]][..]),
        ("aten::matmul", &[tokens, &[320, 2560]]),
        ("aten::mm", &[&[4096, 320], &[320, 2560]]),
        ("aten::addmm", &[&[2560], &[4096, 320], &[320, 2560]]),
        ("ringtune::linear", &[tokens, weight]),
        ("ringtune::linear_backward", &[tokens, &[320, 2560]]),
        ("ringtune::linear_add", &[tokens, weight, &[1, 4096, 2560]]),
    ] {
        let Work { class, shape, flop, .. } = work(name, inputs, &[]);
        assert_eq!((class, shape.as_str()), (Class::Linear, "4096x320->2560"), "{name}");
        assert_eq!(flop, 2.0 * 4096.0 * 320.0 * 2560.0, "{name}");
    }
    let batched = work("aten::bmm", &[&[8, 77, 40], &[8, 40, 77]], &[]);
    assert_eq!(batched.flop, 2.0 * 8.0 * 77.0 * 40.0 * 77.0);
}

#[test]
fn attention_counts_two_products_forward_and_backward_two_and_one_for_each_gradient() {
    let (query, key): (&[i64], &[i64]) = (&[1, 4096, 8, 40], &[1, 77, 8, 40]);
    let product = 2.0 * 8.0 * 4096.0 * 77.0 * 40.0;
    let forward = work("ringtune::attention", &[query, key, key], &[]);
    assert_eq!((forward.class, forward.flop), (Class::AttentionForward, 2.0 * product));
    assert_eq!(forward.shape, "4096 queries, 77 keys, 8x40");
    let all = work("ringtune::attention_backward", &[query, key, key, query, key, key], &[]);
    assert_eq!((all.class, all.flop), (Class::AttentionBackward, 5.0 * product));
    let some = work("ringtune::attention_backward", &[query, key, key, &[], key, key], &[]);
    assert_eq!(some.flop, 4.0 * product);
    // libtorch has the heads first.
    let (query, key): (&[i64], &[i64]) = (&[1, 8, 4096, 40], &[1, 8, 77, 40]);
    let theirs = work("aten::scaled_dot_product_attention", &[query, key, key], &[query]);
    assert_eq!((theirs.flop, &theirs.shape), (forward.flop, &forward.shape));
    let name = "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
    let theirs = work(name, &[query, query, key, key, query], &[query, key, key]);
    assert_eq!((theirs.class, theirs.flop, &theirs.shape), (all.class, all.flop, &all.shape));
}

#[test]
fn what_only_moves_bytes_counts_them() {
    let image = 2.0 * 1_310_720.0;
    for (name, inputs, outputs, class, images) in [
        ("ringtune::group_norm", &[IMAGE][..], &[][..], Class::Norm, 2.0),
        ("ringtune::group_norm_backward", &[IMAGE, IMAGE], &[], Class::Norm, 3.0),
        ("aten::native_layer_norm_backward", &[IMAGE, IMAGE], &[IMAGE], Class::Norm, 3.0),
        ("ringtune::geglu_backward", &[IMAGE, IMAGE], &[], Class::Geglu, 3.0),
        ("aten::copy_", &[IMAGE, IMAGE], &[], Class::Layout, 2.0),
        ("aten::cat", &[IMAGE, IMAGE], &[&[1, 640, 64, 64]], Class::Layout, 4.0),
    ] {
        let Work { class: found, flop, bytes, .. } = work(name, inputs, outputs);
        assert_eq!((found, flop, bytes), (class, 0.0, images * image), "{name}");
    }
}

#[test]
fn other_operators_are_of_no_class() {
    for name in ["aten::add", "aten::to", "aten::empty", "mkldnn::_convolution_pointwise", "AddBackward0"] {
        assert_eq!(classify(&operator(name, &[IMAGE, IMAGE], &[])), None, "{name}");
    }
    // Too little to say anything.
    for name in ["aten::linear", "ringtune::attention", "ringtune::convolution"] {
        assert_eq!(classify(&operator(name, &[&[]], &[])), None, "{name}");
    }
}
