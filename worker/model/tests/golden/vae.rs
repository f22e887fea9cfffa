//! The autoencoder.

use ringtune_model::model_files::ModelFiles;
use ringtune_model::resnet::{Downsample, ResnetBlock, ResnetConfig, Upsample};
use ringtune_model::vae::{VaeAttention, VaeDecoder, VaeDownBlock, VaeEncoder, VaeMidBlock, VaeUpBlock};
use ringtune_model::weights::Weights;

use crate::blocks::{CHECKPOINTS, Inputs, Outputs, assert_covers, check_cases, open_checkpoint, out};

/// The number at the end of a block's path, such as "encoder.down_blocks.2".
fn index_of(path: &str) -> usize {
    path.rsplit('.').next().unwrap().parse().unwrap()
}

fn run(checkpoint: &ModelFiles, weights: &Weights, inputs: &Inputs) -> Option<Outputs> {
    let (root, config, kind) = (weights.root(), &checkpoint.vae, inputs.kind);
    let scope = root.sub(&inputs.case.path);
    let hidden = || inputs.tensor("hidden_states");
    match inputs.case.kind.as_str() {
        "ResnetBlock2D" => {
            let x = inputs.tensor("input_tensor");
            let shape = ResnetConfig {
                inputs: x.size()[1],
                outputs: inputs.output_shape("out")[1],
                groups: config.norm_groups,
                epsilon: 1e-6,
                output_scale: 1.0,
            };
            out(ResnetBlock::new(&scope, shape, kind).unwrap().forward(&x, None))
        }
        "Attention" => {
            let attention = VaeAttention::new(&scope, config, hidden().size()[1], kind).unwrap();
            out(attention.forward(&hidden()))
        }
        "Downsample2D" => {
            out(Downsample::new(&scope, hidden().size()[1], 0, kind).unwrap().forward(&hidden()))
        }
        "Upsample2D" => {
            let (_, channels, height, width) = hidden().size4().unwrap();
            let upsample = Upsample::new(&scope, channels, kind).unwrap();
            out(upsample.forward(&hidden(), (2 * height, 2 * width)))
        }
        "UNetMidBlock2D" => {
            let block = VaeMidBlock::new(&scope, config, hidden().size()[1], kind).unwrap();
            out(block.forward(&hidden()))
        }
        "DownEncoderBlock2D" => out(VaeDownBlock::new(&scope, config, index_of(&inputs.case.path), kind)
            .unwrap()
            .forward(&hidden())),
        "UpDecoderBlock2D" => out(VaeUpBlock::new(&scope, config, index_of(&inputs.case.path), kind)
            .unwrap()
            .forward(&hidden())),
        "model" if inputs.case.case.ends_with("encode") => {
            let encoder = VaeEncoder::new(&root, config, kind).unwrap();
            let (mean, logvar) = encoder.forward(&inputs.recorded("pixels")).unwrap();
            Some(vec![("mean".to_string(), mean), ("logvar".to_string(), logvar)])
        }
        "model" => {
            let decoder = VaeDecoder::new(&root, config, kind).unwrap();
            out(decoder.forward(&inputs.recorded("latents")))
        }
        _ => None,
    }
}

fn check(name: &str) {
    let checkpoint = open_checkpoint(name);
    let weights = checkpoint.vae_weights().unwrap();
    let counts = check_cases(&format!("{name}-vae.safetensors"), |inputs| run(&checkpoint, &weights, inputs));
    let kinds = [
        "ResnetBlock2D",
        "Attention",
        "Downsample2D",
        "Upsample2D",
        "DownEncoderBlock2D",
        "UNetMidBlock2D",
        "UpDecoderBlock2D",
        "model",
    ];
    assert_covers(&counts, &kinds);
}

#[test]
fn vae_of_four_levels_is_that_of_diffusers() {
    check(CHECKPOINTS[0]);
}

#[test]
fn vae_of_three_levels_is_that_of_diffusers() {
    check(CHECKPOINTS[1]);
}
