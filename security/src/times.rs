//! Points in time, as certificates and people write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The whole second that a point in time lies in: certificates know nothing finer.
pub(crate) fn whole_second(at: SystemTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// From seconds since 1970; what lies before that is taken for 1970.
pub(crate) fn from_seconds(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// As people read it, in UTC: `2026-11-22T20:15:00Z`.
pub(crate) fn text(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let written = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).unwrap_or(i64::MAX));
    let written = written.ok().and_then(|at| at.format(&Rfc3339).ok());
    written.unwrap_or_else(|| format!("{seconds} seconds after 1970"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc_to_the_second() {
        let at = UNIX_EPOCH + Duration::from_millis(1_795_378_500_900);
        assert_eq!(text(at), "2026-11-22T20:15:00Z");
        assert_eq!(from_seconds(1_795_378_500), whole_second(at));
        assert_eq!(from_seconds(-5), UNIX_EPOCH);
        assert_eq!(text(from_seconds(i64::MAX)), "9223372036854775807 seconds after 1970");
    }
}
