//! The version of this build, and which versions work together.

/// This build's version, "major.minor.patch".
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Whether daemons of the two versions may work together: their major and minor numbers are equal.
///
/// A version that cannot be read fits only itself.
pub fn compatible(one: &str, other: &str) -> bool {
    one == other
        || matches!((major_and_minor(one), major_and_minor(other)), (Some(one), Some(other)) if one == other)
}

fn major_and_minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    numbers.next()?;
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_work_together_and_minors_do_not() {
        assert!(compatible("0.1.0", "0.1.9"));
        assert!(compatible("1.2.3-rc1", "1.2.0"));
        assert!(!compatible("0.1.0", "0.2.0"));
        assert!(!compatible("1.1.0", "2.1.0"));
        assert!(!compatible("0.1", "0.1.0"));
        assert!(!compatible("", "0.1.0"));
        assert!(compatible("odd", "odd"));
        assert!(compatible(VERSION, VERSION));
        assert!(major_and_minor(VERSION).is_some());
    }
}
