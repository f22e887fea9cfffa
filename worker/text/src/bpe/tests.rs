use std::{collections::BTreeMap, fs, path::Path};

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{
    decoders::DecoderWrapper,
    models::bpe::{BPE, BpeTrainerBuilder},
    normalizers::NormalizerWrapper,
    pre_tokenizers::PreTokenizerWrapper,
    pre_tokenizers::byte_level::ByteLevel,
    processors::PostProcessorWrapper,
    tokenizer::TokenizerImpl,
};

use super::*;

type Reference =
    TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

const SAMPLE: &str = "The quick brown fox doesn't jump over the lazy dog's back; they'll be there, won't they? It's 12,345.67 \
    now and   then\n\n\tthe end of the text, the other ones, naïve café über straße 日本語 日本 привет мир 😀😀";

/// A vocabulary of the other implementation's own training, written by it.
fn trained(folder: &Path) -> Reference {
    let mut reference: Reference = TokenizerImpl::new(BPE::default());
    reference.with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, true))));
    let alphabet = ByteLevel::alphabet().into_iter().collect();
    let mut trainer =
        BpeTrainerBuilder::new().vocab_size(380).show_progress(false).initial_alphabet(alphabet).build();
    reference.train(&mut trainer, [SAMPLE; 3].into_iter()).unwrap();
    reference.add_special_tokens([tokenizers::AddedToken::from(END_OF_TEXT, true)]).unwrap();
    reference.save(folder.join("tokenizer.json"), false).unwrap();
    reference
}

/// Such a vocabulary, and what is made of it.
fn opened() -> (Reference, Tokenizer) {
    let folder = tempfile::tempdir().unwrap();
    (trained(folder.path()), Tokenizer::open(folder.path()).unwrap())
}

fn tokens_of(reference: &Reference, text: &str) -> Vec<u16> {
    reference.encode(text, false).unwrap().get_ids().iter().map(|id| *id as u16).collect()
}

/// Some of these parts, one after the other.
fn texts(parts: Vec<String>, most: usize) -> impl Strategy<Value = String> {
    let parts = proptest::collection::vec(proptest::sample::select(parts), 0..most);
    parts.prop_map(|parts| parts.concat())
}

fn for_all<S: Strategy>(inputs: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    proptest::test_runner::TestRunner::default().run(&inputs, test).unwrap();
}

fn encoded(tokenizer: &Tokenizer, text: &str) -> Vec<u16> {
    let mut tokens = Vec::new();
    tokenizer.encoder().encode_ordinary(text, &mut tokens);
    tokens
}

fn edit(folder: &Path, change: impl FnOnce(&mut Value)) {
    let file = folder.join("tokenizer.json");
    let mut whole: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut whole);
    fs::write(file, whole.to_string()).unwrap();
}

#[test]
fn tokens_are_those_of_the_other_implementation() {
    let (reference, tokenizer) = opened();
    let parts = "the |The|'|s|'ll|t| |  |\n|\t|é|日本語|😀|1|23|.|,|-|a|e|th|quick|\u{a0}|\u{0}|<|Ⅷ|ö|\u{301}|brown fox";
    for_all(texts(parts.split('|').map(str::to_owned).collect(), 60), |text| {
        prop_assert_eq!(encoded(&tokenizer, &text), tokens_of(&reference, &text));
        Ok(())
    });
    assert!(encoded(&tokenizer, SAMPLE).len() < SAMPLE.len() / 2, "nothing was merged");
}

#[test]
fn any_letters_give_the_tokens_of_the_other_implementation() {
    let (reference, tokenizer) = opened();
    for_all(any::<String>(), |text| {
        // The other implementation takes this one for the token.
        prop_assume!(!text.contains(END_OF_TEXT));
        prop_assert_eq!(encoded(&tokenizer, &text), tokens_of(&reference, &text));
        Ok(())
    });
}

/// Of tokens, as they would be shown one after the other.
fn decoded(tokenizer: &Tokenizer, tokens: &[u16]) -> String {
    let mut stream = TextStream::new();
    let mut text: String =
        tokens.iter().map(|token| stream.push(tokenizer.bytes(u32::from(*token)))).collect();
    text.push_str(&stream.finish());
    text
}

#[test]
fn any_text_comes_back_from_its_tokens() {
    let tokenizer = opened().1;
    for_all(any::<String>(), |text| {
        prop_assert_eq!(decoded(&tokenizer, &encoded(&tokenizer, &text)), text);
        Ok(())
    });
    assert_eq!(decoded(&tokenizer, &encoded(&tokenizer, SAMPLE)), SAMPLE);
    assert_eq!(decoded(&tokenizer, &[tokenizer.end_of_text()]), END_OF_TEXT);
}

