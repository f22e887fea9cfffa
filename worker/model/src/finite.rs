//! NaN and infinity: no result leaves as a picture, a latent or a row while it holds any.

use crate::error::{Error, Result};
use crate::model_files::ModelFiles;

impl ModelFiles {
    /// Refuses values that are not finite. `what`: what they are. Only where some are not are the weights looked at.
    pub(crate) fn check_finite(&self, values: &[f32], what: impl FnOnce() -> String) -> Result<()> {
        if values.iter().all(|value| value.is_finite()) {
            return Ok(());
        }
        let cause = self.broken_tensor()?.unwrap_or_else(|| {
            "every tensor of the model is finite, so they came about while it was computed: a value was too large for what it is \
             computed in; fp32 (mixed_precision \"no\") has more room than bf16, and a model whose weights are far too large \
             is broken"
                .to_string()
        });
        Err(Error::NotFinite { what: what(), cause })
    }

    /// The first tensor that holds what is no number, and its file.
    fn broken_tensor(&self) -> Result<Option<String>> {
        for weights in [self.text_weights()?, self.unet_weights()?, self.vae_weights()?] {
            if let Some(found) = weights.broken_tensor()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}
