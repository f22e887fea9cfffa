//! "Did you mean …": the known word nearest to a mistyped one.

/// The word of `known` nearest to `given`, if one is near enough to be what was meant.
///
/// Near enough: at most a third of the longer word's letters (and at least one) differ.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .filter_map(|word| {
            let longest = word.chars().count().max(given.chars().count());
            let differing = edit_distance(given, word);
            (differing <= (longest / 3).max(1)).then_some((differing, word))
        })
        .min()
        .map(|(_, word)| word)
}

/// Insertions, deletions, replacements and swaps of neighbours that turn `left` into `right`
/// (optimal string alignment). Words beyond 64 letters count as entirely different.
fn edit_distance(left: &str, right: &str) -> usize {
    const LONGEST: usize = 64;
    let left: Vec<char> = left.chars().take(LONGEST + 1).flat_map(char::to_lowercase).collect();
    let right: Vec<char> = right.chars().take(LONGEST + 1).flat_map(char::to_lowercase).collect();
    if left.len() > LONGEST || right.len() > LONGEST {
        return usize::MAX;
    }
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for (row, line) in rows.iter_mut().enumerate() {
        line[0] = row;
    }
    for (column, cell) in rows[0].iter_mut().enumerate() {
        *cell = column;
    }
    for row in 1..=left.len() {
        for column in 1..=right.len() {
            let replaced = rows[row - 1][column - 1] + usize::from(left[row - 1] != right[column - 1]);
            let mut best = replaced.min(rows[row - 1][column] + 1).min(rows[row][column - 1] + 1);
            let swapped = row > 1
                && column > 1
                && left[row - 1] == right[column - 2]
                && left[row - 2] == right[column - 1];
            if swapped {
                best = best.min(rows[row - 2][column - 2] + 1);
            }
            rows[row][column] = best;
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 4] = ["num_vectors", "seed", "save_steps", "scale_lr"];

    #[test]
    fn a_near_word_is_found_and_a_far_one_is_not() {
        assert_eq!(nearest("num_vector", WORDS), Some("num_vectors"));
        assert_eq!(nearest("sede", WORDS), Some("seed"));
        assert_eq!(nearest("Scale_LR", WORDS), Some("scale_lr"));
        assert_eq!(nearest("banana", WORDS), None);
        assert_eq!(nearest("", WORDS), None);
        assert_eq!(nearest(&"x".repeat(10_000), WORDS), None);
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
        assert_eq!(edit_distance("abcd", "acbd"), 1);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
