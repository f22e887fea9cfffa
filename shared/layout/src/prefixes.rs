//! Where the names of the three networks begin.

pub(crate) const UNET: &str = "model.diffusion_model.";
pub(crate) const VAE: &str = "first_stage_model.";
pub(crate) const CLIP: &str = "cond_stage_model.transformer.";
pub(crate) const OPEN_CLIP: &str = "cond_stage_model.model.";

/// open_clip's last block, which Stable Diffusion 2.x leaves out: it takes the output of the one before.
pub(crate) const UNUSED_TEXT_BLOCK: usize = 23;

/// Generation of a file, by its text encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Stable Diffusion 1.x: CLIP ViT-L as transformers has it.
    One,
    /// Stable Diffusion 2.x: CLIP ViT-H as open_clip has it.
    Two,
}

/// Number of the text encoder's blocks that are used.
pub(crate) fn used_text_blocks(blocks: usize) -> usize {
    blocks.min(UNUSED_TEXT_BLOCK)
}
