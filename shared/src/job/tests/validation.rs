//! The options by which a job judges itself.

use super::*;

#[test]
fn they_are_read_and_written_flat() {
    let text = with(
        "train",
        "validation_loss_steps = 50\nvalidation_loss_samples = 24\nselect_best = true\nearly_stop_patience = 3\n\
         validation_prompt = \"a <cat-toy> on ice\"\nnum_validation_images = 2\nvalidation_steps = 10\n\
         report_to = \"none\"",
    );
    let spec = parse_job_toml(&text).unwrap();
    let expected = ValidationSpec {
        validation_loss_steps: 50,
        validation_loss_samples: 24,
        select_best: true,
        early_stop_patience: 3,
    };
    let train = work(&text).train;
    assert_eq!(train.validation, expected);
    let previews = PreviewSpec {
        validation_prompt: "a <cat-toy> on ice".to_owned(),
        num_validation_images: 2,
        validation_steps: 10,
    };
    assert_eq!((train.previews, train.report_to), (previews, ReportTo::Nothing));
    let written = spec.to_toml().unwrap();
    assert_eq!(parse_job_toml(&written).unwrap(), spec, "{written}");
    let json = serde_json::to_value(&spec).unwrap();
    assert_eq!(json["train"]["early_stop_patience"], 3);
    assert_eq!(JobSpec::from_stored(STORED_VERSION, &json.to_string()).unwrap(), spec);
}

#[test]
fn what_is_impossible_is_refused_by_name() {
    for (line, field) in [
        ("validation_loss_steps = -1", "validation_loss_steps"),
        ("validation_loss_steps = 5\nvalidation_loss_samples = 0", "validation_loss_samples"),
        ("validation_loss_steps = 5\nvalidation_loss_samples = 4097", "validation_loss_samples"),
        ("select_best = true", "select_best"),
        ("validation_loss_steps = 0\nselect_best = true", "select_best"),
        ("early_stop_patience = 2", "early_stop_patience"),
        ("num_validation_images = 65", "num_validation_images"),
        ("validation_steps = 0", "validation_steps"),
        ("validation_prompt = \"a\\u0007\"", "validation_prompt"),
        ("report_to = \"wandb\"", "report_to"),
    ] {
        let found = violation(&with("train", line));
        assert_eq!(found.field, format!("train.{field}"), "{line}");
        assert!(found.problem.contains("got") && found.line.is_some(), "{found}");
    }
}

#[test]
fn they_are_due_every_so_many_steps_and_after_the_last() {
    let on = train("validation_loss_steps = 4\nvalidation_prompt = \"x\"\nvalidation_steps = 3");
    let due = |is_due: &dyn Fn(u64) -> bool| (1..=10).filter(|step| is_due(*step)).collect::<Vec<_>>();
    assert_eq!(due(&|step| on.validation.is_due(step, 10)), [4, 8, 10]);
    assert_eq!(due(&|step| on.previews.is_due(step, 10)), [3, 6, 9, 10]);
    let off = work(SMALLEST).train;
    assert!(due(&|step| off.validation.is_due(step, 10) || off.previews.is_due(step, 10)).is_empty());
}
