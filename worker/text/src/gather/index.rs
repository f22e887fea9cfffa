//! Index of the documents' positions: 8 bytes each.

use crate::{Error, limits::MOST_DOCUMENTS, scratch::Chunk};

/// Tokens of all parts are numbered as if they were one file.
#[derive(Debug)]
pub(crate) struct Index {
    /// The number of each document's first token, and one more for the end.
    starts: Vec<u64>,
    /// The number of each part's first token.
    parts: Vec<u64>,
}

impl Index {
    /// Reads the lengths of all documents. Blocks.
    ///
    /// # Errors
    /// There are too many documents, or a part cannot be read.
    pub(crate) fn new(chunks: &[Chunk]) -> Result<Self, Error> {
        let documents: u64 = chunks.iter().map(|chunk| chunk.documents).sum();
        if documents > MOST_DOCUMENTS {
            return Err(Error::Documents(format!("{documents} documents; allowed: {MOST_DOCUMENTS}")));
        }
        let mut starts = Vec::with_capacity(documents as usize + 1);
        let (mut parts, mut next) = (Vec::new(), 0);
        for chunk in chunks {
            parts.push(next);
            let end = next + chunk.tokens;
            chunk.lengths(|length| {
                starts.push(next);
                next += u64::from(length);
            })?;
            if next != end {
                return Err(Error::unusable(
                    &chunk.path,
                    "its documents have other lengths than it says: remove it",
                ));
            }
        }
        starts.push(next);
        Ok(Self { starts, parts })
    }

    /// Number of documents.
    pub(crate) fn documents(&self) -> u32 {
        (self.starts.len() - 1) as u32
    }

    /// The tokens of all of them.
    pub(crate) fn tokens(&self) -> u64 {
        self.starts.last().copied().unwrap_or_default()
    }

    /// The number of a document's first token.
    pub(super) fn start(&self, document: u32) -> u64 {
        self.starts.get(document as usize).copied().unwrap_or_default()
    }

    /// Number of a document's tokens.
    pub(super) fn length(&self, document: u32) -> u64 {
        let end = self.starts.get(document as usize + 1).copied().unwrap_or_default();
        end.saturating_sub(self.start(document))
    }

    /// The part that a token is in, and its place there.
    pub(super) fn place(&self, token: u64) -> (usize, u64) {
        // Of parts that begin at the same token all but the last are empty.
        let part = self.parts.partition_point(|start| *start <= token).saturating_sub(1);
        (part, token - self.parts.get(part).copied().unwrap_or_default())
    }

    #[cfg(test)]
    pub(super) fn of_lengths(lengths: &[u64]) -> Self {
        let mut starts = vec![0];
        lengths.iter().for_each(|length| starts.push(starts.last().unwrap() + length));
        Self { starts, parts: vec![0] }
    }
}
