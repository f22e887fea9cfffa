use std::num::NonZeroUsize;

use clap::ValueEnum as _;
use proptest::prelude::*;
use safetensors::Dtype::{self, BF16, F16, F32};

use super::*;
use crate::state::{Encoder, MemoryState, State as _, TensorInfo, transfer};

/// A tensor of a file: key, type, shape, numbers.
type Tensor = (String, Dtype, Vec<u64>, Vec<f32>);

/// Of numbers that fp16 and bf16 have, too.
fn tensor(key: String, dtype: Dtype, shape: &[u64]) -> Tensor {
    let numbers =
        (0..shape.iter().product::<u64>()).map(|index| (index * 7 + shape[0]) as f32 % 31.0 / 16.0 - 1.0);
    (key, dtype, shape.to_vec(), numbers.collect())
}

/// Both factors of a module.
fn pair(module: &str, suffixes: [&str; 2], dtype: Dtype, shapes: [&[u64]; 2]) -> Vec<Tensor> {
    let one = |index: usize| tensor(format!("{module}.{}.weight", suffixes[index]), dtype, shapes[index]);
    vec![one(0), one(1)]
}

/// The same with alpha, as kohya's scripts name them.
fn of_kohya_with(
    module: &str,
    dtype: Dtype,
    shapes: [&[u64]; 2],
    (kind, alpha): (Dtype, f32),
) -> Vec<Tensor> {
    let alpha = (format!("{module}.alpha"), kind, vec![], vec![alpha]);
    [pair(module, KOHYA, dtype, shapes), vec![alpha]].concat()
}

fn bytes(tensors: &[Tensor], metadata: &[(&str, &str)]) -> Vec<u8> {
    let stored = tensors.iter().map(|(key, dtype, shape, numbers)| {
        let bytes = match (FloatKind::of(*dtype), dtype) {
            (Some(kind), _) => kind.narrowed(numbers),
            (None, Dtype::I64) => numbers.iter().flat_map(|number| (*number as i64).to_le_bytes()).collect(),
            (None, _) => numbers.iter().flat_map(|number| f64::from(*number).to_le_bytes()).collect(),
        };
        (TensorInfo::new(key, *dtype, shape.clone()).unwrap(), bytes)
    });
    let state = MemoryState::new(stored.collect()).unwrap();
    let metadata = metadata.iter().map(|(key, text)| (String::from(*key), String::from(*text))).collect();
    let mut encoder = Encoder::new(metadata, Vec::new());
    transfer(&mut *state.source().unwrap(), &mut encoder).unwrap();
    encoder.into_inner()
}

fn written(file: &LoraFile<'_>, format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.write(format, &mut bytes).unwrap();
    bytes
}

fn keys(bytes: &[u8]) -> BTreeMap<String, Vec<usize>> {
    let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
    file.tensors().into_iter().map(|(key, view)| (key, view.shape().to_vec())).collect()
}

fn problem(tensors: &[Tensor], metadata: &[(&str, &str)]) -> String {
    LoraFile::from_bytes(&bytes(tensors, metadata)).unwrap_err().to_string()
}

const KOHYA: [&str; 2] = ["lora_down", "lora_up"];
const DIFFUSERS: [&str; 2] = ["lora.down", "lora.up"];
const ATTENTION: &str = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_out_0";
const TEXT: &str = "lora_te1_text_model_encoder_layers";

/// What kohya's scripts write, with a rank, alpha and type of its own for each module.
fn of_kohya() -> Vec<Tensor> {
    let seen = "lora_unet_down_blocks_0_attentions_1_transformer_blocks_0_attn2_to_k";
    let text = format!("{TEXT}_11_self_attn_q_proj");
    [
        of_kohya_with(ATTENTION, F16, [&[4, 1280], &[1280, 4]], (F16, 1.0)),
        // As stored by a program that keeps alphas as whole numbers.
        of_kohya_with(seen, F32, [&[2, 768], &[320, 2]], (Dtype::I64, 3.0)),
        of_kohya_with(&text, BF16, [&[8, 768], &[768, 8]], (F32, 0.1)),
    ]
    .concat()
}

