//! GPT-2's texts, token by token, against those of transformers and nanoGPT.

use ringtune_model::{
    FeedTokens, Gpt2Text, LanguageModelSource, OpenTextModel, Precision, Runtime, TextContext,
};

use crate::precisions::{precisions, skips_bf16};
use crate::support::{GoldenFile, golden_folder, relative_error};

const MODELS: [&str; 2] = ["gpt2-tiny", "gpt2-odd"];

fn open(folder: &str, precision: Precision, threads: usize) -> Gpt2Text {
    Runtime::initialise(threads).unwrap();
    let source = LanguageModelSource::folder(golden_folder().join(folder));
    Gpt2Text::open(&OpenTextModel { source, precision, threads }).unwrap()
}

fn cases(golden: &GoldenFile) -> Vec<String> {
    let cases = golden.metadata("cases").as_array().unwrap();
    cases.iter().map(|case| case.as_str().unwrap().to_owned()).collect()
}

fn best(logits: &[f32]) -> i64 {
    let best = (0..logits.len()).max_by(|one, other| logits[*one].total_cmp(&logits[*other]));
    best.unwrap() as i64
}

/// The most likely token, again and again; gives all tokens, and all logits.
fn greedy(model: &mut Gpt2Text, prompt: &[i64], count: usize) -> (Vec<i64>, Vec<Vec<f32>>) {
    let mut context = TextContext::new(prompt.to_vec(), model.info().n_positions);
    let mut all = Vec::new();
    for _ in 0..count {
        let logits = model.next_logits(&context.feed()).unwrap();
        context.push(best(&logits));
        all.push(logits);
    }
    (context.tokens().to_vec(), all)
}

#[test]
fn the_most_likely_text_is_that_of_transformers_and_beyond_the_positions_nanogpts() {
    for name in MODELS {
        let golden = GoldenFile::open(&format!("{name}-text.safetensors"));
        for threads in [1, 2] {
            // One model for all texts: what was fed before must not show.
            let mut model = open(name, Precision::Fp32, threads);
            let positions = model.info().n_positions;
            for case in cases(&golden) {
                let ids = |key: &str| golden.integers(&format!("{case}/{key}"));
                let (prompt, expected) = (ids("prompt"), ids("cropped"));
                assert!(expected.len() > positions);
                let (text, logits) = greedy(&mut model, prompt, expected.len() - prompt.len());
                assert_eq!(text, expected, "{name} {case}");
                assert_eq!(&text[..positions], ids("generated"), "{name} {case}");
                let exact = golden.floats(&format!("{case}/logits"));
                for (number, (ours, exact)) in
                    logits.iter().zip(exact.chunks_exact(model.info().vocab_size)).enumerate()
                {
                    let error = relative_error(ours, exact);
                    assert!(error <= 5e-6, "{name} {case} token {number}: {error:.2e}");
                }
            }
        }
    }
}

#[test]
fn what_is_kept_gives_the_logits_of_the_whole_text() {
    for name in MODELS {
        let golden = GoldenFile::open(&format!("{name}-text.safetensors"));
        let positions = golden.integers("prompt-5/generated").len();
        let text = &golden.integers("prompt-5/generated")[..positions];
        for precision in precisions() {
            let most = if precision == Precision::Fp32 { 2e-6 } else { 2e-2 };
            let mut whole = open(name, precision, 2);
            let exact: Vec<Vec<f32>> = (1..=positions)
                .map(|length| {
                    whole.next_logits(&FeedTokens { keep: 0, tokens: text[..length].to_vec() }).unwrap()
                })
                .collect();
            // In pieces of these lengths, again and again.
            for lengths in [&[1][..], &[7, 1], &[4, 3, 2], &[1, 9]] {
                let mut model = open(name, precision, 2);
                let (mut keep, mut turn) = (0, lengths.iter().cycle());
                while keep < positions {
                    let length = (*turn.next().unwrap()).min(positions - keep);
                    let tokens = text[keep..keep + length].to_vec();
                    let logits = model.next_logits(&FeedTokens { keep, tokens }).unwrap();
                    keep += length;
                    let error = relative_error(&logits, &exact[keep - 1]);
                    assert!(error <= most, "{name} {precision} {lengths:?} up to {keep}: {error:.2e}");
                }
                // Back to the middle of what is there.
                let logits = model.next_logits(&FeedTokens { keep: 6, tokens: vec![text[6]] }).unwrap();
                let error = relative_error(&logits, &exact[6]);
                assert!(error <= most, "{name} {precision} back: {error:.2e}");
            }
        }
    }
}

#[test]
fn bf16_is_near_fp32() {
    if skips_bf16() {
        return;
    }
    for name in MODELS {
        let golden = GoldenFile::open(&format!("{name}-text.safetensors"));
        let mut model = open(name, Precision::Bf16, 1);
        for case in cases(&golden) {
            let prompt = golden.integers(&format!("{case}/prompt"));
            let exact = &golden.floats(&format!("{case}/logits"))[..model.info().vocab_size];
            let ours = model.next_logits(&FeedTokens { keep: 0, tokens: prompt.to_vec() }).unwrap();
            let error = relative_error(&ours, exact);
            assert!(error > 0.0 && error <= 2e-2, "{name} {case}: {error:.2e}");
        }
    }
}

#[test]
fn a_text_has_the_same_bits_whatever_was_made_before() {
    let golden = GoldenFile::open("gpt2-tiny-text.safetensors");
    for precision in precisions() {
        let bits = |model: &mut Gpt2Text, case: &str| -> Vec<u32> {
            let (_, logits) = greedy(model, golden.integers(&format!("{case}/prompt")), 20);
            logits.into_iter().flatten().map(f32::to_bits).collect()
        };
        let mut many = open("gpt2-tiny", precision, 1);
        for case in ["prompt-5", "prompt-12", "prompt-1", "prompt-5"] {
            let alone = bits(&mut open("gpt2-tiny", precision, 1), case);
            assert!(bits(&mut many, case) == alone, "{precision} {case}");
        }
    }
}

#[test]
fn the_same_model_in_other_files_makes_the_same_text() {
    let golden = GoldenFile::open("gpt2-tiny-text.safetensors");
    let prompt = golden.integers("prompt-12/prompt");
    let logits = |folder: &str| greedy(&mut open(folder, Precision::Fp32, 1), prompt, 12).1.concat();
    let whole = logits("gpt2-tiny");
    for folder in ["bare", "shards"] {
        assert_eq!(logits(&format!("gpt2-tiny/{folder}")), whole, "{folder}");
    }
    for (folder, most) in [("fp16", 1e-3), ("bf16", 3e-2)] {
        let first = &logits(&format!("gpt2-tiny/{folder}"))[..211];
        let error = relative_error(first, &whole[..211]);
        assert!(error > 0.0 && error <= most, "{folder}: {error:.2e}");
    }
}
