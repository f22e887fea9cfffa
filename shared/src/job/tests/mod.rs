//! Job files and drafts: what is accepted, what is refused, and in which words.

mod checkpoints;
mod concepts;
mod foreign_keys;
mod pictures;
mod places;
mod round_trips;
mod schedules;
mod settings;
mod train_numbers;
mod validation;

use std::path::Path;

use super::*;
use super::{
    kinds::textual_inversion::*,
    pictures::{concepts::*, *},
};

/// A job with these lines in `[train]` and `[cluster]`.
pub(crate) fn job_with(train: &str, cluster: &str) -> JobSpec {
    parse_job_toml(&format!(
        "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n[train]\n\
         placeholder_token = \"<a>\"\ninitializer_token = \"b\"\n{train}\n[cluster]\n{cluster}\n"
    ))
    .unwrap()
}

const SMALLEST: &str = r#"
kind = "textual_inversion"
[model]
base = "/models/sd"
[data]
images = "./pictures"
[train]
placeholder_token = "<cat-toy>"
initializer_token = "toy"
"#;

/// The job file above with one more line in the given section.
fn with(section: &str, line: &str) -> String {
    if section.is_empty() {
        format!("{line}\n{SMALLEST}")
    } else if SMALLEST.contains(&format!("[{section}]")) {
        SMALLEST.replace(&format!("[{section}]"), &format!("[{section}]\n{line}"))
    } else {
        format!("{SMALLEST}[{section}]\n{line}\n")
    }
}

/// What a job file says of its work.
#[track_caller]
fn work(text: &str) -> TextualInversionSpec {
    parse_job_toml(text).unwrap().textual_inversion().unwrap().clone()
}

/// The training of the job file above with one more line there.
#[track_caller]
fn train(line: &str) -> TrainSpec {
    work(&with("train", line)).train
}

/// The one thing that is wrong with a job file.
#[track_caller]
fn violation(text: &str) -> Violation {
    let error = parse_job_toml(text).expect_err("it was accepted");
    assert_eq!(error.violations.len(), 1, "{error}");
    error.violations.into_iter().next().unwrap()
}

#[test]
fn what_is_left_out_takes_diffusers_defaults() {
    let spec = parse_job_toml(SMALLEST).unwrap();
    let common = CommonSpec {
        name: "textual_inversion".into(),
        model: ModelSpec {
            base: "/models/sd".into(),
            revision: String::new(),
            variant: String::new(),
            prediction_type: None,
            tokenizer: String::new(),
        },
        cluster: ClusterSpec { world_size: 1, min_world_size: 1, ..ClusterSpec::default() },
        debug: DebugSpec { trace_dir: String::new() },
        output: OutputSpec::default(),
        orders: OrdersSpec::default(),
    };
    let work = TextualInversionSpec {
        data: DataSpec { images: "./pictures".into(), ..DataSpec::default() },
        word: WordSpec {
            placeholder_token: "<cat-toy>".into(),
            initializer_token: "toy".into(),
            initializer_embedding: String::new(),
            learnable_property: LearnableProperty::Object,
            num_vectors: 1,
        },
        train: TrainSpec {
            resolution: 512,
            train_batch_size: 16,
            gradient_accumulation_steps: 1,
            max_train_steps: 5000,
            learning_rate: 1e-4,
            learning_rates: None,
            scale_lr: false,
            lr_scheduler: LrScheduler::Constant,
            lr_warmup_steps: 500,
            seed: 0,
            mixed_precision: MixedPrecision::No,
            center_crop: false,
            templates: Vec::new(),
            save_steps: 500,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_weight_decay: 0.01,
            adam_epsilon: 1e-8,
            lr_num_cycles: 1,
            max_grad_norm: 0.0,
            snr_gamma: 0.0,
            noise_offset: 0.0,
            rescale_betas_zero_snr: false,
            num_train_epochs: None,
            repeats: 100,
            checkpointing_steps: 500,
            checkpoints_total_limit: 0,
            resume_from_checkpoint: String::new(),
            save_as_full_pipeline: false,
            validation: ValidationSpec {
                validation_loss_steps: 0,
                validation_loss_samples: 32,
                select_best: false,
                early_stop_patience: 0,
            },
            previews: PreviewSpec {
                validation_prompt: String::new(),
                num_validation_images: 4,
                validation_steps: 100,
            },
            report_to: ReportTo::Tensorboard,
            caption_dropout: 0.0,
            shuffle_tags: false,
            keep_tags: 0,
            enable_bucket: false,
            min_bucket_reso: 256,
            max_bucket_reso: 1024,
            bucket_reso_steps: 64,
            bucket_no_upscale: false,
        },
        concepts: Vec::new(),
    };
    let expected = JobSpec { common, work: Work::TextualInversion(work) };
    assert_eq!(spec, expected);
}

