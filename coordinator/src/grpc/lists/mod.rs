//! The lists: what a client may filter and order by, and their pages.

mod access;
mod artifacts;
mod events;
mod filter;
pub(super) mod jobs;
mod order;
mod pages;
mod steps;
mod thin;
mod workers;
