//! Cuts files into parts; pure.

use std::ops::Range;

use ringtune_shared::ids::{ContentHash, ContentHasher};

use super::{InputFile, Kind};
use crate::limits::{CHUNK_BYTES, CHUNK_FILES};

/// A part of the inputs, which one thread reads from its beginning to its end. The parts in order are the inputs in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Files of text: the sources from here to there.
    Texts(Range<usize>),
    /// The lines of a file that begin at these bytes.
    Lines { source: usize, bytes: Range<u64> },
    /// Row groups of a file.
    Groups { source: usize, groups: Range<usize> },
}

impl Part {
    /// The sources that it is made from.
    pub(crate) fn sources(&self) -> Range<usize> {
        match self {
            Self::Texts(sources) => sources.clone(),
            Self::Lines { source, .. } | Self::Groups { source, .. } => *source..*source + 1,
        }
    }

    /// Key of the part's tokens: the hash of all that they depend on. `maker`: the hash of everything else.
    pub(crate) fn key(&self, sources: &[InputFile], maker: &ContentHash) -> ContentHash {
        let mut hasher = ContentHasher::new();
        hasher.update(&maker.0);
        for source in sources.get(self.sources()).unwrap_or_default() {
            let about = &source.identity;
            hasher.update(format!("{}\0{}\0{}\0", about.name, about.size, about.modified).as_bytes());
        }
        let range = match self {
            Self::Texts(_) => "texts".to_owned(),
            Self::Lines { bytes, .. } => format!("lines {bytes:?}"),
            Self::Groups { groups, .. } => format!("groups {groups:?}"),
        };
        hasher.update(range.as_bytes());
        hasher.finish()
    }
}

/// Cuts files into parts of about 16 MiB of text.
pub(crate) fn plan(sources: &[InputFile]) -> Vec<Part> {
    let mut parts = Vec::new();
    // Bytes in the part of text files that is being made.
    let mut bytes = 0;
    for (number, source) in sources.iter().enumerate() {
        match &source.kind {
            Kind::Text => match parts.last_mut() {
                Some(Part::Texts(files))
                    if files.end == number && bytes < CHUNK_BYTES && files.len() < CHUNK_FILES =>
                {
                    files.end = number + 1;
                    bytes += source.identity.size;
                }
                _ => {
                    parts.push(Part::Texts(number..number + 1));
                    bytes = source.identity.size;
                }
            },
            Kind::Lines => {
                let starts = (0..source.identity.size).step_by(CHUNK_BYTES as usize);
                parts.extend(starts.map(|start| Part::Lines {
                    source: number,
                    bytes: start..(start + CHUNK_BYTES).min(source.identity.size),
                }));
            }
            Kind::Table(groups) => {
                let mut start = 0;
                let mut bytes = 0;
                for (place, group) in groups.iter().enumerate() {
                    bytes += group.bytes;
                    if bytes >= CHUNK_BYTES || place + 1 == groups.len() {
                        parts.push(Part::Groups { source: number, groups: start..place + 1 });
                        (start, bytes) = (place + 1, 0);
                    }
                }
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Identity, RowGroup};

    fn source(kind: Kind, size: u64) -> InputFile {
        let identity = Identity { name: format!("{size}"), size, modified: 1 };
        InputFile { path: "x".into(), kind, identity }
    }

    #[test]
    fn parts_cover_the_inputs_in_order() {
        let groups = |bytes: &[u64]| {
            Kind::Table(bytes.iter().map(|bytes| RowGroup { rows: 1, bytes: bytes << 20 }).collect())
        };
        let sources = [
            source(Kind::Text, 10 << 20),
            source(Kind::Text, 7 << 20),
            source(Kind::Text, 1),
            source(Kind::Lines, (32 << 20) + 5),
            source(Kind::Lines, 0),
            source(groups(&[4, 4, 9, 40, 1]), 9),
            source(groups(&[]), 9),
            source(Kind::Text, 3),
        ];
        let lines = |from: u64, to: u64| Part::Lines { source: 3, bytes: from..to };
        let rows = |from: usize, to: usize| Part::Groups { source: 5, groups: from..to };
        let expected = [
            Part::Texts(0..2),
            Part::Texts(2..3),
            lines(0, 16 << 20),
            lines(16 << 20, 32 << 20),
            lines(32 << 20, (32 << 20) + 5),
            rows(0, 3),
            rows(3, 4),
            rows(4, 5),
            Part::Texts(7..8),
        ];
        assert_eq!(plan(&sources), expected);
    }

    #[test]
    fn whatever_tokens_depend_on_changes_the_name() {
        let sources = [source(Kind::Lines, 40 << 20)];
        let parts = plan(&sources);
        let maker = ContentHash::of(b"tokenizer");
        let key = parts[0].key(&sources, &maker);
        assert_eq!(key, plan(&sources)[0].key(&sources, &maker));
        assert_ne!(key, parts[1].key(&sources, &maker));
        assert_ne!(key, parts[0].key(&sources, &ContentHash::of(b"another")));
        let changes: [fn(&mut Identity); 3] =
            [|about| about.size += 1, |about| about.modified += 1, |about| about.name.push('x')];
        for change in changes {
            let mut changed = sources.clone();
            change(&mut changed[0].identity);
            assert_ne!(key, parts[0].key(&changed, &maker));
        }
    }
}
