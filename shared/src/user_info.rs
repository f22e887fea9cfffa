//! Addresses in texts for people.

/// An address without the user name and password that it may hold: whatever is before the last `@` and behind the scheme.
/// It may be no address at all.
pub fn without_user_info(address: &str) -> String {
    let Some((before, host)) = address.rsplit_once('@') else { return address.to_owned() };
    let scheme = before.split_once("://").map(|(scheme, _)| scheme);
    let is_plain = |scheme: &&str| scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match scheme.filter(is_plain) {
        Some(scheme) => format!("{scheme}://[removed]@{host}"),
        None => format!("[removed]@{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::without_user_info;

    #[test]
    fn an_address_is_shown_without_what_lets_in() {
        for (given, shown) in [
            ("https://ada:lovelace@host:7070", "https://[removed]@host:7070"),
            ("https://ada:love/l@ce@host", "https://[removed]@host"),
            ("lovelace@host", "[removed]@host"),
            ("ada:lovelace://x@host", "[removed]@host"),
            ("http://host:1/path", "http://host:1/path"),
            ("", ""),
        ] {
            assert_eq!(without_user_info(given), shown);
        }
    }
}
