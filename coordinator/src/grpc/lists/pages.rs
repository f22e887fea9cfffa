//! Pages of lists: sizes and opaque tokens.

use prost::Message;
use ringtune_proto::convert::FieldError;
use ringtune_shared::ids::ContentHash;

use crate::core::Time;

/// Bytes that the items of a page take as a message at most: clients take messages of 4 MiB.
const LARGEST: usize = 3 << 20;
/// Bytes before each item of a message at most: its key and its length.
const KEY: usize = 8;
/// Between the parts of a token.
const SEPARATOR: char = '\n';

/// The time and the name, id or serial number that a page token keeps.
pub(super) fn created_and_name(text: &str) -> Option<(Time, String)> {
    let (time, name) = text.split_once(' ')?;
    Some((Time(time.parse().ok()?), name.to_owned()))
}

/// Which list it is, and what it shows of it in which order. A page token is bound to both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listing {
    name: &'static str,
    /// A hash: filters may be long.
    view: String,
}

impl Listing {
    /// The list `name`, as far as `view` says which part of it in which order.
    pub(super) fn new(name: &'static str, view: &str) -> Self {
        let mut view = ContentHash::of(view.as_bytes()).to_string();
        view.truncate(16);
        Self { name, view }
    }

    /// The token with which the page after `last` is asked for.
    pub(super) fn token(&self, last: &str) -> String {
        hex::encode([self.name, &self.view, last].join(&SEPARATOR.to_string()))
    }

    /// Where a page begins; none for an empty token, which asks for the first page. `read` gives none for what this
    /// list never writes into its tokens.
    ///
    /// # Errors
    /// A token of another list, of another view of this one, or of none.
    pub(super) fn last<T>(
        &self,
        token: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        if token.is_empty() {
            return Ok(None);
        }
        let text = hex::decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let mut parts = text.as_deref().unwrap_or_default().splitn(3, SEPARATOR);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), Some(view), Some(last)) if name == self.name && view == self.view => {
                read(last).map(Some).ok_or_else(|| refused("no next_page_token that this list gave"))
            }
            (Some(name), Some(_), Some(_)) if name == self.name => Err(refused(
                "it is of another view of this list; allowed: the same request but for page_size",
            )),
            (
                Some(
                    name
                    @ ("jobs" | "workers" | "artifacts" | "events" | "steps" | "tokens" | "certificates"),
                ),
                Some(_),
                Some(_),
            ) => Err(refused(&format!("it is of a list of {name}; allowed: a next_page_token of this list"))),
            _ => Err(refused("no next_page_token that this list gave")),
        }
    }

    /// As [`Listing::last`], for lists that are ordered by a number.
    pub(super) fn last_number(&self, token: &str) -> Result<Option<u64>, FieldError> {
        self.last(token, |text| text.parse().ok())
    }
}

/// The page size that a request means: its own up to `most`, `default` for 0.
pub(super) fn size(given: i32, default: u32, most: u32) -> Result<u32, FieldError> {
    match u32::try_from(given) {
        Ok(0) => Ok(default),
        Ok(size) => Ok(size.min(most)),
        Err(_) => {
            Err(FieldError::new("page_size", format!("got {given}; allowed: 0 (for {default}) to {most}")))
        }
    }
}

/// A page that is being filled.
#[derive(Debug)]
pub(super) struct Page<M> {
    items: Vec<M>,
    size: usize,
    bytes: usize,
    /// Something did not fit any more.
    full: bool,
}

impl<M: Message> Page<M> {
    /// An empty page for `size` items.
    pub(super) fn new(size: u32) -> Self {
        Self { items: Vec::new(), size: size as usize, bytes: 0, full: false }
    }

    /// Puts an item behind the others. Where it does not fit, the page is full and takes no other one; the first one
    /// always fits.
    ///
    /// Whether it is on the page.
    pub(super) fn put(&mut self, item: M) -> bool {
        let bytes = self.bytes + item.encoded_len() + KEY;
        self.full |= self.items.len() >= self.size || (bytes > LARGEST && !self.items.is_empty());
        if !self.full {
            self.bytes = bytes;
            self.items.push(item);
        }
        !self.full
    }

    /// Items that may still come, by their number.
    pub(super) fn room(&self) -> usize {
        self.size - self.items.len()
    }

    /// Whether something came that did not fit: there is another page.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    /// Its items.
    pub(super) fn into_items(self) -> Vec<M> {
        self.items
    }
}

/// The page that the first of `items` make, and the last one on it where there are others behind it.
pub(super) fn fill<T, M: Message>(items: &[T], size: u32, wire: impl Fn(&T) -> M) -> (Vec<M>, Option<&T>) {
    let mut page = Page::new(size);
    let fitting = items.iter().take_while(|item| page.put(wire(item))).count();
    let last = items[..fitting].last().filter(|_| page.is_full());
    (page.into_items(), last)
}

fn refused(problem: &str) -> FieldError {
    FieldError::new("page_token", problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_only_for_their_own_list_and_view() {
        let jobs = Listing::new("jobs", "all");
        let given = jobs.token("17");
        assert_eq!(jobs.last_number(&given), Ok(Some(17)));
        assert_eq!(jobs.last_number(""), Ok(None));
        let problem = |list: &Listing, token: &str| list.last_number(token).unwrap_err().problem;
        assert!(problem(&Listing::new("workers", "all"), &given).contains("a list of jobs"));
        assert!(problem(&Listing::new("jobs", "queued"), &given).contains("another view"));
        for wrong in ["x", "00", &given[1..], &jobs.token("x"), &hex::encode("a\nb\nc")] {
            assert!(problem(&jobs, wrong).contains("no next_page_token"), "{wrong}");
        }
    }

    #[test]
    fn what_is_remembered_may_be_any_text() {
        let list = Listing::new("artifacts", "");
        let last = list.last(&list.token("a\nb"), |text| Some(text.to_owned()));
        assert_eq!(last, Ok(Some("a\nb".to_owned())));
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(size(0, 50, 500), Ok(50));
        assert_eq!(size(7, 50, 500), Ok(7));
        assert_eq!(size(501, 50, 500), Ok(500));
        assert_eq!(size(-1, 50, 500).unwrap_err().field, "page_size");
    }

    #[test]
    fn a_page_ends_with_its_size_or_with_three_mebibytes() {
        let items = |bytes: usize, count: usize| vec!["x".repeat(bytes); count];
        let fits = |items: &[String], size| {
            let (page, last) = fill(items, size, Clone::clone);
            (page.len(), last.is_some())
        };
        assert_eq!(fits(&items(1, 3), 3), (3, false));
        assert_eq!(fits(&items(1, 4), 3), (3, true));
        assert_eq!(fits(&[], 3), (0, false));
        // Four of a mebibyte are more than fit, and one is always there.
        assert_eq!(fits(&items(1 << 20, 3), 500), (2, true));
        assert_eq!(fits(&items(1_000_000, 3), 500), (3, false));
        assert_eq!(fits(&items(5 << 20, 2), 500), (1, true));
        assert_eq!(fits(&items(5 << 20, 1), 500), (1, false));
        // Small ones count with what stands before each.
        let small = items(1, 1 << 20);
        let (page, last) = fill(&small, u32::MAX, Clone::clone);
        assert!(page.iter().map(|item| item.encoded_len() + KEY).sum::<usize>() <= LARGEST);
        assert!(last.is_some());
    }
}
