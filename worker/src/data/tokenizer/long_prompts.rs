//! Prompts for drawing: tokens of several vectors written out, and prompts that are longer than the text encoder's
//! input cut into chunks.

use std::collections::BTreeMap;

use crate::engine::MOST_CHUNKS;

use super::{super::Error, ClipTokenizer};

/// Characters of a prompt that an error shows.
const SHOWN: usize = 60;

impl ClipTokenizer {
    /// The prompt with every added token of several vectors written out: "a <cat>" becomes "a <cat> <cat>_1".
    ///
    /// Source: diffusers `TextualInversionLoaderMixin.maybe_convert_prompt`, which replaces a token wherever the prompt
    /// has its text, also where its other vectors stand there already.
    ///
    /// # Errors
    /// The tokenizer library refuses the text.
    pub fn write_out(&self, prompt: &str) -> Result<String, Error> {
        let ids = self.token_ids(prompt)?;
        let used = self.added_families().into_iter().filter(|family| ids.contains(&family.ids[0]));
        Ok(used.fold(prompt.to_owned(), |prompt, family| {
            prompt.replace(&family.tokens[0], &family.tokens.join(" "))
        }))
    }

    /// The ids of a prompt of any length in chunks of [`ClipTokenizer::length`] ids, each with a begin and an end of
    /// its own and padded; at least one chunk. The vectors of one added token stay in one chunk: where they do not
    /// fit, the chunk ends before them.
    ///
    /// Source: AUTOMATIC1111 and compel, whose chunks are as long; a plain cut, without looking back for a comma.
    ///
    /// # Errors
    /// The prompt needs more than [`MOST_CHUNKS`] chunks, or one token's vectors more than one.
    pub fn encode_chunks(&self, prompt: &str) -> Result<Vec<Vec<i64>>, Error> {
        let ids = self.token_ids(prompt)?;
        let families: Vec<Vec<u32>> = self.added_families().into_iter().map(|family| family.ids).collect();
        let capacity = self.length - 2;
        let too_long =
            |problem: String| Error::Prompt { prompt: prompt.chars().take(SHOWN).collect(), problem };
        let chunks = cut(&ids, &families, capacity).map_err(|vectors| {
            too_long(format!(
                "a token of {vectors} vectors does not fit into the {capacity} tokens of a chunk"
            ))
        })?;
        if chunks.len() > MOST_CHUNKS {
            let (tokens, count) = (ids.len(), chunks.len());
            return Err(too_long(format!(
                "it has {tokens} tokens, which make {count} chunks of {capacity}; at most {MOST_CHUNKS} are allowed"
            )));
        }
        Ok(chunks.into_iter().map(|chunk| self.framed(chunk)).collect())
    }

    /// Added tokens of more than one vector: `TOKEN`, `TOKEN_1`, … in order of their ids.
    fn added_families(&self) -> Vec<Family> {
        let added = self.tokenizer.get_added_tokens_decoder().into_iter();
        let added: BTreeMap<u32, _> = added.map(|(id, token)| (self.unused.skipped(id), token)).collect();
        let id_of = |text: &str| added.iter().find(|(_, token)| token.content == text).map(|(id, _)| *id);
        added
            .iter()
            .map(|(id, first)| {
                let mut family = Family { ids: vec![*id], tokens: vec![first.content.clone()] };
                while let next = format!("{}_{}", first.content, family.ids.len())
                    && let Some(id) = id_of(&next)
                {
                    family.ids.push(id);
                    family.tokens.push(next);
                }
                family
            })
            .filter(|family| family.ids.len() > 1)
            .collect()
    }
}

/// The tokens of one concept.
struct Family {
    ids: Vec<u32>,
    tokens: Vec<String>,
}

/// Chunks of at most `capacity` ids; the ids of a family that stand together stay together.
///
/// # Errors
/// The length of a family that is longer than a chunk.
fn cut(ids: &[u32], families: &[Vec<u32>], capacity: usize) -> Result<Vec<Vec<u32>>, usize> {
    let mut chunks: Vec<Vec<u32>> = vec![Vec::new()];
    let mut rest = ids;
    while !rest.is_empty() {
        let family = families.iter().filter(|family| rest.starts_with(family)).map(Vec::len).max();
        let (together, after) = rest.split_at(family.unwrap_or(1));
        if together.len() > capacity {
            return Err(together.len());
        }
        match chunks.last_mut() {
            Some(chunk) if chunk.len() + together.len() <= capacity => chunk.extend(together),
            _ => chunks.push(together.to_vec()),
        }
        rest = after;
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn toy() -> ClipTokenizer {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/toy-sd/tokenizer");
        ClipTokenizer::open(&folder, 77).unwrap()
    }

    #[test]
    fn chunks_are_full_and_families_stay_together() {
        let ids: Vec<u32> = (1..=7).collect();
        assert_eq!(cut(&ids, &[], 3).unwrap(), [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
        assert_eq!(cut(&ids, &[vec![3, 4]], 3).unwrap(), [vec![1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(cut(&ids, &[vec![4, 5]], 3).unwrap(), [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
        assert_eq!(cut(&[], &[], 3).unwrap(), [Vec::<u32>::new()]);
        assert_eq!(cut(&ids, &[vec![1, 2, 3, 4]], 3), Err(4));
    }

    #[test]
    fn a_short_prompt_is_one_chunk_and_every_chunk_is_a_prompt() {
        let mut tokenizer = toy();
        let short = "a photo of a star";
        assert_eq!(tokenizer.encode_chunks(short).unwrap(), [tokenizer.encode(short).unwrap()]);
        assert_eq!(tokenizer.encode_chunks("").unwrap(), [tokenizer.encode("").unwrap()]);
        let chunks = tokenizer.encode_chunks(&"star ".repeat(80)).unwrap();
        let of = |count: usize| tokenizer.encode(&"star ".repeat(count)).unwrap();
        assert_eq!(chunks, [of(75), of(5)]);
        assert_eq!(tokenizer.encode_chunks(&"star ".repeat(75)).unwrap().len(), 1);
        // 74 words and a token of two vectors: the token begins the second chunk.
        tokenizer.add_placeholders("<cat>", 2).unwrap();
        let prompt = tokenizer.write_out(&format!("{}<cat>", "star ".repeat(74))).unwrap();
        let chunks = tokenizer.encode_chunks(&prompt).unwrap();
        let of = |prompt: &str| tokenizer.encode(prompt).unwrap();
        assert_eq!(chunks, [of(&"star ".repeat(74)), of("<cat> <cat>_1")]);
    }

    #[test]
    fn too_long_prompts_are_refused() {
        let tokenizer = toy();
        assert_eq!(tokenizer.encode_chunks(&"star ".repeat(600)).unwrap().len(), MOST_CHUNKS);
        let error = tokenizer.encode_chunks(&"star ".repeat(601)).unwrap_err().to_string();
        assert!(error.contains("601 tokens") && error.contains("at most 8") && error.len() < 300, "{error}");
    }

    #[test]
    fn tokens_of_several_vectors_are_written_out() {
        let mut tokenizer = toy();
        tokenizer.add_placeholders("<cat>", 3).unwrap();
        tokenizer.add_placeholders("<dog>", 1).unwrap();
        let written = tokenizer.write_out("a <cat>, a <dog>").unwrap();
        assert_eq!(written, "a <cat> <cat>_1 <cat>_2, a <dog>");
        assert_eq!(tokenizer.write_out("a star").unwrap(), "a star");
    }
}
