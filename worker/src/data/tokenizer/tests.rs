use std::{path::PathBuf, sync::Arc};

use super::*;
use crate::data::{Prompts, caption_words::CaptionDraw, prompts::ConceptWords, templates};

const TOY_VOCABULARY_SIZE: i64 = 49_408;
const LENGTH: usize = 77;

fn toy_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/toy-sd/tokenizer")
}

fn toy() -> ClipTokenizer {
    ClipTokenizer::open(&toy_folder(), LENGTH).unwrap()
}

fn copy_of_toy() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"] {
        std::fs::copy(toy_folder().join(name), copy.path().join(name)).unwrap();
    }
    copy
}

/// The tokens of a prompt, without begin, end and padding.
fn words(ids: &[i64], padding: i64) -> Vec<i64> {
    assert_eq!(ids.len(), LENGTH);
    assert_eq!(ids[0], 49_406);
    let end = ids.iter().position(|id| *id == 49_407).unwrap();
    assert!(ids[end + 1..].iter().all(|id| *id == padding));
    ids[1..end].to_vec()
}

#[test]
fn known_prompts_have_clips_ids() {
    let tokenizer = toy();
    assert_eq!(tokenizer.vocabulary_size() as i64, TOY_VOCABULARY_SIZE);
    let ids = |prompt: &str| words(&tokenizer.encode(prompt).unwrap(), 49_407);
    assert_eq!(ids("A  photo\tof"), [320, 1125, 539]);
    assert_eq!(ids(""), [0i64; 0]);
    assert_eq!(ids(&"word ".repeat(200)), [2653; LENGTH - 2]);
}

#[test]
fn placeholders_count_up_and_are_found_before_words_are_split() {
    let mut tokenizer = toy();
    let added = tokenizer.add_placeholders("<dicoo>", 3).unwrap();
    assert_eq!(added.tokens, ["<dicoo>", "<dicoo>_1", "<dicoo>_2"]);
    assert_eq!(added.ids, [TOY_VOCABULARY_SIZE, TOY_VOCABULARY_SIZE + 1, TOY_VOCABULARY_SIZE + 2]);
    assert_eq!(added.text(), "<dicoo> <dicoo>_1 <dicoo>_2");
    let ids = words(&tokenizer.encode("x<dicoo>_2y, <dicoo>").unwrap(), 49_407);
    assert_eq!(ids, [343, 49_410, 344, 267, 49_408]);
}

#[test]
fn a_taken_placeholder_is_refused_and_changes_nothing() {
    let mut tokenizer = toy();
    // A piece of words, a word, a special token.
    for taken in ["star", "toy", "<|endoftext|>"] {
        assert!(
            matches!(tokenizer.add_placeholders(taken, 2), Err(Error::PlaceholderTaken { .. })),
            "{taken}"
        );
    }
    for unusable in ["", " ", " <a> "] {
        assert!(tokenizer.add_placeholders(unusable, 1).is_err(), "{unusable:?}");
    }
    assert_eq!(tokenizer.vocabulary_size() as i64, TOY_VOCABULARY_SIZE);
    tokenizer.add_placeholders("<a>", 1).unwrap();
    assert!(matches!(tokenizer.add_placeholders("<a>", 1), Err(Error::PlaceholderTaken { .. })));
}

#[test]
fn an_initializer_has_a_token_for_each_row_at_most() {
    let tokenizer = toy();
    assert_eq!(tokenizer.initializer_ids("toy", 3).unwrap(), [5988; 3]);
    let [green, star] = tokenizer.initializer_ids("green star", 2).unwrap()[..] else { panic!("two tokens") };
    assert_ne!(green, star);
    assert_eq!(tokenizer.initializer_ids("green star", 5).unwrap(), [green, star, green, star, green]);
    match tokenizer.initializer_ids("green star", 1) {
        Err(error @ Error::InitializerTokens { .. }) => {
            let text = error.to_string();
            for part in ["green</w>", "star</w>", "2 tokens", "num_vectors = 2"] {
                assert!(text.contains(part), "{part} is missing in {text}");
            }
        }
        other => panic!("{other:?}"),
    }
    let none = tokenizer.initializer_ids(" ", 4);
    assert!(matches!(none, Err(Error::InitializerTokens { ref tokens, .. }) if tokens.is_empty()));
}

