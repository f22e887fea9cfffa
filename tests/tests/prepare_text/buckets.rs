//! Texts from a bucket, files to a bucket.

use std::fs;

use anyhow::{Result, ensure};
use ringtune_shared::job::{ModelLocation, S3Model};
use ringtune_sources::{CacheOptions, Environment, ModelSources, Patience, progress_channel};
use ringtune_tests::{Bucket, Finished, Sandbox, process::finish};
use ringtune_text::TokenFiles;

use crate::{expect_same, make_documents, names_in, prepare, texts_of, tokenizer, write_lines};

async fn prepare_there(sandbox: &Sandbox, bucket: &Bucket, input: &str, output: &str) -> Result<Finished> {
    let tokenizer = tokenizer();
    let line = ["prepare-text", input, "-o", output, "--tokenizer", &tokenizer, "--threads", "2"];
    let mut command = sandbox.ringtune(&line)?;
    command.envs(bucket.variables()).env("XDG_CACHE_HOME", sandbox.path("cache"));
    finish(&mut command).await
}

fn place(text: &str) -> Result<S3Model> {
    match ModelLocation::parse(text, "") {
        Ok(ModelLocation::S3(place)) => Ok(place),
        other => anyhow::bail!("{other:?}"),
    }
}

#[tokio::test]
async fn texts_come_from_a_bucket_and_tokens_go_there() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // So many that the tokens go in parts.
    make_documents(2000, &sandbox.path("short.jsonl")).await?;
    let texts = texts_of(&sandbox.path("short.jsonl"))?;
    fs::create_dir_all(sandbox.path("texts/deep"))?;
    write_lines(&sandbox.path("texts/a.jsonl"), std::iter::repeat_n(&texts, 16).flatten())?;
    write_lines(&sandbox.path("texts/deep/b.jsonl"), texts.iter())?;
    fs::write(sandbox.path("texts/notes.md"), "no document")?;
    prepare(&sandbox, &["texts"], "local", &[]).await?.expect_code(0)?;
    let size = fs::metadata(sandbox.path("local/train.bin"))?.len();
    ensure!(size > 17 << 20, "{size} bytes go in one part");

    let bucket = Bucket::serve(&sandbox.path("texts"), "texts").await?;
    let went = prepare_there(&sandbox, &bucket, "s3://models/texts", "s3://models/tokens/all").await?;
    let went = went.expect_code(0)?;
    ensure!(!went.stderr.contains(Bucket::SECRET), "the key was said:\n{}", went.stderr);
    ensure!(went.stdout.contains("written to s3://models/tokens/all"), "{}", went.stdout);
    let left = names_in(&sandbox.path("cache/ringtune/prepare-text"))?;
    ensure!(left.is_empty(), "{left:?} is left here");

    // Whoever trains gets the same files from there.
    let cache = CacheOptions { folder: sandbox.path("cache/others"), most_bytes: 1 << 30 };
    let environment: Environment =
        bucket.variables().map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
    let sources = ModelSources::new(environment, cache, Patience::default());
    let all = |names: &[String]| Ok(names.to_vec());
    let local = sources.fetch_files(&place("s3://models/tokens/all")?, &all, &progress_channel().0).await?;
    ensure!(
        names_in(&local.folder)? == ["meta.json", "train.bin", "val.bin"],
        "{:?}",
        names_in(&local.folder)?
    );
    expect_same(&local.folder, &sandbox.path("local"))?;
    TokenFiles::open(&local.folder)?;

    // One object, to a folder; what is not there is named.
    prepare_there(&sandbox, &bucket, "s3://models/texts/deep/b.jsonl", "one").await?.expect_code(0)?;
    prepare(&sandbox, &["short.jsonl"], "short", &[]).await?.expect_code(0)?;
    expect_same(&sandbox.path("one"), &sandbox.path("short"))?;
    for (input, output, said) in [
        ("s3://models/texts/deep/c.jsonl", "none", "has no c.jsonl"),
        ("s3://models/nothing", "none", "nothing under this prefix"),
        ("s3://models/texts", "s3://nowhere/x", "s3://nowhere/x"),
    ] {
        let refused = prepare_there(&sandbox, &bucket, input, output).await?.expect_code(1)?;
        refused.expect_said(&[said])?;
    }
    Ok(())
}
