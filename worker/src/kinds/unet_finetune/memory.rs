//! What training a UNet takes of a machine's memory: a pure function of the job and of the UNet's tensors.

use ringtune_shared::job::{
    ClusterSpec,
    kinds::unet_finetune::{AttentionChoice, Offload, UnetFinetuneSpec},
};

use super::trainable::trainable;
use crate::{
    engine::{Precision, UnetTensor},
    fault::Refusal,
    parameters::{
        Exchange,
        memory::{Training, gigabytes, sums_at_once},
    },
};

/// Pixels of a side that one of the latents' stands for, in all of Stable Diffusion.
const VAE_FACTOR: u64 = 8;
/// The text encoder's weights as they are computed with, the VAE's while it encodes, libtorch and the rest of the process.
const PROCESS_BYTES: u64 = 600 << 20;
/// Tensors of the largest layer's size that its backward pass works in.
const BACKWARD_TENSORS: u64 = 6;

/// The machine, and what the job makes of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine<'a> {
    pub(super) cluster: &'a ClusterSpec,
    /// Of the ring.
    pub(super) ranks: u32,
    pub(super) precision: Precision,
    /// Bytes; 0: the system does not say how many.
    pub(super) memory: u64,
}

/// Bytes of memory that no file backs that a rank needs.
///
/// # Errors
/// `train.trainable` names no parameter.
pub(super) fn needed(
    job: &UnetFinetuneSpec,
    tensors: &[UnetTensor],
    machine: Machine<'_>,
) -> Result<u64, Refusal> {
    let Machine { cluster, ranks, precision, .. } = machine;
    let trained = trainable(&job.unet.trainable, tensors)?;
    let count = |tensors: &mut dyn Iterator<Item = &UnetTensor>| -> u128 {
        tensors.map(|tensor| tensor.elements() as u128).sum()
    };
    let all = count(&mut tensors.iter());
    // The names are in the tensors' order.
    let mut names = trained.iter().peekable();
    let parameters = count(&mut tensors.iter().filter(|tensor| names.next_if_eq(&&tensor.name).is_some()));
    let microbatches = cluster.world_size.div_ceil(ranks.max(1)) * job.train.gradient_accumulation_steps;
    let training = Training {
        ranks,
        shared_moments: job.unet.shard_optimizer,
        average: job.denoiser.use_ema,
        rounds: job.unet.local_steps.is_some(),
        in_files: job.unet.offload == Offload::Disk,
        gradients: match Exchange::from(job.unet.exchange) {
            Exchange::Exact => sums_at_once(microbatches),
            Exchange::Fast(_) => 1,
        },
        // In bf16 layers multiply by two packings, one for each way; in fp32 by the parameters themselves.
        copies: if precision == Precision::Bf16 { 4 } else { 0 },
    };
    // Frozen layers are packed too, or mapped.
    let frozen = if precision == Precision::Bf16 { 4 * (all - parameters) } else { 0 };
    let passes = u128::from(passes(job, tensors, precision));
    let bytes = training.bytes(parameters) + frozen + passes + u128::from(PROCESS_BYTES);
    Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// Makes a job need less; false: it does so already.
type Change = fn(&mut UnetFinetuneSpec) -> bool;

/// What is said of a job that has no room, with what would make it fit.
///
/// # Errors
/// See [`needed`].
pub(super) fn too_large(
    job: &UnetFinetuneSpec,
    tensors: &[UnetTensor],
    machine: Machine<'_>,
) -> Result<Option<TooLarge>, Refusal> {
    let bytes = needed(job, tensors, machine)?;
    if machine.memory == 0 || bytes <= machine.memory {
        return Ok(None);
    }
    // 1. What is done first costs least.
    let mut less = job.clone();
    let (mut said, mut fits) = (Vec::new(), false);
    let changes: [(&str, Change); 4] = [
        ("train.gradient_checkpointing = true", |job| {
            !std::mem::replace(&mut job.unet.gradient_checkpointing, true)
        }),
        ("train.train_batch_size = 1 with more train.gradient_accumulation_steps", |job| {
            std::mem::replace(&mut job.train.train_batch_size, 1) > 1
        }),
        ("train.offload = \"disk\"", |job| {
            std::mem::replace(&mut job.unet.offload, Offload::Disk) != Offload::Disk
        }),
        ("train.trainable = \"cross_attention\"", |job| {
            std::mem::replace(&mut job.unet.trainable, vec!["cross_attention".to_owned()]) == ["all"]
        }),
    ];
    for (option, change) in changes {
        if !fits && change(&mut less) {
            said.push(option);
            fits = needed(&less, tensors, machine)? <= machine.memory;
        }
    }
    // 2. Nothing is said that would not do.
    let instead = match fits {
        true => format!("it would fit with {}, or on workers with more memory", said.join(" and ")),
        false => "take a smaller model, or workers with more memory".to_owned(),
    };
    let [needed, memory] = [bytes, machine.memory].map(|bytes| gigabytes(bytes.into()));
    Ok(Some(TooLarge { needed, memory, instead }))
}

/// Another machine may have the room.
#[derive(Debug, thiserror::Error)]
#[error(
    "training this UNet needs about {needed:.1} GB of memory on each worker; this one has {memory:.1} GB: {instead}"
)]
pub(super) struct TooLarge {
    needed: f64,
    memory: f64,
    instead: String,
}

