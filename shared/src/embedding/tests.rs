//! The files of tests/fixtures/embeddings, which PyTorch and safetensors wrote (tests/reference/make_embeddings.py),
//! and what becomes of them when somebody changes them.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::files::UnreadFile;

fn file(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/embeddings");
    std::fs::read(folder.join(name)).unwrap()
}

fn rows() -> Vec<f32> {
    (0..16u8).map(|number| f32::from(number) / 4.0 - 1.0).collect()
}

fn problem(bytes: &[u8]) -> String {
    LearnedEmbedding::from_bytes(bytes).unwrap_err().to_string()
}

/// AUTOMATIC1111's file with another pickle of the same length or a shorter one.
fn with_pickle(code: &[u8]) -> Vec<u8> {
    let mut bytes = file("a1111.pt");
    let start = bytes.windows(3).position(|window| window == b"\x80\x02}").unwrap();
    let end = start + bytes[start..].windows(3).position(|window| window == b"Nu.").unwrap() + 3;
    assert!(code.len() <= end - start, "{} > {}", code.len(), end - start);
    bytes[start..start + code.len()].copy_from_slice(code);
    bytes
}

#[test]
fn every_form_is_read() {
    for (name, token, vectors) in [
        ("a1111.pt", Some("my-cat"), 2),
        ("ldm-fp16.pt", None, 2),
        ("learned_embeds.bin", Some("<cat>"), 1),
        ("learned_embeds-bf16.bin", Some("<cat>"), 2),
        ("learned_embeds.safetensors", Some("<cat>"), 2),
        ("emb_params-fp16.safetensors", Some("my-cat"), 2),
        ("emb_params-bf16.safetensors", None, 2),
    ] {
        let bytes = file(name);
        let read = LearnedEmbedding::from_bytes(&bytes).unwrap();
        assert_eq!((read.token.as_deref(), read.width, read.vectors()), (token, 8, vectors), "{name}");
        assert_eq!(read.rows, rows()[..8 * vectors], "{name}");
        assert_eq!(read.hash, ContentHash::of(&bytes));
    }
}

#[test]
fn what_is_no_embedding_is_told_apart() {
    for (name, part) in [
        ("strided.bin", "[1, 2]: save it with .contiguous()"),
        ("two.bin", "2 tensors, one is allowed: \"<cat>\", \"<dog>\""),
        ("infinite.bin", "not finite: -inf at vector 0, column 0"),
        ("double.bin", "stored as DoubleStorage; allowed: FloatStorage"),
        ("legacy.pt", "weights_only=True"),
        ("pickle-calls.pkl", "bare pickle"),
        ("pickle-calls.bin", "system"),
    ] {
        let problem = problem(&file(name));
        assert!(problem.contains(part), "{name}: {problem}");
    }
    assert!(problem(b"").contains("neither"));
    assert!(problem(&vec![0; LARGEST_FILE as usize + 1]).contains("at most"));
}

#[test]
fn only_files_are_read_and_no_large_ones() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(LARGEST_FILE + 1).unwrap();
    assert_eq!(
        read_file(&large),
        Err(UnreadFile::TooLarge { size: LARGEST_FILE + 1, largest: LARGEST_FILE }.into())
    );
    assert_eq!(read_file(folder.path()), Err(UnreadFile::Unreadable("it is not a file".to_owned()).into()));
    let missing = read_file(&folder.path().join("missing")).unwrap_err();
    assert!(missing.to_string().contains("No such file"), "{missing}");
    std::fs::write(&large, b"small").unwrap();
    assert_eq!(read_file(&large).unwrap(), b"small");
}

#[test]
fn nothing_is_called_by_any_way() {
    let systems: [&[u8]; 8] = [
        b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
        b"\x80\x02(X\x02\x00\x00\x00idios\nsystem\n.",
        b"\x80\x02(cos\nsystem\nX\x02\x00\x00\x00ido.",
        b"\x80\x02X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93X\x02\x00\x00\x00id\x85R.",
        b"\x80\x02csubprocess\nPopen\nX\x02\x00\x00\x00id\x85\x81.",
        b"\x80\x02ctorch\nload\nX\x02\x00\x00\x00id\x85R.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
    ];
    for code in systems {
        let problem = problem(&with_pickle(code));
        let told = ["no embedding needs", "calls"].iter().any(|part| problem.contains(part));
        assert!(told, "{:?}: {problem}", String::from_utf8_lossy(code));
    }
    let named = LearnedEmbedding::from_bytes(&with_pickle(systems[0])).unwrap_err();
    assert_eq!(named, EmbeddingError::Code { name: "os.system".to_owned() });
}

