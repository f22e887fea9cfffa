//! Any job that is accepted is the same after it was a job file, after it was stored, and after it went over the wire:
//! workers compare the hash of what they read with that of what the coordinator stores.

#![allow(missing_docs, clippy::unwrap_used)]

use proptest::prelude::*;
use ringtune_proto::convert::{spec_from_wire, spec_to_wire};
use ringtune_shared::job::{
    ClusterDraft, DebugDraft, JobDraft, JobSpec, LrScheduler, ModelDraft, OrdersDraft, OutputDraft,
    STORED_VERSION,
    kinds::{generate::GenerateDraft, gpt2_finetune::Gpt2Draft},
    parse_job_toml,
    pictures::concepts::WordDraft,
    pictures::{DataDraft, PreviewDraft, TrainDraft, ValidationDraft},
};

fn any_training() -> impl Strategy<Value = JobDraft> {
    let word = || "[a-z<>_\\\\\"é]{1,20}";
    let tokens = (word(), word(), "[^\\p{C}\\p{Zl}\\p{Zp}{}\\[\\]]{0,40}", "[^\\p{Cc}:]{1,60}");
    let numbers = (1..=64_i64, 1..=1024_i64, 0..=10_000_000_i64, 0..=i64::MAX, 1e-300..=1000.0_f64);
    let sizes = (1..=1024_i64, 1..=64_i64, any::<[bool; 2]>(), 0..6_usize, 0..3_usize);
    (tokens, numbers, sizes).prop_map(|(tokens, numbers, sizes)| {
        let (placeholder, initializer, around, path) = tokens;
        let (vectors, batch, steps, seed, learning_rate) = numbers;
        let (world_size, accumulation, flags, scheduler, templates) = sizes;
        // A list of rates stands in place of one and its schedule.
        let listed = templates == 1;
        JobDraft {
            kind: Some("textual_inversion".into()),
            name: Some(around.trim().into()),
            model: ModelDraft { base: Some(path.clone()), ..ModelDraft::default() },
            data: DataDraft {
                images: Some(path.clone()),
                folders: None,
                source: None,
                caption_column: flags[0].then(|| "words".into()),
                masks: flags[1].then(|| path.clone()),
                alpha_mask: Some(!flags[1]),
            },
            word: WordDraft {
                placeholder_token: Some(format!("<{placeholder}>1")),
                initializer_token: flags[1].then_some(initializer),
                initializer_embedding: (!flags[1]).then(|| path.clone()),
                learnable_property: Some("style".into()),
                num_vectors: Some(vectors),
            },
            train: TrainDraft {
                resolution: Some(batch),
                train_batch_size: Some(batch),
                gradient_accumulation_steps: Some(accumulation),
                max_train_steps: flags[0].then_some(steps.max(1)),
                learning_rate: (!listed).then_some(learning_rate),
                learning_rates: listed.then(|| "0.5:10, 1e-3:20, 1e-7".into()),
                scale_lr: Some(flags[0]),
                lr_scheduler: (!listed).then(|| LrScheduler::ALL[scheduler].to_string()),
                lr_warmup_steps: (!listed).then_some(steps),
                seed: Some(seed),
                mixed_precision: Some("bf16".into()),
                center_crop: Some(flags[1]),
                templates: Some(vec![format!("{around}{{}}"); templates]),
                save_steps: Some(steps),
                adam_beta1: Some(learning_rate / 1001.0),
                adam_beta2: Some(learning_rate / 2000.0),
                adam_weight_decay: Some(learning_rate),
                adam_epsilon: Some(learning_rate),
                lr_num_cycles: Some(steps.max(1)),
                max_grad_norm: Some(learning_rate),
                snr_gamma: Some(learning_rate),
                noise_offset: Some(learning_rate / 10.0),
                rescale_betas_zero_snr: Some(flags[0]),
                num_train_epochs: flags[1].then_some(steps.max(1)),
                repeats: Some(batch),
                checkpointing_steps: Some(vectors),
                checkpoints_total_limit: Some(vectors),
                resume_from_checkpoint: Some(format!("checkpoint-{vectors}")),
                save_as_full_pipeline: Some(flags[0]),
                validation: ValidationDraft {
                    validation_loss_steps: Some(steps.max(1)),
                    validation_loss_samples: Some(batch),
                    select_best: Some(flags[0]),
                    early_stop_patience: Some(steps),
                },
                previews: PreviewDraft {
                    validation_prompt: Some(around.clone()),
                    num_validation_images: Some(vectors),
                    validation_steps: Some(steps.max(1)),
                },
                caption_dropout: None,
                shuffle_tags: Some(false),
                keep_tags: Some(0),
                enable_bucket: Some(false),
                min_bucket_reso: Some(batch),
                max_bucket_reso: Some(batch),
                bucket_reso_steps: Some(batch),
                bucket_no_upscale: Some(flags[0]),
                report_to: Some("none".into()),
            },
            cluster: ClusterDraft {
                world_size: Some(world_size),
                min_world_size: Some(1),
                threads_per_rank: Some(batch),
                constraints: flags[0].then(|| vec!["pool=blue".into(), "amx_bf16".into()]),
                topology: flags[1].then(|| "pack:rack".into()),
            },
            orders: OrdersDraft {
                stop_after: flags[0].then_some(steps.max(1)),
                learning_rate: flags[1].then(|| [("3".into(), learning_rate), ("20".into(), 1e-3)].into()),
            },
            debug: DebugDraft { trace_dir: Some(path) },
            output: OutputDraft { url: flags[0].then(|| "s3://results/a".into()) },
            ..JobDraft::default()
        }
    })
}

