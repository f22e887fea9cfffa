//! The learning rate of each step, as nanoGPT has it.

use std::f64::consts::PI;

use ringtune_shared::job::kinds::gpt2_finetune::Gpt2Spec;

/// The learning rate of step `step`, from 1: it rises over the first steps and falls along a half cosine then, to a rate that
/// it keeps.
///
/// Source: github.com/karpathy/nanoGPT, train.py, `get_lr`, whose `it` is `step - 1`.
pub(super) fn learning_rate(job: &Gpt2Spec, step: u64) -> f64 {
    if !job.decay_lr {
        return job.learning_rate;
    }
    let done = step.saturating_sub(1);
    if done < job.warmup_iters {
        return job.learning_rate * (done + 1) as f64 / (job.warmup_iters + 1) as f64;
    }
    let end = job.decay_end();
    if done >= end {
        return job.min_lr;
    }
    let share = (done - job.warmup_iters) as f64 / (end - job.warmup_iters) as f64;
    job.min_lr + 0.5 * (1.0 + (PI * share).cos()) * (job.learning_rate - job.min_lr)
}

/// The job with another rate in the place of its own. It does not rise to where it falls to.
pub(super) fn with_rate(job: &Gpt2Spec, rate: f64) -> Gpt2Spec {
    Gpt2Spec { learning_rate: rate, min_lr: job.min_lr.min(rate), ..job.clone() }
}

#[cfg(test)]
pub(super) mod tests {
    use ringtune_shared::job::{Work, parse_job_toml};

    use super::*;

    pub(in super::super) fn job(options: &str) -> Gpt2Spec {
        let text =
            format!("kind = \"gpt2_finetune\"\n[model]\nbase = \"/m\"\n[gpt2]\ntokens = \"/t\"\n{options}");
        match parse_job_toml(&text).unwrap().work {
            Work::Gpt2Finetune(job) => job,
            other => panic!("{other:?}"),
        }
    }

    /// What nanoGPT's function gives, in Python.
    #[test]
    fn rates_are_those_of_nanogpt() {
        let job = job("learning_rate = 6e-4\nmin_lr = 6e-5\nwarmup_iters = 10\nlr_decay_iters = 100\n");
        for (step, expected) in [
            (1, 5.454545454545454e-5),
            (10, 5.454545454545454e-4),
            (11, 6e-4),
            (12, 5.998355232951559e-4),
            (56, 3.2999999999999994e-4),
            (100, 6.0164476704844146e-5),
            (101, 6e-5),
            (10_000, 6e-5),
        ] {
            let found = learning_rate(&job, step);
            assert!(
                (found - expected).abs() <= 1e-15 * expected.abs(),
                "step {step}: {found}, not {expected}"
            );
        }
    }

    #[test]
    fn a_rate_that_takes_the_place_of_the_jobs_own_keeps_its_shape() {
        let given = job("learning_rate = 6e-4\nmin_lr = 6e-5\nwarmup_iters = 10\nlr_decay_iters = 100\n");
        let other = job("learning_rate = 3e-4\nmin_lr = 6e-5\nwarmup_iters = 10\nlr_decay_iters = 100\n");
        for step in [1, 11, 56, 200] {
            assert_eq!(learning_rate(&with_rate(&given, 3e-4), step), learning_rate(&other, step), "{step}");
        }
        let low = with_rate(&given, 1e-6);
        assert_eq!([11, 56, 200].map(|step| learning_rate(&low, step)), [1e-6; 3]);
    }

    #[test]
    fn a_short_job_only_rises_and_a_constant_one_is_constant() {
        let short = job("max_iters = 5\nwarmup_iters = 10\n");
        assert!((1..5).all(|step| learning_rate(&short, step) < learning_rate(&short, step + 1)));
        let constant = job("decay_lr = false\nlearning_rate = 0.25\n");
        assert_eq!([1, 7, 700_000].map(|step| learning_rate(&constant, step)), [0.25; 3]);
        let equal = job("warmup_iters = 10\nlr_decay_iters = 10\n");
        assert_eq!(learning_rate(&equal, 11), equal.min_lr);
    }
}
