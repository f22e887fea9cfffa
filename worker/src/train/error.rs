//! What can be wrong with a job's training.

/// Each message names what was given and what is allowed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The polynomial schedule falls to a fixed learning rate, which has to be below the first.
    #[error("train.learning_rate: {given} is too small for lr_scheduler \"polynomial\", which ends at {end}")]
    LearningRateBelowEnd {
        /// After scale_lr.
        given: f64,
        /// Where the schedule ends.
        end: f64,
    },
    /// Images, prompts or batch sizes that no batch can be made of.
    #[error("the training set cannot be used: {problem}")]
    TrainingSet {
        /// What is wrong.
        problem: String,
    },
    /// An encoded picture that was set aside and is not to be had any more: no fault of the job.
    #[error("{problem}")]
    Posterior {
        /// Which, and why.
        problem: String,
    },
    /// A prompt that the tokenizer refuses.
    #[error("{problem}")]
    Prompt {
        /// What it says.
        problem: String,
    },
    /// Steps whose loss or gradient is not finite, one after the other.
    #[error(
        "step {step}: the loss or the gradient was not finite {in_a_row} times in a row (the last loss is {loss}{gradients}); \
         a lower learning_rate or mixed_precision = \"no\" may help"
    )]
    NotFinite {
        /// The last of them.
        step: u64,
        /// How many.
        in_a_row: u32,
        /// Its loss.
        loss: f32,
        /// Which gradients were not, behind "; "; empty where only the learned rows have one.
        gradients: String,
    },
    /// A checkpoint's state that does not fit the job.
    #[error("train.resume_from_checkpoint: {problem}")]
    Checkpoint {
        /// What is missing or does not fit.
        problem: String,
    },
    /// A gradient of another length than the learned rows.
    #[error("a gradient of {found} numbers arrived for {expected} learned ones")]
    GradientLength {
        /// Numbers in the gradient.
        found: usize,
        /// Numbers in the learned rows.
        expected: usize,
    },
}

impl From<crate::data::Error> for Error {
    fn from(error: crate::data::Error) -> Self {
        Self::Prompt { problem: error.to_string() }
    }
}
