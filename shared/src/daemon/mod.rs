//! The edges of both daemons: flags and settings, signals and lifelines, logs, ports, the state folder.

pub mod arguments;
pub mod check;
pub mod end_signals;
pub mod lifecycle;
pub mod listen;
pub mod logging;
pub mod notify;
pub mod private;
pub mod program;
pub mod reload;
pub mod settings;
pub mod state_lock;
pub mod traces;