/// The same with what only three of the families have a place for.
fn with_convolutions() -> Vec<Tensor> {
    let (conv, text) = ("lora_unet_up_blocks_3_resnets_0_conv1", format!("{TEXT}_0_mlp_fc2"));
    [
        of_kohya(),
        pair("lora_unet_up_blocks_3_attentions_2_proj_in", KOHYA, F16, [&[4, 320, 1, 1], &[320, 4, 1, 1]]),
        of_kohya_with(conv, F16, [&[2, 960, 3, 3], &[320, 2, 1, 1]], (F16, 1.5)),
        vec![tensor(format!("{conv}.dora_scale"), F16, &[320, 1, 1, 1])],
        pair(&text, KOHYA, F16, [&[1, 3072], &[768, 1]]),
        vec![tensor(format!("{text}.dora_scale"), F16, &[768, 1])],
    ]
    .concat()
}

#[test]
fn every_family_becomes_every_other_and_no_number_changes() {
    for (tensors, formats) in [
        (of_kohya(), Format::value_variants()),
        (with_convolutions(), &[Format::Diffusers, Format::Peft, Format::Kohya][..]),
    ] {
        let source = bytes(&tensors, &[("ss_output_name", "style"), ("sshs_legacy_hash", "1234")]);
        let read = LoraFile::from_bytes(&source).unwrap();
        assert_eq!((read.base, read.format), (Base::Sd1, Format::Kohya));
        for first in formats {
            let there = written(&read, *first);
            let read_there = LoraFile::from_bytes(&there).unwrap();
            assert_eq!((read_there.format, &read_there.modules), (*first, &read.modules), "{first:?}");
            assert!(!read_there.metadata.contains_key("sshs_legacy_hash"), "a hash of other bytes");
            for second in formats {
                let back = written(&read_there, *second);
                let read_back = LoraFile::from_bytes(&back).unwrap();
                assert_eq!(read_back.modules, read.modules, "{first:?} {second:?}");
                assert!(written(&read_back, *second) == back, "not the same bytes: {first:?} {second:?}");
            }
        }
    }
}

#[test]
fn alphas_are_those_that_the_file_has() {
    let source = bytes(&with_convolutions(), &[]);
    let read = LoraFile::from_bytes(&source).unwrap();
    let alphas: Vec<(usize, f64)> = read.modules.values().map(|pair| (pair.rank, pair.alpha)).collect();
    // Where none is, it is the rank.
    assert_eq!(
        alphas,
        [(1, 1.0), (8, f64::from(0.1f32)), (2, 3.0), (4, 1.0), (4, 4.0), (2, 1.5)],
        "{:?}",
        read.modules.keys()
    );
}

#[test]
fn keys_and_shapes_are_those_that_readers_of_a_family_expect() {
    let source = bytes(&with_convolutions(), &[]);
    let read = LoraFile::from_bytes(&source).unwrap();
    let attention = "unet.mid_block.attentions.0.transformer_blocks.0.attn1";
    let (conv, text) = ("unet.up_blocks.3.resnets.0.conv1", "text_encoder.text_model.encoder.layers");
    for (format, key, shape) in [
        (Format::Diffusers, format!("{attention}.to_out.0.lora.down.weight"), vec![4, 1280]),
        (Format::Diffusers, format!("{text}.11.self_attn.q_proj.lora_linear_layer.up.weight"), vec![768, 8]),
        (
            Format::Diffusers,
            "unet.up_blocks.3.attentions.2.proj_in.lora.up.weight".into(),
            vec![320, 4, 1, 1],
        ),
        (Format::Peft, format!("{attention}.to_out.0.lora_A.weight"), vec![4, 1280]),
        (Format::Peft, format!("{text}.0.mlp.fc2.lora_B.weight"), vec![768, 1]),
        (Format::Peft, format!("{text}.0.mlp.fc2.lora_magnitude_vector"), vec![768]),
        (Format::Peft, format!("{conv}.lora_magnitude_vector"), vec![1, 320, 1, 1]),
        (Format::Peft, format!("{conv}.lora_A.weight"), vec![2, 960, 3, 3]),
        (Format::Kohya, "lora_te_text_model_encoder_layers_11_self_attn_q_proj.alpha".into(), vec![]),
        (Format::Kohya, "lora_te_text_model_encoder_layers_0_mlp_fc2.dora_scale".into(), vec![768, 1]),
    ] {
        assert_eq!(keys(&written(&read, format)).get(&key), Some(&shape), "{format:?} {key}");
    }
    let old = bytes(&of_kohya(), &[]);
    let old = written(&LoraFile::from_bytes(&old).unwrap(), Format::AttentionProcessors);
    let key = format!("{attention}.processor.to_out_lora.up.weight");
    assert_eq!(keys(&old).get(&key), Some(&vec![1280, 4]));
    let refused = read.write(Format::AttentionProcessors, Vec::new()).unwrap_err().to_string();
    assert!(refused.starts_with("2 of its modules have no place"), "{refused}");
}

