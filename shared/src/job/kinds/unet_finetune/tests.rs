use super::*;
use crate::job::{JobKind, JobSpec, STORED_VERSION, Work, parse_job_toml};

const JOB: &str = "kind = \"unet_finetune\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n";

fn unet(text: &str) -> UnetFinetuneSpec {
    match parse_job_toml(text).unwrap().work {
        Work::UnetFinetune(work) => work,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_has_diffusers_defaults_and_is_written_as_it_is_read() {
    let mut spec = parse_job_toml(JOB).unwrap();
    assert_eq!((spec.kind(), spec.common.name.as_str()), (JobKind::UnetFinetune, "unet_finetune"));
    assert!(spec.needs_image_count());
    // 100 passes of 33 pictures, 16 in a batch.
    spec.count_steps(33).unwrap();
    assert_eq!(spec.total_steps(), 300);
    let own = unet(JOB);
    assert_eq!((own.train.max_grad_norm, own.train.train_batch_size), (1.0, 16));
    assert_eq!(
        (&own.unet.trainable[..], own.unet.init_from),
        (&["all".to_owned()][..], UnetInit::Checkpoint)
    );
    assert_eq!(own.templates(), [pictures::CAPTION]);
    let full = format!(
        "{JOB}class_images = \"/c\"\nclass_prompt = \"a toy\"\n[train]\nmax_train_steps = 5\nuse_ema = false\n\
         trainable = [\"attn2.to_k\", \"up_blocks.1\"]\ninit_from = \"scratch\"\ngradient_checkpointing = true\n\
         offload = \"disk\"\nexchange = \"fast_bf16\"\nshard_optimizer = true\nsnr_gamma = 5\n"
    );
    let spec = parse_job_toml(&full).unwrap();
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
    let of_word = unet(&format!("{JOB}[train]\ntrainable = \"cross_attention\"\n"));
    assert_eq!(of_word.unet.trainable, ["cross_attention"]);
}

#[test]
fn wrong_values_and_keys_of_other_kinds_are_named() {
    for (options, field) in [
        ("[train]\ntrainable = []", "train.trainable"),
        ("[train]\ntrainable = [\"all\", \"attn1\"]", "train.trainable"),
        ("[train]\ntrainable = [\"a b\"]", "train.trainable[0]"),
        ("[train]\ninit_from = \"pretrained\"", "train.init_from"),
        ("[train]\noffload = \"tape\"", "train.offload"),
        ("[train]\nexchange = \"slow\"", "train.exchange"),
        ("[train]\nema_decay = 0.5", "train.ema_decay"),
        ("[train]\nema_half_life = 10", "train.ema_decay"),
        ("[train]\nuse_ema = true\nema_decay = 0.5\nema_half_life = 10", "train.ema_half_life"),
        ("[train]\nuse_ema = true\nema_half_life = -1", "train.ema_half_life"),
        ("[train]\nattention = \"flash\"", "train.attention"),
        ("[train]\nmin_timestep = -1", "train.min_timestep"),
        ("[train]\nmax_train_steps = 2\nlocal_steps = 5", "train.local_steps"),
        ("[train]\nmax_train_steps = 2\nouter_momentum = 0.5", "train.outer_momentum"),
        ("[train]\nexchange = \"local\"", "train.max_train_steps"),
        ("[train]\nmax_train_steps = 2\nexchange = \"local\"\nlocal_steps = 0", "train.local_steps"),
        (
            "[train]\nmax_train_steps = 2\nexchange = \"local\"\nouter_learning_rate = 0",
            "train.outer_learning_rate",
        ),
        ("[train]\nmax_train_steps = 2\nexchange = \"local\"\nouter_momentum = 1", "train.outer_momentum"),
        (
            "[train]\nmax_train_steps = 2\nexchange = \"local\"\nshard_optimizer = true",
            "train.shard_optimizer",
        ),
        ("[train]\nmax_train_steps = 2000\nexchange = \"local\"\nlocal_steps = 5001", "train.local_steps"),
        ("synthetic_samples = 5", "data.images"),
        ("synthetic_samples = 0.5", "data.synthetic_samples"),
        ("[train]\nplaceholder_token = \"<a>\"", "train.placeholder_token"),
        ("[train]\ntrain_text_encoder = true", "train.train_text_encoder"),
        ("[train]\ntemplates = [\"a {}\"]", "train.templates[0]"),
        ("class_images = \"/c\"", "data.class_prompt"),
        ("[lora]\nrank = 4", "lora"),
    ] {
        let error = parse_job_toml(&format!("{JOB}{options}\n")).unwrap_err();
        assert!(error.violations.iter().any(|one| one.field == field), "{field}: {error}");
    }
}

#[test]
fn synthetic_samples_need_no_pictures_and_have_no_captions() {
    let job = "kind = \"unet_finetune\"\n[model]\nbase = \"/m\"\n[data]\nsynthetic_samples = 100\n";
    let steps = "[train]\nmax_train_steps = 3\n";
    let mut spec = parse_job_toml(&format!("{job}{steps}")).unwrap();
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    let work = spec.work.facts_mut();
    assert!(work.places().is_empty() && work.image_sources().is_empty() && work.image_uses().is_empty());
    assert!(unet(&format!("{job}{steps}")).templates().is_empty());
    for (job, field) in [
        (job.to_owned(), "train.max_train_steps"),
        (format!("{job}source = \"/s\"\n{steps}"), "data.source"),
        (format!("{job}instance_prompt = \"a\"\n{steps}"), "data.instance_prompt"),
        (format!("{job}{steps}enable_bucket = true\n"), "train.enable_bucket"),
    ] {
        let error = parse_job_toml(&job).unwrap_err();
        assert!(error.violations.iter().any(|one| one.field == field), "{field}: {error}");
    }
}

#[test]
fn a_job_of_rounds_is_written_as_it_is_read() {
    let text = format!("{JOB}[train]\nmax_train_steps = 5\nexchange = \"local\"\nlocal_steps = 7\n");
    let spec = parse_job_toml(&text).unwrap();
    assert_eq!(parse_job_toml(&spec.to_toml().unwrap()).unwrap(), spec);
    let json = serde_json::to_string(&spec).unwrap();
    assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
    let own = unet(&text).unet;
    assert_eq!(
        (own.local_steps, own.outer_learning_rate, own.outer_momentum),
        (Some(7), Some(0.7), Some(0.9))
    );
    assert!(!spec.ring_decides());
    let plain = unet(&format!("{JOB}[train]\nmax_train_steps = 5\n")).unet;
    assert_eq!((plain.local_steps, plain.outer_learning_rate, plain.outer_momentum), (None, None, None));
}

#[test]
fn options_that_decide_nothing_and_an_order_of_ranks_are_known() {
    let job = |options: &str| {
        let text = format!(
            "{JOB}[train]\nmax_train_steps = 5\n{options}\n[cluster]\nworld_size = 3\nmin_world_size = 2\n"
        );
        parse_job_toml(&text).unwrap()
    };
    assert!(!job("").ring_decides() && job("exchange = \"fast\"").ring_decides());
    assert!(job("exchange = \"fast\"").warning().unwrap().contains("train.exchange"));
    let facts = |option: &str| job("").work.facts().decides(option);
    assert!(facts("train.trainable") && facts("train.exchange") && facts("train.init_from"));
    assert!(facts("train.attention") && facts("train.ema_half_life") && facts("train.min_timestep"));
    assert!(!facts("train.cache_latents"));
    assert!(!facts("train.offload") && !facts("train.gradient_checkpointing") && !facts("train.save_steps"));
}
