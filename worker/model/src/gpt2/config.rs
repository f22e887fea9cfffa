//! config.json of a GPT-2 (transformers GPT2Config).

use std::path::Path;

use ringtune_engine::NewLanguageModel;
use serde_json::{Map, Value, json};

use crate::config::Keys;
use crate::error::{Error, Result};

/// Sizes above these are no model that one machine trains, and their products would no longer be numbers.
const MOST_LAYERS: i64 = 1024;
const MOST_WIDTH: i64 = 1 << 16;

/// A GPT-2: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// Rows of the token table.
    pub vocab_size: i64,
    /// Rows of the position table: the longest text.
    pub n_positions: i64,
    /// Width of the residual stream.
    pub n_embd: i64,
    /// Layers.
    pub n_layer: i64,
    /// Attention heads; `n_embd` is a multiple.
    pub n_head: i64,
    /// Width inside the feed-forward layers.
    pub n_inner: i64,
    /// Epsilon of every layer norm.
    pub layer_norm_epsilon: f64,
    /// Whether layers and norms have biases; in every model of a file they have.
    pub bias: bool,
    /// config.json, as it is written.
    text: String,
}

/// The text of a saved model's config.json: its tensors are fp32, whatever those were that were read. `torch_dtype` is
/// the older name of `dtype`.
fn text_to_save(keys: Keys) -> String {
    keys.without("torch_dtype").with("dtype", "float32").text()
}

impl Gpt2Config {
    /// Reads the keys; absent ones take transformers' defaults. Dropout is the training's affair, not the model's: its
    /// rates are not looked at.
    ///
    /// # Errors
    /// A key that asks for what is not done here, or makes no sense.
    pub fn from_keys(keys: &Keys) -> Result<Self> {
        // transformers' own defaults of GPT2Config.
        let n_embd = keys.count("n_embd", Some(768))?;
        let config = Gpt2Config {
            vocab_size: keys.count("vocab_size", Some(50257))?,
            n_positions: keys.count("n_positions", Some(1024))?,
            n_embd,
            n_layer: keys.count("n_layer", Some(12))?,
            n_head: keys.count("n_head", Some(12))?,
            n_inner: keys.count("n_inner", Some(4 * n_embd))?,
            layer_norm_epsilon: keys.positive("layer_norm_epsilon", 1e-5)?,
            bias: true,
            text: text_to_save(keys.clone()),
        };
        keys.only("model_type", &[json!("gpt2")])?;
        keys.only("activation_function", &[json!("gelu_new"), json!("gelu_pytorch_tanh")])?;
        keys.only("scale_attn_weights", &[json!(true)])?;
        keys.only("tie_word_embeddings", &[json!(true)])?;
        for unsupported in
            ["scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"]
        {
            keys.only(unsupported, &[json!(false)])?;
        }
        for (key, given, most) in [
            ("n_layer", config.n_layer, MOST_LAYERS),
            ("n_embd", n_embd, MOST_WIDTH),
            ("n_inner", config.n_inner, 4 * MOST_WIDTH),
        ] {
            if given > most {
                return Err(keys.invalid(key, format!("a whole number from 1 to {most}")));
            }
        }
        if config.n_embd % config.n_head != 0 {
            return Err(keys.invalid("n_head", format!("a divisor of n_embd = {}", config.n_embd)));
        }
        Ok(config)
    }

    /// What is left of this model where it has its first positions alone. `keys`: what it was read from.
    ///
    /// # Errors
    /// More positions than it has, or none.
    pub(crate) fn cropped(&self, keys: Keys, positions: usize) -> Result<Self> {
        let fits = i64::try_from(positions).is_ok_and(|wanted| (1..=self.n_positions).contains(&wanted));
        if !fits {
            let allowed = format!("1 to {}, the model's n_positions", self.n_positions);
            return Err(Error::argument("positions", positions, allowed));
        }
        // The older name of the same number.
        let has_older_name = keys.get("n_ctx").is_some();
        let keys = keys.with("n_positions", positions);
        Self::from_keys(&if has_older_name { keys.with("n_ctx", positions) } else { keys })
    }

    /// Of a model that is not there yet.
    ///
    /// # Errors
    /// A field beyond its limits, by its name.
    pub fn of_new(new: &NewLanguageModel) -> Result<Self> {
        let mut sizes = [0; 5];
        let fields = [
            ("vocab_size", new.vocab_size, 1 << 20),
            ("n_positions", new.n_positions, 1 << 20),
            ("n_embd", new.n_embd, MOST_WIDTH),
            ("n_layer", new.n_layer, MOST_LAYERS),
            ("n_head", new.n_head, MOST_WIDTH),
        ];
        for (size, (field, given, most)) in sizes.iter_mut().zip(fields) {
            *size = i64::try_from(given)
                .ok()
                .filter(|size| (1..=most).contains(size))
                .ok_or_else(|| Error::argument(field, given, format!("a whole number from 1 to {most}")))?;
        }
        let [vocab_size, n_positions, n_embd, n_layer, n_head] = sizes;
        if n_embd % n_head != 0 {
            return Err(Error::argument("n_head", n_head, format!("a divisor of n_embd = {n_embd}")));
        }
        let keys = [
            ("model_type", json!("gpt2")),
            ("architectures", json!(["GPT2LMHeadModel"])),
            ("vocab_size", json!(vocab_size)),
            ("n_positions", json!(n_positions)),
            ("n_embd", json!(n_embd)),
            ("n_layer", json!(n_layer)),
            ("n_head", json!(n_head)),
            ("activation_function", json!("gelu_new")),
            ("layer_norm_epsilon", json!(1e-5)),
            ("tie_word_embeddings", json!(true)),
        ];
        let keys: Map<String, Value> = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(Gpt2Config {
            vocab_size,
            n_positions,
            n_embd,
            n_layer,
            n_head,
            n_inner: 4 * n_embd,
            layer_norm_epsilon: 1e-5,
            bias: new.bias,
            text: text_to_save(Keys::of(Path::new("config.json"), keys)),
        })
    }

