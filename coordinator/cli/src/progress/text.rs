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
        format!("{seconds_per_step:.1} s/step")
    } else if seconds_per_step > 0.0 {
        format!("{:.1} steps/s", 1.0 / seconds_per_step)
    } else {
        "? steps/s".to_owned()
    }
}

/// `1.4 s`, `410 ms`, `0.3 ms`.
pub(super) fn seconds_text(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.1} s")
    } else if seconds >= 0.001 || seconds <= 0.0 {
        format!("{:.0} ms", 1e3 * seconds.max(0.0))
    } else {
        format!("{:.1} ms", 1e3 * seconds)
    }
}

/// `3.1 kB`, `498 MB`, `1.2 GB`; powers of ten, as networks are measured.
pub(super) fn bytes_text(bytes: f64) -> String {
    for (size, unit) in [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")] {
        let number = bytes / size;
        if number >= 100.0 {
            return format!("{number:.0} {unit}");
        }
        if number >= 1.0 {
            return format!("{number:.1} {unit}");
        }
    }
    format!("{bytes:.0} B")
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
    fn seconds_and_bytes() {
        let texts = [2.25, 0.41, 0.00034, 0.0, -1.0].map(seconds_text);
        assert_eq!(texts, ["2.2 s", "410 ms", "0.3 ms", "0 ms", "0 ms"]);
        let texts = [1.24e9, 498e6, 12.3e6, 3100.0, 999.0, 0.0].map(bytes_text);
        assert_eq!(texts, ["1.2 GB", "498 MB", "12.3 MB", "3.1 kB", "999 B", "0 B"]);
    }

    #[test]
    fn rates() {
        assert_eq!(rate_text(0.25), "4.0 steps/s");
        assert_eq!(rate_text(2.5), "2.5 s/step");
        assert_eq!(rate_text(0.0), "? steps/s");
    }
}
