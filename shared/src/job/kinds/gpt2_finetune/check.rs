//! The checks of `[gpt2]`.

use super::{Gpt2Init, Gpt2Spec, limits, tokens::parse_tokens};
use crate::job::{CommonSpec, SumOrder, check::Check, text::shortened};

impl Gpt2Spec {
    /// What is checked of several options together.
    pub(super) fn check(&self, check: &mut Check, common: &CommonSpec) {
        common.check_language_model(check, "gpt2_finetune");
        self.check_shape(check);
        self.check_rates(check);
        self.check_judgement(check);
        let tokens = u64::from(self.batch_size) * u64::from(self.block_size);
        if tokens > limits::MICROBATCH_TOKENS {
            let (windows, block, most) = (self.batch_size, self.block_size, limits::MICROBATCH_TOKENS);
            let problem = format!(
                "got {windows} with block_size {block}, that is {tokens} tokens in a microbatch; allowed: {most}"
            );
            check.refuse("gpt2.batch_size", problem);
        }
        if self.exchange == SumOrder::Local {
            let problem =
                "got \"local\"; allowed: exact, fast, fast_bf16 (local is of kind \"unet_finetune\")";
            check.refuse("gpt2.exchange", problem);
        }
        let (steps, ranks) = (self.gradient_accumulation_steps, common.cluster.world_size);
        check.microbatches("gpt2.gradient_accumulation_steps", steps, ranks, limits::GLOBAL_MICROBATCHES);
    }

    /// A model that is there has the shape that it has.
    fn check_shape(&self, check: &mut Check) {
        let Self { n_head, n_embd, .. } = *self;
        if self.init_from == Gpt2Init::Scratch {
            if n_head > 0 && n_embd > 0 && !n_embd.is_multiple_of(n_head) {
                let problem = format!("got {n_head}; allowed: a divisor of n_embd, which is {n_embd}");
                check.refuse("gpt2.n_head", problem);
            }
            return;
        }
        for (field, given) in
            [("gpt2.n_layer", self.n_layer), ("gpt2.n_head", n_head), ("gpt2.n_embd", n_embd)]
        {
            if given > 0 {
                let problem = format!("got {given}; allowed only with init_from = \"scratch\": leave it out");
                check.refuse(field, problem);
            }
        }
        if !self.bias {
            let problem =
                "got false; allowed only with init_from = \"scratch\": a pretrained GPT-2 has biases";
            check.refuse("gpt2.bias", problem);
        }
    }

    /// The curve of the rate. Without it its numbers are without effect, whatever they are.
    fn check_rates(&self, check: &mut Check) {
        let Self { learning_rate, min_lr, warmup_iters, lr_decay_iters, .. } = *self;
        if !self.decay_lr {
            return;
        }
        if min_lr > learning_rate && !check.has_refused("gpt2.learning_rate") {
            let problem =
                format!("got {min_lr}; allowed: at most gpt2.learning_rate, which is {learning_rate}");
            check.refuse("gpt2.min_lr", problem);
        }
        if lr_decay_iters > 0 && lr_decay_iters < warmup_iters {
            let problem = format!(
                "got {lr_decay_iters}; allowed: at least gpt2.warmup_iters, which is {warmup_iters}, or 0 for max_iters"
            );
            check.refuse("gpt2.lr_decay_iters", problem);
        }
    }

    /// What goes by the validation loss needs one.
    fn check_judgement(&self, check: &mut Check) {
        const WHY: &str = "it goes by the validation loss: give gpt2.eval_interval too";
        if self.eval_interval > 0 {
            return;
        }
        if self.select_best {
            check.refuse("gpt2.select_best", format!("got true; {WHY}"));
        }
        if self.early_stop_patience > 0 {
            check.refuse("gpt2.early_stop_patience", format!("got {}; {WHY}", self.early_stop_patience));
        }
    }
}

/// Options by themselves.
impl Check {
    pub(super) fn tokens(&mut self, field: &str, given: Option<String>) -> String {
        let tokens = self.required(field, given, "a folder that `ringtune prepare-text` made");
        if !self.has_refused(field)
            && let Err(problem) = parse_tokens(&tokens)
        {
            self.refuse(field, problem);
        }
        tokens
    }

    /// nanoGPT has more words, for which there are other options here.
    pub(super) fn init_from(&mut self, field: &str, given: Option<String>) -> Gpt2Init {
        let instead = match given.as_deref() {
            Some("resume") => "to go on from a checkpoint, give gpt2.resume_from_checkpoint",
            Some(name) if name.starts_with("gpt2") => {
                "to start from a published GPT-2, give \"pretrained\", and in model.base where it is"
            }
            _ => return self.choice(field, given, Gpt2Init::Pretrained),
        };
        let (given, allowed) = (shortened(&given.unwrap_or_default()), Gpt2Init::allowed());
        self.refuse(field, format!("got {given:?}; allowed: {allowed}; {instead}"));
        Gpt2Init::Pretrained
    }
}

/// A tenth of a number, as people write it: of 6e-4 it is 6e-5, which the division misses by a bit.
pub(super) fn tenth(number: f64) -> f64 {
    let text = format!("{number:e}");
    let shifted = text.split_once('e').and_then(|(digits, exponent)| {
        let exponent: i32 = exponent.parse().ok()?;
        format!("{digits}e{}", exponent - 1).parse().ok()
    });
    shifted.unwrap_or(number / 10.0)
}
