//! Passing conditions under which a coordinator refuses calls, in the words of its answers.
//!
//! A refusal by a rule stays one however often it is asked for. These pass by themselves, or once somebody makes room: whoever
//! is told so waits, as long as somebody is there to tell it, instead of counting tries. Each is the reason of a google.rpc
//! ErrorInfo in the domain [`DOMAIN`].

/// The domain of our ErrorInfo reasons.
pub const DOMAIN: &str = "ringtune.v1";

/// Why something is not done now, and will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Its disk has no room at all.
    DiskFull,
    /// Its disk has less room than is to stay free (`storage.free_bytes`).
    DiskLow,
    /// All contents together take as much as they may (`storage.content_bytes`).
    ContentsFull,
    /// Its database does not store anything.
    StoreFailing,
    /// Its files cannot be written.
    FilesFailing,
    /// As much of this kind is under way as may be.
    Busy,
    /// The job's owner has as much as is allowed: the owner makes room, or nobody does.
    OverQuota,
}

impl Condition {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::DiskFull,
        Self::DiskLow,
        Self::ContentsFull,
        Self::StoreFailing,
        Self::FilesFailing,
        Self::Busy,
        Self::OverQuota,
    ];

    /// The reason on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DiskFull => "DISK_FULL",
            Self::DiskLow => "DISK_LOW",
            Self::ContentsFull => "CONTENTS_FULL",
            Self::StoreFailing => "STORE_FAILING",
            Self::FilesFailing => "FILES_FAILING",
            Self::Busy => "BUSY",
            Self::OverQuota => "OVER_QUOTA",
        }
    }

    /// Parses a reason of this domain; None if it is not a condition.
    pub fn of(domain: &str, reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| domain == DOMAIN && one.as_str() == reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_back_by_its_reason() {
        for condition in Condition::ALL {
            assert_eq!(Condition::of(DOMAIN, condition.as_str()), Some(condition));
            assert_eq!(Condition::of("elsewhere", condition.as_str()), None);
        }
        assert_eq!(Condition::of(DOMAIN, "TOO_MANY_ARTIFACTS"), None);
    }
}
