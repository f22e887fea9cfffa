//! How much of the coordinator's disk one owner may have.

/// The largest sum that a store can keep.
const MOST_BYTES: u64 = i64::MAX as u64;

/// What each owner may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerLimits {
    /// Bytes of all their files; 0: as many as all owners together.
    pub bytes: u64,
    /// Their files.
    pub files: u64,
}

/// Files of an owner: what they uploaded, whole or not, and what their jobs have. A content counts once, in however many
/// jobs it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many.
    pub files: u64,
    /// Of all of them, those included that are still to come.
    pub bytes: u64,
}

/// The resource that a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scarce {
    /// [`OwnerLimits::bytes`]
    Bytes,
    /// [`OwnerLimits::files`]
    Files,
}

impl Scarce {
    /// A metric's label, and the unit in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Files => "files",
        }
    }

    /// The setting that says how much is allowed.
    pub fn setting(self) -> &'static str {
        match self {
            Self::Bytes => "limits.owner_bytes",
            Self::Files => "limits.owner_files",
        }
    }
}

/// An owner would have more than is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{owner:?} has {used} {unit} on the coordinator and would have {after}; allowed: {limit}, by the setting {setting}: \
     delete jobs that are over (uploads that no job uses go by themselves within a day of their last use), or ask whoever \
     runs the coordinator for more",
    unit = .what.as_str(), setting = .what.setting()
)]
pub struct OverQuota {
    /// Whose.
    pub owner: String,
    /// What there would be too much of.
    pub what: Scarce,
    /// What there is.
    pub used: u64,
    /// What there would be.
    pub after: u64,
    /// What is allowed.
    pub limit: u64,
}

impl OwnerLimits {
    /// Whether an owner who has `used` may have `more`.
    ///
    /// # Errors
    /// What there would be too much of; nothing more is too much where there is too much already.
    pub fn check(&self, owner: &str, used: Usage, more: Usage) -> Result<(), OverQuota> {
        let bytes = if self.bytes == 0 { MOST_BYTES } else { self.bytes.min(MOST_BYTES) };
        for (what, used, more, limit) in [
            (Scarce::Bytes, used.bytes, more.bytes, bytes),
            (Scarce::Files, used.files, more.files, self.files),
        ] {
            let after = used.saturating_add(more);
            if after > limit {
                return Err(OverQuota { owner: owner.to_owned(), what, used, after, limit });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(files: u64, bytes: u64) -> Usage {
        Usage { files, bytes }
    }

    #[test]
    fn what_fits_exactly_is_allowed_and_one_more_is_not() {
        let limits = OwnerLimits { bytes: 100, files: 3 };
        let too_much = |used, more| limits.check("ada", used, more).err().map(|over| over.what);
        assert_eq!(too_much(usage(0, 0), usage(3, 100)), None);
        assert_eq!(too_much(usage(2, 60), usage(1, 40)), None);
        assert_eq!(too_much(usage(2, 60), usage(1, 41)), Some(Scarce::Bytes));
        assert_eq!(too_much(usage(2, 60), usage(2, 1)), Some(Scarce::Files));
        assert_eq!(too_much(usage(0, 1), usage(0, u64::MAX)), Some(Scarce::Bytes));
        // Who has too much, as after a limit was lowered, gets nothing.
        assert_eq!(too_much(usage(3, 100), usage(0, 0)), None);
        assert_eq!(too_much(usage(3, 101), usage(0, 0)), Some(Scarce::Bytes));
        assert_eq!(too_much(usage(4, 1), usage(0, 0)), Some(Scarce::Files));
    }

    #[test]
    fn bytes_may_be_as_many_as_all_owners_have() {
        let limits = OwnerLimits { bytes: 0, files: 3 };
        assert_eq!(limits.check("ada", usage(1, 1 << 60), usage(1, 1 << 61)), Ok(()));
        assert!(limits.check("ada", usage(1, 1), usage(1, u64::MAX)).is_err());
        assert!(limits.check("ada", usage(3, 0), usage(1, 0)).is_err());
    }

    #[test]
    fn the_text_says_whose_how_much_and_what_to_do() {
        let limits = OwnerLimits { bytes: 100, files: 3 };
        let text = limits.check("ada", usage(1, 90), usage(1, 20)).unwrap_err().to_string();
        for part in
            ["\"ada\"", "has 90 bytes", "would have 110", "allowed: 100", "limits.owner_bytes", "delete jobs"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
