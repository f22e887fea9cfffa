//! A job's embeddings in the tools that people use them with.

use anyhow::{Result, ensure};
use ringtune_tests::{Job, Sandbox, job::text, places, reference};

#[tokio::test]
async fn diffusers_kohya_a1111_and_comfyui_load_the_same_rows() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.write_job("job.toml", &Job::toy()?.set("train.num_vectors", 2))?;
    sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(0)?;
    let (out, checkpoint) = (text(&sandbox.path("out")), text(&places::toy_checkpoint()));
    let checked = reference::run_script("check_formats.py", &[&out, &checkpoint]).await?.expect_code(0)?;
    ensure!(checked.stdout.contains("\"ok\": true"), "{}", checked.stdout);
    Ok(())
}
