//! Both sides of the boundary say the same: the compiler sees only one of them at a time.

use std::collections::{BTreeMap, BTreeSet};

/// The results and parameters, each with its type as C++ writes it.
type Functions = BTreeMap<String, Vec<(String, String)>>;

const HEADER: &str = include_str!("../csrc/shim.h");
/// Each header and what declares the same in Rust.
const BOUNDARIES: [(&str, &[&str]); 3] = [
    (HEADER, &[include_str!("native/mod.rs")]),
    (
        include_str!("../csrc/language_shim.h"),
        &[include_str!("gpt2/native.rs"), include_str!("parameters/native.rs"), include_str!("dropout.rs")],
    ),
    (include_str!("../csrc/text_shim.h"), &[include_str!("gpt2/text/native.rs")]),
];
const SOURCES: [(&str, &str); 16] = [
    ("allocator.cpp", include_str!("../csrc/allocator.cpp")),
    ("attention.cpp", include_str!("../csrc/attention.cpp")),
    ("causal_attention.cpp", include_str!("../csrc/causal_attention.cpp")),
    ("convolution.cpp", include_str!("../csrc/convolution.cpp")),
    ("fused.cpp", include_str!("../csrc/fused.cpp")),
    ("group_norm.cpp", include_str!("../csrc/group_norm.cpp")),
    ("language.cpp", include_str!("../csrc/language.cpp")),
    ("language_products.cpp", include_str!("../csrc/language_products.cpp")),
    ("language_step.cpp", include_str!("../csrc/language_step.cpp")),
    ("linear.cpp", include_str!("../csrc/linear.cpp")),
    ("plain_convolution.cpp", include_str!("../csrc/plain_convolution.cpp")),
    ("profile.cpp", include_str!("../csrc/profile.cpp")),
    ("shim.cpp", include_str!("../csrc/shim.cpp")),
    ("text.cpp", include_str!("../csrc/text.cpp")),
    ("threads.cpp", include_str!("../csrc/threads.cpp")),
    ("weight_gradient.cpp", include_str!("../csrc/weight_gradient.cpp")),
];
/// Types that may cross, in Rust and in C++.
const TYPES: [(&str, &str); 18] = [
    ("*const C_tensor", "const at::Tensor *"),
    ("*mut C_tensor", "at::Tensor *"),
    ("*mut *mut C_tensor", "at::Tensor **"),
    ("*const RawMask", "const ringtune_mask *"),
    ("*const i64", "const int64_t *"),
    ("*const f64", "const double *"),
    ("*mut f64", "double *"),
    ("*const c_int", "const int *"),
    ("*const c_char", "const char *"),
    ("*mut c_char", "char *"),
    ("*mut c_void", "void *"),
    ("extern \"C\" fn(*mut c_void)", "void (*)(void *)"),
    ("c_int", "int"),
    ("i64", "int64_t"),
    ("usize", "size_t"),
    ("f64", "double"),
    ("bool", "bool"),
    ("()", "void"),
];

fn between<'text>(text: &'text str, start: &str, end: &str) -> &'text str {
    let (_, rest) = text.split_once(start).unwrap();
    rest.split_once(end).unwrap().0
}

