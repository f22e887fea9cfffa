//! Rows of the fault matrix with workers that compute with libtorch.

use anyhow::{Context as _, Result};
use ringtune_tests::{
    chaos::{self, Row, rows::torch},
    job::text,
    reference,
};

async fn play(rows: Vec<Row>, name: &str) -> Result<()> {
    let row = rows.into_iter().find(|row| row.name == name).with_context(|| format!("no row {name}"))?;
    chaos::run(&row, chaos::seed()).await?;
    Ok(())
}

#[tokio::test]
async fn a_real_worker_dies() -> Result<()> {
    play(torch::small(), "a_real_worker_dies").await
}

#[tokio::test]
async fn the_real_rank_0_dies() -> Result<()> {
    play(torch::small(), "the_real_rank_0_dies").await
}

#[tokio::test]
async fn a_real_worker_dies_while_it_prepares() -> Result<()> {
    play(torch::small(), "a_real_worker_dies_while_it_prepares").await
}

#[tokio::test]
async fn a_real_worker_dies_and_comes_back() -> Result<()> {
    play(torch::small(), "a_real_worker_dies_and_comes_back").await
}

#[tokio::test]
#[ignore = "needs 4.3 GB of disk, 20 GB of memory and an hour: cargo test --release --workspace --test chaos_torch -- --ignored"]
async fn either_worker_of_full_size_dies() -> Result<()> {
    let model = text(&reference::full_size_checkpoint().await?);
    for row in torch::full_size(&model) {
        chaos::run(&row, chaos::seed()).await?;
    }
    Ok(())
}