#[test]
fn every_field_is_read() {
    let text = r#"
        kind = "textual_inversion"
        name = "dicoo"
        [model]
        base = "sd"
        [data]
        images = "artifact://sha256/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        [train]
        placeholder_token = "<dicoo>"
        initializer_token = "toy"
        learnable_property = "style"
        num_vectors = 2
        resolution = 64
        train_batch_size = 3
        gradient_accumulation_steps = 5
        max_train_steps = 200
        learning_rate = 2.0e-3
        scale_lr = true
        lr_scheduler = "cosine_with_restarts"
        lr_warmup_steps = 10
        seed = 7
        mixed_precision = "bf16"
        center_crop = true
        templates = ["a photo of {}", "{} on black"]
        save_steps = 0
        [cluster]
        world_size = 4
        min_world_size = 2
        threads_per_rank = 8
        [debug]
        trace_dir = "trace"
    "#;
    let spec = parse_job_toml(text).unwrap();
    let TextualInversionSpec { word, mut train, .. } = work(text);
    assert_eq!(train.lr_scheduler, LrScheduler::CosineWithRestarts);
    assert_eq!(word.learnable_property, LearnableProperty::Style);
    assert_eq!(train.mixed_precision, MixedPrecision::Bf16);
    assert_eq!(train.templates, ["a photo of {}", "{} on black"]);
    assert_eq!((train.save_steps, train.seed, train.max_train_steps), (0, 7, 200));
    assert_eq!(
        spec.common.cluster,
        ClusterSpec { world_size: 4, min_world_size: 2, threads_per_rank: 8, ..ClusterSpec::default() }
    );
    assert_eq!(spec.common.debug.trace_dir, "trace");
    assert_eq!(spec.global_microbatches(), 20);
    assert_eq!(train.global_batch(&spec.common.cluster), 60);
    assert_eq!(train.effective_learning_rate(&spec.common.cluster), 2.0e-3 * 60.0);
    train.scale_lr = false;
    assert_eq!(train.effective_learning_rate(&spec.common.cluster), 2.0e-3);
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
}

#[test]
fn the_smallest_ring_defaults_to_the_wanted_one() {
    let spec = parse_job_toml(&with("cluster", "world_size = 6")).unwrap();
    assert_eq!(spec.common.cluster.min_world_size, 6);
}

#[test]
fn unknown_keys_are_refused_with_line_and_likely_word() {
    for (section, line, field, word) in [
        ("train", "num_vector = 1", "train.num_vector", "num_vectors"),
        ("train", "lr_sheduler = \"linear\"", "train.lr_sheduler", "lr_scheduler"),
        ("cluster", "worldsize = 1", "cluster.worldsize", "world_size"),
        ("", "nme = \"x\"", "nme", "name"),
        ("trian", "seed = 1", "trian", "train"),
        ("cluster", "seed = 1", "cluster.seed", "[train]"),
        ("", "world_size = 2", "world_size", "[cluster]"),
        ("model", "zzzzzzzz = 1", "model.zzzzzzzz", "base"),
    ] {
        let text = with(section, line);
        let found = violation(&text);
        assert_eq!(found.field, field);
        assert!(found.problem.contains(word), "{found}");
        let at = found.line.unwrap();
        let last = field.rsplit('.').next().unwrap();
        assert!(text.lines().nth(at - 1).unwrap().contains(last), "{found} in {text}");
    }
}

