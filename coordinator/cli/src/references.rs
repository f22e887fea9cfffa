//! How people name a job or a worker: by a whole id, or by something shorter that means only one of them. Pure.

use std::{convert::Infallible, str::FromStr};

use uuid::Uuid;

/// Shortest piece of an id: a shorter one would match others by chance.
const SHORTEST_PIECE: usize = 4;
/// The end of an id by which lists and the page tell jobs from each other.
const SHOWN: usize = 8;
/// The word for the newest job.
pub const LAST: &str = "last";

/// A job, as it is named on a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobReference {
    /// This one: nobody has to be asked.
    Id(Uuid),
    /// The newest one.
    Last,
    /// The one whose id begins or ends so, or that has this name.
    Like(Likeness),
}

/// A worker, as it is named on a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerReference {
    /// This one: nobody has to be asked.
    Id(Uuid),
    /// The one whose id begins or ends so, or that is on the host of this name.
    Like(Likeness),
}

/// A name, or a piece of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Likeness {
    name: String,
    piece: Option<Piece>,
}

/// The beginning or the end of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    /// In lower case.
    digits: String,
    /// Written as the page shows it, `…20f441b7`: the end.
    only_end: bool,
}

impl FromStr for JobReference {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match (Uuid::parse_str(text), text) {
            (Ok(id), _) => Self::Id(id),
            (_, LAST) => Self::Last,
            _ => Self::Like(Likeness::new(text)),
        })
    }
}

impl FromStr for WorkerReference {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Uuid::parse_str(text).map_or_else(|_| Self::Like(Likeness::new(text)), Self::Id))
    }
}

impl Likeness {
    fn new(text: &str) -> Self {
        let end = text.strip_prefix('…').or_else(|| text.strip_prefix("..."));
        let digits = end.unwrap_or(text).to_ascii_lowercase();
        let is_piece = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            && digits.bytes().filter(u8::is_ascii_hexdigit).count() >= SHORTEST_PIECE;
        let piece = is_piece.then_some(Piece { digits, only_end: end.is_some() });
        Self { name: text.to_owned(), piece }
    }

    /// As it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it can be a piece of an id; else it is a name and nothing more.
    pub fn may_be_id(&self) -> bool {
        self.piece.is_some()
    }

    /// Whether it matches this id or name.
    pub fn matches(&self, id: &str, name: &str) -> bool {
        let is_piece = self.piece.as_ref().is_some_and(|Piece { digits, only_end }| {
            id.ends_with(digits) || (!only_end && id.starts_with(digits))
        });
        is_piece || self.name == name
    }
}

/// An id as lines show it that are about many: its end, as ids of jobs begin with the time.
pub fn short_id(id: &str) -> &str {
    id.len().checked_sub(SHOWN).and_then(|at| id.get(at..)).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01a22026-cdf3-728e-bdef-20f441b7eb6d";

    fn job(text: &str) -> JobReference {
        text.parse().expect("never refused")
    }

    fn matches(text: &str) -> bool {
        match job(text) {
            JobReference::Like(like) => like.matches(ID, "green star"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_whole_id_is_itself_however_it_is_written() {
        let id = Uuid::parse_str(ID).expect("an id");
        for written in [ID, &ID.to_uppercase(), &ID.replace('-', "")] {
            assert_eq!(job(written), JobReference::Id(id));
            assert_eq!(written.parse(), Ok(WorkerReference::Id(id)));
        }
        assert_eq!(job("last"), JobReference::Last);
        assert!(matches!("last".parse(), Ok(WorkerReference::Like(_))), "workers have no order");
    }

    #[test]
    fn a_piece_is_the_beginning_or_the_end_of_an_id() {
        for right in ["01a2", "01A22026-cdf3", "eb6d", "41b7eb6d", "…41b7eb6d", "...41b7eb6d", "green star"]
        {
            assert!(matches(right), "{right}");
        }
        // Too short, in the middle, the wrong end, another name.
        for wrong in ["01a", "6d", "cdf3", "…01a22026", "", "-", "----", "green", "Green star"] {
            assert!(!matches(wrong), "{wrong}");
        }
        assert!(matches(short_id(ID)) && matches(&format!("…{}", short_id(ID))));
        assert_eq!((short_id("é"), short_id("")), ("é", ""));
    }
}
