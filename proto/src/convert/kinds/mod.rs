//! What only some kinds of job have, a file for each kind.

pub(super) mod generate;
pub(super) mod textual_inversion;
