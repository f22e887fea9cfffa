//! The life of a rank, whatever it works on: it takes its seat, prepares, says that it is ready, enters the ring, agrees
//! with the others, works, leaves, and says how it ended. Where the ring breaks, or is to change, it goes on in the next one
//! with all that it has. What the work is stands in [`crate::kinds`], which nothing here knows.
//!
//! A worker holds a rank by its job; the epoch belongs to the ring. The life lends the ring to its work for each thing
//! that the ranks do together (`lent_ring.rs`), so that a trainee and what it prepared outlive the ring. As the rank
//! enters the next ring (`rings.rs`), the ranks compare the steps and hashes of their states, and a rank that is behind
//! takes the state from one that is not (`entering.rs`).

mod agreement;
mod context;
mod entering;
mod error;
mod folder;
mod given_up;
mod hang;
mod lent_ring;
mod life;
mod orders;
mod rings;
mod spans;
mod summaries;
mod work;

pub use context::Context;
pub use error::Error;
pub(crate) use folder::{JOB_FILE, write_job_file};
pub(crate) use given_up::GivenUp;
pub(crate) use hang::Durations;
pub(crate) use lent_ring::LentRing;
pub(crate) use life::live;
pub(crate) use spans::StepPace;
pub(crate) use work::{Left, Orders, Rank, Task, Work};