#[test]
fn special_tokens_map_sets_the_padding_of_older_folders() {
    let copy = copy_of_toy();
    std::fs::write(copy.path().join("special_tokens_map.json"), r#"{"pad_token": "!"}"#).unwrap();
    let tokenizer = ClipTokenizer::open(copy.path(), LENGTH).unwrap();
    assert_eq!(words(&tokenizer.encode("toy").unwrap(), 0), [5988]);
}

/// As in transformers: ids behind the vocabulary, in the order of the files.
#[test]
fn special_tokens_without_an_id_get_the_next_ones() {
    let copy = copy_of_toy();
    let map = r#"{"pad_token": "!", "mask_token": "<mask>", "additional_special_tokens": ["<x>", {"content": "<y>"}]}"#;
    std::fs::write(copy.path().join("special_tokens_map.json"), map).unwrap();
    let tokenizer = ClipTokenizer::open(copy.path(), LENGTH).unwrap();
    assert_eq!(tokenizer.vocabulary_size() as i64, TOY_VOCABULARY_SIZE + 3);
    assert_eq!(words(&tokenizer.encode("<y><x> <mask>").unwrap(), 0), [49_410, 49_409, 49_408]);
}

#[test]
fn tokens_that_an_earlier_run_added_keep_their_ids() {
    let copy = copy_of_toy();
    std::fs::write(copy.path().join("added_tokens.json"), r#"{"<b>": 49409, "<a>": 49408}"#).unwrap();
    let mut tokenizer = ClipTokenizer::open(copy.path(), LENGTH).unwrap();
    assert_eq!(words(&tokenizer.encode("<b> <a>").unwrap(), 49_407), [49_409, 49_408]);
    assert_eq!(tokenizer.add_placeholders("<c>", 1).unwrap().ids, [49_410]);
    std::fs::write(copy.path().join("added_tokens.json"), r#"{"<b>": 50000}"#).unwrap();
    assert!(matches!(ClipTokenizer::open(copy.path(), LENGTH), Err(Error::TokenizerFile { .. })));
}

/// The library and transformers choose one at random in each process.
#[test]
fn of_two_tokens_equal_but_for_case_none_is_taken() {
    let copy = copy_of_toy();
    std::fs::write(
        copy.path().join("added_tokens.json"),
        r#"{"<Cat>": 49408, "<cat>": 49409, "<dog>": 49410}"#,
    )
    .unwrap();
    let mut tokenizer = ClipTokenizer::open(copy.path(), LENGTH).unwrap();
    for prompt in ["a star beside a <cat>", "<Cat>", "x <CAT>_1"] {
        let error = tokenizer.encode(prompt).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Twins { .. }), "{text}");
        for part in [prompt, "\"<Cat>\" (49408)", "\"<cat>\" (49409)"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
    assert!(tokenizer.initializer_ids("<cat>", 1).is_err() && tokenizer.encode_chunks("a <cat>").is_err());
    // Prompts without them are unaffected.
    assert_eq!(words(&tokenizer.encode("a <DOG>").unwrap(), 49_407), [320, 49_410]);
    for (token, count) in [("<DOG>", 1), ("<CAT>", 2)] {
        let error = tokenizer.add_placeholders(token, count).unwrap_err().to_string();
        assert!(error.contains(token) && error.contains("case alone"), "{error}");
    }
    assert_eq!(tokenizer.add_placeholders("<thing>", 1).unwrap().ids, [49_411]);
    tokenizer.encode("a <thing>").unwrap();
}

#[test]
fn a_tokenizer_that_draws_lots_is_refused() {
    let copy = copy_of_toy();
    let opened = super::files::open(&toy_folder()).unwrap().tokenizer;
    let mut whole: serde_json::Value = serde_json::from_str(&opened.to_string(false).unwrap()).unwrap();
    let file = copy.path().join("tokenizer.json");
    for (dropout, allowed) in [(serde_json::Value::Null, true), (0.0f64.into(), true), (0.1f64.into(), false)]
    {
        whole["model"]["dropout"] = dropout;
        std::fs::write(&file, whole.to_string()).unwrap();
        match ClipTokenizer::open(copy.path(), LENGTH) {
            Ok(_) => assert!(allowed),
            Err(error) => assert!(!allowed && error.to_string().contains("model.dropout"), "{error}"),
        }
    }
}

#[test]
fn a_table_may_have_rows_that_no_token_has() {
    let mut tokenizer = toy();
    assert!(!tokenizer.fit(TOY_VOCABULARY_SIZE as usize - 1, LENGTH) && !tokenizer.fit(50_000, LENGTH - 1));
    let plain = tokenizer.encode("a star").unwrap();
    assert!(tokenizer.fit(TOY_VOCABULARY_SIZE as usize + 8, LENGTH));
    assert_eq!(tokenizer.vocabulary_size() as i64, TOY_VOCABULARY_SIZE + 8);
    let cat = tokenizer.add_placeholders("<cat>", 2).unwrap();
    assert_eq!(cat.ids, [TOY_VOCABULARY_SIZE + 8, TOY_VOCABULARY_SIZE + 9]);
    assert_eq!(tokenizer.add_placeholders("<dog>", 1).unwrap().ids, [TOY_VOCABULARY_SIZE + 10]);
    assert_eq!(words(&tokenizer.encode("<cat>_1 <dog>").unwrap(), 49_407), [49_417, 49_418]);
    assert_eq!(tokenizer.encode("a star").unwrap(), plain);
    // The vectors of one token are known by the same ids.
    assert_eq!(tokenizer.write_out("a <cat>").unwrap(), "a <cat> <cat>_1");
    let full = tokenizer.write_out(&format!("{}<cat>", "star ".repeat(74))).unwrap();
    assert_eq!(tokenizer.encode_chunks(&full).unwrap()[1], tokenizer.encode("<cat> <cat>_1").unwrap());
}

#[test]
fn missing_and_broken_files_are_named() {
    let missing = ["vocab.json", "merges.txt"].map(|name| (name, false));
    let broken = ["vocab.json", "tokenizer.json", "tokenizer_config.json"].map(|name| (name, true));
    for (name, is_there) in missing.into_iter().chain(broken) {
        let copy = copy_of_toy();
        let file = copy.path().join(name);
        if is_there {
            std::fs::write(file, "{").unwrap()
        } else {
            std::fs::remove_file(file).unwrap()
        }
        match ClipTokenizer::open(copy.path(), LENGTH) {
            Err(Error::TokenizerFile { file, .. }) => assert!(file.ends_with(name)),
            other => panic!("{other:?}"),
        }
    }
}

/// Encodes `templates` for one concept, with a tokenizer that knows all.
fn prompts(
    tokenizer: &ClipTokenizer,
    placeholders: &Placeholders,
    others: &[Placeholders],
    templates: &[&str],
) -> Result<Prompts, Error> {
    let tokenizer = Arc::new(tokenizer.clone());
    Prompts::encode(&ConceptWords { tokenizer: &tokenizer, placeholders, others }, templates)
}

fn ids(prompts: &Prompts) -> Vec<i64> {
    prompts.ids(0, 0, CaptionDraw::default()).unwrap().into_owned()
}

#[test]
fn both_template_lists_hold_the_token_once_a_prompt() {
    let mut tokenizer = toy();
    let added = tokenizer.add_placeholders("<a>", 2).unwrap();
    let objects = prompts(&tokenizer, &added, &[], &templates::OBJECT).unwrap();
    assert_eq!(objects.count(), 27);
    assert_eq!(ids(&objects), tokenizer.encode("a photo of a <a> <a>_1").unwrap());
    assert_eq!(prompts(&tokenizer, &added, &[], &templates::STYLE).unwrap().count(), 19);
}

#[test]
fn templates_that_lose_or_hold_the_token_are_refused() {
    let mut tokenizer = toy();
    let added = tokenizer.add_placeholders("Photograph5", 1).unwrap();
    let refused =
        |template: &str| matches!(prompts(&tokenizer, &added, &[], &[template]), Err(Error::Template { .. }));
    assert!(!refused("a {}"));
    assert!(refused("a photo"));
    assert!(refused("a photograph5 of {}"));
    assert!(refused(&format!("{}{{}}", "word ".repeat(80))));
}

#[test]
fn several_concepts_are_told_apart() {
    let mut tokenizer = toy();
    let star = tokenizer.add_placeholders("<star>", 2).unwrap();
    let heart = tokenizer.add_placeholders("<heart>", 1).unwrap();
    assert_eq!((star.ids, heart.ids.clone()), (vec![49_408, 49_409], vec![49_410]));
    let star = Placeholders { tokens: star.tokens, ids: vec![49_408, 49_409] };
    let others = [star];
    let heart_prompts = prompts(&tokenizer, &heart, &others, &["a {}"]).unwrap();
    assert_eq!(words(&ids(&heart_prompts), 49_407), [320, 49_410]);
    match prompts(&tokenizer, &heart, &others, &["a {} and a <STAR>_1"]) {
        Err(Error::Template { problem, .. }) => assert!(problem.contains("<star>"), "{problem}"),
        other => panic!("{other:?}"),
    }
}
