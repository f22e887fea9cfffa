//! Training on a checkpoint in one file, and drawing with it: the same vectors and pixels as with its folder.

use std::fs;

use anyhow::{Result, ensure};
use ringtune_tests::{Job, Sandbox, job::text, reference};

/// The learned vectors: the file without its metadata, which names the checkpoint.
fn vectors(file: &std::path::Path) -> Result<Vec<u8>> {
    let bytes = fs::read(file)?;
    let header = u64::from_le_bytes(bytes[..8].try_into()?);
    Ok(bytes[8 + usize::try_from(header)?..].to_vec())
}

#[tokio::test]
async fn a_single_file_learns_and_draws_what_its_folder_does() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let models = text(&sandbox.path("models"));
    reference::run_script("original_layout.py", &["tiny", &models]).await?.expect_code(0)?;
    let tokenizer = format!("{models}/one/tokenizer");
    let file = format!("{models}/one.safetensors");
    for (name, base) in [("folder", format!("{models}/one")), ("file", file.clone())] {
        let job = Job::toy()?.set("model.base", base.as_str()).set("model.tokenizer", tokenizer.as_str());
        sandbox.write_job("job.toml", &job)?;
        sandbox.finish(&["run", "job.toml", "-o", name]).await?.expect_code(0)?;
        let embeds = text(&sandbox.path(&format!("{name}/learned_embeds.safetensors")));
        let picture = format!("{name}.png");
        let arguments = ["--model", &base, "--tokenizer", &tokenizer, "--embeds", &embeds, "--size", "64"];
        let rest = ["--prompt", "a <green-star>", "--steps", "2", "--threads", "1", "-o", &picture];
        sandbox.finish(&[&["generate"], &arguments[..], &rest].concat()).await?.expect_code(0)?;
    }
    let learned = |name: &str| vectors(&sandbox.path(&format!("{name}/learned_embeds.safetensors")));
    ensure!(learned("file")? == learned("folder")?, "the file learns other vectors than the folder");
    // The files differ in the checkpoint's name, which they keep as text.
    let pixels = |name: &str| Ok::<_, anyhow::Error>(image::open(sandbox.path(name))?.to_rgb8());
    ensure!(pixels("file.png")? == pixels("folder.png")?, "another picture");
    let card = fs::read_to_string(sandbox.path("file/README.md"))?;
    ensure!(card.contains("from_single_file(\"one.safetensors\")"), "{card}");

    // Without the vocabulary, which no file holds, the job says what to give.
    let job = Job::toy()?.set("model.base", file.as_str());
    sandbox.write_job("job.toml", &job)?;
    let failed = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(1)?;
    ensure!(failed.stderr.contains("model.tokenizer: missing; a model in one file"), "{}", failed.stderr);
    // An epsilon checkpoint cannot be trained on pure noise.
    let job = job.set("model.tokenizer", tokenizer.as_str()).set("train.rescale_betas_zero_snr", true);
    sandbox.write_job("job.toml", &job)?;
    let failed = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(1)?;
    ensure!(failed.stderr.contains("rescale_betas_zero_snr is true"), "{}", failed.stderr);
    Ok(())
}
