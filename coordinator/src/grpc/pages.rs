//! Pages of lists: sizes and opaque tokens.

use ringtune_proto::convert::FieldError;

/// A token says for which list it is, so that it cannot be used on another one.
const SEPARATOR: char = '\n';

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

/// The token with which the page after `last` is asked for.
pub(super) fn token(list: &str, last: &str) -> String {
    hex::encode(format!("{list}{SEPARATOR}{last}"))
}

/// Where a page begins; none for an empty token, which asks for the first page.
pub(super) fn last(list: &str, token: &str) -> Result<Option<String>, FieldError> {
    if token.is_empty() {
        return Ok(None);
    }
    let text = hex::decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    match text.as_deref().and_then(|text| text.split_once(SEPARATOR)) {
        Some((named, last)) if named == list => Ok(Some(last.to_owned())),
        _ => Err(refused()),
    }
}

/// As [`last`], for lists that are ordered by a number.
pub(super) fn last_number(list: &str, token: &str) -> Result<Option<u64>, FieldError> {
    last(list, token)?.map(|text| text.parse().map_err(|_| refused())).transpose()
}

fn refused() -> FieldError {
    FieldError::new("page_token", "not a next_page_token that this list gave")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_only_for_their_own_list() {
        let given = token("jobs", "17");
        assert_eq!(last_number("jobs", &given), Ok(Some(17)));
        assert_eq!(last("jobs", ""), Ok(None));
        assert!(last("workers", &given).is_err());
        for wrong in ["x", "00", &given[1..], &token("jobs", "x")] {
            assert!(last_number("jobs", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(size(0, 50, 500), Ok(50));
        assert_eq!(size(7, 50, 500), Ok(7));
        assert_eq!(size(501, 50, 500), Ok(500));
        assert_eq!(size(-1, 50, 500).unwrap_err().field, "page_size");
    }
}
