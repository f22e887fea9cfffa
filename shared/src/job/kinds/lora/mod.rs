//! LoRA: small matrices beside a model's layers are learned from pictures with captions (Hu et al. 2021).

mod check;
mod facts;
pub mod limits;

pub use facts::OPTIONS_WITHOUT_EFFECT;

use std::collections::BTreeMap;

use serde::ser::SerializeMap;

use super::{JobDraft, Kind, StoredSections, sections::Joined};
use crate::job::{
    CommonSpec,
    check::Check,
    pictures::{self, DataSpec, DenoiserSpec, PromptSpec, TrainSpec, concepts::ConceptSpec},
    reader::ForeignKeys,
    section::{Spec, section},
};

/// Steps after which the ranks compare what they have: it is too large for each step.
pub(super) const COMPARE_INTERVAL: u64 = 100;

/// What is learned, and from what.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraSpec {
    /// What is learned from.
    pub data: DataSpec,
    /// The rest of `[data]`.
    pub prompt: PromptSpec,
    /// How it is learned.
    pub train: TrainSpec,
    /// The rest of `[train]`.
    pub denoiser: DenoiserSpec,
    /// What of it is about the text encoder.
    pub text_encoder: TextEncoderSpec,
    /// What is learned. On the heap: works of other kinds are far smaller.
    pub lora: Box<AdapterSpec>,
    /// Words whose rows are learned beside it, each from pictures of its own (pivotal tuning); empty: none, and the pictures are
    /// those of `data`.
    pub concepts: Vec<ConceptSpec>,
}

section! {
    /// `[lora]`: which layers of the UNet get an adapter, and how large it is.
    AdapterSpec from draft: AdapterDraft, lora_keys {
        /// Rows of an adapter's first matrix, columns of its second. Default 4, as diffusers'.
        rank: u32 = integer.count(4, 1..=limits::RANK),
        /// What their product is multiplied by, times the rank. Default: `rank`.
        alpha: f64 = number.above_zero(f64::from(rank), limits::ALPHA),
        /// "attention": to_q, to_k, to_v and to_out.0 of each attention; "all": every linear layer and 1x1 convolution of the
        /// transformers, as kohya's scripts; or ends of layers' names, such as "attn2.to_v". Default attention.
        targets: Vec<String> = text_or_strings.targets(),
        /// As `rank`, of the 3x3 convolutions of residual blocks and changes of resolution; with it their other layers get an
        /// adapter too; 0: none does. Default 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        conv_rank: u32 = integer.count(0, 0..=limits::RANK),
        /// As `alpha`, of those convolutions. Default: `conv_rank`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conv_alpha: Option<f64> = number.conv_alpha(conv_rank),
        /// Other ranks, by parts of layers' names, such as "down_blocks.0" or "attn2.to_k"; the longest that fits counts.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        rank_pattern: BTreeMap<String, f64> = numbers.rank_pattern(),
        /// Other alphas, alike.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        alpha_pattern: BTreeMap<String, f64> = numbers.alpha_pattern(),
        /// Share of an adapted layer's input that its adapter does not see in a step. Default 0.
        #[serde(default, skip_serializing_if = "is_nothing")]
        dropout: f64 = number.share(0.0),
        /// Share of an adapter's rows that a sample goes without in a step. Default 0.
        #[serde(default, skip_serializing_if = "is_nothing")]
        rank_dropout: f64 = number.share(0.0),
        /// Lengths of the weights' rows are learned beside their directions (DoRA, Liu et al. 2024). Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        use_dora: bool = boolean.flag(false),
        /// A LoRA's file to go on from, as every worker sees it, or an uploaded one, `artifact://sha256/HEX#NAME`. Default none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        initializer_lora: String = string.initializer_lora(),
    }
}

