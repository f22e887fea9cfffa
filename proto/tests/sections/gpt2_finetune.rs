//! `gpt2` of the job spec.

use ringtune_proto::{
    convert::{spec_from_wire, spec_to_wire},
    v1,
};

fn job(gpt2: v1::Gpt2FinetuneSpec) -> v1::JobSpec {
    v1::JobSpec {
        kind: "gpt2_finetune".to_owned(),
        model: Some(v1::ModelSpec { base: "/m".to_owned(), ..Default::default() }),
        gpt2: Some(Box::new(gpt2)),
        ..Default::default()
    }
}

#[test]
fn a_gpt2_job_goes_over_the_wire_unchanged() {
    // Every value is another than the default.
    let sent = job(v1::Gpt2FinetuneSpec {
        tokens: "/t".to_owned(),
        init_from: Some("scratch".to_owned()),
        n_layer: Some(2),
        n_head: Some(3),
        n_embd: Some(6),
        bias: Some(false),
        block_size: Some(7),
        batch_size: Some(8),
        gradient_accumulation_steps: Some(9),
        max_iters: Some(10),
        learning_rate: Some(0.5),
        decay_lr: Some(false),
        warmup_iters: Some(11),
        lr_decay_iters: Some(12),
        min_lr: Some(0.25),
        weight_decay: Some(0.75),
        beta1: Some(0.125),
        beta2: Some(0.375),
        grad_clip: Some(2.5),
        eval_interval: Some(13),
        eval_iters: Some(14),
        select_best: Some(false),
        early_stop_patience: Some(15),
        seed: Some(16),
        mixed_precision: Some("no".to_owned()),
        checkpointing_steps: Some(17),
        checkpoints_total_limit: Some(18),
        resume_from_checkpoint: Some("latest".to_owned()),
        report_to: Some("none".to_owned()),
        compare_interval: Some(19),
        dropout: Some(0.625),
        exchange: Some("fast".to_owned()),
        shard_optimizer: Some(true),
    });
    let spec = spec_from_wire(sent.clone()).unwrap();
    let wire = spec_to_wire(&spec);
    assert_eq!(wire.gpt2, sent.gpt2);
    assert_eq!(spec_from_wire(wire).unwrap(), spec);
}

#[test]
fn what_is_absent_takes_its_default_and_is_sent_in_full() {
    let smallest = job(v1::Gpt2FinetuneSpec { tokens: "/t".to_owned(), ..Default::default() });
    let spec = spec_from_wire(smallest).unwrap();
    let wire = spec_to_wire(&spec);
    let gpt2 = wire.gpt2.clone().unwrap();
    assert_eq!((gpt2.seed, gpt2.min_lr, gpt2.select_best), (Some(1337), Some(6e-5), Some(true)));
    assert_eq!(spec_from_wire(wire).unwrap(), spec);
    let nothing = spec_from_wire(v1::JobSpec { gpt2: None, ..job(v1::Gpt2FinetuneSpec::default()) });
    let fields: Vec<String> = nothing.unwrap_err().violations.into_iter().map(|one| one.field).collect();
    assert_eq!(fields, ["gpt2.tokens"]);
}
