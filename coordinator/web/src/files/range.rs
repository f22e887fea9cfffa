//! Which part of a file is asked for.

use std::ops::Range;

use http::header::{IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue};

/// The answer to a Range header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// 200.
    Whole,
    /// 206, these bytes; at least one.
    Some(Range<u64>),
    /// 416: there are no such bytes.
    Outside,
}

/// Whether a part may be asked for, so that the file's size has to be known first.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    headers.contains_key(RANGE)
}

/// The part of a file of this size. Several parts at once, other units and what cannot be read count as no range, as
/// RFC 9110 allows; so does a part of another version than the one that `etag` names.
pub(super) fn part(headers: &HeaderMap, size: u64, etag: &HeaderValue) -> Part {
    if headers.get(IF_RANGE).is_some_and(|version| version != etag) {
        return Part::Whole;
    }
    let mut given = headers.get_all(RANGE).iter();
    let (Some(range), None) = (given.next(), given.next()) else { return Part::Whole };
    let asked = range.to_str().ok().and_then(|range| range.strip_prefix("bytes=")?.trim().split_once('-'));
    let Some((first, last)) = asked else { return Part::Whole };
    match (number(first), number(last)) {
        // The last bytes.
        (Some(None), Some(Some(last))) if last == 0 || size == 0 => Part::Outside,
        (Some(None), Some(Some(last))) => Part::Some(size.saturating_sub(last)..size),
        (Some(Some(first)), Some(last)) => {
            let last = last.unwrap_or(u64::MAX);
            if last < first {
                return Part::Whole;
            }
            if first >= size { Part::Outside } else { Part::Some(first..last.saturating_add(1).min(size)) }
        }
        _ => Part::Whole,
    }
}

/// None: no number. Some(None): nothing.
fn number(text: &str) -> Option<Option<u64>> {
    if text.is_empty() {
        return Some(None);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    // More than any file has.
    digits.then(|| Some(text.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_rfc_9110_has_them() {
        let etag = HeaderValue::from_static("\"a\"");
        let of = |range: &str, size| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, range.parse().unwrap());
            part(&headers, size, &etag)
        };
        for (range, expected) in [
            ("bytes=0-0", Part::Some(0..1)),
            ("bytes=2-5", Part::Some(2..6)),
            ("bytes=2-", Part::Some(2..10)),
            ("bytes=2-99", Part::Some(2..10)),
            ("bytes=-3", Part::Some(7..10)),
            ("bytes=-99", Part::Some(0..10)),
            ("bytes=0-18446744073709551615", Part::Some(0..10)),
            ("bytes=0-99999999999999999999999999", Part::Some(0..10)),
            ("bytes=10-", Part::Outside),
            ("bytes=99999999999999999999999999-", Part::Outside),
            ("bytes=-0", Part::Outside),
        ] {
            assert_eq!(of(range, 10), expected, "{range}");
        }
        for none in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=5-2",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=--1",
        ] {
            assert_eq!(of(none, 10), Part::Whole, "{none}");
        }
        assert_eq!((of("bytes=0-", 0), of("bytes=-1", 0)), (Part::Outside, Part::Outside));
    }

    #[test]
    fn a_part_of_another_version_is_not_sent() {
        let etag = HeaderValue::from_static("\"a\"");
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, HeaderValue::from_static("bytes=1-2"));
        headers.insert(IF_RANGE, etag.clone());
        assert_eq!(part(&headers, 10, &etag), Part::Some(1..3));
        headers.insert(IF_RANGE, HeaderValue::from_static("\"b\""));
        assert_eq!(part(&headers, 10, &etag), Part::Whole);
        headers.append(RANGE, HeaderValue::from_static("bytes=1-2"));
        headers.insert(IF_RANGE, etag.clone());
        assert_eq!(part(&headers, 10, &etag), Part::Whole, "twice");
    }
}
