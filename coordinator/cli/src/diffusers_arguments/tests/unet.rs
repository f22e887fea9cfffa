//! The scripts for the whole UNet.

use ringtune_shared::job::{Work, kinds::unet_finetune::UnetFinetuneSpec};

use super::*;

/// What the line's job says, filled in.
fn unet(line: &str) -> UnetFinetuneSpec {
    match parse_job_toml(&job_of(line)).unwrap_or_else(|error| panic!("{error}\n{}", job_of(line))).work {
        Work::UnetFinetune(unet) => unet,
        other => panic!("{other:?}"),
    }
}

/// examples/text_to_image/README.md, with values for the variables.
const TEXT_TO_IMAGE: &str = r#"accelerate launch --mixed_precision="bf16" train_text_to_image.py \
  --pretrained_model_name_or_path=CompVis/stable-diffusion-v1-4 \
  --dataset_name=lambdalabs/naruto-blip-captions \
  --use_ema \
  --resolution=512 --center_crop --random_flip \
  --train_batch_size=1 \
  --gradient_accumulation_steps=4 \
  --gradient_checkpointing \
  --max_train_steps=15000 \
  --learning_rate=1e-05 \
  --max_grad_norm=1 \
  --lr_scheduler="constant" --lr_warmup_steps=0 \
  --output_dir="sd-naruto-model""#;

#[test]
fn the_documentations_command_line_trains_the_unet() {
    let UnetFinetuneSpec { data, train, denoiser, unet, .. } = unet(TEXT_TO_IMAGE);
    assert_eq!(data.source, "hf://datasets/lambdalabs/naruto-blip-captions");
    assert_eq!((train.max_train_steps, train.gradient_accumulation_steps), (15_000, 4));
    assert!(train.center_crop && train.save_as_full_pipeline && denoiser.use_ema && denoiser.random_flip);
    assert!(unet.gradient_checkpointing);
    let own = |options: &str| format!("{TEXT_TO_IMAGE} {options}");
    let job = job_of(&own("--validation_prompts 'a ninja' --input_perturbation 0.1"));
    assert!(
        job.contains("validation_prompt = \"a ninja\"") && job.contains("input_perturbation = 0.1"),
        "{job}"
    );
    let several = translate(&own("--validation_prompts 'a ninja' 'a cat'"), nowhere).unwrap_err();
    assert!(several.problems[0].contains("got 2 prompts"), "{several:?}");
    let dream = translate(&own("--dream_training"), nowhere).unwrap_err();
    assert_eq!(dream.problems.len(), 1);
}

/// MosaicML, diffusion-benchmark, README.md.
const BENCHMARK: &str = "composer benchmark.py --use_ema --use_synth_data --device_train_microbatch_size 4";

#[test]
fn the_benchmarks_command_line_trains_on_synthetic_data() {
    let spec = parse_job_toml(&job_of(BENCHMARK)).unwrap();
    assert_eq!(spec.common.model.base, "hf://stabilityai/stable-diffusion-2-base");
    let UnetFinetuneSpec { prompt, train, denoiser, .. } = unet(BENCHMARK);
    assert_eq!((prompt.synthetic_samples, train.train_batch_size), (Some(100_000), 4));
    // 2,048 samples; five passes of 48 steps.
    assert_eq!((train.gradient_accumulation_steps, train.max_train_steps), (512, 240));
    assert_eq!((train.seed, train.learning_rate, train.adam_weight_decay), (17, 1e-4, 1e-3));
    assert_eq!((denoiser.min_timestep, denoiser.ema_half_life, train.max_grad_norm), (1, 1000.0, 0.0));
    let wide = unet(&BENCHMARK.replace("composer", "composer -n 8"));
    assert_eq!(wide.train.gradient_accumulation_steps, 64);
    for (line, says) in [
        (BENCHMARK.replace("size 4", "size 3"), "no whole number of microbatches of 3"),
        (BENCHMARK.replace(" --device_train_microbatch_size 4", ""), "is missing"),
        (format!("{BENCHMARK} --remote s3://laion"), "data.source"),
        (format!("{BENCHMARK} --batch_size 0"), "--batch_size"),
    ] {
        let refused = translate(&line, nowhere).unwrap_err().problems.join("; ");
        assert!(refused.contains(says), "{line}: {refused}");
    }
}
