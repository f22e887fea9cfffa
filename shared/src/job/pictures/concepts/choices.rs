//! Its options that are one of a few words.

use crate::job::choices::choice;

choice! {
    /// What the new word stands for.
    LearnableProperty {
        /// A thing: "a photo of a {}".
        Object = "object",
        /// A style: "a painting in the style of {}".
        Style = "style",
    }
}
