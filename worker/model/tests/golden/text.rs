//! CLIP's text encoder.

use ringtune_model::clip::{ClipAttention, ClipLayer, ClipMlp, TextEncoder};
use ringtune_model::layers::Products;
use ringtune_model::model_files::ModelFiles;
use ringtune_model::weights::Weights;
use tch::Kind;

use crate::blocks::{CHECKPOINTS, Inputs, Outputs, assert_covers, check_cases, open_checkpoint, out};

fn run(checkpoint: &ModelFiles, weights: &Weights, inputs: &Inputs) -> Option<Outputs> {
    let (root, config) = (weights.root(), &checkpoint.text);
    let scope = root.sub(&inputs.case.path);
    match inputs.case.kind.as_str() {
        "CLIPAttention" => {
            let attention = ClipAttention::new(&scope, config, Products::Exact).unwrap();
            let output = attention.forward(&inputs.recorded("hidden_states")).unwrap();
            Some(vec![("out.0".to_string(), output)])
        }
        "CLIPMLP" => {
            let mlp = ClipMlp::new(&scope, config, Products::Exact).unwrap();
            out(mlp.forward(&inputs.recorded("hidden_states")))
        }
        "CLIPEncoderLayer" => {
            let layer = ClipLayer::new(&scope, config, Products::Exact).unwrap();
            out(layer.forward(&inputs.recorded("hidden_states")))
        }
        // The encoder adds positions to what `embed` gives when it starts.
        "CLIPTextEmbeddings" => {
            let encoder = TextEncoder::new(&root, config, Products::Exact).unwrap();
            let tokens = encoder.embed(&inputs.recorded("input_ids")).unwrap();
            let shape = [config.max_positions, config.hidden_size];
            let positions = scope.sub("position_embedding").tensor("weight", &shape, Kind::Float).unwrap();
            out(Ok(tokens + positions))
        }
        "model" => {
            let encoder = TextEncoder::new(&root, config, Products::Exact).unwrap();
            out(encoder.forward(&encoder.embed(&inputs.recorded("input_ids")).unwrap()))
        }
        _ => None,
    }
}

fn check(name: &str) {
    let checkpoint = open_checkpoint(name);
    let weights = checkpoint.text_weights().unwrap();
    let counts =
        check_cases(&format!("{name}-text.safetensors"), |inputs| run(&checkpoint, &weights, inputs));
    assert_covers(&counts, &["CLIPAttention", "CLIPMLP", "CLIPEncoderLayer", "CLIPTextEmbeddings", "model"]);
}

#[test]
fn text_encoder_of_sd_1_is_that_of_transformers() {
    check(CHECKPOINTS[0]);
}

#[test]
fn text_encoder_of_sd_2_is_that_of_transformers() {
    check(CHECKPOINTS[1]);
}