fn any_drawing() -> impl Strategy<Value = JobDraft> {
    // A prompt of white space alone is refused.
    let texts = prop::collection::vec("[^\\p{Cc}]{0,20}[a-z][^\\p{Cc}]{0,20}", 1..4);
    (texts, "[^\\p{Cc}:]{1,60}", 1..=64_i64, 0..=i64::MAX, 0.0..=100.0_f64).prop_map(
        |(prompts, path, count, seed, guidance)| JobDraft {
            kind: Some("generate".into()),
            model: ModelDraft { base: Some(path), ..ModelDraft::default() },
            generate: GenerateDraft {
                negative_prompt: prompts.last().cloned(),
                prompts: Some(prompts),
                count: Some(count),
                seed: Some(seed),
                guidance_scale: Some(guidance),
                ..GenerateDraft::default()
            },
            ..JobDraft::default()
        },
    )
}

fn any_words() -> impl Strategy<Value = JobDraft> {
    let places = ("[^\\p{Cc}:]{1,60}", any::<[bool; 5]>());
    let numbers = (1..=1024_i64, 1..=10_000_000_i64, 0..=i64::MAX, 1e-300..=1000.0_f64, 0.0..1.0_f64);
    (places, numbers, 1..=64_i64).prop_map(|((path, flags), numbers, world_size)| {
        let (size, steps, seed, rate, share) = numbers;
        // Some options are left to their defaults.
        let given = |number: i64| flags[4].then_some(number);
        JobDraft {
            kind: Some("gpt2_finetune".into()),
            model: ModelDraft { base: Some(format!("{path}.d")), ..ModelDraft::default() },
            gpt2: Gpt2Draft {
                tokens: Some(path),
                init_from: Some(if flags[0] { "scratch" } else { "pretrained" }.into()),
                n_layer: flags[0].then_some(size),
                n_embd: flags[0].then_some(size * 64),
                n_head: flags[0].then_some(size),
                bias: flags[0].then_some(flags[1]),
                block_size: given(size),
                batch_size: given(size),
                gradient_accumulation_steps: given(size),
                max_iters: given(steps),
                learning_rate: Some(rate),
                decay_lr: Some(flags[1]),
                warmup_iters: Some(steps / 2),
                lr_decay_iters: given(steps),
                min_lr: flags[2].then_some(rate * share),
                weight_decay: Some(rate),
                beta1: Some(share),
                beta2: Some(share),
                grad_clip: Some(rate),
                dropout: flags[2].then_some(share),
                eval_interval: Some(if flags[3] { steps } else { 0 }),
                eval_iters: given(size),
                select_best: flags[3].then_some(flags[2]),
                early_stop_patience: flags[3].then_some(size),
                seed: Some(seed),
                mixed_precision: flags[2].then(|| "no".into()),
                checkpointing_steps: given(size),
                checkpoints_total_limit: given(size),
                resume_from_checkpoint: Some(format!("checkpoint-{size}")),
                report_to: flags[2].then(|| "none".into()),
                compare_interval: given(size),
                shard_optimizer: flags[1].then_some(flags[0]),
                exchange: flags[2].then(|| "fast".into()),
            },
            cluster: ClusterDraft { world_size: Some(world_size), ..ClusterDraft::default() },
            ..JobDraft::default()
        }
    })
}

proptest! {
    #[test]
    fn a_job_is_the_same_wherever_it_was(draft in prop_oneof![any_training(), any_drawing(), any_words()]) {
        let spec = JobSpec::from_draft(draft).unwrap();
        prop_assert_eq!(&parse_job_toml(&spec.to_toml().unwrap()).unwrap(), &spec);
        let stored = spec.to_stored().unwrap();
        prop_assert_eq!(&JobSpec::from_stored(STORED_VERSION, &stored).unwrap(), &spec);
        let received = spec_from_wire(spec_to_wire(&spec)).unwrap();
        prop_assert_eq!(&received, &spec);
        prop_assert_eq!(received.hash().unwrap(), spec.hash().unwrap());
    }
}