/// Bytes that a microbatch's passes keep at once, or encoding a picture, whichever are more.
fn passes(job: &UnetFinetuneSpec, tensors: &[UnetTensor], precision: Precision) -> u64 {
    let bytes = if precision == Precision::Bf16 { 2 } else { 4 };
    let class = u64::from(!job.prompt.class_images.is_empty());
    let (batch, side) =
        (u64::from(job.train.train_batch_size) * (1 + class), u64::from(job.train.resolution));
    let layers = Layers::of(tensors, side / VAE_FACTOR, job.unet.attention != AttentionChoice::Fused);
    let numbers = match job.unet.gradient_checkpointing {
        false => layers.all,
        true => layers.all.min(layers.between + layers.largest_segment),
    };
    // 128 channels of a picture's size, a few times.
    let vae = 4 * 128 * side * side;
    bytes * (batch * (numbers + BACKWARD_TENSORS * layers.largest_tensor)).max(vae)
}

/// Numbers that a pass keeps for the way back, of one sample.
#[derive(Clone, Copy, Debug, Default)]
struct Layers {
    all: u64,
    /// What lies between segments.
    between: u64,
    largest_segment: u64,
    largest_tensor: u64,
}

impl Layers {
    /// Each layer keeps its input, attention what it mixes too, and with `weights` those of all heads.
    fn of(tensors: &[UnetTensor], latent_side: u64, weights: bool) -> Self {
        let blocks =
            1 + tensors.iter().filter_map(|tensor| block(&tensor.name, "down_blocks.")).max().unwrap_or(0);
        let mut found = Self::default();
        let (mut segment, mut of_segment) = (String::new(), 0);
        for UnetTensor { name, shape } in tensors {
            let Some(layer) = name.strip_suffix(".weight") else { continue };
            let level = match (block(name, "down_blocks."), block(name, "up_blocks.")) {
                (Some(down), _) => down,
                // A step up has its convolution behind it.
                (_, Some(up)) => (blocks - 1 - up).saturating_sub(u32::from(name.contains(".upsamplers."))),
                _ if name.starts_with("mid_block.") => blocks - 1,
                _ => 0,
            };
            let side = latent_side.div_ceil(1 << level.min(16));
            let positions = side * side;
            let sides = |number: usize| shape.get(number).copied().unwrap_or(0) as u64;
            let (outputs, inputs) = (sides(0), sides(1));
            let is_own = name.contains(".attn1.");
            let width = match layer.rsplit('.').next().unwrap_or_default() {
                _ if layer.starts_with("time_embedding.") || layer.ends_with(".time_emb_proj") => 0,
                // A block's input is its first norm's too.
                "conv_shortcut" => 0,
                // What is mixed: queries, keys and values.
                "to_q" => inputs + if is_own { 3 * outputs } else { outputs },
                "to_k" | "to_v" => 0,
                // What is gated.
                "proj" => inputs + outputs,
                _ if inputs == 0 => outputs,
                _ => inputs,
            };
            let mut numbers = width * positions;
            if weights && layer.ends_with(".attn1.to_q") {
                // Of all heads of 64 numbers, in fp32 and as they are multiplied by.
                numbers += 3 * (outputs / 64).max(1) * positions * positions;
            }
            let own = segment_of(name);
            if own != segment {
                found.between += if inputs == 0 { outputs } else { inputs } * positions;
                (segment, of_segment) = (own, 0);
            }
            of_segment += numbers;
            found.all += numbers;
            found.largest_segment = found.largest_segment.max(of_segment);
            found.largest_tensor = found.largest_tensor.max(inputs.max(outputs) * positions);
        }
        found
    }
}

/// N of "PREFIXN.…".
fn block(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.split('.').next()?.parse().ok()
}