#[test]
fn old_and_mixed_spellings_are_read() {
    // Without the UNet's name, and a text encoder with the UNet's suffixes, as diffusers 0.16 wrote them.
    let attention = "mid_block.attentions.0.transformer_blocks.0.attn2.processor";
    let text = "text_encoder.text_model.encoder.layers.22.self_attn";
    let old = [
        pair(attention, ["to_v_lora.down", "to_v_lora.up"], F32, [&[4, 1024], &[1280, 4]]),
        pair(text, ["to_out_lora.down", "to_out_lora.up"], F32, [&[4, 1024], &[1024, 4]]),
    ];
    let source = bytes(&old.concat(), &[]);
    let read = LoraFile::from_bytes(&source).unwrap();
    assert_eq!((read.base, read.format), (Base::Sd2, Format::AttentionProcessors));
    assert!(read.modules.contains_key(&format!("{text}.out_proj")));
    // Newer transformers has one name less.
    let flat =
        pair("text_encoder.encoder.layers.0.mlp.fc1", ["lora_A", "lora_B"], F32, [&[1, 768], &[3072, 1]]);
    let source = bytes(&flat, &[]);
    let module = "text_encoder.text_model.encoder.layers.0.mlp.fc1";
    assert!(LoraFile::from_bytes(&source).unwrap().modules.contains_key(module));
    // diffusers names attention as its own, and the rest as PEFT does; its patterns are of ends of names.
    let attention = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q";
    let other = "unet.down_blocks.0.attentions.0.transformer_blocks.0.ff.net.0.proj";
    let attention = pair(attention, DIFFUSERS, F32, [&[4, 1280], &[1280, 4]]);
    let other = pair(other, ["lora_A", "lora_B"], F32, [&[2, 320], &[2560, 2]]);
    let adapter =
        r#"{"unet.r": 4, "unet.lora_alpha": 8, "unet.alpha_pattern": {"^to_k": 5, "net.0.proj": 0.5}}"#;
    let source = bytes(&[attention.clone(), other].concat(), &[("lora_adapter_metadata", adapter)]);
    let read = LoraFile::from_bytes(&source).unwrap();
    assert_eq!((read.base, read.format), (Base::Sd1, Format::Diffusers));
    assert_eq!(read.modules.values().map(|pair| pair.alpha).collect::<Vec<_>>(), [0.5, 8.0]);
    // Attention to itself alone is the same in both bases: then the metadata decides.
    let both = bytes(&attention, &[("ss_base_model_version", "sd_v2")]);
    assert_eq!(LoraFile::from_bytes(&both).unwrap().base, Base::Sd2);
}

