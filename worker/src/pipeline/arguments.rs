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
    /// diffusion_pytorch_model.safetensors of a job of kind unet_finetune, or the index of such weights in shards: its
    /// tensors take the place of the model's own
    #[arg(long, value_name = "FILE")]
    pub unet: Option<PathBuf>,
    /// Write the UNet's weights in shards of at most this size and an index of them, as diffusers' save_pretrained does
    #[arg(long, default_value = "10GB", value_name = "SIZE", value_parser = shard_size, requires = "unet")]
    pub max_shard_size: u64,
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

/// Bytes of "500MB" or "2GB": in tens, as in diffusers.
fn shard_size(text: &str) -> Result<u64, String> {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000)];
    let bytes = units.iter().find_map(|(unit, bytes)| {
        let number: u64 = text.trim().to_ascii_uppercase().strip_suffix(unit)?.trim_end().parse().ok()?;
        number.checked_mul(*bytes)
    });
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "allowed is a whole number of MB or GB, as in 2GB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_has_a_size_in_mb_or_gb() {
        assert_eq!(["2GB", "500 mb"].map(shard_size), [Ok(2_000_000_000), Ok(500_000_000)]);
        for wrong in ["", "2", "GB", "0GB", "1.5GB", "-1GB", "99999999999999GB", "2GiB"] {
            assert!(shard_size(wrong).is_err(), "{wrong}");
        }
    }
}
