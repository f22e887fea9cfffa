//! `ringtune-worker doctor JOB.toml`: what users see of a job before it runs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is missing")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(path)
}

/// A folder with pictures, a file that is none, and a job on them.
fn job(train: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let pictures = folder.path().join("pictures");
    fs::create_dir(&pictures).unwrap();
    let mut names: Vec<PathBuf> =
        fs::read_dir(fixture("concepts/green-star")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|ending| ending == "png"));
    names.sort();
    for path in &names {
        fs::copy(path, pictures.join(path.file_name().unwrap())).unwrap();
    }
    fs::copy(&names[0], pictures.join("again.png")).unwrap();
    fs::write(pictures.join("notes.txt"), "words").unwrap();
    let file = folder.path().join("job.toml");
    let text = format!(
        "kind = \"textual_inversion\"\nname = \"star\"\n[model]\nbase = \"{}\"\n[data]\nimages = \"pictures\"\n\
         [train]\nplaceholder_token = \"<green-star>\"\ninitializer_token = \"star\"\nnum_vectors = 2\n\
         resolution = 64\ntrain_batch_size = 2\nmax_train_steps = 20\n{train}[cluster]\nworld_size = 2\n",
        fixture("toy-sd").display()
    );
    fs::write(&file, text).unwrap();
    (folder, file)
}

