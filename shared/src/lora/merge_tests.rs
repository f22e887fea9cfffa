use std::borrow::Cow;

use super::*;

fn factor(kind: FloatKind, numbers: &[f32]) -> Factor<'static> {
    Factor { kind, bytes: Cow::Owned(kind.narrowed(numbers)) }
}

/// A LoRA of rank 2 for one module of two outputs.
fn lora(
    kind: LayerKind,
    alpha: f64,
    up: [f32; 4],
    down: &[f32],
    lengths: Option<[f32; 2]>,
) -> LoraFile<'static> {
    let pair = Pair {
        kind,
        rank: 2,
        alpha,
        down: factor(FloatKind::F32, down),
        up: factor(FloatKind::F16, &up),
        dora_scale: lengths.map(|lengths| factor(FloatKind::Bf16, &lengths)),
    };
    let modules = [("one".to_owned(), pair)].into();
    LoraFile { base: Base::Sd1, format: Format::Kohya, modules, metadata: BTreeMap::new() }
}

/// All rows of a weight with these LoRAs in it, as fp32.
fn merged(kind: FloatKind, own: &[f32], loras: &[(LoraFile<'_>, f64)]) -> Vec<f32> {
    let layer = MergedLayer::of("one", loras).unwrap();
    let bytes = kind.narrowed(own);
    let rows = bytes.chunks(bytes.len() / 2).enumerate();
    rows.flat_map(|(row, stored)| kind.widened(&layer.merged(row, kind, stored).unwrap())).collect()
}

#[test]
fn a_product_is_added_times_weight_and_alpha_and_divided_by_the_rank() {
    let own = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let up = [1.0, 0.0, 2.0, -1.0];
    let down = [1.0, 0.0, 2.0, 4.0, 8.0, 0.0];
    // alpha / rank = 3; up · down = [1, 0, 2], [-2, -8, 4].
    for kind in [LayerKind::Linear, LayerKind::Conv1x1] {
        let one = lora(kind, 6.0, up, &down, None);
        assert_eq!(merged(FloatKind::F32, &own, &[(one.clone(), 1.0)]), [4.0, 2.0, 9.0, -2.0, -19.0, 18.0]);
        assert_eq!(merged(FloatKind::F32, &own, &[(one.clone(), -0.5)]), [-0.5, 2.0, 0.0, 7.0, 17.0, 0.0]);
        assert_eq!(merged(FloatKind::F32, &own, &[(one.clone(), 0.0)]), own);
        // Both orders are the same here, where nothing is rounded.
        let two = [(one.clone(), 1.0), (one, -0.5)];
        assert_eq!(merged(FloatKind::F32, &own, &two), [2.5, 2.0, 6.0, 1.0, -7.0, 12.0]);
    }
    // The nine pixels of one channel.
    let pixels: Vec<f32> = (0..18).map(|pixel| pixel as f32).collect();
    let conv = lora(LayerKind::Conv3x3, 2.0, [1.0, 0.0, 0.0, 2.0], &pixels, None);
    let expected: Vec<f32> =
        (0..18).map(|pixel| (if pixel < 9 { 1 + pixel } else { 1 + 2 * pixel }) as f32).collect();
    assert_eq!(merged(FloatKind::F32, &[1.0; 18], &[(conv, 1.0)]), expected);
    assert!(MergedLayer::of("another", &[(lora(LayerKind::Linear, 1.0, up, &down, None), 1.0)]).is_none());
}

#[test]
fn rows_with_a_length_of_dora_get_it() {
    let (up, down) = ([1.0, 0.0, 0.0, 1.0], [2.0, 2.0, 1.0, 0.0]);
    let dora = lora(LayerKind::Linear, 2.0, up, &down, Some([10.0, 0.5]));
    // [1, 2] + [2, 2] has the length 5, [-1, 0] + [1, 0] none, which nothing changes.
    let own = [1.0, 2.0, -1.0, 0.0];
    assert_eq!(merged(FloatKind::F32, &own, &[(dora.clone(), 1.0)]), [6.0, 8.0, 0.0, 0.0]);
    // A second one is added to what the first left, and divided by the length of the model's own row with it alone: with
    // half the weight [2, 3] and [-0.5, 0].
    let both = merged(FloatKind::F32, &own, &[(dora.clone(), 1.0), (dora, 0.5)]);
    let factor = 10.0 / 13f64.sqrt();
    assert_eq!(both, [(7.0 * factor) as f32, (9.0 * factor) as f32, 0.5, 0.0]);
}

#[test]
fn a_sum_is_rounded_once_to_the_type_that_is_stored() {
    // Half of what separates 1 from the next of the type, twice: added up it is a whole one. Rounded in between it would be lost.
    for (kind, half) in [(FloatKind::F16, 2f32.powi(-11)), (FloatKind::Bf16, 2f32.powi(-8))] {
        let small = lora(LayerKind::Linear, 2.0, [1.0, 0.0, 0.0, 1.0], &[half, 0.0, 0.0, -half], None);
        let own = [1.0, 1.0, 1.0, 1.0];
        assert_eq!(merged(kind, &own, &[(small.clone(), 1.0)]), [1.0, 1.0, 1.0, 1.0 - half], "{kind:?}");
        let twice = [(small.clone(), 1.0), (small, 1.0)];
        assert_eq!(merged(kind, &own, &twice), [1.0 + 2.0 * half, 1.0, 1.0, 1.0 - 2.0 * half], "{kind:?}");
    }
    let large = [(lora(LayerKind::Linear, 2.0, [1.0; 4], &[65504.0, 1.0, 0.0, 0.0], None), 1.0)];
    let layer = MergedLayer::of("one", &large).unwrap();
    let row = |kind: FloatKind| layer.merged(0, kind, &kind.narrowed(&[65504.0, 0.0]));
    assert_eq!(row(FloatKind::F16), Err(131_008.0));
    assert_eq!(row(FloatKind::Bf16).map(|bytes| bytes.len()), Ok(4));
}

#[test]
fn layers_are_those_that_a_models_own_tensors_have() {
    let unet = |name: &str, shape: &[usize]| Place::of(Component::Unet, name, shape, 0);
    let text = |name: &str, shape: &[usize]| Place::of(Component::TextEncoder, name, shape, 0);
    let found = [
        unet("mid_block.attentions.0.proj_in.weight", &[8, 8]),
        unet("up_blocks.0.attentions.0.proj_in.weight", &[8, 8, 1, 1]),
        unet("conv_in.weight", &[8, 4, 3, 3]),
        unet("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", &[8, 1024]),
        text("encoder.layers.0.self_attn.q_proj.weight", &[6, 6]),
        text("text_model.encoder.layers.1.mlp.fc1.weight", &[24, 6]),
    ];
    let found: Vec<Place> = found.into_iter().map(Option::unwrap).collect();
    let of = |place: &Place| (place.layer.kind, place.layer.inputs, place.rows.clone());
    assert_eq!(of(&found[0]), (LayerKind::Linear, 8, 0..8));
    assert_eq!(of(&found[1]), (LayerKind::Conv1x1, 8, 0..8));
    assert_eq!(of(&found[2]), (LayerKind::Conv3x3, 4, 0..8));
    assert_eq!(found[4].module, "text_encoder.text_model.encoder.layers.0.self_attn.q_proj");
    assert_eq!(found[5].module, "text_encoder.text_model.encoder.layers.1.mlp.fc1");
    for none in [
        unet("conv_in.bias", &[8]),
        unet("conv_norm_out.weight", &[8]),
        unet("conv_in.weight", &[8, 4, 5, 5]),
        unet("conv_in.weight", &[8, 0]),
        text("embeddings.token_embedding.weight", &[100, 6]),
        text("text_model.final_layer_norm.weight", &[6]),
    ] {
        assert_eq!(none, None);
    }
    // Every spelling of a key is read for them.
    let model = ModelLayers::of_places("toy".to_owned(), &found);
    assert_eq!(model.base, Base::Sd2);
    for (module, names) in [
        ("unet.conv_in", ["unet.conv_in.lora.down.weight", "lora_unet_conv_in.lora_down.weight"]),
        (
            "text_encoder.text_model.encoder.layers.1.mlp.fc1",
            [
                "text_encoder.encoder.layers.1.mlp.fc1.lora_A.weight",
                "lora_te1_text_model_encoder_layers_1_mlp_fc1.lora_down.weight",
            ],
        ),
    ] {
        for name in names {
            let meaning = model.meanings.get(&keys::in_our_spelling(name));
            assert_eq!(meaning.map(|meaning| meaning.module.as_str()), Some(module), "{name}");
        }
    }
}
