//! The UNet.

use ringtune_model::Precision;
use ringtune_model::config::{BlockConfig, UNetConfig};
use ringtune_model::model_files::ModelFiles;
use ringtune_model::resnet::{Downsample, ResnetBlock, ResnetConfig, Upsample};
use ringtune_model::time_projections::TimeProjectionLoader;
use ringtune_model::unet::{
    CrossAttention, DownBlock, FeedForward, MidBlock, SpatialTransformer, TimeEmbedding, TransformerLayer,
    UNet, UpBlock,
};
use ringtune_model::weights::Weights;
use tch::{Kind, Tensor};

use crate::blocks::{CHECKPOINTS, Inputs, Outputs, assert_covers, check_cases, open_checkpoint, out};
use crate::precisions::precisions;

/// The number behind "down_blocks." or "up_blocks." at the start of a path.
fn index_of(path: &str) -> usize {
    path.split('.').nth(1).unwrap().parse().unwrap()
}

/// The resolution that a path lies in.
fn block_of<'a>(config: &'a UNetConfig, path: &str) -> &'a BlockConfig {
    let last = config.blocks.len() - 1;
    match path.split('.').next().unwrap() {
        "down_blocks" => &config.blocks[index_of(path)],
        "up_blocks" => &config.blocks[last - index_of(path)],
        _ => &config.blocks[last],
    }
}

/// The residual blocks' projections of the time embedding: diffusers applies SiLU in each of them.
fn projected(times: TimeProjectionLoader, inputs: &Inputs) -> Tensor {
    times.finish().unwrap().forward(&inputs.recorded("temb").silu()).unwrap()
}

/// The text, or a place-holder for blocks without cross-attention.
fn text(inputs: &Inputs, width: i64) -> Tensor {
    let none = || Tensor::zeros([1, 1, width], (inputs.kind, tch::Device::Cpu));
    inputs.find("encoder_hidden_states").unwrap_or_else(none)
}

/// A down block's outputs as diffusers returns them: the last, and the tuple of all.
fn down_outputs(last: Tensor, skips: Vec<Tensor>) -> Option<Outputs> {
    let mut outputs = vec![("out.0".to_string(), last)];
    let count = skips.len();
    for (index, skip) in skips.into_iter().enumerate() {
        outputs.push((if count == 1 { "out.1".to_string() } else { format!("out.1.{index}") }, skip));
    }
    Some(outputs)
}

fn run_layer(config: &UNetConfig, weights: &Weights, inputs: &Inputs) -> Option<Outputs> {
    let (path, kind) = (inputs.case.path.as_str(), inputs.kind);
    let (scope, block) = (weights.root().sub(path), block_of(config, path));
    let hidden = || inputs.tensor("hidden_states");
    match inputs.case.kind.as_str() {
        "Timesteps" => {
            let embedding = TimeEmbedding::new(&weights.root().sub("time_embedding"), config).unwrap();
            out(embedding.sinusoids(&inputs.recorded("timesteps")))
        }
        "TimestepEmbedding" => {
            let run = inputs.case.case.split('/').next().unwrap();
            let timesteps = inputs.elsewhere(&format!("{run}/whole/in/timesteps"));
            out(TimeEmbedding::new(&scope, config).unwrap().forward(&timesteps))
        }
        "ResnetBlock2D" => {
            let x = inputs.tensor("input_tensor");
            let shape = ResnetConfig {
                inputs: x.size()[1],
                outputs: inputs.output_shape("out")[1],
                groups: config.norm_groups,
                epsilon: config.norm_epsilon,
                output_scale: 1.0,
            };
            let mut times = TimeProjectionLoader::new(config.time_width());
            let block = ResnetBlock::with_time(&scope, shape, kind, &mut times).unwrap();
            out(block.forward(&x, Some(&projected(times, inputs))))
        }
        "Attention" => {
            let context = inputs.find("encoder_hidden_states");
            let width = context.as_ref().map(|context| context.size()[2]);
            let attention = CrossAttention::new(&scope, block.channels, block.heads, width, kind).unwrap();
            out(attention.forward(&hidden(), &context.unwrap_or_else(hidden)))
        }
        "FeedForward" => out(FeedForward::new(&scope, block.channels, kind).unwrap().forward(&hidden())),
        "BasicTransformerBlock" => {
            let layer = TransformerLayer::new(&scope, config, block, kind).unwrap();
            out(layer.forward(&hidden(), &inputs.tensor("encoder_hidden_states")))
        }
        "Transformer2DModel" => {
            let transformer = SpatialTransformer::new(&scope, config, block, kind).unwrap();
            out(transformer.forward(&hidden(), &inputs.tensor("encoder_hidden_states")))
        }
        "Downsample2D" => {
            let downsample =
                Downsample::new(&scope, block.channels, config.downsample_padding, kind).unwrap();
            out(downsample.forward(&hidden()))
        }
        "Upsample2D" => {
            let size = inputs.output_shape("out");
            let upsample = Upsample::new(&scope, block.channels, kind).unwrap();
            out(upsample.forward(&hidden(), (size[2], size[3])))
        }
        _ => None,
    }
}

