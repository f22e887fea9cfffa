//! The training options that are numbers with a fraction, and the schedule's cycles.

use super::*;

/// A key, its largest value, and how it is read.
type Number = (&'static str, f64, fn(&TrainSpec) -> f64);

const NUMBERS: [Number; 5] = [
    ("adam_weight_decay", 1000.0, |train| train.adam_weight_decay),
    ("adam_epsilon", 1000.0, |train| train.adam_epsilon),
    ("max_grad_norm", 1e6, |train| train.max_grad_norm),
    ("snr_gamma", 1e6, |train| train.snr_gamma),
    ("noise_offset", 100.0, |train| train.noise_offset),
];

#[track_caller]
fn refused(key: &str, wrong: &str) {
    let found = violation(&with("train", &format!("{key} = {wrong}")));
    assert_eq!(found.field, format!("train.{key}"), "{wrong}");
    assert!(found.problem.contains("got") && found.problem.contains("allowed"), "{found}");
    assert!(found.line.is_some(), "{found}");
}

#[track_caller]
fn accepted(key: &str, right: &str) -> TrainSpec {
    parse_job_toml(&with("train", &format!("{key} = {right}")))
        .unwrap()
        .textual_inversion()
        .unwrap()
        .train
        .clone()
}

#[test]
fn numbers_are_read_up_to_their_limits() {
    for (key, most, read) in NUMBERS {
        for right in [0.0, 1e-300, 0.25, 1.0, most] {
            assert_eq!(read(&accepted(key, &format!("{right:e}"))), right, "{key}");
        }
        assert_eq!(read(&accepted(key, "1")), 1.0, "{key} as a whole number");
        assert!(read(&accepted(key, "-0.0")).is_sign_positive(), "{key}");
    }
    let betas = accepted("adam_beta1", "0\nadam_beta2 = 0.9999999");
    assert_eq!((betas.adam_beta1, betas.adam_beta2), (0.0, 0.999_999_9));
    for right in [1, 7, 10_000_000] {
        assert_eq!(accepted("lr_num_cycles", &right.to_string()).lr_num_cycles, right);
    }
}

#[test]
fn impossible_numbers_are_refused() {
    for (key, most, _) in NUMBERS {
        for wrong in ["-1e-9", "-1", "nan", "-nan", "inf", "-inf", "1e400", "true", "\"1\"", "[1.0]"] {
            refused(key, wrong);
        }
        refused(key, &format!("{:e}", most * 1.001));
    }
    for key in ["adam_beta1", "adam_beta2"] {
        for wrong in ["-1e-9", "1", "1.0", "1.5", "nan", "inf", "-inf", "\"0.9\""] {
            refused(key, wrong);
        }
    }
    for wrong in ["0", "-1", "10000001", "1.0", "nan", "\"1\""] {
        refused("lr_num_cycles", wrong);
    }
}

#[test]
fn all_are_printed_and_their_mistakes_are_said_at_once() {
    let keys = NUMBERS.map(|(key, ..)| key);
    let printed = parse_job_toml(SMALLEST).unwrap().to_toml().unwrap();
    for key in keys.iter().chain(&["adam_beta1", "adam_beta2", "lr_num_cycles"]) {
        assert!(printed.lines().any(|line| line.starts_with(&format!("{key} = "))), "{key} in {printed}");
    }
    let lines: Vec<String> = keys.iter().map(|key| format!("{key} = -1.0")).collect();
    let error = parse_job_toml(&with("train", &lines.join("\n"))).unwrap_err();
    let fields: Vec<&str> = error.violations.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, keys.map(|key| format!("train.{key}")));
}
