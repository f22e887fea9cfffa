//! UNet finetuning: the weights of a model's UNet themselves are trained on pictures with captions.
//!
//! The options have the names and defaults of diffusers' `train_text_to_image.py` where it has them.

mod check;
mod facts;
pub mod limits;
#[cfg(test)]
mod tests;

pub use facts::options_without_effect;

use serde::ser::SerializeMap;

use super::{JobDraft, Kind, StoredSections, sections::Joined};
use crate::job::{
    CommonSpec, SumOrder,
    check::Check,
    choices::choice,
    pictures::{self, DataSpec, DenoiserSpec, PromptSpec, TrainSpec},
    reader::ForeignKeys,
    section::{Spec, section},
};

/// Steps after which the ranks compare what they have: it is too large for each step.
const COMPARE_INTERVAL: u64 = 100;

/// What is learned, and from what.
#[derive(Debug, Clone, PartialEq)]
pub struct UnetFinetuneSpec {
    /// What is learned from.
    pub data: DataSpec,
    /// The rest of `[data]`.
    pub prompt: PromptSpec,
    /// How it is learned.
    pub train: TrainSpec,
    /// What of it is about the network.
    pub denoiser: DenoiserSpec,
    /// What of it is about all of the network's weights.
    pub unet: UnetSpec,
}

choice! {
    /// What the UNet's weights are before the first step.
    UnetInit {
        /// Those of `model.base`.
        Checkpoint = "checkpoint",
        /// Drawn by `seed`, as torch.nn draws them; of `model.base` the UNet's shape alone counts.
        Scratch = "scratch",
    }
}

choice! {
    /// Where the optimizer's moments and the average are.
    Offload {
        /// In memory.
        None = "none",
        /// In mapped files of the worker's state folder.
        Disk = "disk",
    }
}

choice! {
    /// How attention is computed.
    AttentionChoice {
        /// In tiles: never all of its weights at once. The least memory and time.
        Fused = "fused",
        /// All heads' weights at once, as matrices.
        Plain = "plain",
        /// The same, of one head of one sample after the other.
        Sliced = "sliced",
    }
}

section! {
    /// What of `[train]` is about a UNet whose own weights are trained.
    UnetSpec from draft: UnetDraft, unet_keys {
        /// "all"; "cross_attention": of the layers that see the prompt (attn2); or parts of parameters' names, such as "attn2.to_k" or
        /// "up_blocks.1". Default all.
        trainable: Vec<String> = text_or_strings.trainable(),
        /// Where the weights come from. Default checkpoint.
        init_from: UnetInit = string.choice(UnetInit::Checkpoint),
        /// Of a pass only what is between the network's segments is kept, and the rest computed again for the gradient: less memory,
        /// about a third more time, the same bits. Default false.
        gradient_checkpointing: bool = boolean.flag(false),
        /// How attention is computed; plain and sliced are there to compare with. Default fused.
        attention: AttentionChoice = string.choice(AttentionChoice::Fused),
        /// Where the optimizer's moments and the average are. Default none. It decides no bit.
        offload: Offload = string.choice(Offload::None),
        /// In which order gradients are added up. Default exact; fast costs less, and its bits are those of one number of ranks; with
        /// local the ranks exchange once in `local_steps` steps.
        exchange: SumOrder = string.choice(SumOrder::Exact),
        /// Whether the ranks have AdamW's moments together, each those of two parts. Default false: each has all. It decides no bit.
        shard_optimizer: bool = boolean.flag(false),
        /// With `exchange = "local"`: steps that each microbatch's replica takes by itself; together they are one step of the job.
        /// Default 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        local_steps: Option<u32> = integer.local_steps(exchange),
        /// The rate by which the mean of the replicas' movements moves the weights. Default 0.7, as in DiLoCo.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outer_learning_rate: Option<f64> = number.outer_learning_rate(exchange),
        /// How much of the movements before counts (Nesterov's momentum). Default 0.9, as in DiLoCo.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outer_momentum: Option<f64> = number.outer_momentum(exchange),
    }
}

impl UnetFinetuneSpec {
    /// The prompts that pictures' captions stand in; none, where all pictures have the same prompt.
    pub fn templates(&self) -> Vec<String> {
        pictures::caption_templates(&self.prompt, &self.train)
    }
}

impl Kind for UnetFinetuneSpec {
    const PARTS: &'static [&'static str] = &["data", "prompt", "train", "denoiser", "unet"];
    const FOREIGN_KEYS: ForeignKeys = pictures::FOREIGN_KEYS;

    fn checked(draft: JobDraft, check: &mut Check, common: &CommonSpec) -> Self {
        check::checked(draft, check, common)
    }

    fn fill(&self, draft: &mut JobDraft) {
        draft.data = self.data.draft();
        draft.prompt = self.prompt.draft();
        draft.train = self.train.to_draft();
        draft.denoiser = self.denoiser.draft();
        draft.unet = self.unet.draft();
    }

    fn write<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
        sections.serialize_entry("data", &Joined { own: &self.prompt, shared: &self.data })?;
        let own = Joined { own: &self.unet, shared: &self.denoiser };
        sections.serialize_entry("train", &Joined { own, shared: &self.train })
    }

    fn read(sections: &mut StoredSections) -> Result<Self, serde_json::Error> {
        let Joined { own: prompt, shared: data } = sections.take("data")?;
        let Joined { own: Joined { own: unet, shared: denoiser }, shared: train } = sections.take("train")?;
        Ok(Self { data, prompt, train, denoiser, unet })
    }
}