/// What is computed again together: a block's N-th layers, or all of the middle.
fn segment_of(name: &str) -> String {
    match name.split('.').collect::<Vec<_>>()[..] {
        ["mid_block", ..] => "mid_block".to_owned(),
        [way, block, kind, layer, ..] if kind == "resnets" || kind == "attentions" => {
            format!("{way}.{block}.{layer}")
        }
        [way, block, kind, ..] => format!("{way}.{block}.{kind}"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::{Work, parse_job_toml};

    use super::*;

    /// What counts of the UNet of Stable Diffusion 1, in its order: 4 blocks.
    fn tensors() -> Vec<UnetTensor> {
        let tensor =
            |name: &str, shape: &[usize]| UnetTensor { name: name.to_owned(), shape: shape.to_vec() };
        vec![
            tensor("conv_in.weight", &[320, 4, 3, 3]),
            tensor("down_blocks.0.resnets.0.norm1.weight", &[320]),
            tensor("down_blocks.0.resnets.0.conv1.weight", &[320, 320, 3, 3]),
            tensor("down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight", &[320, 320]),
            tensor("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight", &[320, 768]),
            tensor("down_blocks.0.attentions.0.transformer_blocks.0.ff.net.0.proj.weight", &[2560, 320]),
            tensor("down_blocks.3.resnets.0.conv1.weight", &[1280, 1280, 3, 3]),
            tensor("mid_block.resnets.0.conv1.weight", &[1280, 1280, 3, 3]),
            tensor("up_blocks.0.upsamplers.0.conv.weight", &[1280, 1280, 3, 3]),
            tensor("up_blocks.3.attentions.0.transformer_blocks.0.ff.net.0.proj.weight", &[2560, 320]),
        ]
    }

    fn job(options: &str) -> UnetFinetuneSpec {
        let text = format!(
            "kind = \"unet_finetune\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n[train]\ntrain_batch_size = 64\n{options}\n"
        );
        match parse_job_toml(&text).unwrap().work {
            Work::UnetFinetune(job) => job,
            other => panic!("{other:?}"),
        }
    }

    fn cluster() -> ClusterSpec {
        parse_job_toml("kind = \"unet_finetune\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n")
            .unwrap()
            .common
            .cluster
    }

    #[test]
    fn what_saves_memory_saves_it_and_what_takes_some_takes_it() {
        let (tensors, cluster) = (tensors(), cluster());
        let of = |options: &str, precision, ranks| {
            let machine = Machine { cluster: &cluster, ranks, precision, memory: 0 };
            needed(&job(options), &tensors, machine).unwrap()
        };
        let plain = of("", Precision::Bf16, 1);
        let count: u64 = tensors.iter().map(|tensor| tensor.elements() as u64).sum();
        // Parameters, gradients, moments and two packings, beside passes.
        assert!(plain > 20 * count && plain < 20 * count + (16 << 30), "{plain} of {count}");
        for (options, more) in [
            ("use_ema = true", true),
            ("gradient_accumulation_steps = 4", true),
            ("attention = \"plain\"", true),
            ("resolution = 1024", true),
            ("gradient_checkpointing = true", false),
            ("offload = \"disk\"", false),
            ("trainable = \"cross_attention\"", false),
        ] {
            let other = of(options, Precision::Bf16, 1);
            assert!(if more { other > plain } else { other < plain }, "{options}: {other}, not {plain}");
        }
        let shared = of("shard_optimizer = true", Precision::Bf16, 4);
        assert_eq!(plain - shared, 4 * count, "half of the moments");
    }

    #[test]
    fn a_job_without_room_is_told_what_would_make_it_fit() {
        let (tensors, cluster) = (tensors(), cluster());
        let said = |memory: u64, options: &str| {
            let machine = Machine { cluster: &cluster, ranks: 1, precision: Precision::Bf16, memory };
            too_large(&job(options), &tensors, machine).unwrap().map(|error| error.to_string())
        };
        assert_eq!((said(0, ""), said(64 << 30, "")), (None, None));
        let small = said(500_000_000, "use_ema = true").unwrap();
        assert!(small.contains("this one has 0.5 GB: take a smaller model"), "{small}");
        let machine = Machine { cluster: &cluster, ranks: 1, precision: Precision::Bf16, memory: 0 };
        let whole = needed(&job("use_ema = true"), &tensors, machine).unwrap();
        let near = said(whole - (64 << 20), "use_ema = true").unwrap();
        assert!(near.contains("it would fit with train.gradient_checkpointing = true, or"), "{near}");
        let state = Training { average: true, in_files: true, copies: 4, ..Training::LEAST };
        let parameters: u128 = tensors.iter().map(|tensor| tensor.elements() as u128).sum();
        let least = state.bytes(parameters) as u64 + PROCESS_BYTES + (500 << 20);
        let half = said(least, "use_ema = true").unwrap();
        assert!(half.contains("and train.offload = \"disk\""), "{half}");
    }

    #[test]
    fn layers_are_found_by_their_names() {
        let (plain, weights) = (Layers::of(&tensors(), 64, false), Layers::of(&tensors(), 64, true));
        assert!(weights.all > plain.all && weights.between == plain.between);
        // 1280 channels of 8 x 8 positions on the deepest level, of 16 x 16 behind the first step up.
        let deepest = 1280 * 64;
        let of = |name: &str, shape: &[usize]| {
            Layers::of(
                &[tensors()[6].clone(), UnetTensor { name: name.to_owned(), shape: shape.to_vec() }],
                64,
                false,
            )
            .all - deepest
        };
        assert_eq!(of("mid_block.resnets.1.conv1.weight", &[1280, 1280, 3, 3]), deepest);
        assert_eq!(of("up_blocks.0.upsamplers.0.conv.weight", &[1280, 1280, 3, 3]), 4 * deepest);
        assert_eq!(of("up_blocks.3.resnets.0.norm1.weight", &[640]), 640 * 4096);
        assert_eq!(of("time_embedding.linear_1.weight", &[1280, 320]), 0);
    }
}