/// Also of tokens that are parts of characters, in an order that no text gives.
#[test]
fn any_tokens_are_the_text_of_the_other_implementation() {
    let (mut reference, tokenizer) = opened();
    reference.with_decoder(Some(tokenizers::DecoderWrapper::ByteLevel(ByteLevel::default())));
    for_all(proptest::collection::vec(0..tokenizer.vocabulary_size(), 0..40), |ids| {
        let expected = reference.decode(&ids, false).unwrap();
        let ids: Vec<u16> = ids.iter().map(|id| *id as u16).collect();
        prop_assert_eq!(decoded(&tokenizer, &ids), expected);
        Ok(())
    });
}

#[test]
fn special_tokens_in_a_text_are_text() {
    let tokenizer = opened().1;
    let tokens = encoded(&tokenizer, END_OF_TEXT);
    assert!(tokens.len() > 3 && !tokens.contains(&tokenizer.end_of_text()), "{tokens:?}");
}

#[test]
fn both_forms_of_a_tokenizer_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let whole = Tokenizer::open(folder.path()).unwrap();
    let json: Value =
        serde_json::from_slice(&fs::read(folder.path().join("tokenizer.json")).unwrap()).unwrap();
    let mut vocabulary: BTreeMap<String, u32> =
        serde_json::from_value(json["model"]["vocab"].clone()).unwrap();
    vocabulary.insert(END_OF_TEXT.to_owned(), vocabulary.len() as u32);
    let word = |part: &Value| part.as_str().unwrap().to_owned();
    let merges = json["model"]["merges"].as_array().unwrap().iter();
    let merges: String = merges.map(|merge| format!("{} {}\n", word(&merge[0]), word(&merge[1]))).collect();
    let two = tempfile::tempdir().unwrap();
    fs::write(two.path().join("vocab.json"), json!(vocabulary).to_string()).unwrap();
    fs::write(two.path().join("merges.txt"), format!("#version: 0.2\n{merges}")).unwrap();
    let two = Tokenizer::open(two.path()).unwrap();
    assert_eq!(encoded(&two, SAMPLE), encoded(&whole, SAMPLE));
    assert_eq!(two.vocabulary_size(), whole.vocabulary_size());
    assert_eq!(two.end_of_text(), whole.end_of_text());
}

#[test]
fn long_words_and_words_that_come_again_are_the_same() {
    let (reference, tokenizer) = opened();
    let text = format!("{} {0} {}", "the".repeat(50_000), "日本".repeat(3000));
    assert_eq!(encoded(&tokenizer, &text), tokens_of(&reference, &text));
}

/// Adds a token.
fn add(whole: &mut Value, text: &str, special: bool) {
    let added = whole["added_tokens"].as_array_mut().unwrap();
    let mut one = added[0].clone();
    (one["content"], one["special"]) = (json!(text), json!(special));
    one["id"] = json!(one["id"].as_u64().unwrap() + added.len() as u64);
    added.push(one);
}

#[test]
fn tokens_that_stand_for_no_text_may_be_added() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let before = Tokenizer::open(folder.path()).unwrap();
    edit(folder.path(), |whole| {
        add(whole, "<pad>", true);
        // Never looked for in a document, whatever the file says of it.
        whole["added_tokens"][0]["special"] = json!(false);
    });
    // Read by slow tokenizers only.
    fs::write(folder.path().join("added_tokens.json"), r#"{"brown fox": 9}"#).unwrap();
    let after = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(after.vocabulary_size(), before.vocabulary_size() + 1);
    assert_eq!(encoded(&after, SAMPLE), encoded(&before, SAMPLE));
}

