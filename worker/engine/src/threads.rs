//! The threads that compute.

/// How many threads compute, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// Within one operation, until a job changes it; at least 1.
    pub count: usize,
    /// The processor of each thread, on a core that nothing else of ours computes on. A job with more threads than there
    /// are processors, and every job where there are none, leaves it to the system where its threads run.
    pub processors: Vec<usize>,
}

impl Threads {
    /// So many, wherever the system puts them.
    pub fn anywhere(count: usize) -> Self {
        Self { count, processors: Vec::new() }
    }
}
