//! Record of a run's inputs, for the next one in the same folder.

use std::collections::BTreeMap;

use ringtune_shared::ids::ContentHash;
use serde::{Deserialize, Serialize};

use crate::inputs::Identity;

/// Files that are told of one by one.
const MOST_TOLD: usize = 5;

/// Everything that tokens depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) tokenizer: ContentHash,
    pub(crate) text_column: String,
    pub(crate) inputs: Vec<Identity>,
}

impl Record {
    /// Differences from `before`, in words. Pure.
    pub(crate) fn changes_since(&self, before: &Self) -> Vec<String> {
        if self.tokenizer != before.tokenizer {
            return vec!["the tokenizer is another one than before: all tokens are made again".to_owned()];
        }
        if self.text_column != before.text_column {
            return vec![format!(
                "--text-column was {:?} before: all tokens are made again",
                before.text_column
            )];
        }
        let by_name = |record: &Self| -> BTreeMap<String, Identity> {
            record.inputs.iter().map(|input| (input.name.clone(), input.clone())).collect()
        };
        let (old, new) = (by_name(before), by_name(self));
        let changed = new.iter().filter_map(|(name, now)| {
            let then = old.get(name)?;
            let sizes = match then.size == now.size {
                true => "written again".to_owned(),
                false => format!("{} bytes then, {} now", then.size, now.size),
            };
            (then != now).then(|| format!("{name} has changed since ({sizes}): its tokens are made again"))
        });
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        let gone = gone.map(|name| format!("{name} was among the inputs before, and is not now"));
        let added = new.keys().filter(|name| !old.contains_key(*name));
        let added = added.map(|name| format!("{name} was not among the inputs before"));
        let mut all: Vec<String> = changed.chain(gone).chain(added).collect();
        if all.len() > MOST_TOLD {
            let more = all.len() - MOST_TOLD;
            all.truncate(MOST_TOLD);
            all.push(format!("and {more} more inputs have changed"));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(inputs: &[(&str, u64, u64)]) -> Record {
        let inputs = inputs.iter().map(|(name, size, modified)| Identity {
            name: (*name).to_owned(),
            size: *size,
            modified: *modified,
        });
        Record { tokenizer: ContentHash::of(b""), text_column: "text".to_owned(), inputs: inputs.collect() }
    }

    #[test]
    fn each_change_is_said() {
        let before = record(&[("a", 1, 1), ("b", 2, 1), ("c", 3, 1), ("d", 4, 1)]);
        assert!(before.changes_since(&before).is_empty());
        let now = record(&[("a", 1, 1), ("b", 5, 2), ("c", 3, 2), ("e", 4, 1)]);
        let said = now.changes_since(&before);
        let expected = [
            "b has changed since (2 bytes then, 5 now): its tokens are made again",
            "c has changed since (written again): its tokens are made again",
            "d was among the inputs before, and is not now",
            "e was not among the inputs before",
        ];
        assert_eq!(said, expected);
        let other = Record { tokenizer: ContentHash::of(b"x"), ..before.clone() };
        assert!(other.changes_since(&before)[0].contains("tokenizer"));
        let other = Record { text_column: "body".to_owned(), ..before.clone() };
        assert!(other.changes_since(&before)[0].contains("--text-column"));
    }

    #[test]
    fn many_changes_are_counted() {
        let many: Vec<String> = (0..100).map(|number| format!("{number}")).collect();
        let many: Vec<(&str, u64, u64)> = many.iter().map(|name| (name.as_str(), 1, 1)).collect();
        let said = record(&many).changes_since(&record(&[]));
        assert_eq!((said.len(), said[5].as_str()), (6, "and 95 more inputs have changed"));
    }
}