fn run_block(config: &UNetConfig, weights: &Weights, inputs: &Inputs) -> Option<Outputs> {
    let (path, kind) = (inputs.case.path.as_str(), inputs.kind);
    let scope = weights.root().sub(path);
    let hidden = || inputs.tensor("hidden_states");
    let text = text(inputs, config.cross_attention_width);
    let mut times = TimeProjectionLoader::new(config.time_width());
    match inputs.case.kind.as_str() {
        "DownBlock2D" | "CrossAttnDownBlock2D" => {
            let block = DownBlock::new(&scope, config, index_of(path), kind, &mut times).unwrap();
            let mut skips = Vec::new();
            let last = block.forward(&hidden(), &projected(times, inputs), &text, &mut skips).unwrap();
            down_outputs(last, skips)
        }
        "UNetMidBlock2DCrossAttn" => {
            let block = MidBlock::new(&scope, config, kind, &mut times).unwrap();
            out(block.forward(&hidden(), &projected(times, inputs), &text))
        }
        "UpBlock2D" | "CrossAttnUpBlock2D" => {
            let block = UpBlock::new(&scope, config, index_of(path), kind, &mut times).unwrap();
            // Below the block's own skips lies one that only says which size to upsample to.
            let size = inputs.output_shape("out");
            let mut skips = vec![Tensor::zeros([1, 1, size[2], size[3]], (kind, tch::Device::Cpu))];
            skips.extend(inputs.tuple("res_hidden_states_tuple"));
            let last = block.forward(&hidden(), &projected(times, inputs), &text, &mut skips).unwrap();
            assert_eq!(skips.len(), 1, "the block takes as many skips as diffusers gives it: {path}");
            out(Ok(last))
        }
        "model" => {
            let unet = UNet::new(&weights.root(), config, kind).unwrap();
            let timesteps = inputs.recorded("timesteps");
            out(unet.forward(
                &inputs.recorded("sample"),
                &timesteps,
                &inputs.recorded("encoder_hidden_states"),
            ))
        }
        _ => None,
    }
}

fn check(name: &str) {
    let checkpoint: ModelFiles = open_checkpoint(name);
    let (config, weights) = (&checkpoint.unet, checkpoint.unet_weights().unwrap());
    let counts = check_cases(&format!("{name}-unet.safetensors"), |inputs| {
        run_layer(config, &weights, inputs).or_else(|| run_block(config, &weights, inputs))
    });
    let kinds = [
        "Timesteps",
        "TimestepEmbedding",
        "ResnetBlock2D",
        "Attention",
        "FeedForward",
        "BasicTransformerBlock",
        "Transformer2DModel",
        "Downsample2D",
        "Upsample2D",
        "DownBlock2D",
        "CrossAttnDownBlock2D",
        "UNetMidBlock2DCrossAttn",
        "UpBlock2D",
        "CrossAttnUpBlock2D",
        "model",
    ];
    assert_covers(&counts, &kinds);
}

#[test]
fn unet_of_sd_1_is_that_of_diffusers() {
    check(CHECKPOINTS[0]);
}

#[test]
fn unet_of_sd_2_is_that_of_diffusers() {
    check(CHECKPOINTS[1]);
}

/// Guidance has each sample denoised for two texts: what comes before the first look at a text is computed once.
#[test]
fn samples_that_several_texts_share_are_as_if_each_had_its_own() {
    let all = CHECKPOINTS
        .into_iter()
        .flat_map(|name| precisions().into_iter().map(move |precision| (name, precision)));
    for (name, precision) in all {
        let kind = if precision == Precision::Fp32 { Kind::Float } else { Kind::BFloat16 };
        let checkpoint: ModelFiles = open_checkpoint(name);
        let (config, weights) = (&checkpoint.unet, checkpoint.unet_weights().unwrap());
        let unet = UNet::new(&weights.root(), config, kind).unwrap();
        tch::manual_seed(14);
        let sample = Tensor::randn([2, config.in_channels, 8, 6], (Kind::Float, tch::Device::Cpu));
        let times = Tensor::from_slice(&[7i64, 900]);
        let text = Tensor::randn([4, 5, config.cross_attention_width], (Kind::Float, tch::Device::Cpu));
        let text = text.to_kind(kind);
        let shared = unet.forward(&sample, &times, &text).unwrap();
        let each = unet.forward(&sample.repeat([2, 1, 1, 1]), &times.repeat([2]), &text).unwrap();
        // In bf16 a product of more rows may be rounded otherwise.
        let allowed = if kind == Kind::Float { 1e-5 } else { 3e-2 };
        let error = ((&shared - &each).norm() / each.norm()).double_value(&[]);
        assert!(error <= allowed, "{name}, {kind:?}: {error:e}");
        let other = (shared.narrow(0, 0, 2) - shared.narrow(0, 2, 2)).norm().double_value(&[]);
        assert!(other > 0.0, "{name}, {kind:?}: both texts give the same");
        let wrong = unet.forward(&sample, &times, &text.narrow(0, 0, 3)).unwrap_err().to_string();
        assert!(wrong.contains("batch") && wrong.contains("a multiple of 2"), "{wrong}");
    }
}
