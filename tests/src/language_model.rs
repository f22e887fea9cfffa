//! A small language model that is drawn here.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::Result;
use safetensors::{Dtype, serialize, tensor::TensorView};
use serde_json::json;

use crate::places;

/// Tokens of the small vocabulary.
const VOCABULARY: usize = 557;
/// The longest text of the small model.
pub const POSITIONS: usize = 32;
const WIDTH: usize = 48;
const LAYERS: usize = 2;

/// Makes a folder with a GPT-2 as transformers saves it, its tokenizer beside it. Its parameters follow from their names and
/// places, large enough that texts wander.
///
/// # Errors
/// The folder is there, or cannot be written.
pub fn make(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    for name in ["vocab.json", "merges.txt"] {
        fs::copy(places::repository().join("tests/fixtures/bpe-tokenizer").join(name), folder.join(name))?;
    }
    let config = json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
        "vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 3,
    });
    fs::write(folder.join("config.json"), config.to_string())?;
    let mut shapes = BTreeMap::from([
        ("wte.weight".to_owned(), vec![VOCABULARY, WIDTH]),
        ("wpe.weight".to_owned(), vec![POSITIONS, WIDTH]),
        ("ln_f.weight".to_owned(), vec![WIDTH]),
        ("ln_f.bias".to_owned(), vec![WIDTH]),
    ]);
    for layer in 0..LAYERS {
        for (name, sides) in [
            ("ln_1", vec![WIDTH]),
            ("attn.c_attn", vec![WIDTH, 3 * WIDTH]),
            ("attn.c_proj", vec![WIDTH, WIDTH]),
            ("ln_2", vec![WIDTH]),
            ("mlp.c_fc", vec![WIDTH, 4 * WIDTH]),
            ("mlp.c_proj", vec![4 * WIDTH, WIDTH]),
        ] {
            let last = sides[sides.len() - 1];
            shapes.insert(format!("h.{layer}.{name}.weight"), sides);
            shapes.insert(format!("h.{layer}.{name}.bias"), vec![last]);
        }
    }
    write_tensors(&folder.join("model.safetensors"), shapes)
}

fn write_tensors(file: &Path, shapes: BTreeMap<String, Vec<usize>>) -> Result<()> {
    let mut tensors = Vec::new();
    for (number, (name, shape)) in shapes.into_iter().enumerate() {
        let mut state = number as u64 + 1;
        let mut drawn = || {
            // Knuth's MMIX; only something that looks random.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.7
        };
        let one = if name.contains("ln_") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let bytes: Vec<u8> =
            (0..shape.iter().product()).flat_map(|_| (one + drawn()).to_le_bytes()).collect();
        tensors.push((format!("transformer.{name}"), shape, bytes));
    }
    let views: Result<Vec<(&str, TensorView)>> = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect();
    Ok(fs::write(file, serialize(views?, None)?)?)
}
