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

/// Insertions, deletions, replacements and swaps of neighbours that turn `left` into `right`, in whatever case. Words beyond
/// 64 letters count as entirely different.
fn edit_distance(left: &str, right: &str) -> usize {
    const LONGEST: usize = 64;
    let [left, right] =
        [left, right].map(|word| word.chars().take(LONGEST + 1).collect::<String>().to_lowercase());
    match left.chars().count().max(right.chars().count()) {
        0..=LONGEST => strsim::osa_distance(&left, &right),
        _ => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 4] = ["num_vectors", "seed", "save_steps", "scale_lr"];

    #[test]
    fn a_near_word_is_found_and_a_far_one_is_not() {
        assert_eq!(nearest("num_vector", WORDS), Some("num_vectors"));
        assert_eq!(nearest("sede", WORDS), Some("seed"), "a swap is one edit");
        assert_eq!(nearest("Scale_LR", WORDS), Some("scale_lr"));
        assert_eq!(nearest("banana", WORDS), None);
        assert_eq!(nearest("", WORDS), None);
        assert_eq!(nearest(&"x".repeat(10_000), WORDS), None);
    }
}