#[test]
fn kohyas_metadata_is_added_where_it_is_missing() {
    let tags = r#"{"1_a": {"red": 2, "blue": 1}, "2_b": {"blue": 3}}"#;
    let source = bytes(&of_kohya(), &[("ss_network_alpha", "1.0"), ("ss_tag_frequency", tags)]);
    let read = LoraFile::from_bytes(&source).unwrap();
    assert_eq!(read.frequent_tags(9), ["blue", "red"]);
    let there = written(&read, Format::Kohya);
    let metadata = LoraFile::from_bytes(&there).unwrap().metadata;
    let data = &there[8 + u64::from_le_bytes(there[..8].try_into().unwrap()) as usize..];
    let hash = crate::ids::ContentHash::of(data).to_string();
    for (key, text) in [
        ("ss_network_alpha", "1.0"),
        ("ss_network_dim", "Dynamic"),
        ("ss_base_model_version", "sd_v1"),
        ("sshs_model_hash", &hash),
    ] {
        assert_eq!(metadata.get(key).map(String::as_str), Some(text), "{key}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let changed = |index: usize, change: &dyn Fn(&mut Tensor)| {
        let mut tensors = of_kohya();
        change(&mut tensors[index]);
        tensors
    };
    let shaped = |shape: &[u64]| changed(1, &|up| *up = tensor(up.0.clone(), F16, shape));
    let attention = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q";
    let diffusers = || pair(attention, DIFFUSERS, F32, [&[4, 1280], &[1280, 4]]);
    let xl = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k";
    for (tensors, parts) in [
        (vec![], ["no LoRA's factors", ""]),
        (of_kohya()[1..].to_vec(), ["attn1.to_out.0", "`down` is missing"]),
        (changed(1, &|up| up.0 = "conv_norm_out.weight".into()), ["1 of its 9", "\"conv_norm_out.weight\""]),
        (shaped(&[1280, 8]), ["`down` has rank 4, `up` has rank 8", "attn1.to_out.0"]),
        (shaped(&[640, 4]), ["(1280, 640)", "another model"]),
        (shaped(&[1280, 2, 2]), ["[1280, 2, 2]", ATTENTION]),
        (changed(1, &|up| up.1 = Dtype::F64), ["F64", "allowed: F32, F16, BF16"]),
        (changed(1, &|up| up.3[7] = f32::NAN), ["NaN", "diverged"]),
        (changed(2, &|alpha| alpha.3[0] = 0.0), ["alpha is 0", "attn1.to_out.0"]),
        (changed(2, &|alpha| alpha.3[0] = f32::INFINITY), ["alpha is inf", "attn1.to_out.0"]),
        (changed(2, &|alpha| (alpha.2, alpha.3) = (vec![2], vec![1.0; 2])), ["shape [2]", "one number"]),
        ([of_kohya(), diffusers()].concat(), ["mixes", "kohya's"]),
        (pair(xl, KOHYA, F16, [&[4, 2048], &[640, 4]]), ["Stable Diffusion XL", "only those"]),
    ] {
        let problem = problem(&tensors, &[]);
        assert!(parts.iter().all(|part| problem.contains(part)), "{parts:?}: {problem}");
    }
    for (adapter, part) in [
        ("[]", "invalid type"),
        (r#"{"unet.lora_alpha": "8"}"#, "attn1.to_q is not a number"),
        (r#"{"unet.alpha_pattern": {"to_[qk]": 8}}"#, "to_[qk]"),
        (r#"{"unet.use_rslora": true}"#, "use_rslora"),
    ] {
        let problem = problem(&diffusers(), &[("lora_adapter_metadata", adapter)]);
        assert!(problem.contains(part), "{part}: {problem}");
    }
    let of = |bytes: &[u8]| LoraFile::from_bytes(bytes).unwrap_err().to_string();
    assert!(of(b"PK\x03\x04 and the rest").contains("Pickles"));
    assert!(of(b"version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
    let whole = bytes(&of_kohya(), &[]);
    assert!(of(&whole[..whole.len() - 1]).contains("it ends after"));
}

/// up · down, in fp64.
fn product(pair: &Pair<'_>) -> Vec<f64> {
    let (up, down) = (pair.up.kind.widened(&pair.up.bytes), pair.down.kind.widened(&pair.down.bytes));
    let rows: Vec<&[f32]> = down.chunks_exact(down.len() / pair.rank).collect();
    let scale = pair.alpha / pair.rank as f64;
    let row = |weights: &[f32]| {
        let mut sum = vec![0.0; rows[0].len()];
        for (weight, row) in weights.iter().zip(&rows) {
            sum.iter_mut()
                .zip(*row)
                .for_each(|(sum, one)| *sum += scale * f64::from(*weight) * f64::from(*one));
        }
        sum
    };
    up.chunks_exact(pair.rank).flat_map(row).collect()
}

/// The length of the difference, as a share of the first.
fn distance(one: &[f64], other: &[f64]) -> f64 {
    let length =
        |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    length(&mut one.iter().zip(other).map(|(one, other)| one - other)) / length(&mut one.iter().copied())
}

/// A file with one pair, whose product has these singular values.
fn with_values(values: &[f32]) -> Vec<u8> {
    // Columns of a Hadamard matrix, which are orthogonal: 1 or -1 by the parity of common bits.
    let unit = |one: usize, other: usize| match other {
        ..1024 if (one & other).count_ones().is_multiple_of(2) => 1.0 / 32.0,
        ..1024 => -1.0 / 32.0,
        _ => 0.0,
    };
    let rank = values.len();
    let mut factors = pair(ATTENTION, KOHYA, F32, [&[rank as u64, 1280], &[1280, rank as u64]]);
    for place in 0..rank * 1280 {
        factors[0].3[place] = unit(place / 1280 + 1, place % 1280);
        factors[1].3[place] = values[place % rank] * unit(place % rank + 3, place / rank);
    }
    bytes(&factors, &[("ss_network_dim", "8")])
}

#[test]
fn a_lower_rank_is_the_nearest_product() {
    for (diagonal, wanted, expected) in [
        // Nothing to lower; a product whose own rank is not full; one that loses its smallest parts; equal ones.
        (&[3.0, 1.0][..], 2, 0.0),
        (&[2.0, 0.0, 1.0, 0.0][..], 2, 0.0),
        (&[1.0, 4.0, 2.0, 0.5][..], 2, (1.25f64 / 21.25).sqrt()),
        (&[1.0; 8][..], 1, (7.0f64 / 8.0).sqrt()),
    ] {
        let source = with_values(diagonal);
        let whole = LoraFile::from_bytes(&source).unwrap();
        let mut lower = whole.clone();
        let resized = lower.resize(NonZeroUsize::new(wanted).unwrap(), |_, _| ());
        let [before, after] = [&whole, &lower].map(|file| file.modules.values().next().unwrap());
        assert_eq!((after.rank, after.alpha), (wanted, wanted as f64));
        let lost = distance(&product(before), &product(after));
        assert!((lost - expected).abs() < 1e-6, "{diagonal:?}: {lost} instead of {expected}");
        assert!((resized.least_kept - (1.0 - expected * expected).sqrt()).abs() < 1e-9, "{resized:?}");
        let there = written(&lower, Format::Kohya);
        let there = LoraFile::from_bytes(&there).unwrap();
        let rank = if resized.lowered == 0 { "8".to_owned() } else { wanted.to_string() };
        assert_eq!(there.metadata["ss_network_dim"], rank);
    }
    // What a training begins with: `up` is zero.
    let source = with_values(&[0.0; 4]);
    let mut zero = LoraFile::from_bytes(&source).unwrap();
    assert_eq!(zero.resize(NonZeroUsize::MIN, |_, _| ()), Resized { lowered: 1, least_kept: 1.0 });
    assert!(zero.modules.values().all(|pair| product(pair).iter().all(|number| *number == 0.0)));
    // Convolutions, halves and alphas: the file can be read, and scales as before.
    let source = bytes(&with_convolutions(), &[]);
    let whole = LoraFile::from_bytes(&source).unwrap();
    let mut lower = whole.clone();
    let mut told = Vec::new();
    assert_eq!(lower.resize(NonZeroUsize::MIN, |done, all| told.push((done, all))).lowered, 5);
    assert_eq!((told.first(), told.len()), (Some(&(0, lower.modules.len())), lower.modules.len()));
    let there = written(&lower, Format::Peft);
    assert_eq!(LoraFile::from_bytes(&there).unwrap().modules, lower.modules);
    for (before, after) in whole.modules.values().zip(lower.modules.values()) {
        assert_eq!(before.alpha / before.rank as f64, after.alpha / after.rank as f64);
    }
}

proptest! {
    /// Random factors, of random ranks: what is lost is what the singular values say.
    #[test]
    fn what_is_kept_is_what_is_said(seed in any::<u64>(), rank in 2usize..12, wanted in 1usize..12) {
        let random = |count: usize, seed: u64| -> Vec<f32> {
            let mut state = seed | 1;
            let next = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            };
            (0..count).map(next).collect()
        };
        let factor = |count: usize, seed| {
            let bytes = FloatKind::F32.narrowed(&random(count, seed)).into();
            Factor { kind: FloatKind::F32, bytes }
        };
        let (down, up) = (factor(rank * 40, seed), factor(30 * rank, seed ^ 0xabcd_ef01));
        let pair = Pair { kind: LayerKind::Linear, rank, alpha: 1.0, down, up, dora_scale: None };
        let modules = [("one".to_owned(), pair.clone())].into();
        let mut file =
            LoraFile { base: Base::Sd1, format: Format::Kohya, modules, metadata: BTreeMap::new() };
        let kept = file.resize(NonZeroUsize::new(wanted).unwrap(), |_, _| ()).least_kept;
        let lost = distance(&product(&pair), &product(&file.modules["one"]));
        prop_assert!((kept * kept + lost * lost - 1.0).abs() < 1e-5, "{kept} {lost}");
    }
}