#[test]
fn a_pickle_cannot_grow() {
    let deep = [&b"\x80\x02"[..], &[b'('; 300]].concat();
    let shallow: [&[u8]; 6] = [
        b"\x80\x02Nr\xff\xff\xff\xff.",
        b"\x80\x02X\xff\xff\xff\xff",
        b"\x80\x02h\x00.",
        b"\x80\x04N.",
        b"\x80\x02(N\x85t\x86.",
        b"\x80\x02\x8a\xffN.",
    ];
    for code in shallow.into_iter().chain([&deep[..]]) {
        let error = LearnedEmbedding::from_bytes(&with_pickle(code)).unwrap_err();
        assert!(matches!(error, EmbeddingError::Pickle { .. }), "{error}");
    }
    let repeated = |code: &[u8], times: usize| [&b"\x80\x02"[..], &code.repeat(times)].concat();
    for (code, part) in [
        (repeated(b"N", 20_000), "stack"),
        // A list in a list in a list: made, but never gone through.
        (repeated(b"]q\x00h\x00ee", 1), "mark"),
        (repeated(b"(Nt\x85\x85\x85\x85\x85(u", 20_000), "dictionary"),
        (vec![b'N'; (1 << 20) + 1], "bytes"),
    ] {
        let error = pickle::run(&code).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // A list that contains itself a thousand times over.
    let circular = [&b"\x80\x02]q\x00"[..], &b"h\x00a".repeat(1000), b"."].concat();
    assert!(pickle::run(&circular).is_ok());
    let values = repeated(b"}(NNu\x85N\x86a", 1);
    assert!(pickle::run(&values).is_err());
    let many = [&b"\x80\x02]"[..], &b"Na".repeat(60_000), b"."].concat();
    assert!(pickle::run(&many).unwrap_err().to_string().contains("too many values"));
}

#[test]
fn sizes_that_do_not_fit_are_found() {
    let bytes = file("a1111.pt");
    let change = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to);
        problem(&changed)
    };
    // The storage's numbers, the tensor's offset, rows and width.
    assert!(change(b"K\x10tq", b"K\x11tq").contains("17 numbers"));
    assert!(change(b"K\x00K\x02K\x08", b"K\x01K\x02K\x08").contains("beyond its storage"));
    assert!(change(b"K\x00K\x02K\x08", b"K\x00K\x03K\x08").contains("beyond its storage"));
    assert!(change(b"K\x00K\x02K\x08", b"K\x00K\x00K\x08").contains("shape [0, 8]"));
    assert!(change(b"K\x00K\x02K\x08", b"K\x00K\x02K\x09").contains(".contiguous()"));
    assert!(change(b"a1111/byteorder", b"a1111/byteordeR").contains("another name"));
    assert!(change(b"little", b"bigbig").contains("big-endian"));
}

#[test]
fn cut_short_anywhere_is_an_error() {
    for name in ["a1111.pt", "ldm-fp16.pt", "learned_embeds.bin", "emb_params-fp16.safetensors"] {
        let bytes = file(name);
        for length in 0..bytes.len() {
            assert!(LearnedEmbedding::from_bytes(&bytes[..length]).is_err(), "{name} cut to {length}");
        }
    }
    let code = b"\x80\x02}q\x00(X\x01\x00\x00\x00aJ\x01\x00\x00\x00M\x01\x00G12345678u.";
    for length in 0..code.len() {
        assert!(pickle::run(&code[..length]).is_err(), "{length}");
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = LearnedEmbedding::from_bytes(&bytes);
        let _ = pickle::run(&bytes);
        let _ = LearnedEmbedding::from_bytes(&[b"PK\x03\x04", &bytes[..]].concat());
    }

    #[test]
    fn changed_files_never_panic(
        name in prop::sample::select(vec!["a1111.pt", "ldm-fp16.pt", "learned_embeds.bin", "learned_embeds.safetensors"]),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = file(name);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(read) = LearnedEmbedding::from_bytes(&bytes) {
            prop_assert!(read.rows.iter().all(|number| number.is_finite()) && read.vectors() >= 1);
        }
    }
}
