//! Cuts the output into windows of tokens; pure.

use super::Index;

/// Begin of the next window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// A place in the order of documents.
    document: usize,
    /// Tokens of that document that are in windows before.
    done: u64,
}

/// Tokens that lie together, on the disk and in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The number of the first one among all tokens.
    pub(super) position: u64,
    /// Position in the window, in tokens.
    pub(super) place: u32,
    pub(super) length: u32,
}

/// Collects the pieces of the next window of at most `most_tokens` in `most_pieces`, in the order of the output, and moves the cursor
/// behind it; gives the window's tokens, 0 at the end. A document that does not fit is cut.
pub(super) fn next(
    index: &Index,
    order: &[u32],
    cursor: &mut Cursor,
    most_tokens: usize,
    most_pieces: usize,
    pieces: &mut Vec<Piece>,
) -> usize {
    pieces.clear();
    let mut filled = 0;
    while filled < most_tokens
        && pieces.len() < most_pieces
        && let Some(document) = order.get(cursor.document)
    {
        let left = index.length(*document) - cursor.done;
        let taken = left.min((most_tokens - filled) as u64);
        if taken > 0 {
            let position = index.start(*document) + cursor.done;
            // A window has fewer tokens than 32 bits can say.
            pieces.push(Piece { position, place: filled as u32, length: taken as u32 });
            filled += taken as usize;
        }
        *cursor = if taken == left {
            Cursor { document: cursor.document + 1, done: 0 }
        } else {
            Cursor { done: cursor.done + taken, ..*cursor }
        };
    }
    filled
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the windows' size, together they hold each document once, in order.
        #[test]
        fn windows_follow_each_other(
            lengths in proptest::collection::vec(0u64..9, 0..30),
            most_tokens in 1usize..12,
            most_pieces in 1usize..5,
        ) {
            let index = Index::of_lengths(&lengths);
            let order: Vec<u32> = (0..lengths.len() as u32).rev().collect();
            let expected: Vec<u64> =
                order.iter().flat_map(|document| {
                    let start = index.start(*document);
                    start..start + index.length(*document)
                }).collect();
            let (mut cursor, mut pieces, mut found) = (Cursor::default(), Vec::new(), Vec::new());
            loop {
                let filled = next(&index, &order, &mut cursor, most_tokens, most_pieces, &mut pieces);
                if filled == 0 {
                    break;
                }
                prop_assert!(filled <= most_tokens && pieces.len() <= most_pieces);
                let mut place = 0;
                for piece in &pieces {
                    prop_assert_eq!(piece.place, place);
                    place += piece.length;
                    found.extend(piece.position..piece.position + u64::from(piece.length));
                }
                prop_assert_eq!(place as usize, filled);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
