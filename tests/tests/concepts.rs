//! Several concepts in one job.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_shared::embedding::LearnedEmbedding;
use ringtune_tests::{
    Job, Sandbox,
    files::{copy_alone, expect_same, metadata},
    job::text,
    places, reference,
};
use safetensors::SafeTensors;
use toml::{Table, Value};

/// One concept's table; its pictures are every second one of the green stars.
fn concept(sandbox: &Sandbox, word: &str, initializer: &str, place: usize, vectors: i64) -> Result<Value> {
    let folder = sandbox.path(&format!("pictures-{place}"));
    fs::create_dir_all(&folder)?;
    let mut pictures: Vec<_> =
        fs::read_dir(places::green_star())?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    pictures.sort();
    for picture in pictures.iter().skip(place).step_by(2) {
        fs::copy(picture, folder.join(picture.file_name().context("a file name")?))?;
    }
    Ok(Value::Table(Table::from_iter([
        ("placeholder_token".to_owned(), word.into()),
        ("initializer_token".to_owned(), initializer.into()),
        ("images".to_owned(), format!("./pictures-{place}").into()),
        ("num_vectors".to_owned(), vectors.into()),
    ])))
}

/// A job of two concepts, with one vector and with two.
fn two_concepts(sandbox: &Sandbox) -> Result<Job> {
    let concepts =
        vec![concept(sandbox, "<one-star>", "star", 0, 1)?, concept(sandbox, "<two_hearts>", "heart", 1, 2)?];
    let job = Job::toy()?.set("concepts", Value::Array(concepts)).set("data.images", "");
    Ok(job.set("train.placeholder_token", "").set("train.initializer_token", ""))
}

const FILES: [(&str, &str, &str, usize); 4] = [
    ("learned_embeds-one-star.safetensors", "<one-star>", "<one-star>", 1),
    ("learned_embeds-one-star-emb_params.safetensors", "emb_params", "<one-star>", 1),
    ("learned_embeds-two_hearts.safetensors", "<two_hearts>", "<two_hearts>", 2),
    ("learned_embeds-two_hearts-emb_params.safetensors", "emb_params", "<two_hearts>", 2),
];

#[tokio::test]
async fn each_file_holds_one_concept_and_is_the_same_for_one_worker_and_two() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = two_concepts(&sandbox)?.shared_by(2);
    let job = job.set("train.save_steps", 2).set("train.save_as_full_pipeline", true);
    sandbox.write_job("job.toml", &job)?;
    for workers in ["1", "2"] {
        let out = format!("out-{workers}");
        sandbox.finish(&["run", "job.toml", "--workers", workers, "-o", &out]).await?.expect_code(0)?;
    }
    let read = |workers: &str, name: &str| {
        let file = sandbox.path(&format!("out-{workers}/{name}"));
        fs::read(&file).with_context(|| file.display().to_string())
    };
    for (name, key, word, vectors) in FILES {
        let bytes = read("1", name)?;
        ensure!(bytes == read("2", name)?, "{name} differs");
        let tensors = SafeTensors::deserialize(&bytes)?;
        ensure!(tensors.names() == [key], "{name}: {:?}", tensors.names());
        ensure!(tensors.tensor(key)?.shape()[0] == vectors, "{name}: {:?}", tensors.tensor(key)?.shape());
        let metadata = metadata(&bytes)?;
        ensure!(metadata["ringtune.placeholder_token"] == word, "{metadata:?}");
        // Where the pictures are is in none of them.
        ensure!(!metadata["ringtune"].contains("pictures-"), "{metadata:?}");
    }
    ensure!(read("1", "learned_embeds-two_hearts-steps-2.safetensors").is_ok());
    ensure!(read("1", "learned_embeds.safetensors").is_err(), "a file of all concepts");
    let card = read("1", "README.md")?;
    ensure!(card == read("2", "README.md")?, "the card differs");
    let card = String::from_utf8(card)?;
    for (name, ..) in FILES {
        ensure!(card.contains(name), "{name} is not in {card}");
    }
    // Both words in one prompt, from one file each.
    let embeds = [FILES[0].0, FILES[3].0].map(|name| text(&sandbox.path(&format!("out-1/{name}"))));
    let checkpoint = text(&places::toy_checkpoint());
    let generate = ["generate", "--model", &checkpoint, "--embeds", &embeds[0], "--embeds", &embeds[1]];
    let prompt = ["--prompt", "a <one-star> and <two_hearts>", "--steps", "2", "-o", "both.png"];
    sandbox.finish(&[&generate[..], &prompt].concat()).await?.expect_code(0)?;
    // The full pipeline knows both.
    let generate = ["generate", "--model", "out-1/pipeline"];
    let prompt = [&prompt[..4], &["-o", "pipeline.png"]].concat();
    sandbox.finish(&[&generate[..], &prompt].concat()).await?.expect_code(0)?;
    let pixels = |name: &str| Ok::<_, anyhow::Error>(image::open(sandbox.path(name))?.to_rgb8());
    ensure!(pixels("both.png")? == pixels("pipeline.png")?, "the pipeline draws another picture");
    sandbox.expect_no_process().await
}

