//! Added tokens that are one and the same to the tokenizer.
//!
//! A text is normalised, which for CLIP writes it in small letters, before added tokens are looked for in it, and so are the
//! tokens. Two that differ in their case alone are the same then, and which of them is found follows from the order of a
//! randomly seeded map in the library: another one in each process. transformers, on the same library, has it so too.

use std::collections::BTreeMap;

use tokenizers::{NormalizedString, Normalizer as _, Tokenizer};

/// Ids of tokens with twins, each with the texts and ids of all that it is the same as.
pub(super) type Twins = BTreeMap<u32, Vec<String>>;

/// All added tokens that cannot be told from another.
///
/// # Errors
/// What the library says of a token that cannot be normalised.
pub(super) fn find(tokenizer: &Tokenizer) -> Result<Twins, tokenizers::Error> {
    let mut by_text: BTreeMap<String, BTreeMap<u32, String>> = BTreeMap::new();
    for (id, token) in tokenizer.get_added_tokens_decoder() {
        // The others are searched in the unnormalised text.
        if !token.normalized {
            continue;
        }
        let mut text = NormalizedString::from(token.content.as_str());
        if let Some(normalizer) = tokenizer.get_normalizer() {
            normalizer.normalize(&mut text)?;
        }
        by_text.entry(text.get().to_owned()).or_default().insert(id, token.content);
    }
    let mut twins = Twins::new();
    for same in by_text.into_values().filter(|same| same.len() > 1) {
        let named: Vec<String> = same.iter().map(|(id, token)| format!("{token:?} ({id})")).collect();
        twins.extend(same.into_keys().map(|id| (id, named.clone())));
    }
    Ok(twins)
}
