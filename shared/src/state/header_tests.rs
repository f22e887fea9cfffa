use super::*;
use crate::state::{Decoder, StateSource as _};

/// Reads a header with `data` bytes behind it.
fn read(header: &str, data: u64) -> Result<(), StateError> {
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let size = bytes.len() as u64 + data;
    Header::read(&mut bytes.as_slice(), Some(size)).map(drop)
}

fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

fn two(first: &str, second: &str) -> String {
    let tensor = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
    format!(r#"{{"a":{},"b":{}}}"#, tensor(first), tensor(second))
}

fn problem(header: &str, data: u64) -> TensorProblem {
    match read(header, data) {
        Err(StateError::Tensor { problem, .. }) => problem,
        other => panic!("{header}: {other:?}"),
    }
}

#[test]
fn every_wrong_tensor_has_an_error_of_its_own() {
    assert!(read(&one("F32", "[2]", "[0,8]"), 8).is_ok());
    assert!(read(&two("[0,4]", "[4,8]"), 8).is_ok() && read(&two("[4,8]", "[0,4]"), 8).is_ok());
    let cases = [
        (one("F32", "[2]", "[0,7]"), TensorProblem::Length { expected: 8, given: 7 }),
        (one("F32", "[2]", "[8,0]"), TensorProblem::Backwards { begin: 8, end: 0 }),
        (one("F32", "[2]", "[1,9]"), TensorProblem::Gap { expected: 0, begin: 1 }),
        (two("[0,4]", "[3,7]"), TensorProblem::Overlap { expected: 4, begin: 3 }),
        (two("[0,4]", "[5,9]"), TensorProblem::Gap { expected: 4, begin: 5 }),
        (two("[0,4]", "[0,4]"), TensorProblem::Overlap { expected: 4, begin: 0 }),
        (one("F99", "[2]", "[0,8]"), TensorProblem::Type { given: "F99".to_owned() }),
        (one("F4", "[3]", "[0,2]"), TensorProblem::PartOfByte { bits: 12 }),
        (one("U8", "[4294967296,4294967296]", "[0,0]"), TensorProblem::Overflow),
        (one("F64", "[2305843009213693952]", "[0,0]"), TensorProblem::Overflow),
        (two("[0,4]", "[4,8]").replace("\"b\"", "\"a\""), TensorProblem::Twice),
        (one("U8", "[0]", "[0,0]").replace("\"a\"", "\"\""), TensorProblem::Name),
        (
            one("U8", "[0]", "[0,0]").replace("\"a\"", &format!("\"{}\"", "x".repeat(1025))),
            TensorProblem::Name,
        ),
    ];
    for (header, expected) in cases {
        assert_eq!(problem(&header, 8), expected, "{header}");
    }
}

#[test]
fn what_is_no_header_is_refused() {
    let broken = [
        "  ",
        "[]",
        " {}",
        "{}{",
        "{\"a\":1}",
        "{\"a\":{}}",
        &one("F32", "[-1]", "[0,8]"),
        &one("F32", "[1.5]", "[0,8]"),
        &one("F32", "[1e3]", "[0,8]"),
        &one("F32", "[18446744073709551616]", "[0,8]"),
        &one("F32", "[1]", "[0,4,8]"),
        &one("F32", &format!("[{}1]", "1,".repeat(16)), "[0,4]"),
        &one("F32", "[1]", "[0,4]").replace("\"shape\"", "\"more\":1,\"shape\""),
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":\"a\"}",
        &"[".repeat(1000),
    ];
    for header in broken {
        assert!(matches!(read(header, 8), Err(StateError::Header { .. })), "{header}: {:?}", read(header, 8));
    }
    let not_utf8 = [&3u64.to_le_bytes()[..], b"{\xff}"].concat();
    assert!(matches!(Header::read(&mut not_utf8.as_slice(), None), Err(StateError::Header { .. })));
    let twice = ["{\"__metadata__\":{\"k\":\"\",\"k\":\"\"}}", "{\"__metadata__\":{},\"__metadata__\":{}}"];
    for header in twice {
        assert!(matches!(read(header, 0), Err(StateError::MetadataTwice { .. })), "{header}");
    }
}

#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    let read =
        |length: u64, size| Header::read(&mut [&length.to_le_bytes()[..], b"{}"].concat().as_slice(), size);
    for length in [0, 1, LARGEST_HEADER + 1, u64::MAX] {
        let refused = read(length, None);
        assert!(
            matches!(refused, Err(StateError::HeaderLength { given, .. }) if given == length),
            "{refused:?}"
        );
    }
    // More than there is, whether that is known before or found out.
    for size in [None, Some(10)] {
        let refused = read(LARGEST_HEADER, size);
        let expected = LARGEST_HEADER + 8;
        assert!(
            matches!(refused, Err(StateError::Truncated { expected: e, found: 10 }) if e == expected),
            "{refused:?}"
        );
    }
    assert!(matches!(Header::read(&mut &b"1234567"[..], None), Err(StateError::Truncated { found: 7, .. })));
    // Tensors that are larger than any file.
    let side = u64::MAX / 8;
    let tensor = |number: u64| {
        let (begin, end) = (number * side, (number + 1) * side);
        format!(r#""{number}":{{"dtype":"U8","shape":[{side}],"data_offsets":[{begin},{end}]}}"#)
    };
    let all = format!("{{{}}}", (0..8).map(tensor).collect::<Vec<_>>().join(","));
    let refused = self::read(&all, 8);
    assert!(matches!(refused, Err(StateError::TooMany { what: "bytes", .. })), "{refused:?}");
    let large = one("U8", "[1152921504606846976]", "[0,1152921504606846976]");
    assert!(matches!(self::read(&large, 8), Err(StateError::Truncated { .. })));
    let bytes = [&(large.len() as u64).to_le_bytes(), large.as_bytes(), b"few"].concat();
    let mut decoder = Decoder::new(bytes.as_slice(), None).unwrap();
    assert!(matches!(decoder.next_chunk(), Err(StateError::Truncated { .. })));
}

#[test]
fn there_are_never_more_entries_than_allowed() {
    let tensors = |count: usize| {
        let tensor = |number| format!(r#""{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        format!("{{{}}}", (0..count).map(tensor).collect::<Vec<_>>().join(","))
    };
    assert!(read(&tensors(MOST_TENSORS), 0).is_ok());
    let refused = read(&tensors(MOST_TENSORS + 1), 0);
    assert!(matches!(refused, Err(StateError::TooMany { what: "tensors", .. })), "{refused:?}");
    let texts = |count: usize| {
        let texts: Vec<String> = (0..count).map(|number| format!("\"{number}\":\"\"")).collect();
        format!("{{\"__metadata__\":{{{}}}}}", texts.join(","))
    };
    assert!(read(&texts(MOST_METADATA), 0).is_ok());
    let refused = read(&texts(MOST_METADATA + 1), 0);
    assert!(matches!(refused, Err(StateError::TooMany { what: "metadata entries", .. })), "{refused:?}");
    // An unreadable header is not written.
    let metadata = |count: usize| (0..count).map(|number| (number.to_string(), String::new())).collect();
    assert!(encode(&metadata(MOST_METADATA + 1), &TensorList::default()).is_err());
    let long = Metadata::from([("k".to_owned(), "x".repeat(LARGEST_HEADER as usize))]);
    assert!(matches!(encode(&long, &TensorList::default()), Err(StateError::HeaderLength { .. })));
}

#[test]
fn frozen_bytes() {
    let list = TensorList::new(vec![TensorInfo::new("w", Dtype::F32, vec![1]).unwrap()]).unwrap();
    let metadata = Metadata::from([("format".to_owned(), "pt".to_owned())]);
    let text = r#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   "#;
    let expected = [&[88, 0, 0, 0, 0, 0, 0, 0], text.as_bytes()].concat();
    assert_eq!(encode(&metadata, &list).unwrap(), expected);
}
