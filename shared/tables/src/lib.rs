//! Tables that other programs wrote: [`columns`] reads .parquet files, and trusts nothing that is in them; [`captions`] are
//! those of a folder of pictures, in a table or in a text file beside each. [`pictures`] are those in .parquet files, [`shards`]
//! are tar files of them.
//!
//! `ringtune-shared`, which every program links, does without the libraries that read tables.

pub mod captions;
#[cfg(test)]
mod captions_tests;
mod cells;
pub mod columns;
mod error;
mod metadata;
mod pages;
pub mod pictures;
#[cfg(test)]
mod pictures_tests;
pub mod shards;
#[cfg(test)]
mod shards_tests;