#[test]
fn wrong_types_are_refused_with_line_and_field() {
    for (section, line, field) in [
        ("train", "num_vectors = \"1\"", "train.num_vectors"),
        ("train", "num_vectors = 1.0", "train.num_vectors"),
        ("train", "learning_rate = \"1e-3\"", "train.learning_rate"),
        ("train", "learning_rate = true", "train.learning_rate"),
        ("train", "scale_lr = \"true\"", "train.scale_lr"),
        ("train", "scale_lr = 1", "train.scale_lr"),
        ("train", "lr_scheduler = 3", "train.lr_scheduler"),
        ("train", "templates = \"a {}\"", "train.templates"),
        ("train", "templates = [\"a {}\", 3]", "train.templates[1]"),
        ("train", "seed = 9223372036854775808", "train.seed"),
        ("train", "seed = 1979-05-27", "train.seed"),
        ("cluster", "world_size = [1]", "cluster.world_size"),
        ("", "name = 3", "name"),
        ("", "debug = 3", "debug"),
    ] {
        let text = with(section, line);
        let found = violation(&text);
        assert_eq!(found.field, field);
        assert_eq!(text.lines().position(|known| known == line).unwrap() + 1, found.line.unwrap(), "{found}");
    }
}

#[test]
fn a_section_of_the_wrong_type_is_one_complaint_and_the_missing_fields() {
    let error = parse_job_toml("kind = \"textual_inversion\"\nmodel = 3\n").unwrap_err();
    let fields: Vec<&str> = error.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(
        fields,
        ["model", "model.base", "data.images", "train.placeholder_token", "train.initializer_token"]
    );
}

#[test]
fn impossible_numbers_are_refused_with_what_was_given() {
    let over = "99999999999";
    for (section, key, least, most) in [
        ("train", "num_vectors", 1, 64),
        ("train", "resolution", 1, 4096),
        ("train", "train_batch_size", 1, 1024),
        ("train", "gradient_accumulation_steps", 1, 1024),
        ("train", "max_train_steps", 1, 10_000_000),
        ("train", "lr_warmup_steps", 0, 10_000_000),
        ("train", "save_steps", 0, 10_000_000),
        ("cluster", "threads_per_rank", 0, 1024),
    ] {
        let field = format!("{section}.{key}");
        for wrong in [(least - 1).to_string(), (-5).to_string(), (most + 1).to_string(), over.to_owned()] {
            let found = violation(&with(section, &format!("{key} = {wrong}")));
            assert_eq!(found.field, field);
            assert!(found.problem.contains(&wrong) && found.line.is_some(), "{found}");
        }
        for right in [least, most] {
            let text = with(section, &format!("{key} = {right}"));
            assert!(parse_job_toml(&text).is_ok(), "{text}");
        }
    }
    for wrong in ["0", "-1", "1025"] {
        let found = violation(&with("cluster", &format!("world_size = {wrong}")));
        assert_eq!(found.field, "cluster.world_size");
    }
    assert_eq!(violation(&with("train", "seed = -1")).field, "train.seed");
    assert_eq!(train("seed = 9223372036854775807").seed, i64::MAX as u64);
}

#[test]
fn impossible_learning_rates_are_refused() {
    for wrong in ["0", "0.0", "-0.0", "-1e-3", "nan", "inf", "-inf", "1e9", "1e400"] {
        let found = violation(&with("train", &format!("learning_rate = {wrong}")));
        assert_eq!(found.field, "train.learning_rate", "{wrong}");
    }
    assert_eq!(train("learning_rate = 1").learning_rate, 1.0);
}

#[test]
fn the_smallest_ring_is_no_larger_than_the_wanted_one() {
    let found = violation(&with("cluster", "world_size = 2\nmin_world_size = 3"));
    assert_eq!(found.field, "cluster.min_world_size");
    assert!(found.problem.contains("got 3") && found.problem.contains("1 to 2"), "{found}");
    assert_eq!(violation(&with("cluster", "min_world_size = 0")).field, "cluster.min_world_size");
    let text =
        with("cluster", "world_size = 1024").replace("[train]", "[train]\ngradient_accumulation_steps = 65");
    assert_eq!(violation(&text).field, "train.gradient_accumulation_steps");
}

#[test]
fn words_that_are_no_choice_are_refused_with_the_choices() {
    for (line, field, choice) in [
        ("learnable_property = \"thing\"", "train.learnable_property", "object, style"),
        ("lr_scheduler = \"Cosine\"", "train.lr_scheduler", "cosine_with_restarts"),
        ("lr_scheduler = \"\"", "train.lr_scheduler", "constant_with_warmup"),
        ("mixed_precision = \"fp16\"", "train.mixed_precision", "no, bf16"),
    ] {
        let found = violation(&with("train", line));
        assert_eq!(found.field, field);
        assert!(found.problem.contains(choice), "{found}");
    }
}

