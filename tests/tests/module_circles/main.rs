//! Modules that are beside each other use each other in one direction only, at every level of every crate.
//!
//! Whoever reads one of them, or tests it, then needs those below it and nothing else. What counts is what the code says:
//! `use` declarations and paths, followed through re-exports to the module that has the item. Tests do not count, nor does
//! what a module and its own parent use of each other. Methods that one module adds to a type of another are not seen.

mod graph;
mod source;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::places;
use source::ModuleTree;
use toml::Table;

/// The folders of the workspace's crates.
fn crate_folders() -> Result<Vec<String>> {
    let manifest: Table = toml::from_str(&fs::read_to_string(places::repository().join("Cargo.toml"))?)?;
    let members = manifest.get("workspace").and_then(|workspace| workspace.get("members")?.as_array());
    let members = members.context("Cargo.toml names no members")?.iter();
    members.map(|member| Ok(member.as_str().context("a member is no text")?.to_owned())).collect()
}

#[test]
fn modules_beside_each_other_form_no_circles() -> Result<()> {
    let (mut wrong, mut seen) = (String::new(), 0);
    for folder in crate_folders()? {
        let sources = places::repository().join(&folder).join("src");
        let read = |path: &Path| fs::read_to_string(sources.join(path)).ok();
        for root in ["lib.rs", "main.rs"].map(Path::new).iter().filter(|root| sources.join(root).exists()) {
            let tree = ModuleTree::read(root, &read).with_context(|| folder.clone())?;
            seen += tree.0.len();
            graph::circles(&tree).iter().for_each(|circle| wrong.push_str(&format!("{folder}: {circle}\n")));
        }
    }
    ensure!(wrong.is_empty(), "modules that use each other:\n{wrong}");
    ensure!(seen > 300, "the search finds only {seen} modules");
    Ok(())
}

/// The circles of a made-up crate.
fn made_up(files: &[(&str, &str)]) -> Result<Vec<String>> {
    let read = |path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|(_, text)| (*text).to_owned())
    };
    let tree = ModuleTree::read(&PathBuf::from("lib.rs"), &read)?;
    Ok(graph::circles(&tree))
}

#[test]
fn a_circle_is_shown_with_the_files_that_make_it() -> Result<()> {
    let circles = made_up(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::B;\npub struct A;"),
        ("b/mod.rs", "mod deep;\npub struct B;"),
        ("b/deep.rs", "fn f(c: &[super::super::c::C; 1]) { vec![0; c.len()]; }"),
        ("c.rs", "use crate::{d::D, a::{self as first}};\npub struct C;"),
        ("d.rs", "pub struct D;"),
    ])?;
    let shown = "(root): a, b, c\n    a -> b: a.rs\n    b -> c: b/deep.rs\n    c -> a: c.rs";
    ensure!(circles == [shown], "{circles:?}");
    Ok(())
}

#[test]
fn a_circle_hides_behind_no_re_export_and_in_no_macro() -> Result<()> {
    for (first, second) in [
        ("use super::Second;\npub struct First;", "pub struct Second(super::First);"),
        (
            "use super::second;\ntype T = second::Second;\npub struct First;",
            "fn f() { call!(a, super::First); }",
        ),
        ("use super::everything::Second as Other;\npub struct First;", "use crate::above::first::{First};"),
    ] {
        let circles = made_up(&[
            ("lib.rs", "mod above;"),
            (
                "above/mod.rs",
                "mod first; mod second;\npub use first::First; pub use second::*;\nmod everything { pub use super::*; }",
            ),
            ("above/first.rs", first),
            ("above/second.rs", &format!("pub struct Second;\n{second}")),
        ])?;
        let shown = circles.first().map_or("", String::as_str);
        ensure!(shown.starts_with("above: "), "{first}: {circles:?}");
        ensure!(shown.contains("first -> second") && shown.contains("second -> first"), "{first}: {shown}");
    }
    Ok(())
}

#[test]
fn tests_comments_texts_and_parents_make_no_circles() -> Result<()> {
    let b = "//! Like [`crate::a::A`].\n/* use crate::a::A; */\nconst B: &str = \"crate::a::A\";\n\
             #[cfg(test)]\nmod tests { use crate::a::A; }\n#[cfg(test)]\nuse crate::a::{A, C};\n\
             #[cfg(test)]\npub fn f<T, U>(a: crate::a::A) { crate::a::g() }\n\
             #[cfg(test)] #[path = \"b_tests.rs\"] mod more;\nmod tools;\npub fn outer() { tools::inner() }";
    let circles = made_up(&[
        ("lib.rs", "mod a; mod b; use a::A; pub fn shared() {}"),
        ("a.rs", "use super::b;\nuse crate::shared;\npub struct A;\nimpl A { fn f() { b::outer() } }"),
        ("b.rs", b),
        ("b/tools.rs", "#![cfg(test)]\nuse super::outer;\nfn inner() { crate::a::A }"),
    ])?;
    ensure!(circles.is_empty(), "{circles:?}");
    Ok(())
}
