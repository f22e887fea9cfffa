//! Language models, in transformers' layout.

use super::weights::{missing_weights, weights};

/// A model needs it.
const CONFIG: &str = "config.json";
/// Small files that are taken where they are there: what a job leaves is a model with its tokenizer.
const OPTIONAL: [&str; 6] = [
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
];
/// Tokens beside the vocabulary, of a tokenizer that has no tokenizer.json to say them.
const ADDED_TOKENS: &str = "added_tokens.json";
/// File that has them too.
const TOKENIZER: &str = "tokenizer.json";
/// The stem of the weights' file names.
const STEM: &str = "model";

pub(super) fn needed_files(names: &[String], with_weights: bool) -> Result<Vec<String>, String> {
    let files: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.contains('/')).collect();
    if !files.contains(&CONFIG) {
        let other = match files.contains(&"model_index.json") {
            true => ": it is in diffusers' layout, a model of pictures",
            false => ": not a model in transformers' layout",
        };
        return Err(format!("has no {CONFIG}{other}"));
    }
    let added = [ADDED_TOKENS].into_iter().filter(|_| !files.contains(&TOKENIZER));
    let optional = added.chain(OPTIONAL).filter(|name| files.contains(name));
    let mut needed: Vec<String> = [CONFIG].into_iter().chain(optional).map(str::to_owned).collect();
    if with_weights {
        needed.extend(weights(&files, STEM, "").ok_or_else(|| missing_weights(&files, "", STEM, ""))?);
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARDS: [&str; 3] = [
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];

    fn listed(files: &[&str]) -> Vec<String> {
        files.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Files of openai-community/gpt2.
    fn published() -> Vec<String> {
        listed(&[
            ".gitattributes",
            "64.tflite",
            "README.md",
            "config.json",
            "flax_model.msgpack",
            "generation_config.json",
            "merges.txt",
            "model.safetensors",
            "onnx/config.json",
            "onnx/decoder_model.onnx",
            "pytorch_model.bin",
            "rust_model.ot",
            "tf_model.h5",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.json",
        ])
    }

    #[test]
    fn of_a_published_model_what_is_used_and_nothing_else() {
        let small = [
            "config.json",
            "generation_config.json",
            "merges.txt",
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.json",
        ];
        assert_eq!(needed_files(&published(), false).unwrap(), small);
        assert_eq!(needed_files(&published(), true).unwrap(), [&small[..], &["model.safetensors"]].concat());
    }

    #[test]
    fn tokens_beside_the_vocabulary_come_where_nothing_else_says_them() {
        let slow = listed(&["config.json", "added_tokens.json", "merges.txt", "vocab.json"]);
        assert_eq!(needed_files(&slow, false).unwrap(), slow);
        let fast = listed(&["config.json", "added_tokens.json", "tokenizer.json"]);
        assert_eq!(needed_files(&fast, false).unwrap(), ["config.json", "tokenizer.json"]);
    }

    #[test]
    fn shards_come_with_their_index_and_one_file_alone() {
        let names = listed(&[&["config.json"][..], &SHARDS].concat());
        assert_eq!(needed_files(&names, true).unwrap(), names);
        let both = listed(&[&["config.json", "model.safetensors"][..], &SHARDS].concat());
        assert_eq!(needed_files(&both, true).unwrap(), ["config.json", "model.safetensors"]);
        for missing in 0..SHARDS.len() - 1 {
            // Without the index, or without any shard.
            let kept: Vec<&str> = if missing == 0 { SHARDS[1..].to_vec() } else { SHARDS[..1].to_vec() };
            let names = listed(&[&["config.json"][..], &kept].concat());
            let problem = needed_files(&names, true).unwrap_err();
            assert!(problem.starts_with("has no model.safetensors"), "{problem}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let without = |left_out: &str| -> Vec<String> {
            published().into_iter().filter(|name| name != left_out).collect()
        };
        let refused = |names: &[String], word: &str| {
            let problem = needed_files(names, true).unwrap_err();
            assert!(problem.contains(word), "{problem}");
        };
        refused(&without("model.safetensors"), "only pickle files, which are never read: convert them");
        // The one in the subfolder is another.
        refused(&without("config.json"), "has no config.json: not a model in transformers' layout");
        refused(&listed(&["model_index.json"]), "in diffusers' layout");
        refused(&listed(&["config.json"]), "has no model.safetensors");
        refused(
            &listed(&["config.json", "gpt2.safetensors"]),
            "has no model.safetensors; it has gpt2.safetensors",
        );
        assert!(needed_files(&listed(&["config.json", "pytorch_model.bin"]), false).is_ok());
    }
}
