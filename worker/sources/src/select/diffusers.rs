//! Stable Diffusion, in diffusers' layout.

use super::weights::{missing_weights, weights};

/// Component folders, and the stem of their weights' file names.
const WEIGHTS: [(&str, &str); 3] =
    [("text_encoder", "model"), ("unet", "diffusion_pytorch_model"), ("vae", "diffusion_pytorch_model")];
/// Small files that a model needs.
const REQUIRED: [&str; 5] = [
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "unet/config.json",
    "vae/config.json",
];
/// Small files that are taken where they are there.
const OPTIONAL: [&str; 7] = [
    "feature_extractor/preprocessor_config.json",
    "tokenizer/added_tokens.json",
    "tokenizer/merges.txt",
    "tokenizer/special_tokens_map.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer/vocab.json",
];
/// Parts that only other kinds of models have. They are refused before gigabytes of them are fetched.
const OTHER_KINDS: [&str; 4] = ["text_encoder_2/", "text_encoder_3/", "transformer/", "prior/"];

/// The names that are needed, small files first.
///
/// `names`: all files, as paths with slashes. `variant`: empty, or "fp16" and the like. Pickles are never needed.
///
/// # Errors
/// The first file that is missing, by its name, or why this is no Stable Diffusion 1.x or 2.x.
pub(super) fn needed_files(names: &[String], variant: &str) -> Result<Vec<String>, String> {
    let has = |name: &str| names.iter().any(|listed| listed == name);
    if !has(REQUIRED[0]) {
        return Err("has no model_index.json: not a model in diffusers' folder layout".to_owned());
    }
    if let Some(other) = OTHER_KINDS.iter().find(|part| names.iter().any(|name| name.starts_with(**part))) {
        return Err(format!("has a part {other}: it is not Stable Diffusion 1.x or 2.x"));
    }
    if let Some(missing) = REQUIRED.iter().find(|name| !has(name)) {
        return Err(format!("has no {missing}"));
    }
    let has_words = has("tokenizer/vocab.json") && has("tokenizer/merges.txt");
    if !has_words && !has("tokenizer/tokenizer.json") {
        return Err("has neither tokenizer/tokenizer.json nor tokenizer/vocab.json and merges.txt".to_owned());
    }
    let small = REQUIRED.iter().chain(&OPTIONAL).filter(|name| has(name)).map(|name| (*name).to_owned());
    let mut needed: Vec<String> = small.collect();
    for (component, stem) in WEIGHTS {
        let in_component: Vec<&str> =
            names.iter().filter_map(|name| name.strip_prefix(component)?.strip_prefix('/')).collect();
        let files = weights(&in_component, stem, variant)
            .ok_or_else(|| missing_weights(&in_component, &format!("{component}/"), stem, variant))?;
        needed.extend(files.into_iter().map(|file| format!("{component}/{file}")));
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(more: &[&str]) -> Vec<String> {
        let small =
            ["tokenizer/vocab.json", "tokenizer/merges.txt", "README.md", "safety_checker/config.json"];
        REQUIRED.iter().chain(&small).chain(more).map(|name| (*name).to_owned()).collect()
    }

    const PLAIN: [&str; 3] = [
        "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ];

    #[test]
    fn nothing_is_fetched_that_is_not_read() {
        let names = repository(
            &[
                &PLAIN[..],
                &[
                    "unet/diffusion_pytorch_model.fp16.safetensors",
                    "unet/diffusion_pytorch_model.bin",
                    "v1-5-pruned.ckpt",
                    "safety_checker/model.safetensors",
                ],
            ]
            .concat(),
        );
        let needed = needed_files(&names, "").unwrap();
        let expected =
            [&REQUIRED[..], &["tokenizer/merges.txt", "tokenizer/vocab.json"], &PLAIN[..]].concat();
        assert_eq!(needed, expected);
    }

    #[test]
    fn every_file_of_a_tokenizer_is_taken() {
        let files = [
            "tokenizer/added_tokens.json",
            "tokenizer/merges.txt",
            "tokenizer/special_tokens_map.json",
            "tokenizer/tokenizer.json",
            "tokenizer/tokenizer_config.json",
            "tokenizer/vocab.json",
        ];
        let names: Vec<String> =
            REQUIRED.iter().chain(&PLAIN).chain(&files).map(|name| (*name).to_owned()).collect();
        let needed = needed_files(&names, "").unwrap();
        assert!(files.iter().all(|file| needed.iter().any(|name| name == file)), "{needed:?}");
    }

    #[test]
    fn a_variant_is_taken_whole_or_the_missing_file_is_named() {
        let fp16 = PLAIN.map(|name| name.replace(".safetensors", ".fp16.safetensors"));
        let mut names = repository(&PLAIN);
        names.extend(fp16[..2].iter().cloned());
        let problem = needed_files(&names, "fp16").unwrap_err();
        assert!(problem.contains("vae/diffusion_pytorch_model.fp16.safetensors"), "{problem}");
        names.push(fp16[2].clone());
        assert_eq!(needed_files(&names, "fp16").unwrap()[7..], fp16);
        assert_eq!(needed_files(&names, "").unwrap()[7..], PLAIN);
    }

    #[test]
    fn shards_come_with_their_index() {
        let shards = [
            "unet/diffusion_pytorch_model.safetensors.index.json",
            "unet/diffusion_pytorch_model-00001-of-00002.safetensors",
            "unet/diffusion_pytorch_model-00002-of-00002.safetensors",
            "unet/diffusion_pytorch_model.safetensors.index.fp16.json",
            "unet/diffusion_pytorch_model-00001-of-00001.fp16.safetensors",
            "unet/diffusion_pytorch_model.fp16-00001-of-00001.safetensors",
        ];
        let mut names = repository(&[PLAIN[0], PLAIN[2]]);
        names.extend(shards.map(str::to_owned));
        let needed = needed_files(&names, "").unwrap();
        assert_eq!(needed[8..11], shards[..3]);
        names.extend([PLAIN[0], PLAIN[2]].map(|name| name.replace(".safetensors", ".fp16.safetensors")));
        assert_eq!(needed_files(&names, "fp16").unwrap()[8..11], shards[3..]);
    }

    #[test]
    fn what_is_no_checkpoint_is_refused() {
        let refused = |names: &[String], word: &str| {
            let problem = needed_files(names, "").unwrap_err();
            assert!(problem.contains(word), "{problem}");
        };
        refused(&[], "model_index.json");
        refused(&repository(&[]), "text_encoder/model.safetensors");
        refused(&repository(&["text_encoder/pytorch_model.bin"]), "pickle");
        refused(&repository(&[&PLAIN[..], &["text_encoder_2/config.json"]].concat()), "text_encoder_2");
        let without = |left_out: &str| -> Vec<String> {
            repository(&PLAIN).into_iter().filter(|name| name != left_out).collect()
        };
        refused(&without("unet/config.json"), "unet/config.json");
        refused(&without("tokenizer/vocab.json"), "tokenizer");
    }
}
