//! How many parameters a GPT-2 has, and whether this machine has the memory that its training takes.

use ringtune_shared::job::kinds::gpt2_finetune::{Gpt2Init, Gpt2Spec};
use serde_json::Value;

use crate::{
    engine::NewLanguageModel,
    parameters::memory::{self, TooLarge, Training},
};

/// Sides beyond this are beyond any machine; up to it nothing below overflows.
const MOST: u128 = 1 << 30;

/// What decides how many parameters a GPT-2 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    vocabulary: u128,
    positions: u128,
    layers: u128,
    width: u128,
    /// Width inside the feed-forward layers.
    inner: u128,
    bias: bool,
}

impl Shape {
    /// Of a model that is not there yet.
    pub(super) fn of_new(new: &NewLanguageModel) -> Self {
        let side = |given: usize| (given as u128).min(MOST);
        let width = side(new.n_embd);
        Self {
            vocabulary: side(new.vocab_size),
            positions: side(new.n_positions),
            layers: side(new.n_layer),
            width,
            inner: 4 * width,
            bias: new.bias,
        }
    }

    /// Of the model that a config.json describes, with so many of its positions. Absent keys are transformers' defaults of
    /// GPT2Config.
    pub(super) fn of_config(config: &Value, positions: u32) -> Self {
        let given =
            |key: &str| config.get(key).and_then(Value::as_u64).map(|side| u128::from(side).min(MOST));
        let side = |key: &str, default: u128| given(key).unwrap_or(default);
        let width = side("n_embd", 768);
        Self {
            vocabulary: side("vocab_size", 50_257),
            positions: u128::from(positions),
            layers: side("n_layer", 12),
            width,
            inner: side("n_inner", 4 * width),
            bias: true,
        }
    }

    /// Numbers of all parameters.
    pub(super) fn parameters(self) -> u128 {
        let Self { vocabulary, positions, layers, width, inner, bias } = self;
        let bias = |outputs: u128| if bias { outputs } else { 0 };
        let product = |inputs: u128, outputs: u128| inputs * outputs + bias(outputs);
        let norm = width + bias(width);
        let attention = product(width, 3 * width) + product(width, width);
        let forward = product(width, inner) + product(inner, width);
        (vocabulary + positions) * width + layers * (2 * norm + attention + forward) + norm
    }
}

/// Refuses a model whose training has no room in `memory` bytes; 0: the machine does not say how many it has.
///
/// # Errors
/// How large the model is, and how large the machine.
pub(super) fn check(shape: Shape, job: &Gpt2Spec, training: Training, memory: u64) -> Result<(), TooLarge> {
    let is_given = job.init_from == Gpt2Init::Scratch && (job.n_embd > 0 || job.n_layer > 0);
    let field = if is_given { "gpt2.n_embd" } else { "model.base" };
    memory::check(field, shape.parameters(), training, memory)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        fault::{Blame as _, Fault},
        kinds::gpt2_finetune::schedule::tests::job,
    };

    const SMALLEST: NewLanguageModel = NewLanguageModel {
        vocab_size: 50_257,
        n_positions: 1024,
        n_layer: 12,
        n_head: 12,
        n_embd: 768,
        bias: true,
        seed: 0,
    };

    #[test]
    fn parameters_are_those_that_transformers_counts() {
        // Of GPT-2, of nanoGPT's without biases, and of GPT-2 XL.
        assert_eq!(Shape::of_new(&SMALLEST).parameters(), 124_439_808);
        let without = NewLanguageModel { bias: false, ..SMALLEST };
        assert_eq!(Shape::of_new(&without).parameters(), 124_337_664);
        assert_eq!(Shape::of_config(&json!({}), 1024), Shape::of_new(&SMALLEST));
        let xl = json!({"n_layer": 48, "n_embd": 1600, "n_head": 25, "n_inner": null});
        assert_eq!(Shape::of_config(&xl, 1024).parameters(), 1_557_611_200);
        assert_eq!(Shape::of_config(&xl, 24).parameters(), 1_557_611_200 - 1000 * 1600);
        // Whatever a file says.
        let absurd =
            json!({"n_layer": u64::MAX, "n_embd": u64::MAX, "n_inner": u64::MAX, "vocab_size": u64::MAX});
        assert!(Shape::of_config(&absurd, u32::MAX).parameters() > 1 << 90);
    }

    #[test]
    fn a_model_that_has_no_room_is_refused_by_what_makes_it_so_large() {
        let alone = Training::LEAST;
        let huge = NewLanguageModel { n_embd: 65_536, n_head: 1, n_layer: 1, ..SMALLEST };
        let given = job("init_from = \"scratch\"\nn_embd = 65536\nn_head = 1\nn_layer = 1\n");
        let refused = check(Shape::of_new(&huge), &given, alone, 16_000_000_000).unwrap_err();
        assert_eq!(refused.fault(), Fault::Machine);
        let told = refused.to_string();
        for word in ["gpt2.n_embd", "54901342208 parameters", "878.4 GB", "has 16.0 GB"] {
            assert!(told.contains(word), "{word}: {told}");
        }
        let base =
            check(Shape::of_config(&json!({}), 1024), &job(""), alone, 1 << 30).unwrap_err().to_string();
        assert!(base.starts_with("model.base: the model has 124439808 parameters"), "{base}");
        // A machine that does not say how much it has.
        assert!(check(Shape::of_new(&huge), &given, alone, 0).is_ok());
    }
}
