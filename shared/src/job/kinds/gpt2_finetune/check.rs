//! Defaults and limits of `[gpt2]`.

use super::{Gpt2Draft, Gpt2Exchange, Gpt2Init, Gpt2Spec, limits, tokens::parse_tokens};
use crate::job::{CommonSpec, MixedPrecision, ReportTo, check::Check, text::shortened};

/// Fills in the defaults and checks every value.
pub(in crate::job::kinds) fn check(check: &mut Check, draft: Gpt2Draft, common: &CommonSpec) -> Gpt2Spec {
    check.model_of_words("gpt2_finetune", common);
    let work = check.gpt2(draft);
    check.gpt2_across_fields(&work, common);
    work
}

impl Check {
    fn gpt2(&mut self, draft: Gpt2Draft) -> Gpt2Spec {
        let learning_rate =
            self.above_zero("gpt2.learning_rate", draft.learning_rate, 6e-4, limits::LEARNING_RATE);
        let eval_interval = self.count("gpt2.eval_interval", draft.eval_interval, 2000, 0..=limits::STEPS);
        Gpt2Spec {
            tokens: self.tokens(draft.tokens),
            init_from: self.init_from(draft.init_from),
            n_layer: self.count("gpt2.n_layer", draft.n_layer, 0, 0..=limits::LAYERS),
            n_head: self.count("gpt2.n_head", draft.n_head, 0, 0..=limits::WIDTH),
            n_embd: self.count("gpt2.n_embd", draft.n_embd, 0, 0..=limits::WIDTH),
            bias: draft.bias.unwrap_or(true),
            block_size: self.count("gpt2.block_size", draft.block_size, 1024, 1..=limits::BLOCK_SIZE),
            batch_size: self.count("gpt2.batch_size", draft.batch_size, 12, 1..=limits::BATCH_SIZE),
            gradient_accumulation_steps: self.count(
                "gpt2.gradient_accumulation_steps",
                draft.gradient_accumulation_steps,
                1,
                1..=limits::GRADIENT_ACCUMULATION_STEPS,
            ),
            max_iters: self.count("gpt2.max_iters", draft.max_iters, 600_000, 1..=limits::STEPS),
            learning_rate,
            decay_lr: draft.decay_lr.unwrap_or(true),
            warmup_iters: self.count("gpt2.warmup_iters", draft.warmup_iters, 2000, 0..=limits::STEPS),
            lr_decay_iters: self.count("gpt2.lr_decay_iters", draft.lr_decay_iters, 0, 0..=limits::STEPS),
            min_lr: self.number("gpt2.min_lr", draft.min_lr, tenth(learning_rate), limits::LEARNING_RATE),
            weight_decay: self.number("gpt2.weight_decay", draft.weight_decay, 0.1, limits::WEIGHT_DECAY),
            beta1: self.share("gpt2.beta1", draft.beta1, 0.9),
            beta2: self.share("gpt2.beta2", draft.beta2, 0.95),
            grad_clip: self.number("gpt2.grad_clip", draft.grad_clip, 1.0, limits::GRAD_NORM),
            dropout: self.share("gpt2.dropout", draft.dropout, 0.0),
            eval_interval,
            eval_iters: self.count("gpt2.eval_iters", draft.eval_iters, 200, 1..=limits::EVAL_ITERS),
            // Whoever wants no validation does not want the best of them either. A number that is wrong has been told.
            select_best: draft.select_best.unwrap_or(eval_interval > 0),
            early_stop_patience: self.count(
                "gpt2.early_stop_patience",
                draft.early_stop_patience,
                0,
                0..=limits::STEPS,
            ),
            seed: self.count("gpt2.seed", draft.seed, 1337, 0..=i64::MAX),
            mixed_precision: self.choice("gpt2.mixed_precision", draft.mixed_precision, MixedPrecision::Bf16),
            checkpointing_steps: self.count(
                "gpt2.checkpointing_steps",
                draft.checkpointing_steps,
                500,
                0..=limits::STEPS,
            ),
            checkpoints_total_limit: self.count(
                "gpt2.checkpoints_total_limit",
                draft.checkpoints_total_limit,
                0,
                0..=limits::STEPS,
            ),
            resume_from_checkpoint: self
                .resume_from("gpt2.resume_from_checkpoint", draft.resume_from_checkpoint),
            report_to: self.choice("gpt2.report_to", draft.report_to, ReportTo::Tensorboard),
            compare_interval: self.count(
                "gpt2.compare_interval",
                draft.compare_interval,
                100,
                1..=limits::STEPS,
            ),
            exchange: self.choice("gpt2.exchange", draft.exchange, Gpt2Exchange::Exact),
            shard_optimizer: draft.shard_optimizer.unwrap_or(false),
        }
    }

    fn tokens(&mut self, given: Option<String>) -> String {
        const FIELD: &str = "gpt2.tokens";
        let tokens = self.required(FIELD, given, "a folder that `ringtune prepare-text` made");
        if !self.has_refused(FIELD)
            && let Err(problem) = parse_tokens(&tokens)
        {
            self.refuse(FIELD, problem);
        }
        tokens
    }

