//! Whether this machine's clock is held right by somebody.

use std::time::Duration;

use crate::doctor::checks::{Check, Verdict};

/// What the kernel knows of its clock.
#[derive(Clone, Copy, Debug)]
struct Discipline {
    synchronised: bool,
    /// At most this far off, as its server says.
    most_off: Duration,
}

/// Asks the kernel.
pub(super) fn synchronised() -> Check {
    judge(discipline())
}

fn discipline() -> Option<Discipline> {
    // SAFETY: the structure is plain integers, for which zeros are values; modes of zero change nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a structure of our own, which lives as long as the call.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    (answer >= 0).then(|| Discipline {
        synchronised: answer != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0,
        most_off: Duration::from_micros(u64::try_from(state.maxerror).unwrap_or(0)),
    })
}

fn judge(discipline: Option<Discipline>) -> Check {
    const NAME: &str = "clock";
    let Some(Discipline { synchronised, most_off }) = discipline else {
        return Check::unknown(NAME, "the system does not let programs ask");
    };
    let found = match synchronised {
        true => format!("synchronised, at most {:.3} s off", most_off.as_secs_f64()),
        false => "nobody synchronises it, as far as the kernel knows".to_owned(),
    };
    Check::new(NAME, found).unless(
        synchronised,
        Verdict::Warn,
        "certificates and logs go by the clock: install chrony (or `timedatectl set-ntp true`); in a container or a virtual \
         machine its host does that",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_nobody_holds_is_warned_of() {
        let of = |synchronised| judge(Some(Discipline { synchronised, most_off: Duration::from_millis(20) }));
        assert_eq!((of(true).verdict, of(false).verdict), (Verdict::Good, Verdict::Warn));
        assert!(of(true).found.contains("0.020 s"));
        assert_eq!(judge(None).verdict, Verdict::Good);
        assert!(synchronised().name == "clock" && !synchronised().found.is_empty());
    }
}
