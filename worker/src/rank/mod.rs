//! The life of a rank, whatever it works on: it takes its seat, prepares, says that it is ready, joins the ring, agrees
//! with the others, works, leaves, and says how it ended. What the work is stands in [`crate::kinds`], which nothing here
//! knows.

mod agreement;
mod context;
mod error;
mod folder;
mod lent_ring;
mod life;
mod work;

pub use context::Context;
pub use error::Error;
pub(crate) use folder::{JOB_FILE, write_job_file};
pub(crate) use lent_ring::LentRing;
pub(crate) use life::live;
pub(crate) use work::{Orders, Rank, Task, Work};
