//! Page sizes and page tokens of the lists.
//!
//! A token is opaque to clients: the list it belongs to and where the next page begins, in hexadecimal, so that a
//! token of one list is refused by another.

use ringtune_proto::convert::FieldError;

/// How many rows a page has: as asked for, or `default` for 0.
///
/// # Errors
/// `page_size` is negative or larger than `most`.
pub fn size(given: i32, default: u32, most: u32) -> Result<u32, FieldError> {
    match u32::try_from(given) {
        Ok(0) => Ok(default),
        Ok(size) if size <= most => Ok(size),
        _ => {
            Err(FieldError::new("page_size", format!("got {given}; allowed are 0 (for {default}) to {most}")))
        }
    }
}

/// The token for a page of `list` that begins after `position`.
pub fn token(list: &str, position: &str) -> String {
    format!("{list} {position}").bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// The position in a token of `list`; none for the first page.
///
/// # Errors
/// It is no token of this list.
pub fn position(list: &str, token: &str) -> Result<Option<String>, FieldError> {
    if token.is_empty() {
        return Ok(None);
    }
    let text = decode(token).and_then(|bytes| String::from_utf8(bytes).ok());
    let position = text.and_then(|text| Some(text.strip_prefix(list)?.strip_prefix(' ')?.to_owned()));
    position.map(Some).ok_or_else(|| {
        let problem =
            "is no token of this list; allowed is the next_page_token of an earlier answer, or nothing";
        FieldError::new("page_token", problem)
    })
}

/// As [`position`], for lists whose positions are numbers.
///
/// # Errors
/// It is no token of this list.
pub fn number(list: &str, token: &str) -> Result<Option<u64>, FieldError> {
    let Some(position) = position(list, token)? else { return Ok(None) };
    let bad = |_| FieldError::new("page_token", "is no token of this list");
    position.parse().map(Some).map_err(bad)
}

fn decode(token: &str) -> Option<Vec<u8>> {
    if token.len() > 4096 || !token.len().is_multiple_of(2) || !token.is_ascii() {
        return None;
    }
    (0..token.len()).step_by(2).map(|at| u8::from_str_radix(token.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_back_by_their_own_list_only() {
        let given = token("jobs", "17");
        assert_eq!(position("jobs", &given), Ok(Some("17".to_owned())));
        assert_eq!(number("jobs", &given), Ok(Some(17)));
        assert_eq!(number("jobs", ""), Ok(None));
        assert!(position("steps", &given).is_err());
        assert!(number("jobs", &token("jobs", "x")).is_err());
        for bad in ["z", "zz", "0", "jobs 17", "ü", &"0".repeat(5000)] {
            assert_eq!(position("jobs", bad).unwrap_err().field, "page_token", "{bad}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(size(0, 50, 500), Ok(50));
        assert_eq!(size(500, 50, 500), Ok(500));
        assert!(size(501, 50, 500).is_err());
        assert!(size(-1, 50, 500).is_err());
    }
}