/// The second concept starts from an embedding's rows beside the first one's word.
#[tokio::test]
async fn several_concepts_go_on_to_the_same_bytes_on_another_number_of_workers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let old = places::repository().join("tests/fixtures/embeddings/toy-a1111.pt");
    let mut concepts = vec![concept(&sandbox, "<one-star>", "star", 0, 1)?];
    let mut second = concept(&sandbox, "<two_hearts>", "", 1, 2)?;
    second.as_table_mut().context("a table")?.insert("initializer_embedding".to_owned(), text(&old).into());
    concepts.push(second);
    let job = two_concepts(&sandbox)?
        .set("concepts", Value::Array(concepts))
        .shared_by(2)
        .set("train.train_batch_size", 1)
        .set("train.max_train_steps", 6)
        .set("train.lr_scheduler", "cosine")
        .set("train.checkpointing_steps", 2);
    sandbox.write_job("job.toml", &job.clone().set("debug.trace_dir", "trace"))?;
    sandbox.write_job("resume.toml", &job.set("train.resume_from_checkpoint", "latest"))?;
    sandbox.finish(&["run", "job.toml", "--workers", "2", "-o", "straight"]).await?.expect_code(0)?;
    // 1. [star; the file's two rows], each 64 floats wide.
    let trace = fs::read(sandbox.path("trace/step-000001.safetensors"))?;
    let tensors = SafeTensors::deserialize(&trace)?;
    let rows: Vec<u8> = LearnedEmbedding::from_bytes(&fs::read(&old)?)?
        .rows
        .iter()
        .flat_map(|row| row.to_le_bytes())
        .collect();
    let before = tensors.tensor("embeds_before")?;
    ensure!(before.shape() == [3, 64] && before.data()[64 * 4..] == rows, "other rows at the start");
    // 2. From each checkpoint, on one worker and on two.
    for (step, workers) in [(2, "1"), (4, "2")] {
        let (out, checkpoint) = (format!("from-{step}"), format!("checkpoint-{step}.safetensors"));
        let (straight, folder) = (sandbox.path("straight"), sandbox.path(&out));
        copy_alone(&straight, &checkpoint, &folder)?;
        let run = sandbox.finish(&["run", "resume.toml", "--workers", workers, "-o", &out]).await?;
        run.expect_code(0)?.expect_said(&[&format!("resuming after step {step}")])?;
        expect_same(&straight, &folder, &FILES.map(|(name, ..)| name))?;
        expect_same(&straight, &folder, &["README.md", "checkpoint-6.safetensors"])?;
    }
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_trace_of_two_concepts_is_diffusers_own() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let checkpoint = text(&reference::tiny_checkpoint("tiny15").await?);
    let job = two_concepts(&sandbox)?
        .set("model.base", checkpoint.as_str())
        .set("train.max_train_steps", 8)
        .set("train.train_batch_size", 3)
        .set("train.gradient_accumulation_steps", 2)
        .set("train.learning_rate", 0.005)
        .set("debug.trace_dir", "trace");
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(0)?;
    let trace = text(&sandbox.path("trace"));
    let finished = reference::run_script("replay_trace.py", &[&trace, &checkpoint, "--vectors", "3"]).await?;
    let last = finished.stdout.lines().last().with_context(|| format!("it says nothing: {finished:?}"))?;
    let summary: serde_json::Value = serde_json::from_str(last).context("its last line")?;
    ensure!(summary["ok"] == true && summary["steps"] == 8, "{summary}");
    ensure!(summary["grad_error_worst"].as_f64().is_some_and(|error| error <= 1e-4), "{summary}");
    Ok(())
}
