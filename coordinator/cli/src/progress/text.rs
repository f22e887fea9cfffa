//! Durations and speeds, short enough for a progress bar.

/// `0:07`, `12:34`, `1:02:03`; whole seconds.
pub(super) fn duration_text(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    // Saturates: an absurd duration is shown as absurd.
    let seconds = seconds.round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// `4.0 steps/s`, or `2.5 s/step` when a step takes longer than a second.
pub(super) fn rate_text(seconds_per_step: f64) -> String {
    if seconds_per_step > 1.0 {
        format!("{seconds_per_step:.1} s/step ({:.2} steps/s)", 1.0 / seconds_per_step)
    } else if seconds_per_step > 0.0 {
        format!("{:.1} steps/s", 1.0 / seconds_per_step)
    } else {
        "? steps/s".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration_text(6.6), "0:07");
        assert_eq!(duration_text(754.0), "12:34");
        assert_eq!(duration_text(3723.0), "1:02:03");
        assert_eq!(duration_text(f64::INFINITY), "?");
    }

    #[test]
    fn rates() {
        assert_eq!(rate_text(0.25), "4.0 steps/s");
        assert_eq!(rate_text(2.5), "2.5 s/step (0.40 steps/s)");
        assert_eq!(rate_text(0.0), "? steps/s");
    }
}
