//! `learning_rates` in place of one rate and its schedule, and the options of a model.

use super::*;

#[test]
fn a_list_of_rates_replaces_rate_and_schedule() {
    let text = with("train", "learning_rates = \"0.005:100, 1e-3:1000, 1e-5\"\nscale_lr = true");
    let spec = parse_job_toml(&text).unwrap();
    let (train, cluster) = (work(&text).train, &spec.common.cluster);
    let rates = train.learning_rates.as_ref().unwrap();
    assert_eq!((rates.at(100), rates.at(101), rates.at(5000)), (5e-3, 1e-3, 1e-5));
    assert_eq!((train.learning_rate, train.lr_warmup_steps), (5e-3, 0));
    assert_eq!((train.learning_rate_scale(cluster), train.effective_learning_rate(cluster)), (16.0, 0.08));
    // Written out in full, also over the wire, it is the same job.
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    let printed = parse_job_toml(SMALLEST).unwrap().to_toml().unwrap();
    assert!(!printed.contains("learning_rates"), "{printed}");
    let none = parse_job_toml(&with("train", "learning_rates = \"\"")).unwrap();
    assert_eq!(none, parse_job_toml(SMALLEST).unwrap());
}

#[test]
fn what_it_replaces_must_not_stand_beside_it() {
    for (key, value) in
        [("learning_rate", "1e-3"), ("lr_scheduler", "\"cosine\""), ("lr_warmup_steps", "500")]
    {
        let text = with("train", &format!("learning_rates = \"0.005:9, 1e-4\"\n{key} = {value}"));
        let found = violation(&text);
        assert_eq!(found.field, format!("train.{key}"));
        assert!(found.problem.contains("together with learning_rates") && found.line.is_some(), "{found}");
    }
    let harmless = "learning_rates = \"0.005:9, 1e-4\"\nlr_scheduler = \"constant\"\nlr_warmup_steps = 0";
    assert!(parse_job_toml(&with("train", harmless)).is_ok());
}

#[test]
fn impossible_lists_are_refused_by_name() {
    for wrong in ["fast", "1e-3:5, 1e-4:5", "1e-3, 1e-4", "nan", "1e-3:0"] {
        let found = violation(&with("train", &format!("learning_rates = {wrong:?}")));
        assert_eq!(found.field, "train.learning_rates", "{wrong}");
    }
    // Steps without a rate, in a list that ends too early.
    let text = with("train", "learning_rates = \"1e-3:10, 1e-4:20\"\nmax_train_steps = 21");
    assert!(violation(&text).problem.contains("ends at step 20"));
    assert!(parse_job_toml(&text.replace("21", "20")).is_ok());
    assert!(parse_job_toml(&text.replace("21", "5")).is_ok());
}

#[test]
fn a_models_options_are_read() {
    let text = with("model", "prediction_type = \"v_prediction\"\ntokenizer = \"words\"");
    let mut spec = parse_job_toml(&text).unwrap();
    assert_eq!(spec.common.model.prediction_type, Some(PredictionType::VPrediction));
    spec.resolve_paths(Path::new("/jobs")).unwrap();
    assert_eq!(spec.common.model.tokenizer, "/jobs/words");
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    let found = violation(&with("model", "prediction_type = \"sample\""));
    assert!(found.problem.contains("epsilon, v_prediction"), "{found}");
    for wrong in ["hf://a/b", "a\\u0007b"] {
        assert_eq!(violation(&with("model", &format!("tokenizer = \"{wrong}\""))).field, "model.tokenizer");
    }
}

#[test]
fn pure_noise_needs_the_velocity() {
    assert!(train("rescale_betas_zero_snr = true").rescale_betas_zero_snr);
    let text = with("train", "rescale_betas_zero_snr = true")
        .replace("[model]", "[model]\nprediction_type = \"epsilon\"");
    let found = violation(&text);
    assert_eq!(found.field, "train.rescale_betas_zero_snr");
}