    /// config.json of what is saved: all that was read, but that the tensors are fp32.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Width of a head.
    pub fn head_width(&self) -> i64 {
        self.n_embd / self.n_head
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn keys(value: Value) -> Keys {
        Keys::of(Path::new("config.json"), value.as_object().unwrap().clone())
    }

    const NEW: NewLanguageModel = NewLanguageModel {
        vocab_size: 211,
        n_positions: 24,
        n_layer: 2,
        n_head: 3,
        n_embd: 48,
        bias: true,
        seed: 0,
    };

    #[test]
    fn absent_keys_are_those_of_the_smallest_gpt2() {
        let config = Gpt2Config::from_keys(&keys(json!({}))).unwrap();
        let sizes = [config.vocab_size, config.n_positions, config.n_embd, config.n_layer, config.n_head];
        assert_eq!(sizes, [50257, 1024, 768, 12, 12]);
        assert_eq!((config.n_inner, config.head_width()), (3072, 64));
    }

    #[test]
    fn what_is_written_for_a_new_model_is_read_as_the_same() {
        let new = Gpt2Config::of_new(&NEW).unwrap();
        let read = Gpt2Config::from_keys(&keys(serde_json::from_str(new.text()).unwrap())).unwrap();
        assert_eq!(read, new);
    }

    #[test]
    fn what_is_written_says_fp32_whatever_was_read_and_keeps_the_rest() {
        for read in [
            json!({"n_head": 6, "torch_dtype": "float16", "resid_pdrop": 0.2}),
            json!({"n_head": 6, "dtype": "bfloat16", "resid_pdrop": 0.2}),
            json!({"n_head": 6, "resid_pdrop": 0.2}),
        ] {
            let config = Gpt2Config::from_keys(&keys(read)).unwrap();
            let written: Value = serde_json::from_str(config.text()).unwrap();
            assert_eq!(written, json!({"n_head": 6, "dtype": "float32", "resid_pdrop": 0.2}));
        }
        let new: Value = serde_json::from_str(Gpt2Config::of_new(&NEW).unwrap().text()).unwrap();
        assert_eq!(new["dtype"], "float32");
    }

    #[test]
    fn a_cropped_model_has_fewer_positions_and_all_else() {
        let read = keys(json!({"n_positions": 48, "n_ctx": 48, "n_head": 6, "resid_pdrop": 0.2}));
        let whole = Gpt2Config::from_keys(&read).unwrap();
        let cropped = whole.cropped(read.clone(), 7).unwrap();
        assert_eq!((cropped.n_positions, cropped.n_head), (7, 6));
        let written: Value = serde_json::from_str(cropped.text()).unwrap();
        let expected =
            json!({"n_positions": 7, "n_ctx": 7, "n_head": 6, "resid_pdrop": 0.2, "dtype": "float32"});
        assert_eq!(written, expected);
        assert_eq!(whole.cropped(read.clone(), 48).unwrap(), whole);
        // A key that was not there does not come in.
        let short = keys(json!({"n_positions": 48}));
        let cropped = Gpt2Config::from_keys(&short).unwrap().cropped(short, 7).unwrap();
        assert!(!cropped.text().contains("n_ctx"), "{}", cropped.text());
        for positions in [0, 49, usize::MAX] {
            let error = whole.cropped(read.clone(), positions).unwrap_err();
            assert!(matches!(&error, Error::Argument { field: "positions", .. }), "{error}");
        }
    }

    #[test]
    fn what_is_not_done_here_is_refused_by_its_key() {
        for (key, value) in [
            ("activation_function", json!("relu")),
            ("scale_attn_by_inverse_layer_idx", json!(true)),
            ("reorder_and_upcast_attn", json!(true)),
            ("add_cross_attention", json!(true)),
            ("scale_attn_weights", json!(false)),
            ("tie_word_embeddings", json!(false)),
            ("model_type", json!("llama")),
            ("n_head", json!(7)),
            ("n_layer", json!(0)),
            ("n_layer", json!(100_000)),
            ("n_embd", json!(1 << 19)),
            ("vocab_size", json!("many")),
            ("layer_norm_epsilon", json!(0)),
        ] {
            let error = Gpt2Config::from_keys(&keys(json!({ key: value }))).unwrap_err();
            assert!(matches!(&error, Error::Config { key: found, .. } if found == key), "{error}");
        }
        for (field, new) in [
            ("vocab_size", NewLanguageModel { vocab_size: 0, ..NEW }),
            ("n_positions", NewLanguageModel { n_positions: usize::MAX, ..NEW }),
            ("n_embd", NewLanguageModel { n_embd: 1 << 20, ..NEW }),
            ("n_layer", NewLanguageModel { n_layer: 0, ..NEW }),
            ("n_head", NewLanguageModel { n_head: 5, ..NEW }),
        ] {
            let error = Gpt2Config::of_new(&new).unwrap_err();
            assert!(matches!(&error, Error::Argument { field: found, .. } if *found == field), "{error}");
        }
    }
}