/// Tokens of a chat, in a prompt: one id each, read as they are printed.
#[test]
fn added_tokens_of_a_prompt_are_those_of_the_other_implementation() {
    let folder = tempfile::tempdir().unwrap();
    let mut reference = trained(folder.path());
    let special = |text: &str| tokenizers::AddedToken::from(text, true);
    let added = ["<|user|>", "<|user|>+", "<|bot|>"].map(special);
    let more = [special("<s>").lstrip(true), special("<e>").rstrip(true), special("the").single_word(true)];
    reference.add_special_tokens(added.into_iter().chain(more)).unwrap();
    reference.add_special_tokens([special("brown").normalized(true)]).unwrap();
    reference.save(folder.path().join("tokenizer.json"), false).unwrap();
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    let parts =
        "<|user|>|<|user|>+|<|bot|>|<s>|<e>|the|brown|<|endoftext|>|<|user|| |  |\n|KING: hi|é|fox|_|9|<"
            .split("|");
    let mut parts: Vec<String> = parts.map(str::to_owned).collect();
    parts.extend(["<|user|>", "<|user|>+", "<|bot|>", END_OF_TEXT, "<|bot"].map(str::to_owned));
    for_all(texts(parts, 30), |text| {
        prop_assert_eq!(tokenizer.encode_prompt(&text).unwrap(), tokens_of(&reference, &text), "{:?}", text);
        Ok(())
    });
    let prompt = tokenizer.encode_prompt("<|user|>KING: hi<|bot|>").unwrap();
    assert_eq!(decoded(&tokenizer, &prompt), "<|user|>KING: hi<|bot|>");
    assert_eq!(decoded(&tokenizer, &prompt[..1]), "<|user|>");
    // In a document they are text, as ever.
    assert!(encoded(&tokenizer, "<|user|>").len() > 1);
}

#[test]
fn what_puts_tokens_around_a_prompt_is_refused() {
    let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
    let special = json!({"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}});
    let template = |single: Value| json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}});
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
    for (processor, refused) in [
        (Value::Null, false),
        (byte_level.clone(), false),
        (template(json!([sequence])), false),
        (template(json!([special, sequence])), true),
        (json!({"type": "Sequence", "processors": [byte_level, template(json!([sequence, special]))]}), true),
        (json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0]}), true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        trained(folder.path());
        edit(folder.path(), |whole| whole["post_processor"] = processor.clone());
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        match tokenizer.encode_prompt("a") {
            Ok(_) => assert!(!refused, "{processor}"),
            Err(error) => {
                assert!(refused && error.to_string().contains("post_processor"), "{processor}: {error}")
            }
        }
    }
}

#[test]
fn tokens_beside_a_slow_tokenizers_vocabulary_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
    let letters = alphabet::letters().map(String::from).into_iter().enumerate();
    let mut vocabulary: BTreeMap<String, usize> = letters.map(|(id, letter)| (letter, id)).collect();
    vocabulary.insert(END_OF_TEXT.to_owned(), 256);
    write("vocab.json", &json!(vocabulary).to_string());
    write("merges.txt", "#version: 0.2\n");
    for nothing in ["{}", r#"{"<|endoftext|>": 256}"#] {
        write("added_tokens.json", nothing);
        Tokenizer::open(folder.path()).unwrap();
    }
    for (added, word) in [(r#"{"<tag>": 257}"#, "the added token \"<tag>\""), ("[]", "is not a JSON object")]
    {
        write("added_tokens.json", added);
        let refused = Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("added_tokens.json") && refused.contains(word), "{refused}");
    }
}

#[test]
fn other_kinds_of_tokenizers_are_refused_by_file() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 10] = [
        (|whole| whole["normalizer"] = json!({"type": "NFC"}), "NFC"),
        (|whole| whole["pre_tokenizer"] = json!({"type": "Metaspace"}), "Metaspace"),
        (|whole| whole["pre_tokenizer"] = Value::Null, "pre_tokenizer"),
        (|whole| whole["pre_tokenizer"]["add_prefix_space"] = json!(true), "add_prefix_space"),
        (|whole| whole["model"]["dropout"] = json!(0.1), "dropout"),
        (|whole| whole["model"]["end_of_word_suffix"] = json!("</w>"), "words"),
        (|whole| whole["model"]["type"] = json!("WordPiece"), "WordPiece"),
        (|whole| whole["model"]["vocab"]["far"] = json!(65_536), "65536"),
        (|whole| whole["added_tokens"] = json!([]), END_OF_TEXT),
        (|whole| add(whole, "brown fox", false), r#"the added token "brown fox""#),
    ];
    for (change, word) in changes {
        let folder = tempfile::tempdir().unwrap();
        trained(folder.path());
        edit(folder.path(), change);
        let refused = Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(refused.contains(word) && refused.contains("tokenizer.json"), "{word}: {refused}");
    }
    let nothing = tempfile::tempdir().unwrap();
    let refused = Tokenizer::open(nothing.path()).unwrap_err().to_string();
    assert!(refused.contains("vocab.json") && refused.contains("merges.txt"), "{refused}");
    fs::write(nothing.path().join("tokenizer.json"), "{").unwrap();
    assert!(Tokenizer::open(nothing.path()).is_err());
}
