//! `ringtune generate-text` on small models that are drawn here: the texts, how they end, and what is refused.

mod jobs;
mod refusals;
mod stops;
mod texts;

use anyhow::Result;
use ringtune_tests::{Finished, Sandbox, language_model};
use serde_json::Value;

/// A sandbox with a model.
fn sandbox() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    language_model::make(&sandbox.path("model"))?;
    Ok(sandbox)
}

/// Runs `generate-text` on the model to its end, with one thread in fp32.
async fn generate(sandbox: &Sandbox, more: &[&str]) -> Result<Finished> {
    let options = ["generate-text", "model", "--threads", "1", "--precision", "fp32"];
    sandbox.finish(&[&options[..], more].concat()).await
}

/// The same with an object of each text.
async fn objects(sandbox: &Sandbox, more: &[&str]) -> Result<Vec<Value>> {
    generate(sandbox, &[more, &["--output", "json"]].concat()).await?.expect_code(0)?.json_lines()
}