fn doctor(file: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtune-worker"));
    command.arg("doctor").arg(file).args(["--threads", "1"]).args(more).output().unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

#[test]
fn a_job_that_can_start_is_shown_whole() {
    let (folder, file) = job("");
    let sheet = folder.path().join("sheet.png");
    let output = doctor(&file, &["--output", "json", "-o", sheet.to_str().unwrap()]);
    let report = json(&output);
    assert_eq!((output.status.code(), &report["can_start"]), (Some(0), &Value::Bool(true)), "{report}");
    let pictures = &report["folders"][0];
    let used = pictures["used"].as_u64().unwrap();
    assert!(used >= 3 && pictures["skipped"][0] == "notes.txt", "{pictures}");
    assert_eq!(pictures["duplicates"][0].as_array().unwrap().len(), 2);
    assert_eq!(report["sizes"], serde_json::json!([{ "width": 64, "height": 64, "pictures": used }]));
    let word = &report["words"][0];
    assert_eq!((&word["token"], &word["ids"]), (&"<green-star>".into(), &serde_json::json!([49408, 49409])));
    assert_eq!(word["initializer_ids"].as_array().unwrap().len(), 1);
    for prompt in report["prompts"].as_array().unwrap() {
        let prompt = prompt.as_str().unwrap();
        assert!(prompt.contains("[<green-star>] [<green-star> 2]") && prompt.contains("a "), "{prompt}");
    }
    // 20 steps of 2 ranks with batches of 2.
    let training = &report["training"];
    assert_eq!((&training["steps"], &training["samples"]), (&20.into(), &80.into()));
    assert!((training["epochs"].as_f64().unwrap() - 80.0 / used as f64).abs() < 1e-9);
    let estimate = &report["estimate"];
    assert!(estimate["step_seconds"].as_f64().unwrap() > 0.0);
    assert!((10..8000).contains(&(estimate["private_bytes"].as_u64().unwrap() >> 20)), "{estimate}");
    let picture = image::open(&sheet).unwrap();
    assert!(
        picture.width() >= 3 * 64 && picture.height() >= 64,
        "{} x {}",
        picture.width(),
        picture.height()
    );
}

#[test]
fn what_keeps_a_job_from_starting_is_named() {
    // 1. Several pictures are broken: all are named, beside what is wrong with the words.
    let (folder, file) = job("");
    for name in ["broken.jpg", "cut.png"] {
        fs::write(folder.path().join("pictures").join(name), "no picture").unwrap();
    }
    let output = doctor(&file, &["--no-compute"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    for word in ["FAIL", "broken.jpg", "cut.png", "skipped", "notes.txt", "cannot start"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // 2. A mistake of the job file, and one that only the model shows: both with their fields.
    for (train, field) in [
        ("learning_rat = 1\n", "train.learning_rat"),
        ("learnable_property = \"x\"\n", "train.learnable_property"),
    ] {
        let (_folder, file) = job(train);
        let output = doctor(&file, &["--output", "json"]);
        let report = json(&output);
        assert_eq!(
            (output.status.code(), &report["problems"][0]["field"]),
            (Some(1), &field.into()),
            "{report}"
        );
    }
    let (_folder, file) = job("");
    let odd = fs::read_to_string(&file).unwrap().replace("resolution = 64", "resolution = 66");
    fs::write(&file, odd).unwrap();
    let report = json(&doctor(&file, &["--output", "json", "--no-compute"]));
    assert_eq!(report["problems"][0]["field"], "train.resolution", "{report}");
    assert!(report["estimate"].is_null() && report["can_start"] == false);
}

#[test]
fn without_computing_everything_else_is_there() {
    let (_folder, file) = job("validation_prompt = \"a star\"\n");
    let output = doctor(&file, &["--no-compute"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let plain = "train.validation_prompt: \"a star\" has no word that is learned";
    for word in ["[<green-star>]", "duplicates", "again.png", "20 steps", "64 x 64", plain, "can start."] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("memory"), "{text}");
}

#[test]
fn captions_repeats_and_buckets_are_shown() {
    let train = "templates = [\"a photo of [name], [caption]\"]\nenable_bucket = true\nmin_bucket_reso = 32\n\
                 bucket_reso_steps = 16\n";
    let (folder, file) = job(train);
    let wide = folder.path().join("wide");
    fs::create_dir(&wide).unwrap();
    image::RgbImage::new(96, 48).save(wide.join("wide.png")).unwrap();
    fs::write(wide.join("wide.txt"), "by night\n").unwrap();
    fs::write(folder.path().join("pictures/again.txt"), "by day\n").unwrap();
    let folders = "folders = [{ images = \"pictures\" }, { images = \"wide\", repeats = 3 }]";
    let text = fs::read_to_string(&file).unwrap().replace("images = \"pictures\"", folders);
    fs::write(&file, text).unwrap();

    let output = doctor(&file, &["--no-compute"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    // In batches of two, the seven squares fill four microbatches and the wide one, three times, fills two.
    for words in [
        "for 1 of 7 pictures; none for green-star-1.png",
        "for 1 of 1 picture\n",
        "64 x 64: 7 pictures",
        "80 x 48: 1 picture",
        "passes of 12 samples",
        "[<green-star>] [<green-star> 2] , by night",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // A caption that is no text keeps the job from starting.
    fs::write(wide.join("wide.txt"), b"\xff").unwrap();
    let report = json(&doctor(&file, &["--output", "json", "--no-compute"]));
    assert_eq!(report["problems"][0]["field"], "data.folders[1].images", "{report}");
    assert!(report["problems"][0]["problem"].as_str().unwrap().contains("wide.txt"), "{report}");
}

/// A job that draws with an embedding that was learned on this model.
fn drawing_job(prompts: &str, more: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture("0.1.0/plain/learned_embeds.safetensors"), folder.path().join("star.safetensors"))
        .unwrap();
    let file = folder.path().join("job.toml");
    let text = format!(
        "kind = \"generate\"\nname = \"stars\"\n[model]\nbase = \"{}\"\n[generate]\nprompts = [{prompts}]\n\
         embeddings = [\"star.safetensors\"]\ncount = 3\nsteps = 10\nbatch = 2\n{more}[cluster]\nworld_size = 2\n",
        fixture("toy-sd").display()
    );
    fs::write(&file, text).unwrap();
    (folder, file)
}

#[test]
fn a_job_that_draws_is_shown_with_its_time() {
    let long = "star ".repeat(90);
    let (_folder, file) =
        drawing_job(&format!("\"a photo of <green-star>\", \"{long}\""), "width = 32\nheight = 48\n");
    let report = json(&doctor(&file, &["--output", "json"]));
    assert_eq!(report["can_start"], true, "{report}");
    assert_eq!(report["sizes"], serde_json::json!([{ "width": 32, "height": 48, "pictures": 6 }]));
    let drawing = &report["drawing"];
    assert_eq!((&drawing["pictures"], &drawing["batches"]), (&6.into(), &4.into()), "{drawing}");
    assert_eq!(drawing["embeddings"][0]["token"], "<green-star>", "{drawing}");
    let prompts = report["prompts"].as_array().unwrap();
    assert!(prompts[0].as_str().unwrap().contains("photo of [<green-star>"), "{prompts:?}");
    assert!(prompts[1].as_str().unwrap().contains("in 2 parts"), "{prompts:?}");
    // Each of two ranks has two batches of 10 steps.
    let estimate = &report["estimate"];
    let seconds = |name: &str| estimate[name].as_f64().unwrap();
    let expected = 2.0 * (seconds("encode_seconds") + 10.0 * seconds("step_seconds"));
    assert!((seconds("total_seconds") - expected).abs() < 1e-9 && expected > 0.0, "{estimate}");
    let text = String::from_utf8(doctor(&file, &["--no-compute"]).stdout).unwrap();
    for word in [
        "drawing     2 prompts x 3 = 6 pictures in 4 batches",
        "embedding   <green-star>",
        "This job can start.",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("memory"), "{text}");
}

#[test]
fn what_keeps_a_job_from_drawing_is_named() {
    let star = "\"a <green-star>\"";
    for (prompts, more, field, word) in [
        (star, "width = 33\n", "generate.width", "33"),
        (star, "embedings = []\n", "generate.embedings", "generate"),
        (&format!("\"{}\"", "star ".repeat(700)), "", "", "chunks"),
    ] {
        let (_folder, file) = drawing_job(prompts, more);
        let output = doctor(&file, &["--output", "json", "--no-compute"]);
        let report = json(&output);
        assert_eq!((output.status.code(), &report["can_start"]), (Some(1), &Value::Bool(false)), "{report}");
        let problem = &report["problems"][0];
        assert!(problem["field"].as_str().unwrap().starts_with(field), "{problem}");
        assert!(problem.to_string().contains(word), "{problem}");
    }
    let (folder, file) = drawing_job("\"a photo\"", "");
    let unused = json(&doctor(&file, &["--output", "json", "--no-compute"]));
    assert!(unused["warnings"].to_string().contains("none has the word <green-star>"), "{unused}");
    // Made for a text encoder of another width.
    fs::copy(fixture("embeddings/learned_embeds.safetensors"), folder.path().join("star.safetensors"))
        .unwrap();
    let misfit = json(&doctor(&file, &["--output", "json", "--no-compute"]));
    assert!(misfit["problems"][0].to_string().contains("star.safetensors"), "{misfit}");
    fs::remove_file(folder.path().join("star.safetensors")).unwrap();
    let missing = json(&doctor(&file, &["--output", "json", "--no-compute"]));
    assert!(missing["problems"][0].to_string().contains("star.safetensors"), "{missing}");
}
