//! Limits of a state.

/// Bytes of a header at most, without the length in front of it. The format allows 100 MB; here it holds at most
/// [`MOST_TENSORS`] tensors, which take about 10 MB, and the prompts of a job.
pub const LARGEST_HEADER: u64 = 16 << 20;
/// Metadata entries at most.
pub const MOST_METADATA: usize = 1024;
/// Tensors of a state at most: twenty times those of a UNet with its moments and its average.
pub const MOST_TENSORS: usize = 1 << 16;
/// Bytes of a name at most. Those of models and their optimizers have about 100.
pub const LONGEST_NAME: usize = 1024;
/// Dimensions of a tensor at most.
pub const MOST_DIMENSIONS: usize = 16;
