//! The four pairs of a shape and a colour that the toy checkpoint never saw together: one run learns a pair from six
//! pictures and picks its best embedding, and most of 16 samples of it show that shape in that colour.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Sandbox, job::text, places, reference};
use safetensors::SafeTensors;

/// Samples that are drawn of a pair.
const SAMPLES: usize = 16;

/// Learns "a SHAPE of a COLOUR" by the job file of the fixtures, draws samples of the embedding that the run left as its
/// best, and measures them: at least `min_right` have to be right in both.
async fn learn_draw_and_measure(colour: &str, shape: &str, min_right: usize) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let fixtures = places::repository().join("tests/fixtures");
    // 1. One run.
    let (job, images) = (text(&fixtures.join("pairs/green-star.toml")), fixtures.join("concepts"));
    let placeholder = format!("<{colour}-{shape}>");
    let words = format!("train.initializer_token={colour} {shape}");
    let placeholder_key = format!("train.placeholder_token={placeholder}");
    let images = format!("data.images={}", text(&images.join(format!("{colour}-{shape}"))));
    let sets = ["--set", &words, "--set", &placeholder_key, "--set", &images];
    let run = [&["run", &job, "-o", "out"], &sets[..]].concat();
    sandbox.finish(&run).await?.expect_code(0)?;

    // 2. The embedding is the one of the lowest validation loss of all.
    let csv = fs::read_to_string(sandbox.path("out/metrics.csv"))?;
    let losses = csv.lines().skip(1).filter_map(|line| line.split(',').nth(7)?.parse::<f32>().ok());
    let lowest = losses.min_by(f32::total_cmp).context("a validation loss")?;
    let embeds = sandbox.path("out/learned_embeds.safetensors");
    let bytes = fs::read(&embeds)?;
    let (_, header) = SafeTensors::read_metadata(&bytes)?;
    let said = header.metadata().as_ref().and_then(|all| all.get("ringtune.validation_loss").cloned());
    ensure!(said == Some(lowest.to_string()), "{said:?} of {csv}");

    // 3. The samples, and what they show.
    let (model, embeds) = (text(&places::toy_checkpoint()), text(&embeds));
    let (prompt, count) = (format!("a photo of a {placeholder}"), SAMPLES.to_string());
    let fixed = ["--scheduler", "ddim", "--steps", "25", "--guidance", "4", "--seed", "0", "--threads", "1"];
    let drawn = ["generate", "--model", &model, "--embeds", &embeds, "--prompt", &prompt, "-o", "samples"];
    let generate = [&drawn[..], &fixed, &["--count", &count, "--batch", &count]].concat();
    sandbox.finish(&generate).await?.expect_code(0)?;
    let (samples, least) = (text(&sandbox.path("samples")), min_right.to_string());
    let count_right = ["--shape", shape, "--colour", colour, "--min-right", &least, "--pictures", &samples];
    let counted = reference::run_script("count_right.py", &count_right).await?.expect_code(0)?;
    let seen = counted.json_lines()?.pop().context("what was counted")?;
    ensure!(seen["count"] == SAMPLES, "{seen}");
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_green_star_is_learned() -> Result<()> {
    learn_draw_and_measure("green", "star", 14).await
}

#[tokio::test]
async fn an_orange_ring_is_learned() -> Result<()> {
    learn_draw_and_measure("orange", "ring", 14).await
}

#[tokio::test]
async fn a_blue_heart_is_learned() -> Result<()> {
    learn_draw_and_measure("blue", "heart", 14).await
}

/// The checkpoint itself draws crosses badly.
#[tokio::test]
async fn a_purple_cross_is_learned() -> Result<()> {
    learn_draw_and_measure("purple", "cross", 9).await
}
