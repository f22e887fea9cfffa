//! Its options that are one of a few words.

use crate::job::choices::choice;

choice! {
    /// Where the parameters come from.
    Gpt2Init {
        /// They are those of `model.base`.
        Pretrained = "pretrained",
        /// They are drawn by `seed`; of `model.base` only the shape (config.json) and the tokenizer are used.
        Scratch = "scratch",
    }
}