section! {
    /// What of `[train]` is about the text encoder, which is frozen by default.
    TextEncoderSpec from draft: TextEncoderDraft, text_encoder_keys {
        /// Adapters stand beside the text encoder's layers too: of its attention, with targets "all" of its MLP too. Default
        /// false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        train_text_encoder: bool = boolean.flag(false),
        /// Their rate, before `scale_lr` and the schedule. Default: `learning_rate`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text_encoder_learning_rate: Option<f64> = number.rate_if_given(),
        /// That of the rows that `[[concepts]]` learn, alike. Default: `learning_rate`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        embedding_learning_rate: Option<f64> = number.rate_if_given(),
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_nothing(share: &f64) -> bool {
    *share == 0.0
}

impl LoraSpec {
    /// The prompts that pictures' captions stand in; none, where all pictures have the same prompt. Those of `[[concepts]]` have
    /// theirs.
    pub fn templates(&self) -> Vec<String> {
        pictures::caption_templates(&self.prompt, &self.train)
    }
}

impl Kind for LoraSpec {
    const PARTS: &'static [&'static str] =
        &["data", "prompt", "train", "denoiser", "text_encoder", "lora", "concepts"];
    const FOREIGN_KEYS: ForeignKeys = pictures::FOREIGN_KEYS;

    fn checked(draft: JobDraft, check: &mut Check, common: &CommonSpec) -> Self {
        check::checked(draft, check, common)
    }

    fn fill(&self, draft: &mut JobDraft) {
        draft.data = self.data.draft();
        draft.prompt = self.prompt.draft();
        draft.train = self.train.to_draft();
        draft.denoiser = self.denoiser.draft();
        draft.text_encoder = self.text_encoder.draft();
        draft.lora = self.lora.draft();
        draft.concepts = self.concepts.iter().map(Spec::draft).collect();
    }

    fn write<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
        let joined = Joined { own: &self.prompt, shared: &self.data };
        if !self.data.is_unused() || self.prompt != PromptSpec::default() {
            sections.serialize_entry("data", &joined)?;
        }
        let own = Joined { own: &self.text_encoder, shared: &self.denoiser };
        sections.serialize_entry("train", &Joined { own, shared: &self.train })?;
        sections.serialize_entry("lora", &self.lora)
    }

    fn write_tables<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
        match self.concepts.is_empty() {
            true => Ok(()),
            false => sections.serialize_entry("concepts", &self.concepts),
        }
    }

    fn read(sections: &mut StoredSections) -> Result<Self, serde_json::Error> {
        let Joined { own: prompt, shared: data } = sections.take_or_default("data")?;
        let Joined { own: Joined { own: text_encoder, shared: denoiser }, shared: train } =
            sections.take("train")?;
        Ok(Self {
            data,
            prompt,
            train,
            denoiser,
            text_encoder,
            lora: sections.take("lora")?,
            concepts: sections.take_or_default("concepts")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::pictures::CAPTION;
    use crate::job::{JobKind, JobSpec, STORED_VERSION, Work, parse_job_toml};

    const JOB: &str = "kind = \"lora\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n";

    fn lora(text: &str) -> LoraSpec {
        match parse_job_toml(text).unwrap().work {
            Work::Lora(lora) => lora,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_has_diffusers_defaults_and_is_written_as_it_is_read() {
        let mut spec = parse_job_toml(JOB).unwrap();
        assert_eq!((spec.kind(), spec.common.name.as_str()), (JobKind::Lora, "lora"));
        assert!(spec.needs_image_count());
        // 100 passes of 33 pictures, 16 in a batch.
        spec.count_steps(33).unwrap();
        assert_eq!(spec.total_steps(), 300);
        let own = lora(JOB);
        assert_eq!(
            (own.lora.rank, own.lora.alpha, &own.lora.targets[..]),
            (4, 4.0, &["attention".to_owned()][..])
        );
        assert_eq!(
            (own.train.max_grad_norm, own.train.train_batch_size, own.templates()),
            (1.0, 16, vec![CAPTION.to_owned()])
        );
        let full = format!(
            "{JOB}instance_prompt = \"a toy\"\n[train]\nmax_train_steps = 5\ntrain_text_encoder = true\n\
             text_encoder_learning_rate = 1e-5\nuse_ema = true\nema_decay = 0.99\nema_update_after_step = 3\n\
             input_perturbation = 0.1\nrandom_flip = true\n[lora]\nrank = 8\nalpha = 0.5\n\
             targets = [\"attn2.to_v\", \"proj_in\"]\nconv_rank = 3\nconv_alpha = 1.5\ndropout = 0.1\nrank_dropout = 0.25\n\
             rank_pattern = {{ \"down_blocks.0\" = 2 }}\nalpha_pattern = {{ mid_block = 0.5 }}\n\
             initializer_lora = \"/l/toy.safetensors\"\n"
        );
        let spec = parse_job_toml(&full).unwrap();
        let text = spec.to_toml().unwrap();
        assert_eq!(parse_job_toml(&text).unwrap(), spec);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
        assert!(lora(&full).templates().is_empty());
        assert_eq!(lora(&format!("{JOB}[lora]\ntargets = \"all\"\n")).lora.targets, ["all"]);
        assert_eq!(
            lora(&format!("{JOB}[train]\ntemplates = [\"[caption], art\"]\n")).templates(),
            ["[caption], art"]
        );
    }

    #[test]
    fn captions_decide_what_is_read_beside_the_pictures() {
        let captions = |text: &str| parse_job_toml(text).unwrap().image_uses()[0].captions.clone();
        assert_eq!(captions(&format!("{JOB}caption_column = \"words\"\n")).as_deref(), Some("words"));
        assert_eq!(captions(&format!("{JOB}instance_prompt = \"a toy\"\n")), None);
    }

    const WORDS: &str = "kind = \"lora\"\n[model]\nbase = \"/m\"\n[[concepts]]\nplaceholder_token = \"<a>\"\n\
                         initializer_token = \"toy\"\nimages = \"/i\"\n";

    #[test]
    fn words_are_learned_beside_and_have_pictures_of_their_own() {
        let text = WORDS.replace(
            "[[concepts]]",
            "[data]\nclass_images = \"/c\"\nclass_prompt = \"a toy\"\n[train]\nmax_train_steps = 5\n\
             embedding_learning_rate = 1e-3\n[[concepts]]",
        );
        let mut spec = parse_job_toml(&text).unwrap();
        let written = spec.to_toml().unwrap();
        assert_eq!(parse_job_toml(&written).unwrap(), spec);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
        assert_eq!(spec.learned_tokens(), ["<a>"]);
        let uses: Vec<(u32, Option<u32>)> =
            spec.image_uses().iter().map(|used| (used.repeats, used.drawn)).collect();
        assert_eq!(uses, [(1, None), (0, Some(100))]);
        let fields: Vec<String> = spec.image_sources().into_iter().map(|(field, _)| field).collect();
        assert_eq!(fields, ["concepts[0].images", "data.class_images"]);
        for (wrong, field) in [
            ("[data]\nimages = \"/i\"\n", "data.images"),
            ("[data]\nmasks = \"/i\"\n", "data.masks"),
            ("[data]\nalpha_mask = true\n", "data.alpha_mask"),
            ("[data]\ninstance_prompt = \"a\"\n", "data.instance_prompt"),
            ("[train]\nnum_vectors = 2\n", "train.num_vectors"),
        ] {
            let error =
                parse_job_toml(&WORDS.replace("[[concepts]]", &format!("{wrong}[[concepts]]"))).unwrap_err();
            assert!(error.violations.iter().any(|one| one.field == field), "{field}: {error}");
        }
    }

    #[test]
    fn wrong_values_and_foreign_sections_are_named() {
        for (options, field) in [
            ("[lora]\nrank = 0", "lora.rank"),
            ("[lora]\nrank = 1025", "lora.rank"),
            ("[lora]\nalpha = 0", "lora.alpha"),
            ("[lora]\nalpha = nan", "lora.alpha"),
            ("[lora]\ntargets = []", "lora.targets"),
            ("[lora]\ntargets = [\"\"]", "lora.targets[0]"),
            ("[lora]\ntargets = [\"all\", \"to_q\"]", "lora.targets"),
            ("[lora]\ntargets = [\"to q\"]", "lora.targets[0]"),
            ("[lora]\ntargets = 3", "lora.targets"),
            ("[lora]\nconv_rank = -1", "lora.conv_rank"),
            ("[lora]\nconv_alpha = 1", "lora.conv_alpha"),
            ("[lora]\nconv_rank = 1\nconv_alpha = 0", "lora.conv_alpha"),
            ("[lora]\nrank_pattern = 3", "lora.rank_pattern"),
            ("[lora]\nrank_pattern = { mid_block = 1.5 }", "lora.rank_pattern.mid_block"),
            ("[lora]\nrank_pattern = { \"a b\" = 1 }", "lora.rank_pattern.a b"),
            ("[lora]\nalpha_pattern = { mid_block = 0 }", "lora.alpha_pattern.mid_block"),
            ("[lora]\ndropout = 1", "lora.dropout"),
            ("[lora]\nrank_dropout = -0.1", "lora.rank_dropout"),
            ("[lora]\nuse_dora = true\nconv_rank = 1", "lora.use_dora"),
            ("[lora]\nuse_dora = true\ndropout = 0.1", "lora.dropout"),
            ("[lora]\ninitializer_lora = \"s3://b/k\"", "lora.initializer_lora"),
            ("[train]\ntext_encoder_learning_rate = 1e-4", "train.text_encoder_learning_rate"),
            (
                "[train]\ntrain_text_encoder = true\ntext_encoder_learning_rate = -1",
                "train.text_encoder_learning_rate",
            ),
            ("[train]\nema_decay = 0.5", "train.ema_decay"),
            ("[train]\nuse_ema = true\nema_decay = 1.5", "train.ema_decay"),
            ("[train]\ninput_perturbation = -1", "train.input_perturbation"),
            ("instance_prompt = \"a\"\n[train]\ntemplates = [\"[caption]\"]", "train.templates"),
            ("[train]\ntemplates = [\"a {}\"]", "train.templates[0]"),
            ("instance_prompt = \"a\"\n[train]\ncaption_dropout = 0.1", "train.caption_dropout"),
            ("instance_prompt = \"a\"\ncaption_column = \"words\"", "data.caption_column"),
            ("[train]\nsave_as_full_pipeline = true", "train.save_as_full_pipeline"),
            ("[train]\nplaceholder_token = \"<a>\"", "train.placeholder_token"),
            ("class_images = \"/c\"", "data.class_prompt"),
            ("class_prompt = \"a thing\"", "data.class_images"),
            ("class_images = \"s3://b/k\"\nclass_prompt = \"a thing\"", "data.class_images"),
            ("[train]\nprior_loss_weight = 0.5", "train.prior_loss_weight"),
            ("[train]\nnum_class_images = 5", "train.num_class_images"),
            (
                "class_images = \"/c\"\nclass_prompt = \"a thing\"\n[train]\nnum_class_images = 1001",
                "train.num_class_images",
            ),
            (
                "class_images = \"/c\"\nclass_prompt = \"a thing\"\n[train]\nprior_loss_weight = -1",
                "train.prior_loss_weight",
            ),
            (
                "class_images = \"/c\"\nclass_prompt = \"a thing\"\n[train]\nenable_bucket = true",
                "train.enable_bucket",
            ),
            ("masks = \"/m\"\nalpha_mask = true", "data.alpha_mask"),
            ("masks = \"s3://b/k\"", "data.masks"),
            ("[train]\nembedding_learning_rate = 1e-4", "train.embedding_learning_rate"),
            ("[gpt2]\nseed = 1", "gpt2"),
        ] {
            let error = parse_job_toml(&format!("{JOB}{options}\n")).unwrap_err();
            let fields: Vec<&str> = error.violations.iter().map(|one| one.field.as_str()).collect();
            assert_eq!(fields, [field], "{error}");
        }
        // A caption may be left out: nothing is learned of a word.
        parse_job_toml(&format!("{JOB}[train]\ncaption_dropout = 0.1\nshuffle_tags = true\n")).unwrap();
    }
}
