//! A picture's caption in a prompt.

/// Options of captions, by kohya's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptionOptions {
    /// train.shuffle_tags: the caption's tags, which commas part, come in another order in every sample.
    pub shuffle_tags: bool,
    /// train.keep_tags: so many tags stay first.
    pub keep_tags: usize,
}

/// Random draws of a sample's caption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptionDraw<'a> {
    /// Which of the picture's captions: below their number, see `Prompts::captions`.
    pub choice: usize,
    /// The caption is left empty.
    pub dropped: bool,
    /// The order of the tags that are shuffled: a permutation of 0..their number, see [`shuffled_tags`].
    pub order: &'a [usize],
}

/// Number of shuffled tags of `caption`.
pub fn shuffled_tags(caption: &str, options: CaptionOptions) -> usize {
    if !options.shuffle_tags {
        return 0;
    }
    caption.split(',').count().saturating_sub(options.keep_tags)
}

/// The tags of `caption` in another order, without the blanks around them; the first `keep_tags` stay.
/// `order`: as long as [`shuffled_tags`] says; another length leaves the caption as it is.
/// Source: kohya's sd-scripts, library/train_util.py (process_caption).
pub fn with_tags_in(order: &[usize], caption: &str, options: CaptionOptions) -> String {
    if order.is_empty() || order.len() != shuffled_tags(caption, options) {
        return caption.to_owned();
    }
    let tags: Vec<&str> = caption.split(',').map(str::trim).collect();
    let (kept, others) = tags.split_at(options.keep_tags.min(tags.len()));
    let others = order.iter().filter_map(|place| others.get(*place));
    kept.iter().chain(others).copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_change_places_behind_those_that_are_kept() {
        let options = CaptionOptions { shuffle_tags: true, keep_tags: 1 };
        let caption = "red,round ,  on a table,old";
        assert_eq!(shuffled_tags(caption, options), 3);
        assert_eq!(with_tags_in(&[2, 0, 1], caption, options), "red, old, round, on a table");
        assert_eq!(with_tags_in(&[0, 1, 2], caption, options), "red, round, on a table, old");
        let all = CaptionOptions { keep_tags: 0, ..options };
        assert_eq!(with_tags_in(&[3, 2, 1, 0], caption, all), "old, on a table, round, red");
        let none = CaptionOptions { keep_tags: 9, ..options };
        assert_eq!((shuffled_tags(caption, none), with_tags_in(&[], caption, none).as_str()), (0, caption));
        let off = CaptionOptions { shuffle_tags: false, ..options };
        assert_eq!((shuffled_tags(caption, off), with_tags_in(&[], caption, off).as_str()), (0, caption));
    }
}
