//! Documents in the order of the permutation become one file.
//!
//! The tokens lie in the order of the inputs, the file has them in another one, and neither fits into memory. So the file is
//! made window by window: what belongs into a window is collected ([`window`]), read in the order in which it lies on the
//! disk, and written as one piece. The disk is read forwards only, as often as there are windows.

mod index;
mod window;

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use ringtune_shared::{
    files::rename_durably,
    ids::{ContentHash, ContentHasher},
};

pub(crate) use index::Index;
use window::{Cursor, Piece};

use crate::{Error, Progress, scratch::Chunk};

/// Pieces of one window: 16 bytes each.
const MOST_PIECES: usize = 4 << 20;
/// Pieces after which it is looked whether to stop.
const PACE: usize = 1 << 14;

/// A file of tokens that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) documents: u64,
    pub(crate) tokens: u64,
    pub(crate) sha256: ContentHash,
}

/// The tokens of all documents, as they lie on the disk.
pub(crate) struct TokenizedDocuments<'a> {
    pub(crate) index: &'a Index,
    pub(crate) chunks: &'a [Chunk],
    pub(crate) progress: &'a Progress,
    /// Of one window, in tokens: these are in memory.
    pub(crate) window_tokens: usize,
}

/// Writes `target`: the documents of these numbers, in this order. It has its name only when all of it is on the disk;
/// until then it is `.NAME.tmp`, which the next try replaces. Blocks.
///
/// # Errors
/// Those of files, and the wish to stop.
pub(crate) fn write(source: &TokenizedDocuments<'_>, order: &[u32], target: &Path) -> Result<Written, Error> {
    let temporary = temporary(target);
    let written = fill(source, order, &temporary);
    if written.is_err() {
        // If it cannot be removed, its name marks it.
        let _ = fs::remove_file(&temporary);
    }
    let written = written?;
    rename_durably(&temporary, target)?;
    Ok(written)
}

/// Name of `target` until it is complete on the disk.
pub(crate) fn temporary(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.tmp"))
}

fn fill(source: &TokenizedDocuments<'_>, order: &[u32], temporary: &Path) -> Result<Written, Error> {
    let failed = || Error::io("write", temporary);
    let mut file = File::create(temporary).map_err(failed())?;
    let tokens: u64 = order.iter().map(|document| source.index.length(*document)).sum();
    let most = (source.window_tokens as u64).min(tokens) as usize;
    let (mut window, mut pieces) = (vec![0; 2 * most], Vec::new());
    let (mut cursor, mut hasher) = (Cursor::default(), ContentHasher::new());
    loop {
        // 1. What belongs into the window, in the order in which it lies on the disk.
        let filled = window::next(source.index, order, &mut cursor, most, MOST_PIECES, &mut pieces);
        if filled == 0 {
            break;
        }
        pieces.sort_unstable_by_key(|piece| piece.position);
        // 2. Each piece to its place.
        read(source, &pieces, &mut window)?;
        // 3. The file grows by the window.
        let bytes = window.get(..2 * filled).unwrap_or_default();
        file.write_all(bytes).map_err(failed())?;
        hasher.update(bytes);
        source.progress.add_bytes(bytes.len() as u64);
    }
    file.sync_all().map_err(Error::io("sync", temporary))?;
    Ok(Written { documents: order.len() as u64, tokens, sha256: hasher.finish() })
}

/// Reads pieces, which lie one behind the other, to their places in the window.
fn read(source: &TokenizedDocuments<'_>, pieces: &[Piece], window: &mut [u8]) -> Result<(), Error> {
    let mut open: Option<(usize, File)> = None;
    for group in pieces.chunks(PACE) {
        if source.progress.is_stopped() {
            let chunks = source.chunks.len();
            return Err(Error::Stopped { kept: chunks, chunks });
        }
        for piece in group {
            let (number, within) = source.index.place(piece.position);
            let chunk = source.chunks.get(number);
            let chunk = chunk.ok_or_else(|| Error::Internal(format!("there is no part {number}")))?;
            let file = match &mut open {
                Some((opened, file)) if *opened == number => file,
                open => {
                    let file = File::open(&chunk.path).map_err(Error::io("read", &chunk.path))?;
                    &mut open.insert((number, file)).1
                }
            };
            let place = 2 * piece.place as usize..2 * (piece.place as usize + piece.length as usize);
            let room =
                window.get_mut(place).ok_or_else(|| Error::Internal("a piece is too large".to_owned()))?;
            file.read_exact_at(room, 2 * within).map_err(Error::io("read", &chunk.path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ChunkWriter;

    #[test]
    fn documents_come_in_the_order_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        // Document d has d + 1 tokens, all of them d; two files, and an empty one between them.
        let mut chunks = Vec::new();
        for (number, documents) in [0..3u16, 3..3, 3..6].into_iter().enumerate() {
            let mut writer = ChunkWriter::create(folder.path().join(format!("{number}.tokens"))).unwrap();
            for document in documents {
                writer.document(&vec![document; usize::from(document) + 1]).unwrap();
            }
            chunks.push(writer.finish(0).unwrap());
        }
        let (index, progress) = (Index::new(&chunks).unwrap(), Progress::default());
        assert_eq!(index.documents(), 6);
        let target = folder.path().join("train.bin");
        let order = [4, 0, 5, 2];
        let expected: Vec<u8> = order
            .iter()
            .flat_map(|document| vec![*document as u16; *document as usize + 1])
            .flat_map(u16::to_le_bytes)
            .collect();
        let source = |window_tokens| TokenizedDocuments {
            index: &index,
            chunks: &chunks,
            progress: &progress,
            window_tokens,
        };
        // Windows that cut every document, some, and none.
        for (number, window_tokens) in [1, 2, 4, 7, 15, 1 << 20].into_iter().enumerate() {
            let written = write(&source(window_tokens), &order, &target).unwrap();
            assert_eq!(fs::read(&target).unwrap(), expected, "{window_tokens}");
            assert_eq!(written, Written { documents: 4, tokens: 15, sha256: ContentHash::of(&expected) });
            assert_eq!(progress.snapshot().bytes, 30 * (number as u64 + 1));
        }
        progress.stop();
        assert!(matches!(write(&source(4), &order[..2], &target), Err(Error::Stopped { .. })));
        assert_eq!(fs::read(&target).unwrap(), expected);
        assert!(!temporary(&target).exists());
    }
}
