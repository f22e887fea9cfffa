//! `gpt2` of the job spec.

use ringtune_shared::job::kinds::gpt2_finetune::{Gpt2Draft, Gpt2Spec};

use crate::{
    convert::fields::{given, signed},
    v1,
};

pub(in crate::convert) fn draft_from_wire(wire: v1::Gpt2FinetuneSpec) -> Gpt2Draft {
    Gpt2Draft {
        tokens: given(wire.tokens),
        init_from: wire.init_from,
        n_layer: wire.n_layer,
        n_head: wire.n_head,
        n_embd: wire.n_embd,
        bias: wire.bias,
        block_size: wire.block_size,
        batch_size: wire.batch_size,
        gradient_accumulation_steps: wire.gradient_accumulation_steps,
        max_iters: wire.max_iters,
        learning_rate: wire.learning_rate,
        decay_lr: wire.decay_lr,
        warmup_iters: wire.warmup_iters,
        lr_decay_iters: wire.lr_decay_iters,
        min_lr: wire.min_lr,
        weight_decay: wire.weight_decay,
        beta1: wire.beta1,
        beta2: wire.beta2,
        grad_clip: wire.grad_clip,
        eval_interval: wire.eval_interval,
        eval_iters: wire.eval_iters,
        select_best: wire.select_best,
        early_stop_patience: wire.early_stop_patience,
        seed: wire.seed,
        mixed_precision: wire.mixed_precision,
        checkpointing_steps: wire.checkpointing_steps,
        checkpoints_total_limit: wire.checkpoints_total_limit,
        resume_from_checkpoint: wire.resume_from_checkpoint,
        report_to: wire.report_to,
        compare_interval: wire.compare_interval,
        dropout: wire.dropout,
        exchange: wire.exchange,
        shard_optimizer: wire.shard_optimizer,
    }
}

pub(in crate::convert) fn to_wire(gpt2: &Gpt2Spec) -> v1::Gpt2FinetuneSpec {
    v1::Gpt2FinetuneSpec {
        tokens: gpt2.tokens.clone(),
        init_from: Some(gpt2.init_from.as_str().to_owned()),
        n_layer: Some(i64::from(gpt2.n_layer)),
        n_head: Some(i64::from(gpt2.n_head)),
        n_embd: Some(i64::from(gpt2.n_embd)),
        bias: Some(gpt2.bias),
        block_size: Some(i64::from(gpt2.block_size)),
        batch_size: Some(i64::from(gpt2.batch_size)),
        gradient_accumulation_steps: Some(i64::from(gpt2.gradient_accumulation_steps)),
        max_iters: Some(signed(gpt2.max_iters)),
        learning_rate: Some(gpt2.learning_rate),
        decay_lr: Some(gpt2.decay_lr),
        warmup_iters: Some(signed(gpt2.warmup_iters)),
        lr_decay_iters: Some(signed(gpt2.lr_decay_iters)),
        min_lr: Some(gpt2.min_lr),
        weight_decay: Some(gpt2.weight_decay),
        beta1: Some(gpt2.beta1),
        beta2: Some(gpt2.beta2),
        grad_clip: Some(gpt2.grad_clip),
        eval_interval: Some(signed(gpt2.eval_interval)),
        eval_iters: Some(i64::from(gpt2.eval_iters)),
        select_best: Some(gpt2.select_best),
        early_stop_patience: Some(signed(gpt2.early_stop_patience)),
        seed: Some(signed(gpt2.seed)),
        mixed_precision: Some(gpt2.mixed_precision.as_str().to_owned()),
        checkpointing_steps: Some(signed(gpt2.checkpointing_steps)),
        checkpoints_total_limit: Some(signed(gpt2.checkpoints_total_limit)),
        resume_from_checkpoint: Some(gpt2.resume_from_checkpoint.clone()),
        report_to: Some(gpt2.report_to.as_str().to_owned()),
        compare_interval: Some(signed(gpt2.compare_interval)),
        dropout: Some(gpt2.dropout),
        exchange: Some(gpt2.exchange.as_str().to_owned()),
        shard_optimizer: Some(gpt2.shard_optimizer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{spec_from_wire, spec_to_wire};

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
}
