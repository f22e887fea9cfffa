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
    /// The schedule of the learning rate; diffusers' six.
    LrScheduler {
        /// The same all the time.
        Constant = "constant",
        /// Up over the warm-up, then down to 0 in a straight line.
        Linear = "linear",
        /// Up over the warm-up, then down to 0 along half a cosine.
        Cosine = "cosine",
        /// As cosine, with hard restarts: `lr_num_cycles` times.
        CosineWithRestarts = "cosine_with_restarts",
        /// Up over the warm-up, then down to 1e-7 along a polynomial.
        Polynomial = "polynomial",
        /// Up over the warm-up, then the same all the time.
        ConstantWithWarmup = "constant_with_warmup",
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
