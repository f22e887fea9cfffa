//! Training of parameters that the engine holds, of whatever model. Their gradients are added up over all ranks while they are made
//! ([`exchange`]), all ranks take the same step of the optimizer, which they may have together ([`sharding`]), and their state goes to
//! checkpoints and to other ranks without ever being in memory twice ([`tensors`]). What is trained, and on what, is a [`Model`]; what
//! stands here knows none.

mod exchange;
mod learned;
pub(crate) mod memory;
mod model;
mod options;
mod prepare;
mod sharded_steps;
mod sharding;
mod shares;
mod state;
mod step;
mod tensors;
mod trainee;
mod unnamed_file;

pub(crate) use exchange::{Exchange, Outlet, Spares, StepSums};
pub(crate) use learned::{LearnedParameters, Which};
pub(crate) use model::Model;
pub(crate) use options::Options;
pub(crate) use prepare::Prepared;
pub(crate) use trainee::ParameterTrainee;
