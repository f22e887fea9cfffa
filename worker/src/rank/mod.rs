//! The life of a rank, whatever it works on: it takes its seat, prepares, says that it is ready, enters the ring, agrees
//! with the others, works, leaves, and says how it ended. Where the ring breaks, or is to change, it goes on in the next one
//! with all that it has. What the work is stands in [`crate::kinds`], which nothing here knows.

mod agreement;
mod context;
mod entering;
mod error;
mod folder;
mod given_up;
mod hang;
mod lent_ring;
mod life;
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