    /// nanoGPT has more words, for which there are other options here.
    fn init_from(&mut self, given: Option<String>) -> Gpt2Init {
        const FIELD: &str = "gpt2.init_from";
        let instead = match given.as_deref() {
            Some("resume") => "to go on from a checkpoint, give gpt2.resume_from_checkpoint",
            Some(name) if name.starts_with("gpt2") => {
                "to start from a published GPT-2, give \"pretrained\", and in model.base where it is"
            }
            _ => return self.choice(FIELD, given, Gpt2Init::Pretrained),
        };
        let (given, allowed) = (shortened(&given.unwrap_or_default()), Gpt2Init::allowed());
        self.refuse(FIELD, format!("got {given:?}; allowed: {allowed}; {instead}"));
        Gpt2Init::Pretrained
    }

    fn gpt2_across_fields(&mut self, work: &Gpt2Spec, common: &CommonSpec) {
        self.shape(work);
        self.rates(work);
        self.judgement(work);
        let tokens = u64::from(work.batch_size) * u64::from(work.block_size);
        if tokens > limits::MICROBATCH_TOKENS {
            let (windows, block, most) = (work.batch_size, work.block_size, limits::MICROBATCH_TOKENS);
            let problem = format!(
                "got {windows} with block_size {block}, that is {tokens} tokens in a microbatch; allowed: {most}"
            );
            self.refuse("gpt2.batch_size", problem);
        }
        let microbatches = work.global_microbatches(&common.cluster);
        if microbatches > limits::GLOBAL_MICROBATCHES {
            let (steps, ranks) = (work.gradient_accumulation_steps, common.cluster.world_size);
            let problem = format!(
                "got {steps} with world_size {ranks}, that is {microbatches} microbatches a step; allowed: {}",
                limits::GLOBAL_MICROBATCHES
            );
            self.refuse("gpt2.gradient_accumulation_steps", problem);
        }
    }

    /// A model that is there has the shape that it has.
    fn shape(&mut self, work: &Gpt2Spec) {
        let Gpt2Spec { n_head, n_embd, .. } = *work;
        if work.init_from == Gpt2Init::Scratch {
            if n_head > 0 && n_embd > 0 && !n_embd.is_multiple_of(n_head) {
                let problem = format!("got {n_head}; allowed: a divisor of n_embd, which is {n_embd}");
                self.refuse("gpt2.n_head", problem);
            }
            return;
        }
        for (field, given) in
            [("gpt2.n_layer", work.n_layer), ("gpt2.n_head", n_head), ("gpt2.n_embd", n_embd)]
        {
            if given > 0 {
                let problem = format!("got {given}; allowed only with init_from = \"scratch\": leave it out");
                self.refuse(field, problem);
            }
        }
        if !work.bias {
            let problem =
                "got false; allowed only with init_from = \"scratch\": a pretrained GPT-2 has biases";
            self.refuse("gpt2.bias", problem);
        }
    }

    /// The curve of the rate. Without it its numbers are without effect, whatever they are.
    fn rates(&mut self, work: &Gpt2Spec) {
        let Gpt2Spec { learning_rate, min_lr, warmup_iters, lr_decay_iters, .. } = *work;
        if !work.decay_lr {
            return;
        }
        if min_lr > learning_rate && !self.has_refused("gpt2.learning_rate") {
            let problem =
                format!("got {min_lr}; allowed: at most gpt2.learning_rate, which is {learning_rate}");
            self.refuse("gpt2.min_lr", problem);
        }
        if lr_decay_iters > 0 && lr_decay_iters < warmup_iters {
            let problem = format!(
                "got {lr_decay_iters}; allowed: at least gpt2.warmup_iters, which is {warmup_iters}, or 0 for max_iters"
            );
            self.refuse("gpt2.lr_decay_iters", problem);
        }
    }

    /// What goes by the validation loss needs one.
    fn judgement(&mut self, work: &Gpt2Spec) {
        const WHY: &str = "it goes by the validation loss: give gpt2.eval_interval too";
        if work.eval_interval > 0 {
            return;
        }
        if work.select_best {
            self.refuse("gpt2.select_best", format!("got true; {WHY}"));
        }
        if work.early_stop_patience > 0 {
            self.refuse("gpt2.early_stop_patience", format!("got {}; {WHY}", work.early_stop_patience));
        }
    }
}

/// A tenth of a number, as people write it: of 6e-4 it is 6e-5, which the division misses by a bit.
fn tenth(number: f64) -> f64 {
    let text = format!("{number:e}");
    let shifted = text.split_once('e').and_then(|(digits, exponent)| {
        let exponent: i32 = exponent.parse().ok()?;
        format!("{digits}e{}", exponent - 1).parse().ok()
    });
    shifted.unwrap_or(number / 10.0)
}
