//! Training of parameters that the engine holds, of whatever model. What is trained, and on what, is a [`Model`]; what stands here
//! knows none.
//!
//! A rank runs the engine's backward pass and the ring side by side. Buckets that the engine returns are added up by the tree over all
//! microbatches (`ringtune_shared::ring::tree`), and after the rank's last microbatch each goes around the ring at once
//! (`StepSums::add_last` of [`exchange`]), in the plan's order on all ranks. Then the losses are gathered, and one task, which nobody can
//! drop, copies the best parameters if they are about to be lost, moves the parameters and counts the step. The owner of that task waits
//! before it until nobody reads the state any more.
//!
//! With a sharded optimizer there are decisions ([`shares`]: who has which shard, and what a rank that enters a ring needs of whom) and
//! exchanges ([`sharded_steps`], with what [`sharding`] reads and writes): squares before the update, parameters after it, all moments for
//! a checkpoint. A sum that ends on two ranks, and the rest of its way, are the ring's (`ringtune_shared::ring::spread`).
//!
//! Where ranks exchange seldom, a step is a round of many that each microbatch's replica takes by itself ([`rounds`]).
//!
//! The state goes to checkpoints and to other ranks without ever being in memory twice ([`tensors`]).
//!
//! Invariant: with a sharded optimizer a rank's state, as others see and hash it, has no moments; a checkpoint's has all of them.

mod exchange;
mod learned;
pub(crate) mod memory;
mod model;
mod options;
mod prepare;
mod rounds;
mod sharded_steps;
mod sharding;
mod shares;
mod shown;
mod state;
mod step;
mod tensors;
mod trainee;
mod unnamed_file;

pub(crate) use exchange::{Exchange, Outlet, Spares, StepSums};
pub(crate) use learned::{LearnedParameters, Which, write_results};
pub(crate) use model::Model;
pub(crate) use options::{Options, Rounds};
pub(crate) use prepare::Prepared;
pub(crate) use trainee::ParameterTrainee;
