//! Resuming from a checkpoint.

use super::*;

fn job(line: &str) -> String {
    with("train", line).replace("./pictures", "/i")
}

#[test]
fn the_defaults_are_those_of_diffusers() {
    let train = work(SMALLEST).train;
    assert_eq!((train.checkpointing_steps, train.checkpoints_total_limit), (500, 0));
    assert_eq!(train.resume_from_checkpoint, "");
}

#[test]
fn a_step_may_be_a_number_and_nonsense_is_named() {
    let read = |line: &str| {
        parse_job_toml(&job(line))
            .map(|spec| spec.textual_inversion().unwrap().train.resume_from_checkpoint.clone())
    };
    assert_eq!(read("resume_from_checkpoint = 500").unwrap(), "500");
    assert_eq!(read("resume_from_checkpoint = \"latest\"").unwrap(), "latest");
    for (line, field) in [
        ("resume_from_checkpoint = \"lastest\"", "train.resume_from_checkpoint"),
        ("resume_from_checkpoint = -1", "train.resume_from_checkpoint"),
        ("resume_from_checkpoint = true", "train.resume_from_checkpoint"),
        ("checkpointing_steps = -1", "train.checkpointing_steps"),
        ("checkpoints_total_limit = 1.5", "train.checkpoints_total_limit"),
    ] {
        let error = read(line).unwrap_err();
        assert_eq!(error.violations[0].field, field, "{error}");
    }
}

#[test]
fn a_file_is_relative_to_the_job_file() {
    let mut spec = parse_job_toml(&job("resume_from_checkpoint = \"out/checkpoint-5\"")).unwrap();
    assert!(spec.check_paths().is_err());
    spec.resolve_paths("/jobs".as_ref()).unwrap();
    assert_eq!(spec.textual_inversion().unwrap().train.resume_from_checkpoint, "/jobs/out/checkpoint-5");
    let mut latest = parse_job_toml(&job("resume_from_checkpoint = \"latest\"")).unwrap();
    latest.resolve_paths("/jobs".as_ref()).unwrap();
    assert_eq!(latest.textual_inversion().unwrap().train.resume_from_checkpoint, "latest");
}
