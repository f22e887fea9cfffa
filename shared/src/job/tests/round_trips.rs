//! Any text, read.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn garbage_is_an_error_and_never_a_panic(text in ".*") {
        prop_assert!(parse_job_toml(&text).is_err());
    }

    #[test]
    fn a_damaged_job_file_never_panics(at in 0..200_usize, damage in "[\\[\\]=\"'{}.,#\\n\\x00-\\x7fé]{0,4}", cut in 0..5_usize) {
        let mut text: Vec<char> = SMALLEST.chars().collect();
        let at = at.min(text.len());
        let end = (at + cut).min(text.len());
        text.splice(at..end, damage.chars());
        let _ = parse_job_toml(&text.into_iter().collect::<String>());
    }
}