/// Without line comments, in one line.
fn plain(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

/// Text between the name's bracket and its counterpart.
fn parameters(declared: &str) -> Vec<&str> {
    let inside = declared.split_once('(').unwrap().1.rsplit_once(')').unwrap().0.trim();
    let mut depth = 0;
    let parts = inside.split(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn of_rust(text: &str) -> Functions {
    let block = plain(between(text, "unsafe extern \"C\" {", "\n}"));
    let known = |rust: &str| {
        let found = TYPES.iter().find(|(known, _)| *known == rust);
        found.unwrap_or_else(|| panic!("no type of C++ is known for {rust:?}")).1.to_owned()
    };
    let declared = block.split(';').filter_map(|line| line.trim().strip_prefix("fn "));
    let function = |line: &str| {
        let name = line.split_once('(').unwrap().0.to_owned();
        let (line, result) = match line.rsplit_once(") -> ") {
            Some((line, result)) => (format!("{line})"), result.trim()),
            None => (line.to_owned(), "()"),
        };
        let mut types = vec![("result".to_owned(), known(result))];
        types.extend(parameters(&line).into_iter().map(|parameter| {
            let (name, of) = parameter.split_once(':').unwrap();
            (name.trim().to_owned(), known(of.trim()))
        }));
        (name, types)
    };
    declared.map(function).collect()
}

fn of_header(text: &str) -> Functions {
    let block = plain(between(text, "extern \"C\" {", "} // extern \"C\""));
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    // "const char *name" to its type and its name.
    let split = |declared: &str| {
        let declared = declared.trim();
        let name = declared.rsplit(|letter| !is_name(letter)).next().unwrap();
        let of = declared[..declared.len() - name.len()].trim();
        assert!(!of.is_empty() && !name.is_empty(), "{declared:?} has no name");
        (name.to_owned(), of.to_owned())
    };
    let function = |line: &str| {
        let (name, result) = split(line.split_once('(').unwrap().0);
        let mut types = vec![("result".to_owned(), result)];
        types.extend(parameters(line).into_iter().map(|parameter| {
            match parameter.split_once("(*").and_then(|(of, rest)| Some((of, rest.split_once(')')?))) {
                Some((of, (name, taken))) => (name.to_owned(), format!("{of}(*){taken}")),
                None => split(parameter),
            }
        }));
        (name, types)
    };
    block.split(';').filter(|line| !line.trim().is_empty()).map(function).collect()
}

#[test]
fn rust_declares_what_the_header_declares() {
    for ((header, rust), least) in BOUNDARIES.into_iter().zip([18, 14]) {
        let (rust, header): (Functions, _) =
            (rust.iter().flat_map(|text| of_rust(text)).collect(), of_header(header));
        assert!(rust.len() >= least, "{rust:#?}");
        assert_eq!(rust, header);
    }
    let kinds = ["Libtorch = 0", "Avx512 = 1", "Amx = 2"];
    for kind in kinds {
        assert!(HEADER.contains(kind) && include_str!("attention.rs").contains(kind), "{kind}");
    }
}

#[test]
fn what_differs_is_seen() {
    let rust = |line: &str| of_rust(&format!("unsafe extern \"C\" {{\n    {line}\n}}\n"));
    let header = |line: &str| of_header(&format!("extern \"C\" {{\n{line}\n}} // extern \"C\"\n"));
    let same = rust("fn ringtune_x(a: *const C_tensor, b: usize, c: extern \"C\" fn(*mut c_void)) -> bool;");
    assert_eq!(same, header("// Words.\nbool ringtune_x(const at::Tensor *a, size_t b, void (*c)(void *));"));
    for other in [
        "int ringtune_x(const at::Tensor *a, size_t b, void (*c)(void *));",
        "bool ringtune_y(const at::Tensor *a, size_t b, void (*c)(void *));",
        "bool ringtune_x(at::Tensor *a, size_t b, void (*c)(void *));",
        "bool ringtune_x(const at::Tensor *a, int b, void (*c)(void *));",
        "bool ringtune_x(size_t b, const at::Tensor *a, void (*c)(void *));",
        "bool ringtune_x(const at::Tensor *a, size_t b);",
        "bool ringtune_x(const at::Tensor *a, size_t b, void (*c)(int));",
    ] {
        assert_ne!(same, header(other), "{other}");
    }
    assert_eq!(rust("fn ringtune_x();"), header("void ringtune_x();"));
}

#[test]
fn the_header_declares_all_that_is_defined() {
    let mut defined = BTreeSet::new();
    for (name, text) in SOURCES {
        let headers = ["shim.h", "bf16_tensors.h", "fused_tensors.h", "language_shim.h", "text_shim.h"];
        assert!(headers.iter().any(|header| text.contains(&format!("#include \"{header}\""))), "{name}");
        for line in text.lines().filter(|line| !line.starts_with([' ', '/', '#'])) {
            let Some((before, _)) = line.split_once('(') else { continue };
            let name = before.rsplit([' ', '*']).next().unwrap_or_default();
            if name.starts_with("ringtune_") {
                assert!(defined.insert(name.to_owned()), "{name} is defined twice");
            }
        }
    }
    let declared: BTreeSet<String> =
        BOUNDARIES.iter().flat_map(|(header, _)| of_header(header).into_keys()).collect();
    assert_eq!(defined, declared);
}
