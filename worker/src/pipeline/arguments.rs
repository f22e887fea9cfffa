//! The command line of `pipeline`.

use std::path::PathBuf;

use clap::Args;

/// A model with learned words, or a trained UNet, in it, as a folder that diffusers loads.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  \
    ringtune pipeline --model ./sd15 --embeds out/learned_embeds.safetensors -o out/pipeline\n  \
    ringtune pipeline --model ./sd15 --unet out/diffusion_pytorch_model.safetensors -o out/pipeline\n\n\
    In Python: StableDiffusionPipeline.from_pretrained(\"out/pipeline\")")]
pub struct PipelineArguments {
    /// Model: a folder in diffusers layout, hf://ORG/NAME@REVISION or s3://BUCKET/PREFIX
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// Branch, tag or commit of an hf:// model [default: main]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "REVISION")]
    pub revision: String,
    /// learned_embeds.safetensors of a job, or an emb_params file; may be given several times
    #[arg(long, required_unless_present = "unet", value_name = "FILE")]
    pub embeds: Vec<PathBuf>,
    /// diffusion_pytorch_model.safetensors of a job of kind unet_finetune: its tensors take the place of the model's own
    #[arg(long, value_name = "FILE")]
    pub unet: Option<PathBuf>,
    /// Word of the first --embeds, then of the second, …; "" for what the file says [default: what each file says, or its
    /// name]
    #[arg(long, value_name = "WORD")]
    pub token: Vec<String>,
    /// Copy the model's other files instead of linking them (hard links, where they are on the same file system)
    #[arg(long)]
    pub copy: bool,
    /// The folder to make; an earlier pipeline there is replaced
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
}
