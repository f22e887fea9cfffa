//! Whether tokens are of the base model's own tokenizer: others are other texts to it.

use ringtune_shared::ids::ContentHash;
use ringtune_text::{Manifest, Tokenizer};

use super::tokens;
use crate::{base_model::LanguageModelFiles, fault::Refusal, rank::Error};

/// What tells tokenizers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Facts {
    end_of_text: u32,
    vocabulary: u32,
    hash: ContentHash,
}

/// Compares the tokens' tokenizer with that of `model.base`, where that has one. Gives what is to be warned of.
///
/// # Errors
/// The tokens are of another one.
pub(super) async fn compare(model: &LanguageModelFiles, tokens: &Manifest) -> Result<Option<String>, Error> {
    let has = |name: &str| model.files.iter().any(|file| file == name);
    let is_there = has("tokenizer.json") || (has("vocab.json") && has("merges.txt"));
    if !is_there {
        return Ok(None);
    }
    let folder = model.folder.clone();
    let opened = ringtune_shared::tasks::spawn_blocking(move || Tokenizer::open(&folder)).await?;
    Ok(match opened {
        Ok(tokenizer) => {
            let own = Facts {
                end_of_text: u32::from(tokenizer.end_of_text()),
                vocabulary: tokenizer.vocabulary_size(),
                hash: tokenizer.hash(),
            };
            judge(own, of_tokens(tokens))?
        }
        // A model is trained without it.
        Err(error) => Some(format!(
            "{}: nobody knows whether they are of model.base's own tokenizer, which cannot be read: {error}",
            tokens::FIELD
        )),
    })
}

fn of_tokens(manifest: &Manifest) -> Facts {
    let Manifest { end_of_text_id, vocabulary_size, tokenizer_sha256, .. } = manifest;
    Facts { end_of_text: u32::from(*end_of_text_id), vocabulary: *vocabulary_size, hash: *tokenizer_sha256 }
}

fn judge(own: Facts, given: Facts) -> Result<Option<String>, Refusal> {
    for (what, own, given) in [
        ("the end-of-text token", own.end_of_text, given.end_of_text),
        ("the size of the vocabulary", own.vocabulary, given.vocabulary),
    ] {
        if own != given {
            let problem = format!(
                "they were made with another tokenizer than model.base has: {what} is {given} by meta.json; allowed: {own}, as of \
                 model.base. Make them with `ringtune prepare-text --tokenizer` and the tokenizer of model.base"
            );
            return Err(Refusal::of(tokens::FIELD, problem));
        }
    }
    let warning = format!(
        "{}: they were made with other tokenizer files ({}) than model.base has ({}): if their merges differ, the model learns \
         other texts than yours",
        tokens::FIELD,
        given.hash,
        own.hash
    );
    Ok((own.hash != given.hash).then_some(warning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_another_tokenizer_are_refused_and_other_files_of_the_same_size_warned_of() {
        let own = Facts { end_of_text: 556, vocabulary: 557, hash: ContentHash::of(b"own") };
        assert_eq!(judge(own, own).unwrap(), None);
        for (given, words) in [
            (Facts { end_of_text: 0, ..own }, ["the end-of-text token is 0", "allowed: 556"]),
            (Facts { vocabulary: 600, ..own }, ["the size of the vocabulary is 600", "allowed: 557"]),
        ] {
            let refused = judge(own, given).unwrap_err();
            assert_eq!(refused.field, "gpt2.tokens");
            assert!(words.iter().all(|word| refused.problem.contains(word)), "{}", refused.problem);
        }
        let other = Facts { hash: ContentHash::of(b"other"), ..own };
        let warning = judge(own, other).unwrap().unwrap();
        assert!(
            warning.contains(&own.hash.to_string()) && warning.contains(&other.hash.to_string()),
            "{warning}"
        );
    }
}