#[test]
fn kinds_that_are_not_there_are_refused() {
    for (kind, says) in
        [("controlnet", "unet_finetune"), ("textual-inversion", "textual_inversion"), ("", "missing")]
    {
        let found = violation(&SMALLEST.replacen("textual_inversion", kind, 1));
        assert_eq!(found.field, "kind");
        assert!(found.problem.contains(says), "{found}");
    }
}

#[test]
fn templates_have_one_hole_as_diffusers_needs() {
    let wrong = "a photo|{} and {}|a {0}|a {name} {}|{{}}|{} }|{ }||a\\n{}|{} [nmae]|[name] {}";
    for wrong in wrong.split('|') {
        let found = violation(&with("train", &format!("templates = [\"a {{}}\", \"{wrong}\"]")));
        assert_eq!(found.field, "train.templates[1]", "{wrong}");
        assert!(found.line.is_some(), "{found}");
    }
    let long = format!("templates = [\"{} {{}}\"]", "x".repeat(510));
    assert_eq!(violation(&with("train", &long)).field, "train.templates[0]");
    let many = format!("templates = [{}]", "\"{}\",".repeat(1001));
    assert_eq!(violation(&with("train", &many)).field, "train.templates");
    assert!(train("templates = []").templates.is_empty());
}

#[test]
fn tokens_are_single_words() {
    let words = SMALLEST.replace("\"toy\"", "\"green toy\"");
    assert_eq!(work(&words).word.initializer_token, "green toy");
    assert_eq!(violation(&SMALLEST.replace("<cat-toy>", "two words")).field, "train.placeholder_token");
    for wrong in ["", " ", "tab\\there", "end ", "\\u0001", "\\u00a0x", &"x".repeat(201)] {
        for (old, field) in [("<cat-toy>", "train.placeholder_token"), ("\"toy\"", "train.initializer_token")]
        {
            let new = if old.starts_with('"') { format!("\"{wrong}\"") } else { wrong.to_owned() };
            assert_eq!(violation(&SMALLEST.replace(old, &new)).field, field, "{wrong:?}");
        }
    }
    assert_eq!(violation(&SMALLEST.replace("<cat-toy>", "toy")).field, "train.placeholder_token");
}

#[test]
fn names_are_printable() {
    for wrong in ["x".repeat(201), "a\\u0007".to_owned(), "\u{202e}a".to_owned(), " a".to_owned()] {
        assert_eq!(violation(&with("", &format!("name = \"{wrong}\""))).field, "name");
    }
    assert_eq!(parse_job_toml(&with("", "name = \"\"")).unwrap().common.name, "textual_inversion");
}

#[test]
fn all_that_is_wrong_is_said_at_once_in_the_order_of_the_lines() {
    let text = with("train", "seed = -1\nscale_lr = 3\nnum_vektors = 2\nlearning_rate = nan");
    let error = parse_job_toml(&text).unwrap_err();
    let fields: Vec<&str> = error.violations.iter().map(|violation| violation.field.as_str()).collect();
    assert_eq!(fields, ["train.seed", "train.scale_lr", "train.num_vektors", "train.learning_rate"]);
    assert_eq!(error.to_string().lines().count(), 4);
    let missing = parse_job_toml("").unwrap_err();
    assert_eq!(missing.violations.len(), 5, "{missing}");
}

#[test]
fn broken_toml_is_refused_with_its_line() {
    for (text, line) in
        [("kind = \"x\"\n\n[train\n", 3), ("a = 1\na = 2\n", 2), ("kind = \n", 1), ("\n\n\nx", 4)]
    {
        let found = violation(text);
        assert_eq!((found.field.as_str(), found.line), ("", Some(line)), "{found}");
    }
    assert_eq!(violation(&"#".repeat(5 << 20)).field, "");
    assert!(parse_job_toml(&"[".repeat(100_000)).is_err());
    assert!(parse_job_toml(&format!("a = {}", "[".repeat(100_000))).is_err());
}
