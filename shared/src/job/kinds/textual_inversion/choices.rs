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

choice! {
    /// Who gets a file of events besides metrics.csv. diffusers' other trackers are services to log in to.
    ReportTo {
        /// TensorBoard.
        Tensorboard = "tensorboard",
        /// Nobody.
        Nothing = "none",
    }
}
