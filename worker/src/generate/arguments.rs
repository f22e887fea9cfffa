//! The command line of `generate`.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};

use super::PictureOptions;
use crate::engine::{PredictionType, SamplerKind};

/// Pictures from a model, with learned embeddings.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  One picture, with a learned token:
    ringtune generate --model ./sd15 --embeds out/learned_embeds.safetensors \\
      --prompt 'a photo of a <dicoo> on the beach' -o beach.png
  With a LoRA, at four fifths of its strength:
    ringtune generate --model ./sd15 --lora out/pytorch_lora_weights.safetensors:0.8 \\
      --prompt 'a toy on the beach' -o toy.png
  A sheet: the training pictures, then eight samples of each prompt:
    ringtune generate --model ./sd15 --embeds out/learned_embeds.safetensors --count 8 \\
      --training-images ./dicoo --prompt 'a photo of a toy' \\
      --prompt 'a photo of a <dicoo>' --sheet -o sheet.png")]
pub struct GenerateArguments {
    /// Model: a folder in diffusers layout, one .safetensors file in the original layout, hf://ORG/NAME@REVISION
    /// or s3://BUCKET/PREFIX
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// Branch, tag or commit of an hf:// model [default: main]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "REVISION")]
    pub revision: String,
    /// Weights of this variant, such as fp16 of model.fp16.safetensors
    #[arg(long, default_value = "", hide_default_value = true, value_name = "NAME")]
    pub variant: String,
    /// Folder with the tokenizer [default: `tokenizer` in the model's folder, or beside its file]
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// What the model predicts: epsilon or v_prediction [default: what it says, or is known of its kind]
    #[arg(long, value_name = "TYPE", value_parser = prediction_by_name())]
    pub prediction_type: Option<PredictionType>,
    /// learned_embeds.safetensors of a job, or an emb_params file; may be given several times
    #[arg(long, value_name = "FILE")]
    pub embeds: Vec<PathBuf>,
    /// Word of the first --embeds, then of the second, …; "" for what the file says [default: what each file says, or its
    /// name]
    #[arg(long, requires = "embeds", value_name = "WORD")]
    pub token: Vec<String>,
    /// A LoRA's .safetensors file, in diffusers', PEFT's or kohya's form, and how strongly it counts [default: 1]; may be given
    /// several times
    #[arg(long, value_name = "FILE[:WEIGHT]")]
    pub lora: Vec<String>,
    /// What to draw; may be given several times
    #[arg(long, required = true, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// What not to draw
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub negative_prompt: String,
    /// How to get from noise to a picture [default: the model's own scheduler]
    #[arg(long, value_name = "NAME", value_parser = sampler_by_name())]
    pub scheduler: Option<SamplerKind>,
    /// Denoising steps
    #[arg(long, default_value_t = 25, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub steps: u32,
    /// Guidance scale; 1 or less turns guidance off
    #[arg(long, default_value_t = 7.5, allow_negative_numbers = true)]
    pub guidance: f64,
    /// Seed of the first noise: the same seed gives the same picture
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub seed: u64,
    /// Pictures of each prompt
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: u32,
    /// Pictures that are drawn at once; more are faster, need more memory, and may differ in their last bits
    #[arg(long, default_value_t = 1, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub batch: u32,
    /// Width and height in pixels [default: what the model was made for]
    #[arg(long, value_name = "PIXELS", conflicts_with_all = ["width", "height"], value_parser = side())]
    pub size: Option<u32>,
    /// Width in pixels [default: what the model was made for]
    #[arg(long, value_name = "PIXELS", value_parser = side())]
    pub width: Option<u32>,
    /// Height in pixels [default: what the model was made for]
    #[arg(long, value_name = "PIXELS", value_parser = side())]
    pub height: Option<u32>,
    /// bf16, or no for fp32 [default: bf16 where the CPU has it]
    #[arg(long, value_name = "PRECISION", value_parser = ["bf16", "no"])]
    pub mixed_precision: Option<String>,
    /// Compute threads [default: all cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// One picture holding all, a row a prompt
    #[arg(long)]
    pub sheet: bool,
    /// With --sheet: a first row with the pictures of this folder
    #[arg(long, requires = "sheet", value_name = "DIR")]
    pub training_images: Option<PathBuf>,
    /// A .png file (one picture, or a sheet), or a folder for several
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
}

fn side() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=4096)
}

impl GenerateArguments {
    /// The options that decide the pictures.
    pub(super) fn pictures(&self) -> PictureOptions {
        PictureOptions {
            prompts: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            scheduler: self.scheduler,
            steps: self.steps,
            guidance: self.guidance,
            seed: self.seed,
            count: self.count,
            batch: self.batch,
            width: self.width.or(self.size),
            height: self.height.or(self.size),
        }
    }
}

fn prediction_by_name() -> impl TypedValueParser<Value = PredictionType> {
    let all = [PredictionType::Epsilon, PredictionType::VPrediction];
    let names = PossibleValuesParser::new(all.map(PredictionType::name));
    names.try_map(move |name| {
        all.into_iter().find(|one| one.name() == name).ok_or("is not the name of a prediction type")
    })
}

fn sampler_by_name() -> impl TypedValueParser<Value = SamplerKind> {
    let names = PossibleValuesParser::new(SamplerKind::ALL.map(SamplerKind::name));
    names.try_map(|name| SamplerKind::from_name(&name).ok_or("is not the name of a scheduler"))
}
