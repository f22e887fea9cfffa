//! What both daemons do at their edges: signals and lifelines, logs, ports.

pub mod lifecycle;
pub mod listen;
pub mod logging;
