use std::{fs, os::unix::fs::symlink};

use clap::Parser;

use super::*;
use crate::{
    engine::SamplerKind,
    node::{Cores, Cpu},
};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: StepArguments,
}

fn arguments(line: &str) -> Result<StepArguments, clap::Error> {
    let words = format!("step {line}");
    Line::try_parse_from(words.split_whitespace()).map(|line| line.arguments)
}

fn node(flags: &[&str]) -> Node {
    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Node {
        host_name: "a".to_owned(),
        cpu: Cpu { model: "a".to_owned(), flags, allowed: 4, physical_cores: 2 },
        cores: Cores::default(),
        quota: None,
        memory_bytes: 0,
        numa_nodes: 1,
    }
}

fn model(_: &Path, _: &ModelOptions) -> Result<ModelInfo, EngineError> {
    Ok(ModelInfo {
        vocab_size: 10,
        text_width: 4,
        max_text_length: 77,
        latent_channels: 4,
        vae_factor: 8,
        scaling_factor: 1.0,
        num_train_timesteps: 1000,
        prediction_type: crate::engine::PredictionType::Epsilon,
        sampler: SamplerKind::Ddim,
        unknown_scheduler: None,
        parameters: 1,
        native_resolution: None,
    })
}

/// Knows every model, and fails where it has to compute.
fn library() -> Library {
    fn failed<T>() -> Result<T, EngineError> {
        Err(EngineError::Panicked("it was started".to_owned()))
    }
    let meter = Meter { start_recording: failed, stop_recording: failed, machine_rates: |_| failed() };
    Library { start: |_| failed(), check_folder: model, meter }
}

async fn outcome(line: &str, library: Library) -> (bool, String) {
    let arguments = arguments(line).expect("a command line");
    let error = step(&arguments, library).await.expect_err("a failure");
    (error.is_usage(), error.to_string())
}

#[test]
fn numbers_have_bounds() {
    for wrong in
        ["--steps 0", "--warm-up 0", "--resolution 0", "--batch 257", "--threads 0", "--precision int8"]
    {
        let error =
            arguments(&format!("model {wrong}")).err().map(|error| error.to_string()).unwrap_or_default();
        let (option, value) = wrong.split_once(' ').unwrap_or_default();
        assert!(error.contains(option) && error.contains(value), "{wrong}: {error}");
    }
    assert!(arguments("").is_err(), "no model");
    assert!(arguments("model --steps 1 --resolution 8 --batch 256 --precision fp32").is_ok());
}

#[test]
fn precision_and_threads_are_the_machines_unless_they_are_given() {
    let plan = |line: &str, flags: &[&str]| check(&arguments(line).expect("a command line"), &node(flags));
    let decided = |line: &str, flags: &[&str]| {
        let plan = plan(line, flags).expect("a plan");
        (plan.precision, plan.threads)
    };
    assert_eq!(decided("model", &["avx512_bf16"]), (Precision::Bf16, 2));
    assert_eq!(decided("model --threads 3", &[]), (Precision::Fp32, 3));
    assert_eq!(decided("model --precision fp32", &["amx_bf16"]), (Precision::Fp32, 2));
    let refused = plan("model --precision bf16", &[]).expect_err("no bf16").to_string();
    assert!(refused.contains("--precision") && refused.contains("fp32"), "{refused}");
}

#[tokio::test]
async fn what_is_wrong_is_said_before_anything_is_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let (usage, text) = outcome("model --resolution 500", library()).await;
    assert!(usage && text.contains("--resolution: is 500") && text.contains("multiple of 8"), "{text}");
    let (usage, text) = outcome(&format!("model --steps 21 --profile {place}/t.json"), library()).await;
    assert!(usage && text.contains("--steps: is 21 with --profile") && text.contains("1 to 20"), "{text}");
    for wrong in [place.clone(), format!("{place}/missing/t.json")] {
        let (usage, text) = outcome(&format!("model --profile {wrong}"), library()).await;
        assert!(!usage && text.contains(&format!("--profile {wrong}")), "{text}");
    }
    let unknown =
        Library { check_folder: |_, _| Err(EngineError::OfJob("x: not there".into())), ..library() };
    let (_, text) = outcome("x", unknown).await;
    assert_eq!(text, "MODEL: x: not there");
    // Nothing is wrong, and the engine is started.
    let (_, text) = outcome(&format!("model --profile {place}/t.json"), library()).await;
    assert!(text.contains("it was started"), "{text}");
    let left: Vec<_> = fs::read_dir(folder.path()).expect("the folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_trace_replaces_what_was_there_and_may_be_a_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("t.json");
    fs::write(&file, "old").expect("a file");
    check_writable(&file).expect("it can be written");
    assert_eq!(fs::read_to_string(&file).expect("the file"), "old");
    write_trace(&file, &[]).expect("a trace");
    let trace: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).expect("the file")).expect("a JSON object");
    assert_eq!(trace["traceEvents"], json!([]));
    let link = folder.path().join("link");
    symlink(folder.path(), &link).expect("a link");
    assert!(check_writable(&link).is_err());
}
